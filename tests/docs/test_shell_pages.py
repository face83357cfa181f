"""The shell blocks of all pages run as typed, from the clone, in order; pages that cannot run here say why."""

import configparser
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .player import ROOT, play

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Page:
    """A page that is played: the packages that it needs, and words of its commands with those that replace them."""

    needs: tuple[str, ...] = ("torch", "gymnasium")
    shorter: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    """Regular expressions that the output matches."""


PLAYED = {
    "howto/adaptive_compression.md": Page(
        shorter={"compression.py": "compression.py --train-steps 2000 --seconds 0.5 --blocks 8 --only fast"}, shows=("fast",)
    ),
    "howto/libraries.md": Page(
        needs=("torch", "yaml", "sb3_contrib"), shorter={"serve --config": "serve --port 50051 --config"}, shows=("sb3:TRPO",)
    ),
    "howto/multi_agent.md": Page(
        needs=("torch", "pettingzoo", "mpe2"), shorter={"--episodes 2000": "--episodes 20 --address localhost:50051"}
    ),
    "howto/operate.md": Page(shorter={"spools/plant-0": "spools/plant-0 --episodes 5"}, shows=(r"[5-8] episodes",)),
    "howto/store_tuning.md": Page(
        shorter={"tuning.py": "tuning.py --steps 2000 --evaluate 400"},
        shows=(r"(\d+) of \1 segments accepted, 0 actions came too late", r"(?m)^policy +\d", "policy / best fixed: "),
    ),
    "howto/web.md": Page(
        needs=("torch", "gymnasium", "starlette", "uvicorn", "plotly", "prometheus_client"),
        shorter={"127.0.0.1:8080 >": "127.0.0.1:0 >", "--client-id plant": "--client-id plant --episodes 5"},
    ),
}
NOT_PLAYED = {
    "howto/embed_cpp.md": "it installs packages of the distribution; tests/docs/test_embed_cpp.py builds and runs its programs",
    "howto/capacity.md": "its first command measures for a minute; tests/cli plays it in a short form",
    "howto/engines.md": "its Ray cluster has several machines, and its plug-in is the reader's",
    "howto/loggers.md": "tests/docs/test_loggers.py plays each section, where its library is installed",
    "howto/fleet.md": "its Ray cluster has several machines",
}
OTHERS = {"howto/deploy.md"}
"""Pages that tests/docs/test_tutorials.py plays, with all tutorials."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLAYED)
def test_the_commands_of_a_page_run_as_typed(name: str, tmp_path: Path) -> None:
    page = PLAYED[name]
    for package in page.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    played = play(DOCS / name, tmp_path, page.shorter)
    for pattern in page.shows:
        assert re.search(pattern, played.output), f"{name} does not show {pattern}:\n{played.output[-2000:]}"


def test_every_page_with_commands_is_played() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if re.search(r"^```sh\n", page.read_text(), re.M)}
    assert {page for page in pages if not page.startswith("tutorials/")} == set(PLAYED) | set(NOT_PLAYED) | OTHERS


def test_a_new_environment_gets_the_package_from_the_clone() -> None:
    """The package is on no index: its name with extras serves only where it is installed already."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = 0
    for page in [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for line in page.read_text().splitlines():
            for pins in re.findall(r"pip install[^`\n]* -c (\S+)", line):
                assert (ROOT / pins).is_file(), f"{page.name}: {line}"
            for name, extras in re.findall(r"pip install[^`\n]*?\s'?(rl4sys-zmq|\.)(?:\[([\w,]+)\])?", line):
                found += 1
                assert set(filter(None, extras.split(","))) <= set(setup["options.extras_require"]), f"{page.name}: {line}"
                new = "venv" in line or "/bin/pip" in line
                assert name == "." or (extras and not new), f"{page.name}: {line}"
    assert found > 10
