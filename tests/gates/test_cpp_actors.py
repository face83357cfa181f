"""The gates of C++ actors alone: they share a client with a Python actor, are killed, come and go, and fork.

`test_kills` and `test_hostile_schedule` kill their learner: C++ actors are one of the forms there.
"""

import random
from pathlib import Path

import pytest
from harness.children import Child
from harness.cpp_client import PROGRAMS, build
from harness.trace import TraceTail, read_trace

from .conftest import Report, Tier, descriptors, resident_kib
from .kill_lab import Lab
from .test_kills import BATCH, LEAST, assert_gate, three_actors

pytestmark = pytest.mark.timeout(1_800)

VERSIONS = 100
POINTS = [
    *(f"{point}:1" for point in ("join", "joined", "leave")),
    *(f"{point}:{n}" for point in ("request", "add", "submit", "submitted", "acked") for n in (1, 30)),
]
CLOCKS_S = (86_400, 0, -86_400, 30 * 86_400, -1_790_000_000)
GROWTH_KIB = 1024


@pytest.fixture
def program() -> Path:
    return build(PROGRAMS / "gate_actor.cpp")


def digests(trace: Path) -> dict[int, int]:
    """Return the digest of each version that a trace names. A version has one digest for ever."""
    found: dict[int, int] = {}
    for event in read_trace(trace):
        if event.kind == "version":
            assert found.setdefault(event.fields["version"], event.fields["digest"]) == event.fields["digest"], event
    return found


def acks(lab: Lab, count: int = LEAST) -> None:
    before = lab.acked()
    lab.loop.until(lambda: lab.acked() >= before + count, 60.0, f"{count} more acks")


def test_python_and_cpp_actors_share_a_client(folder: Path, seed: int, tier: Tier, report: Report, program: Path) -> None:
    """Each actor has the learner's weights, bit for bit, at each of 100 versions."""
    kills = tier.size(5, 100, least=5)
    with Lab(folder, seed, program=program) as lab:
        lab.serving()
        actors = [*three_actors(lab, "on", rate=60.0), lab.actor("python", "on", rate=60.0, python=True)]
        actors[-1].start()
        seen = [lab.traces[actor.name] for actor in actors]
        for kill in range(kills):
            least = VERSIONS * (kill + 1) // kills
            lab.loop.until(lambda n=least: min(tail.count("version") for tail in seen) >= n, 60.0, f"{least} versions")  # type: ignore[misc]
            lab.loop.run([lab.learner], kills=1, progress=lab.acked, least=LEAST // 4)
        acks(lab)
        assert_gate(lab, "on", lab.finish(*actors), actors, report)
    published = digests(folder / "learner.jsonl")
    for actor in actors:
        held = digests(folder / f"{actor.name}.jsonl")
        both = held.keys() & published.keys()
        assert len(both) >= VERSIONS
        assert {version: held[version] for version in both} == {version: published[version] for version in both}


def assert_killed_gate(lab: Lab, actors: list[Child], report: Report) -> None:
    """Check that what was acknowledged is in the learner once, although actors and what they held were killed."""
    numbers = lab.finish(*actors)["clients"]["on"]
    outcome = lab.outcome()
    kills = {name: child.codes.count(-9) for name, child in lab.loop.children.items()}
    report(kills=kills, lives=outcome.lives, outcome=str(outcome))
    outcome.check(delivered=False)
    assert outcome.lost == outcome.duplicate == ()
    assert (numbers["rolled_back"], numbers["gap"], numbers["pending"]) == (0, 0, 0)
    assert numbers["accepted"] == numbers["verdicts"]["trained"] == outcome.applied


def test_actors_that_are_killed(folder: Path, seed: int, tier: Tier, report: Report, program: Path) -> None:
    with Lab(folder, seed, parameters=BATCH, program=program) as lab:
        lab.serving()
        actors = three_actors(lab, "on", rate=1_000.0)
        accepted = lab.traces["learner"]
        progress = lambda: int(accepted.last("law").get("accepted", 0))  # noqa: E731
        lab.loop.run([lab.learner, *actors], kills=tier.size(8, 100), progress=progress, least=LEAST)
        assert_killed_gate(lab, actors, report)


def test_an_actor_that_dies_within_a_step(folder: Path, seed: int, tier: Tier, report: Report, program: Path) -> None:
    """It dies at points between its calls, and anywhere in a call or in its I/O thread."""
    rng = random.Random(seed)
    points = [*POINTS, *(f"step:{rng.randint(1, 300)}" for _ in range(tier.size(4, 100)))]
    with Lab(folder, seed, parameters=BATCH, program=program) as lab:
        lab.serving()
        others = three_actors(lab, "on")
        mortal = lab.actor("mortal", "on", rate=1_000.0)
        for point in points:
            mortal.start(RL4SYS_DIE_AT=point)
            if point.startswith("leave"):
                mortal.tell("leave")
            mortal.expect(-9)
            lab.loop.until(lambda: not mortal.running, 60.0, f"the actor to die at {point}")
        mortal.start()
        acks(lab)
        assert_killed_gate(lab, [mortal, *others], report)


@pytest.mark.parametrize("clock", ["right", "wrong"])
def test_cpp_actors_that_come_and_go(clock: str, folder: Path, seed: int, tier: Tier, report: Report, program: Path) -> None:
    """They leave and join again while the learner is killed, and while their wall clock is set."""
    rounds = tier.size(6, 300)
    with Lab(folder, seed, parameters=BATCH, program=program) as lab:
        lab.serving()
        actors = three_actors(lab, "on")
        joined = [lab.traces[actor.name] for actor in actors]
        sizes: list[list[int]] = []
        for number in range(1, rounds + 1):
            for actor in actors:
                if clock == "wrong":
                    actor.tell(f"clock {CLOCKS_S[number % len(CLOCKS_S)]}")
                actor.tell("leave")
            if number % 3 == 0:
                lab.learner.kill()
                lab.serving()
            lab.loop.until(lambda n=number: min(t.count("joined") for t in joined) > n, 60.0, "the next agents")  # type: ignore[misc]
            if number in (rounds // 2, rounds):
                acks(lab, LEAST // 2)
                sizes.append([f(actor.pid) for actor in actors for f in (descriptors, resident_kib)])
        assert_gate(lab, "on", lab.finish(*actors), actors, report, agents=3 * (rounds + 1), sizes=sizes)
    half, whole = sizes
    assert whole[::2] == half[::2], "descriptors"
    assert max(after - before for before, after in zip(half[1::2], whole[1::2], strict=True)) < GROWTH_KIB or not tier.long


def test_cpp_hosts_that_fork(folder: Path, seed: int, tier: Tier, report: Report, program: Path) -> None:
    """A child's episodes are another actor's. The parent goes on, with the segments that it held."""
    forks = tier.size(3, 50)
    with Lab(folder, seed, parameters=BATCH, program=program) as lab:
        lab.serving()
        actors = three_actors(lab, "on")
        for _ in range(forks):
            for actor in actors:
                actor.tell("fork")
            acks(lab, LEAST // 4)
            lab.loop.run([lab.learner], kills=1, progress=lab.acked, least=LEAST // 4)
        status = lab.finish(*actors)
        children = {path.stem: TraceTail(path) for path in folder.glob("a?-*.jsonl")}
        lab.traces.update(children)
        assert_gate(lab, "on", status, actors, report)
    last = [child.last("done")["stats"] for child in children.values()]
    assert [(stats["accepted"], stats["counters"]["forks"]) for stats in last] == [(5, 1)] * 3 * forks
    assert len({stats["actor_id"] for stats in last}) == 3 * forks
