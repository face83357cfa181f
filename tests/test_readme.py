"""What the documents show runs: each Python block of the README and of the guide, as it stands there, on a port of its own."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.config import AgentConfig, ClientConfig, LearnerConfig, WeightsConfig

ROOT = Path(__file__).parents[1]
LIMIT_S = 100.0


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)


def block_with(name: str, words: str) -> str:
    found = [b for b in blocks(name) if words in b]
    assert len(found) == 1, f"{len(found)} blocks of {name} have {words!r}"
    return found[0]


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    yield number


def execute(code: str, port: int, **names: Any) -> dict[str, Any]:
    namespace = {"__name__": "document", **names}
    exec(compile(code.replace("50051", str(port)), "document", "exec"), namespace)
    return namespace


class Background:
    """A block that runs in a thread of its own; `join` raises what it raised."""

    def __init__(self, code: str, port: int) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(code, port))
        self._thread.start()

    def _run(self, code: str, port: int) -> None:
        try:
            execute(code, port)
        except BaseException as error:  # raised again in join
            self._error = error

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def test_the_readmes_actor_and_learner_work_together(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    actor, learner = block_with("README.md", "room_c"), block_with("README.md", "runs/house")
    assert len(actor.splitlines()) <= 15
    assert len(learner.splitlines()) <= 10
    serving = Background(learner, port)
    try:
        execute(actor, port)
    finally:
        serving.join()
    assert re.search(r"version \d+ mean return -\d", capsys.readouterr().out)
    assert {p.name for p in (tmp_path / "runs/house").iterdir()} >= {"config.json", "log.jsonl", "tensorboard"}


def run_tests_of(document: str) -> int:
    count = 0
    for block in blocks(document):
        if "def test_" not in block:
            continue
        names = execute(block, 0)
        for name in [n for n in names if n.startswith("test_")]:
            names[name]()
            count += 1
    return count


@pytest.mark.parametrize(("document", "least"), [("README.md", 1), ("docs/guide.md", 3)])
def test_the_documents_tests_pass(document: str, least: int) -> None:
    if "guide" in document:
        pytest.importorskip("tensorboard")  # its learner has a run directory
    assert run_tests_of(document) >= least


def test_every_block_of_the_guide_is_python() -> None:
    for block in blocks("docs/guide.md"):
        compile(block, "guide", "exec")


@pytest.mark.parametrize("cls", [AgentConfig, ClientConfig, LearnerConfig], ids=lambda cls: cls.__name__)
def test_the_guide_lists_every_option_with_its_default(cls: type[Any]) -> None:
    guide = (ROOT / "docs/guide.md").read_text()
    section = guide.partition(f"### {cls.__name__}\n")[2].partition("\n###")[0]
    rows = dict(re.findall(r"^\| `(\w+)`[^|]* \| ([^|]+) \|", section, re.MULTILINE))
    for field in dataclasses.fields(cls):
        if field.name == "ignored":
            continue
        assert field.name in rows, f"{cls.__name__}.{field.name} is not in the guide"
        said = rows[field.name].strip()
        if field.default is dataclasses.MISSING:
            assert said in ("required", "`{}`"), field.name
        else:
            plain = f"{field.default:,}" if type(field.default) is int else str(field.default)
            plain = "{}" if field.default == WeightsConfig() else plain
            assert said in (f"`{plain}`", "-" if field.default is None else "", f"`{field.default}`".lower()), field.name


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "examples/README.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
