"""The state on disk is replaced by an old copy, damaged, or not to be used. Every loss is counted exactly."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.children import Child

from rl4sys_zmq.learner.run.checkpoints import read_manifest

from .conftest import Tier
from .kill_lab import Lab

pytestmark = pytest.mark.timeout(600)

SOME = 150
"""The number of acks that suffices for a loss."""


def two_actors(lab: Lab) -> list[Child]:
    actors = [lab.actor(f"a{i}", "on", rate=150.0) for i in range(2)]
    for actor in actors:
        actor.start()
    return actors


@contextmanager
def living(folder: Path, seed: int, acks: int = SOME, **options: Any) -> Iterator[tuple[Lab, list[Child]]]:
    """Run a learner and two actors. Begin the block when their learner has acknowledged this many segments."""
    with Lab(folder, seed, **options) as lab:
        lab.serving()
        actors = two_actors(lab)
        more(lab, acks)
        yield lab, actors


def more(lab: Lab, count: int = SOME) -> None:
    before = lab.acked()
    lab.loop.until(lambda: lab.acked() >= before + count, 40.0, f"{count} more acks")


def checkpoints(lab: Lab) -> list[Path]:
    return sorted(path for path in (lab.run_dir / "checkpoints" / "on").glob("[0-9]*") if path.name.isdigit())


def assert_exact(lab: Lab, status: dict[str, Any], actors: list[Child], *, gap: bool) -> int:
    """Check that the loss is counted exactly on both sides, and that there is no other fault."""
    outcome = lab.outcome(one_lineage=not gap)
    print(outcome)
    outcome.check()
    numbers = status["clients"]["on"]
    told = sum(lab.traces[f"a{i}"].last("done")["stats"]["counters"].get("gap_segments", 0) for i in range(len(actors)))
    in_doubt = sum(lab.traces[f"a{i}"].last("done")["stats"]["in_doubt"] for i in range(len(actors)))
    lost = len(outcome.lost)
    assert (numbers["rolled_back"], numbers["gap"], told, in_doubt) == (lost, lost if gap else 0, lost if gap else 0, 0)
    assert numbers["pending"] == 0
    assert numbers["accepted"] == numbers["verdicts"]["trained"] + lost == outcome.submitted
    assert [actor.codes for actor in actors] == [[0]] * len(actors)
    return lost


def test_an_older_copy_is_put_back(folder: Path, seed: int) -> None:
    with living(folder, seed) as (lab, actors):
        lab.learner.kill()
        shutil.copytree(lab.run_dir, folder / "copy")
        lab.serving()
        more(lab)
        lab.learner.kill()
        shutil.rmtree(lab.run_dir)
        (folder / "copy").rename(lab.run_dir)
        lab.serving()
        more(lab)
        assert assert_exact(lab, lab.finish(*actors), actors, gap=True) > 0  # some acks came before the copy


def flip_a_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_damaged_checkpoints(folder: Path, seed: int, tier: Tier) -> None:
    """Damage to the newest checkpoint loses nothing."""
    cases = [(1, "state.safetensors"), (2, "state.safetensors"), (1, "manifest.json"), (2, "manifest.json")]
    for number, (newest, name) in enumerate(cases if tier.long else cases[:1]):
        with_damaged_checkpoints(folder / str(number), seed, newest, name)


def with_damaged_checkpoints(folder: Path, seed: int, newest: int, name: str) -> None:
    rng = random.Random(seed)
    with living(folder, seed) as (lab, actors):
        lab.loop.until(lambda: len(checkpoints(lab)) >= 3, 20.0, "three checkpoints")
        lab.learner.kill()
        for path in checkpoints(lab)[-newest:]:
            flip_a_bit(path / name, rng)
        lab.serving()
        more(lab, 50)
        status = lab.finish(*actors)
        assert status["counters"]["checkpoints_damaged"] == newest
        lost = assert_exact(lab, status, actors, gap=False)
        assert lost == 0 or newest == 2


def test_resume_never(folder: Path, seed: int) -> None:
    with living(folder, seed) as (lab, actors):
        lab.learner.kill()
        lab.reconfigure(resume="never")
        lab.serving()
        more(lab)
        lost = assert_exact(lab, lab.finish(*actors), actors, gap=True)
        assert lost >= SOME
        (aside,) = lab.run_dir.glob("before-*")
        assert (aside / "journal.db").exists() and any((aside / "checkpoints" / "on").iterdir())


def test_resume_an_older_checkpoint(folder: Path, seed: int, tier: Tier) -> None:
    """The policy equals that checkpoint to the bit. Segments in the journal are trained on again; the rest is rolled back."""
    for back in (0, 1, 2) if tier.long else (2,):
        resume_an_older_one(folder / str(back), seed, back)


def resume_an_older_one(folder: Path, seed: int, back: int) -> None:
    with living(folder, seed) as (lab, actors):
        lab.loop.until(lambda: len(checkpoints(lab)) >= 3, 20.0, "three checkpoints")
        lab.stop(*actors)
        lab.learner.kill()
        chosen = checkpoints(lab)[-1 - back]
        manifest = read_manifest(chosen)
        lab.reconfigure(resume=str(chosen))
        lab.serving()
        tail = lab.traces["learner"]
        lab.loop.until(lambda: tail.last("ready").get("at_ns", 0) > lab.learner.started_ns, 20.0, "a learner that is ready")
        assert lab.ask(f"digest on {manifest.version}")["digest"] == manifest.digest
        status = lab.finish()
        lost = assert_exact(lab, status, actors, gap=False)
        assert lost == 0 or back == 2
        assert len(list((lab.run_dir / "checkpoints" / "on").glob("*.abandoned"))) == back
