"""The kill gates: no kill at any time loses an acknowledged segment, or causes one to be trained on twice."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.children import Child

from rl4sys_zmq.testing import ChaosProxy, NetworkFaults

from .conftest import LabForm, Report, Tier
from .kill_lab import Lab

pytestmark = pytest.mark.timeout(1_800)

LEAST = 200
"""The number of acks between two kills."""

BATCH = {"steps_per_update": 96}
ANY_FORM = LabForm("")


def three_actors(lab: Lab, client: str, address: str | None = None, rate: float = 120.0) -> list[Child]:
    """Start two actors that never wait for credit, and one that does."""
    policies = ("drop_oldest", "drop_oldest", "wait")
    actors = [lab.actor(f"a{i}", client, rate=rate, address=address, overflow=o) for i, o in enumerate(policies)]
    for actor in actors:
        actor.start()
    return actors


def assert_gate(
    lab: Lab,
    client: str,
    status: dict[str, Any],
    actors: list[Child],
    report: Report,
    form: LabForm = ANY_FORM,
    **figures: Any,
) -> None:
    """Check the gate: nothing lost, duplicate, unacked or rolled back, all laws held, and all actors in their first start and of
    this form, if one is given.
    """
    outcome = lab.outcome()
    done = [lab.traces[actor.name].last("done") for actor in actors]
    report(
        client=client,
        form="C++" if form.program else form.name,
        kills=sum(code == -9 for code in lab.learner.codes),
        retries=lab.learner.retries,
        submit_p99_9_ms=max(each["p99.9_ms"] for each in done),
        submit_max_ms=max(each["p100_ms"] for each in done),
        outcome=str(outcome),
        **figures,
    )
    outcome.check()
    assert outcome.lost == outcome.duplicate == outcome.unacked == ()
    assert outcome.applied == outcome.submitted == outcome.ok + len(outcome.recovered)
    assert not any(outcome.counted.values())
    numbers = status["clients"][client]
    assert (numbers["rolled_back"], numbers["gap"], numbers["pending"]) == (0, 0, 0)
    assert numbers["accepted"] == numbers["verdicts"]["trained"] == outcome.submitted
    assert [actor.codes for actor in actors] == [[0]] * len(actors)
    assert all(each["stats"]["dropped_at_source"] == 0 for each in done)
    assert all(each["stats"]["form"].startswith(form.name) for each in done)


def only_long(tier: Tier) -> None:
    if not tier.long:
        pytest.skip("the long tier alone: RL4SYS_SOAK=1")


def test_a_learner_that_is_killed(folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm) -> None:
    for scheme, client in itertools.product(("tcp", "ipc"), ("on", "off")) if tier.long else [("tcp", "on")]:
        with Lab(folder / f"{scheme}-{client}", seed, scheme=scheme, parameters=BATCH, program=lab_form.program) as lab:
            lab.serving()
            actors = three_actors(lab, client)
            lab.loop.run([lab.learner], kills=tier.size(2, 100), progress=lab.acked, least=LEAST)
            lab.learner.pause()  # the process survives SIGSTOP: no message that is queued for it may be processed twice
            lab.loop.wait(0.2)
            lab.learner.resume()
            assert_gate(lab, client, lab.finish(*actors), actors, report, lab_form, scheme=scheme)


QUICK_POINTS = ["checkpoint.rename:1", "commit.applied:4", "replay:5"]
ALL_POINTS = [
    *(f"checkpoint.begin:{n}" for n in (1, 3)),
    *(f"checkpoint.fsync:{n}" for n in (1, 2, 3, 4, 5, 6, 11)),
    *(f"checkpoint.rename:{n}" for n in (1, 2, 3, 4, 5)),
    *(f"checkpoint.renamed:{n}" for n in (1, 2, 3, 4, 5)),
    *(f"checkpoint.pruning:{n}" for n in (1, 2)),
    *(f"checkpoint.untold:{n}" for n in (1, 2)),
    *(f"commit.applied:{n}" for n in (1, 2, 3, 10, 50)),
    *(f"commit.done:{n}" for n in (1, 2, 3, 10, 50)),
    *(f"trim:{n}" for n in (1, 2)),
    "page:1",
    *("start.open:1", "start.bound:1", "start.build:1", "start.loaded:1", "start.rewind:1", "replayed:1"),
    *(f"join:{n}" for n in (1, 2, 3)),
    *(f"joined:{n}" for n in (1, 2, 3)),
    *(f"submit:{n}" for n in (1, 2, 30)),
]


def dies_at(lab: Lab, point: str) -> None:
    """Start the learner, and wait until it has killed itself at a point."""
    lab.learner.start(RL4SYS_DIE_AT=point)
    lab.learner.expect(-9)
    lab.loop.until(lambda: not lab.learner.running, 40.0, f"the learner to die at {point}")
    lab.loop.check()


def test_a_learner_that_dies_within_a_step(folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm) -> None:
    """The learner dies while it writes a checkpoint, commits or starts, or while actors join."""
    for client in ("on", "off") if tier.long else ("on",):
        dies_within_steps(folder / client, seed, tier, report, lab_form, client)


def dies_within_steps(folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm, client: str) -> None:
    with Lab(folder, seed, parameters=BATCH, program=lab_form.program, checkpoint_every_s=0.1) as lab:
        lab.serving()
        actors = three_actors(lab, client)
        lab.loop.until(lambda: lab.acked() >= LEAST, 30.0, "the first acks")
        lab.learner.kill()
        for point in ALL_POINTS if tier.long else QUICK_POINTS:
            dies_at(lab, point)
        if tier.long:
            actors.append(lab.actor("late", client, rate=50.0))
            actors[-1].start()
            dies_at(lab, "joined:4")  # three old actors, and the new one that joins for the first time
        lab.serving()
        before = lab.acked()
        lab.loop.until(lambda: lab.acked() >= before + LEAST, 30.0, "acks after all that")
        assert_gate(lab, client, lab.finish(*actors), actors, report, lab_form)


def test_a_learner_that_dies_while_it_is_fed_again(
    folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm
) -> None:
    """A large backlog: no checkpoint has any of it, so each start replays all of it from the journal."""
    only_long(tier)
    backlog = tier.size(0, 6_000, least=400)
    with Lab(folder, seed, parameters={"steps_per_update": 50 * backlog}, program=lab_form.program) as lab:
        lab.serving()
        actors = three_actors(lab, "on", rate=300.0)
        lab.loop.until(lambda: lab.acked() >= backlog, 90.0, "a backlog")
        lab.learner.kill()
        for n in (1, backlog // 3, backlog // 2):
            dies_at(lab, f"replay:{n}")
        for _ in range(tier.size(0, 10)):
            lab.learner.prepare()
            lab.loop.wait(0.3)
            lab.learner.start()
            lab.loop.wait(lab.loop.uniform(0.0, 0.1))  # twice within 100 ms: before it is ready
            lab.learner.kill()
        lab.serving()
        assert_gate(lab, "on", lab.finish(*actors), actors, report, lab_form)


def test_a_learner_that_stands_still(folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm) -> None:
    """The actors' timeouts expire. They reconnect, and the learner resumes with their old messages in its queues.

    libzmq must not abort a process that resumes. With ZMTP heartbeats it does, at a full queue (its issues 3937, 4767, 4841).
    """
    only_long(tier)
    with Lab(folder, seed, parameters=BATCH, program=lab_form.program) as lab:
        lab.serving()
        actors = three_actors(lab, "off")
        for pause_s in (3.5, 0.5, 8.0, 4.0):
            before = lab.acked()
            lab.loop.until(lambda b=before: lab.acked() >= b + LEAST, 30.0, "acks")  # type: ignore[misc]
            lab.learner.pause()
            lab.loop.wait(pause_s)
            lab.learner.resume()
        for actor in actors:
            actor.pause()
        lab.loop.wait(8.0)
        for actor in actors:
            actor.resume()
        before = lab.acked()
        lab.loop.until(lambda: lab.acked() >= before + LEAST, 30.0, "acks of actors that stood still")
        assert_gate(lab, "off", lab.finish(*actors), actors, report, lab_form)


Disturb = Callable[[ChaosProxy], None]
NETWORKS: dict[str, Disturb] = {
    "cut mid-frame": lambda proxy: setattr(proxy, "faults", NetworkFaults(cut_probability=0.02, reset=False)),
    "reset": lambda proxy: setattr(proxy, "faults", NetworkFaults(cut_probability=0.02, reset=True)),
    "half-open": lambda proxy: setattr(proxy, "faults", NetworkFaults(cut_probability=0.02, half_open=True)),
    "black hole": lambda proxy: proxy.black_hole(True),
    "slow drip": lambda proxy: setattr(proxy, "faults", NetworkFaults(latency_s=0.05, rate_bytes_s=2_000.0)),
    "corruption": lambda proxy: setattr(proxy, "faults", NetworkFaults(corrupt_probability=0.02)),
    "everything": lambda proxy: setattr(
        proxy, "faults", NetworkFaults(latency_s=0.01, cut_probability=0.01, reset=True, corrupt_probability=0.01)
    ),
}


def heal(proxy: ChaosProxy) -> None:
    """Restore a good network. A slow connection would still deliver its queued bytes at the old rate, so it is cut."""
    slow, proxy.faults = proxy.faults.rate_bytes_s > 0, NetworkFaults()
    proxy.black_hole(False)
    if slow:
        proxy.cut()


def seconds_to_rate(lab: Lab, rate: float, timeout_s: float) -> float:
    began, marks = time.monotonic(), [(time.monotonic(), lab.acked())]

    def fast() -> bool:
        now = time.monotonic()
        marks.append((now, lab.acked()))
        while marks[0][0] < now - 1.0:
            marks.pop(0)
        return marks[-1][1] - marks[0][1] >= rate

    lab.loop.until(fast, timeout_s, f"{rate:.0f} acks within a second")
    return time.monotonic() - began


def test_a_bad_network_and_a_learner_that_is_killed(
    folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm
) -> None:
    with Lab(folder, seed, parameters=BATCH, program=lab_form.program) as lab:
        lab.serving()
        with ChaosProxy(lab.address, seed=seed) as proxy:
            actors = three_actors(lab, "on", proxy.address)
            began, before = time.monotonic(), lab.acked()
            lab.loop.until(lambda: lab.acked() >= before + tier.size(LEAST, 3 * LEAST), 30.0, "acks on a good network")
            rate = (lab.acked() - before) / (time.monotonic() - began)
            healed_s: list[float] = []
            for name in [*NETWORKS, *NETWORKS, *list(NETWORKS)[:3]] if tier.long else ["everything"]:
                NETWORKS[name](proxy)
                lab.loop.wait(lab.loop.uniform(1.0, 4.0) if tier.long else 0.7)
                lab.learner.kill()
                lab.serving()
                lab.loop.wait(lab.loop.uniform(0.0, 2.0) if tier.long else 0.2)
                heal(proxy)
                healed_s.append(seconds_to_rate(lab, 0.9 * rate if tier.long else 50.0, 30.0))
            figures = {"rate_per_s": round(rate), "healed_s": [round(s, 2) for s in healed_s], **proxy.counters.snapshot()}
            assert_gate(lab, "on", lab.finish(*actors), actors, report, lab_form, **figures)
            assert max(healed_s) < 5.0 or not tier.long


def test_actors_with_a_spool_are_killed_too(folder: Path, seed: int, tier: Tier, report: Report) -> None:
    """A segment that the spool has recorded is delivered once, even if the learner and the actors are killed."""
    client = "on" if tier.long else "off"
    with Lab(folder, seed, scheme="tcp" if tier.long else "ipc", parameters=BATCH) as lab:
        lab.serving()
        actors = [lab.actor(f"a{i}", client, rate=120.0, spool=str(folder / f"spool{i}")) for i in range(3)]
        for actor in actors:
            actor.start()
        accepted = lab.traces["learner"]
        lab.loop.run(
            [lab.learner, *actors],
            kills=tier.size(4, 90),
            progress=lambda: accepted.last("law").get("accepted", 0),
            least=tier.size(LEAST // 2, LEAST),
        )
        status = lab.finish(*actors)
        outcome = lab.outcome()
        report(kills={name: child.kills for name, child in lab.loop.children.items()}, outcome=str(outcome))
        outcome.check(delivered=False)  # segments that were never in the spool were lost with their process
        assert outcome.lost == outcome.duplicate == ()
        numbers = status["clients"][client]
        assert (numbers["rolled_back"], numbers["gap"], numbers["pending"]) == (0, 0, 0)
