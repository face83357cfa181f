"""The examples of docs/howto/serving_data.md, run from top to bottom."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import python_blocks

from rl4sys_zmq.serving import QueuedDataStore, TrajectoryBuffer

DOCUMENT = Path(__file__).parents[3] / "docs/howto/serving_data.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(DOCUMENT)
    assert len(blocks) == 3
    store = QueuedDataStore(10)
    store.batch_insert(["a", "b", "c"])
    names: dict[str, Any] = {
        "store": store,
        "from_id": 0,
        "env": SimpleNamespace(observation_space=None, action_space=None),
        "observation": np.zeros(3, np.float32),
        "following": np.ones(3, np.float32),
        "action": 1,
        "reward": 1.0,
        "terminated": False,
        "truncated": False,
        "done": False,
        "errors": np.ones(256),
    }
    exec(blocks[0], names)
    assert (names["first"], names["items"]) == (1, ["b", "c"])
    exec(blocks[1], names)
    assert names["batch"]["observations"].shape == (256, 3)
    assert names["batch"]["masks"].tolist() == [1.0] * 256
    fill = "buffer = TrajectoryBuffer(100_000, seed=1)\n"
    insert = "[buffer.insert({'observations': observation, 'actions': action, 'rewards': reward}) for _ in range(20)]\n"
    assert fill in blocks[2]
    exec(blocks[2].replace(fill, fill + insert), names)
    buffer = names["buffer"]
    assert isinstance(buffer, TrajectoryBuffer)
    assert buffer.sample("training", 256)[0]["observations"].shape == (256, 2, 3)
    data, mask = buffer.sample("history", 1, force_indices=[2])
    assert data["past"].shape == (1, 8, 3)
    assert mask["past"].tolist() == [[False] * 5 + [True] * 3]
    assert set(buffer.sample("goals", 5)[0]["goal"]) == {"data", "offset"}
    buffer.save("buffer.npz")
    assert len(TrajectoryBuffer.load("buffer.npz")) == 21
