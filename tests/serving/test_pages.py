"""The pages about serving: their blocks run, and they name what there is."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import python, python_blocks

from rl4sys_zmq import serving
from rl4sys_zmq.serving import ActionConfig, QueuedDataStore, TrajectoryBuffer

DOCS = Path(__file__).parents[2] / "docs/howto"


def test_every_field_of_the_configuration_is_described() -> None:
    page = (DOCS / "action.md").read_text()
    section = page[page.index("## The configuration") : page.index("## What is promised")]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for field in dataclasses.fields(ActionConfig):
        assert any(f"`{field.name}`" in row.split(" | ")[0] for row in rows), field.name


def test_a_module_is_an_attribute_without_a_further_import() -> None:
    """As in agentlace's page, which imports the library alone."""
    code = "import rl4sys_zmq.serving as a; assert len(a.data.ReplayBuffer(capacity=2)) == 0 and a.action.ActionConfig"
    python("-c", code)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        serving.nothing  # noqa: B018


def test_every_class_of_serving_that_agentlace_has_is_on_the_migration_page() -> None:
    page = (DOCS / "migration_agentlace.md").read_text()
    theirs = {
        *("ActionClient", "ActionConfig", "ActionServer", "InferenceClient", "InferenceServer", "TrainerClient", "TrainerConfig"),
        *(
            "TrainerServer",
            "TrainerSMInterface",
            "GymEnvServerWrapper",
            "GymEnvClient",
            "GymEnvClientWrapper",
            "DataStoreBase",
            "QueuedDataStore",
        ),
        *("ReplayBuffer", "ReplayBufferDataStore", "MemoryEfficientReplayBufferDataStore"),
        *("TrajectoryBuffer", "TrajectoryBufferDataStore", "make_default_trajectory_buffer"),
        *("DataShape", "LatestSampler", "SequenceSampler", "FutureSampler", "mat_to_jpeg", "jpeg_to_mat"),
    }
    assert theirs <= set(serving.__all__)
    for name in theirs:
        assert f"`{name}" in page, name


def test_the_page_of_the_stores_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(DOCS / "serving_data.md")
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
