"""Names from outside never collide with the library's files: a run directory starts again with any client names."""

import random
import sys
from pathlib import Path

import pytest
from kit import play

from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.names import is_name
from rl4sys_zmq.ops.curves import draw_curves, read_curves

from .conftest import Child, Report, Spawn, Tier, join

pytestmark = pytest.mark.timeout(300)

NAMES = (
    *("journal.db-journal", "journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock", "journal.db.marks"),
    *("log.jsonl", "log", "config.json", "checkpoints", "dead", "tensorboard", "before-1", "00000001", "stores.db"),
    *("Checkpoints", "CHECKPOINTS", "checkpointS", "%2E", "%252E", "%2e%2e", "%", "%-", "%~1", "a%~1", "A", "~"),
    *(
        ".tmp-x".strip("."),
        "events.out.tfevents.1",
        "luna",
        "LUNA",
        "ä",
        "日本",
        "x" * 200,
        "X" * 200,
        "ä" * 200,
        "ä" * 199 + "b",
    ),
    *("日" * 25, "日" * 199, "😀" * 60, "a" * 149 + "日" * 9, "$^$", "$é_{", "%s%d{0}", "<script>alert(1)<", "-h", "_hidden"),
)


def drawn_names(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    names: list[str] = []
    while len(names) < count:
        letters = (chr(rng.randrange(sys.maxunicode + 1)) for _ in range(8 * rng.choice((1, 2, 25, 200))))
        name = "".join(letter for letter in letters if letter.isprintable() and letter not in "/\\:")[:200]
        names += [name] if is_name(name) and name not in names else []
    return names


OURS = {"config.json", "checkpoints", "dead", "log", "log.jsonl", "tensorboard"}
STEPS = 4


@pytest.fixture
def run_dir(folder: Path) -> Path:
    return folder / "run"


class Lives:
    """A sequence of learners on one run directory."""

    def __init__(self, spawn: Spawn, run_dir: Path) -> None:
        self._spawn, self._run_dir = spawn, run_dir
        self.accepted: dict[str, int] = {}

    def start(self) -> Child:
        """Start the next learner, and check that all acknowledged segments are there."""
        bind = f"ipc://{self._run_dir.parent}/l"
        self.child = self._spawn(
            "learner",
            {
                "bind": bind,
                "config": {"run_dir": str(self._run_dir), "max_clients": 2048},
                "fake": {"steps_per_update": 8, "rollout_length": 8},
            },
        )
        self.address = self.child.hear()["address"]
        clients = self.child.ask("status")["clients"]
        assert {name: clients[name]["accepted"] for name in self.accepted} == self.accepted
        return self.child

    def play(self, name: str, episodes: int = 2) -> None:
        with join(self.address, client_id=name, actor_id=name) as agent:
            agent.wait_version(0, timeout_s=60.0)
            for _ in range(episodes):
                play(agent, STEPS)
            agent.flush(timeout_s=60.0)
        self.accepted[name] = self.accepted.get(name, 0) + episodes


def test_a_run_starts_again_whatever_its_clients_are_called(
    spawn: Spawn, run_dir: Path, tier: Tier, seed: int, report: Report
) -> None:
    names = (*NAMES, *drawn_names(tier.size(20, 1000), seed))
    lives = Lives(spawn, run_dir)
    lives.start()
    for name in names:
        lives.play(name)
    assert lives.child.ask("save") is None
    lives.child.kill()
    lives.start()
    for name in names:
        lives.play(name, 1)
    lives.child.end()
    assert {newest_policy(run_dir, name)[1].origin.client_id for name in names} == set(names)
    curves = read_curves(run_dir)
    draw_curves(curves, run_dir.parent / "curves.png")
    assert len(curves) == len(names)
    lives.start()
    lives.child.end()

    found = {path.name for path in run_dir.iterdir() if not path.name.startswith("journal.db")}
    assert not (found - OURS) & set(names), f"names from outside in the run directory: {sorted(found - OURS)}"
    assert all(path.is_file() for path in (*run_dir.glob("journal.db*"), run_dir / "config.json", run_dir / "log.jsonl"))
    for folder in ("tensorboard", "checkpoints"):
        folders = [path.name for path in (run_dir / folder).iterdir()]
        assert len({name.lower() for name in folders}) == len(folders) == len(names)
    report(names=len(names), segments=sum(lives.accepted.values()), lost=0, lives=3)
