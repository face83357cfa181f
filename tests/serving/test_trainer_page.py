"""The examples of docs/howto/trainer.md run unchanged."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import free_port, python_blocks, until

from .trainers import WAIT_S, transition

PAGE = Path(__file__).parents[2] / "docs/howto/trainer.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer, actor = python_blocks(PAGE)
    ports = {page: str(free_port()) for page in ("5555", "5556")}
    done = threading.Event()
    saved: list[Any] = []
    seen: list[Any] = []

    def run(code: str, **names: Any) -> None:
        exec(re.sub("555[56]", lambda m: ports[m[0]], code), names)

    def train_on(replay: Any) -> Any:
        done.wait(0.01)
        return {"w": np.array([len(replay)], np.float32)}

    def act() -> Iterator[dict[str, Any]]:
        for n in range(100):
            yield transition(n)
        until(lambda: seen, "a network")

    def save(name: str) -> str:
        saved.append(name)
        return name

    names = {"training": lambda: not done.is_set(), "train_on": train_on, "save": save}
    thread = threading.Thread(target=run, args=(trainer,), kwargs=names)
    thread.start()
    try:
        run(actor, act=act, use=seen.append)
    finally:
        done.set()
        thread.join(WAIT_S)
    assert saved == ["last"]
    assert seen[-1]["w"].dtype == np.float32
    assert (tmp_path / "runs" / "trainer" / "stores.db").exists()
