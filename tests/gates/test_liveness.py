"""The gate of liveness: after each kill of a learner the training continues, soon after its first actor has returned.

A checkpoint's mark often lies inside a message with many short segments. A learner that starts again then replays a part of
that message. It must not treat the rest as data that are still to arrive: learner and actors would wait for each other.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.children import Child
from harness.trace import read_trace

from .conftest import Report, Tier
from .kill_lab import Lab

pytestmark = pytest.mark.timeout(3_600)

LONGEST_STILL_S = 5.0
"""The longest that a client may make no progress, in seconds.

It counts from the return of the client's first actor until the client has accepted and judged new segments. A learner that was
killed with many segments in its journal first trains on these. This can take longer, but it is progress.
"""

BATCH_STEPS = 24
SMALL: Mapping[str, Any] = {"hidden_sizes": [8], "rollout_length": 4}
CLIENTS: Mapping[str, Mapping[str, Any] | None] = {
    "on": None,
    "ppo": {
        "algorithm": "PPO",
        "parameters": {**SMALL, "steps_per_epoch": BATCH_STEPS, "minibatch_size": 12, "update_epochs": 1},
    },
    "dqn": {"algorithm": "DQN", "parameters": {**SMALL, "buffer_size": 2_000, "learning_starts": 50, "batch_size": 16}},
}
MAX_QUEUED = 2_000
"""The number of segments that an actor may hold.

During three hundred kills, six actors could produce more than a learner has time for.
"""

POINTS = ("checkpoint.untold", "checkpoint.renamed", "checkpoint.rename", "commit.done")
"""The points at which a learner is killed: around a checkpoint, and after a commit. Other kills are at random times."""


def many_short_segments(lab: Lab, client: str) -> list[Child]:
    """Return two actors of a client. One waits for credit. The other never does, and its backlog is sent in large messages."""
    return [
        lab.actor(
            f"{client}-{policy}",
            client,
            rate=80.0,
            algorithm=CLIENTS[client],
            max_queued=MAX_QUEUED,
            overflow=policy,
            send_frequency=16,
        )
        for policy in ("wait", "drop_oldest")
    ]


def test_a_run_goes_on_after_each_kill(folder: Path, seed: int, tier: Tier, report: Report) -> None:
    rng = random.Random(seed)
    clients = list(CLIENTS) if tier.long else ["on", "ppo"]
    kills = tier.size(4, 300)
    with Lab(folder, seed, parameters={"steps_per_update": BATCH_STEPS}, torch=True, checkpoint_every_s=0.1, pacing_lag=0) as lab:
        lab.serving(60.0)
        actors = [actor for client in clients for actor in many_short_segments(lab, client)]
        for actor in actors:
            actor.start()
        tail, points = lab.traces["learner"], dict.fromkeys((*POINTS, "at random"), 0)
        for kill in range(kills):
            lives = tail.count("life")
            lab.loop.until(
                lambda n=kill: tail.count("going_on") >= (n + 1) * len(clients),  # type: ignore[misc]
                60.0,
                f"all to go on before kill {kill}",
            )
            lab.learner.prepare()
            point = rng.choice((*POINTS, *("at random",) * len(POINTS)))
            points[point] += 1
            if point == "at random":
                lab.loop.wait(rng.uniform(0.0, 0.4))
                lab.learner.kill()
            else:
                lab.learner.expect(-9)
                lab.learner.tell(f"die {point}:{rng.randint(1, 4)}")
                lab.loop.until(lambda: not lab.learner.running, 20.0, f"the learner to die at {point}")
            lab.learner.start()
            lab.loop.until(lambda n=lives: tail.count("life") > n, 30.0, "the next life")  # type: ignore[misc]
        lab.loop.until(lambda: tail.count("going_on") >= (kills + 1) * len(clients), 60.0, "all to go on at last")
        status = lab.finish(*actors, timeout_s=120.0)
        outcome = lab.outcome(unrecorded=clients[1:])
        waits, stills = seconds_until_it_went_on(lab)
    times = {"slowest_s": max(waits), "median_s": sorted(waits)[len(waits) // 2], "longest_still_s": max(stills)}
    report(kills=points, waits=len(waits), **times, outcome=str(outcome))
    assert len(waits) >= (kills + 1) * len(clients)
    assert max(stills) <= LONGEST_STILL_S
    outcome.check()
    assert outcome.lost == outcome.duplicate == outcome.unacked == ()
    for client in clients:
        numbers = status["clients"][client]
        assert (numbers["rolled_back"], numbers["gap"], numbers["pending"]) == (0, 0, 0)
        assert numbers["queued_steps"] == numbers["queued"] == numbers["queued_bytes"] == 0


def seconds_until_it_went_on(lab: Lab) -> tuple[list[float], list[float]]:
    """Return, for each start and client, the times until it judged new segments and the longest without progress."""
    waits, stills, returned = [], [], {}
    for event in read_trace(lab.folder / "learner.jsonl"):
        if event.kind == "returned":
            returned[event.life, event.client] = event.at_ns
        elif event.kind == "going_on":
            waits.append(round((event.at_ns - returned.pop((event.life, event.client))) / 1e9, 3))
            stills.append(round(event.fields["still_s"], 3))
    return waits, stills
