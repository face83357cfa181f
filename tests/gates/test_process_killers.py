"""A segment that ends the learner's process each time it is trained on is found, and only that one is quarantined."""

import contextlib
import json
import math
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from kit import play, until

from rl4sys_zmq.errors import LearnerUnavailable, ProtocolError
from rl4sys_zmq.ops.requests import request_status

from .conftest import PATIENCE_S, Child, Report, Spawn, Tier, join

STEPS = 2
MOST_LIVES = 20


class Mortal:
    """A learner that is started again after each crash."""

    def __init__(self, spawn: Spawn, folder: Path, at: str, segments: int) -> None:
        self._spawn = spawn
        self.options: dict[str, Any] = {
            "bind": f"ipc://{folder}/l",
            "run_dir": str(folder / "run"),
            "at": at,
            "steps_per_update": segments * STEPS if at == "batch" else 8,
        }
        self.run_dir = folder / "run"
        self.deaths = 0
        self.child: Child = self._start()

    def _start(self) -> Child:
        return self._spawn("mortal_learner", self.options)

    def client(self) -> dict[str, Any]:
        """Return the client's status. Start the learner again if it has crashed."""
        while True:
            if self.child.process.poll() is not None:
                self.child.end(-signal.SIGSEGV)
                self.deaths += 1
                assert self.deaths < MOST_LIVES, "it is not found out"
                self.child = self._start()
            with contextlib.suppress(LearnerUnavailable, ProtocolError):
                clients = request_status(self.options["bind"], 0.5)["clients"]
                if "lab" in clients and clients["lab"]["state"] == "running" and not clients["lab"]["resuming"]:
                    found: dict[str, Any] = clients["lab"]
                    return found


def judged(client: dict[str, Any], **expected: int) -> bool:
    return all(client["verdicts"][name] == count for name, count in expected.items())


@pytest.mark.parametrize("at", ["batch", "observe", "update"])
def test_a_segment_that_ends_the_process_is_found(
    at: str, spawn: Spawn, folder: Path, seed: int, tier: Tier, report: Report
) -> None:
    segments = tier.size(16, 64)
    for round_number in range(tier.size(1, 5)):
        place = random.Random(seed + round_number).randrange(segments)
        below = folder / str(round_number)
        below.mkdir()
        learner = Mortal(spawn, below, at, segments)
        learner.child.hear()
        with join(learner.options["bind"], algorithm_name="MORTAL", queue_items=10_000) as agent:
            for number in range(segments):
                play(agent, STEPS, 666.0 if number == place else 1.0)
            fed = segments
            if at == "batch":  # one more segment replaces the quarantined one
                until(lambda learner=learner: judged(learner.client(), quarantined=1), "the culprit", every_s=0.05)  # type: ignore[misc]
                play(agent, STEPS, 1.0)
                fed += 1
            until(
                lambda learner=learner, fed=fed: judged(learner.client(), quarantined=1, trained=fed - 1),  # type: ignore[misc]
                "all the others are trained on",
                every_s=0.05,
            )
            client = learner.client()
        assert client["accepted"] == fed and client["pending"] == client["rolled_back"] == 0
        # The process that quarantines the segment raises both alarms, once each. The counts begin at the start of the process.
        counts = {name: alarm["count"] for name, alarm in client["alarms"].items()}
        assert counts == {"process_killer": 1, "segment_quarantined": 1}
        assert "will be quarantined" in client["alarms"]["process_killer"]["text"]
        (letter,) = list((learner.run_dir / "dead").glob("*/*.json"))
        about = json.loads(letter.read_text())
        assert "ended the learner's process" in about["reason"] and about["seq"] == place
        # the next start quarantines nothing more, and continues
        deaths = learner.deaths
        learner.child.end()
        learner.child = learner._start()
        again = until(learner.client, "another life")
        assert judged(again, quarantined=1, trained=fed - 1) and learner.deaths == deaths and again["alarms"] == {}
        learner.child.end()
        report(at=at, segments=segments, culprit=place, deaths=deaths, allowed=math.ceil(math.log2(segments)) + 3)
        assert deaths <= math.ceil(math.log2(segments)) + 3


def test_kills_from_outside_condemn_nothing(spawn: Spawn, folder: Path, seed: int, report: Report, tier: Tier) -> None:
    """A learner is killed at random times while it trains. All segments are trained on, and none is quarantined."""
    rng, stopping = random.Random(seed), threading.Event()
    learner = Mortal(spawn, folder, "update", 1)
    learner.options["steps_per_update"] = 2
    learner.child.hear()
    kills = tier.size(5, 50)
    with join(learner.options["bind"], algorithm_name="MORTAL", queue_items=100_000, overflow="wait") as agent:
        host = threading.Thread(target=lambda: keep_playing(agent, stopping), name="host")
        host.start()
        try:
            for _ in range(kills):
                before = learner.client()["verdicts"]["trained"]
                until(lambda n=before: learner.client()["verdicts"]["trained"] > n, "some are trained on", every_s=0.01)  # type: ignore[misc]
                stopping.wait(rng.random() * 0.05)
                learner.child.kill()
                learner.child = learner._start()
        finally:
            stopping.set()
            host.join(PATIENCE_S)
        agent.flush(PATIENCE_S)
        done = until(lambda: (c := learner.client())["accepted"] == c["verdicts"]["trained"] and c, "all are trained on")
    report(kills=kills, trained=done["verdicts"]["trained"], quarantined=done["verdicts"]["quarantined"])
    assert done["verdicts"]["quarantined"] == done["rolled_back"] == 0
    learner.child.end()


def keep_playing(agent: Any, stopping: threading.Event) -> None:
    while not stopping.wait(0.001):
        play(agent, STEPS, 1.0)
