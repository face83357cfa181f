"""A learner that counts its credit wrongly."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kit import play as play_episode
from kit import until

from rl4sys_zmq.delivery import DataAmount, LearnerThreadBacklog

BATCH_STEPS = 16


def play(agent: Any, episodes: int, stop: threading.Event) -> None:
    """Play episodes of two steps, which wait for credit."""
    for _ in range(episodes):
        if stop.is_set():
            return
        play_episode(agent, 2)


def test_credit_that_would_never_come_back_is_corrected(inproc_lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, overflow="wait", rollout_length=4)
    accept, wrong = LearnerThreadBacklog.accept, [DataAmount(5 * BATCH_STEPS, 3, 1000)]

    def miscount(transit: LearnerThreadBacklog, load: DataAmount) -> None:
        accept(transit, load)
        if wrong:
            transit.waiting.add(wrong.pop())

    monkeypatch.setattr(LearnerThreadBacklog, "accept", miscount)
    play(agent, 200, threading.Event())  # without a correction, a later call would wait forever
    learner.wait(client_id="lab", version=20, timeout_s=20.0)
    alarms = until(lambda: learner.status()["clients"]["lab"]["alarms"], "an alarm")
    assert set(alarms) == {"credit_corrected"}
    assert alarms["credit_corrected"]["count"] == 1
    assert "80 steps in 3 segments" in alarms["credit_corrected"]["text"]
    assert until(lambda: agent.stats()["alarms"], "the actor's alarm") == {"credit_corrected": 1}


def test_a_client_that_stands_still_is_seen_before_anybody_asks(inproc_lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, overflow="wait", rollout_length=4, wait_timeout_s=60.0)
    accept = LearnerThreadBacklog.accept
    monkeypatch.setattr(LearnerThreadBacklog, "correct_waiting", lambda transit: None)
    monkeypatch.setattr(
        LearnerThreadBacklog, "accept", lambda transit, load: accept(transit, DataAmount(2 * load.steps, load.items, load.nbytes))
    )
    stop = threading.Event()
    host = threading.Thread(target=play, args=(agent, 200, stop))
    host.start()
    try:
        alarm = until(lambda: learner.status()["clients"]["lab"]["alarms"].get("stalled"), "the watch")
        assert "actors request credit, and none has any" in alarm["text"]
        assert learner.status()["clients"]["lab"]["stalled_s"] >= 1.0
        monkeypatch.undo()
        until(lambda: "credit_corrected" in learner.status()["clients"]["lab"]["alarms"], "the correction")
        until(lambda: learner.status()["clients"]["lab"]["stalled_s"] == 0.0, "a client that goes on")
    finally:
        stop.set()
        host.join(30.0)


def test_a_client_whose_actors_have_nothing_to_send_does_not_stand_still(inproc_lab: Any) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, overflow="wait", rollout_length=4)
    play(agent, 20, threading.Event())
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 3.5, "a clock")
    client = learner.status()["clients"]["lab"]
    assert (client["stalled_s"], client["alarms"]) == (0.0, {})
