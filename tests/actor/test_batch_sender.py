"""A fast host sends its newest segments. Segments beyond the learner's request are dropped, oldest versions first."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from kit import segment_with

from rl4sys_zmq import AgentConfig
from rl4sys_zmq.actor.io.shared_state import ActorSharedState, SessionParameters
from rl4sys_zmq.actor.io.thread import BatchSender
from rl4sys_zmq.actor.segments import Outbox
from rl4sys_zmq.values import Segment

STEPS = 10
GENERATION = 7


def segment(version: int, generation: int = GENERATION) -> Segment:
    return segment_with(
        STEPS,
        "cut",
        observations=np.zeros((STEPS + 1, 2), np.float32),
        versions=np.full(STEPS, version, np.uint64),
        generation=generation,
    )


@dataclass
class Session:
    """The part of an actor's session that the sender uses."""

    credit_steps: int
    sent_steps: int = 0
    sent: list[int] = field(default_factory=list)
    leaving: bool = False

    def can_take(self) -> bool:
        return self.has_room(0, 0)

    def has_room(self, items: int, steps: int) -> bool:
        return self.leaving or self.sent_steps + steps < self.credit_steps

    def take(self, now: float, batch: list[Any], *, ahead_steps: int) -> list[Any]:
        self.sent_steps += sum(packed.steps for packed in batch)
        self.sent += [len(batch)]
        return []


def sender(
    versions: list[int],
    credit_steps: int,
    *,
    overflow: str = "drop_oldest",
    max_policy_lag: int = 4,
    generation: int = GENERATION,
) -> tuple[BatchSender, Outbox]:
    queue, host = Outbox(100, 1 << 20, drops=True), ActorSharedState()
    for version in versions:
        queue.put(segment(version, generation))
    config = AgentConfig(client_id="a", overflow=overflow)
    host.session_parameters = SessionParameters(
        GENERATION, "PPO", "onpolicy", STEPS, max_policy_lag, "drop", 1 << 20, 1 << 20, ""
    )
    return BatchSender(config, queue, cast(Any, Session(credit_steps)), host, lambda: None), queue


def left(queue: Outbox) -> list[int]:
    return [int(s.versions[0]) for s in queue._memory]


@pytest.mark.parametrize(
    ("versions", "credit_steps", "kept"),
    [
        ([1, 1, 2, 2, 3, 3], 20, [3, 3]),  # the newest version is enough
        ([1, 1, 2, 2, 3, 3], 30, [2, 2, 3, 3]),  # it needs a part of the second newest, which stays as a whole
        ([1, 1, 2, 2, 3, 3], 90, [1, 1, 2, 2, 3, 3]),  # the request is for more segments than there are
        ([3, 3, 3, 3, 3, 3], 10, [3, 3, 3, 3, 3, 3]),  # one burst: no version is newer, so none is dropped
        ([1, 1, 2, 2, 3, 3], 0, [1, 1, 2, 2, 3, 3]),  # no request: all segments that the learner can still use stay
    ],
)
def test_older_versions_go_when_newer_ones_fill_the_request(versions: list[int], credit_steps: int, kept: list[int]) -> None:
    made, queue = sender(versions, credit_steps)
    made._drop_stale(GENERATION, 3)
    assert left(queue) == kept
    assert queue.dropped.get("lag", 0) == len(versions) - len(kept)


def test_an_actor_that_leaves_sends_older_versions_too() -> None:
    made, queue = sender([1, 1, 2, 2, 3, 3], 20)
    session = cast(Session, made._session)
    session.leaving = True
    for _ in made.send_due(0.0, (GENERATION, 3), urgent=True):
        pass
    assert (session.sent, queue.items, queue.dropped) == ([6], 0, {})


def test_a_simulator_that_waits_and_an_off_policy_learner_lose_nothing() -> None:
    for options in ({"overflow": "wait"}, {"max_policy_lag": -1}):
        made, queue = sender([1, 1, 2, 2, 3, 3], 20, **cast(Any, options))
        made._drop_stale(GENERATION, 3)
        assert len(left(queue)) == 6


def test_segments_of_another_generation_do_not_count_as_newer() -> None:
    made, queue = sender([1, 1, 2, 2, 3, 3], 20, generation=GENERATION - 1)
    made.first_version = 3
    made._drop_stale(GENERATION, 3)
    assert left(queue) == [1, 1, 2, 2, 3, 3]


def test_the_limit_on_the_lag_holds_without_a_request() -> None:
    made, queue = sender([1, 1, 2, 2, 9, 9], 0)
    made._drop_stale(GENERATION, 9)
    assert left(queue) == [9, 9]


def test_a_segment_that_cannot_be_encoded_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    made, queue = sender([1, 2, 2, 3], 1 << 20)
    for place in (0, 2):
        bad = replace(queue._memory[place], log_probs=np.zeros(1, np.float32))
        queue._memory[place] = bad
    session = cast(Session, made._session)
    for now in (0.0, 1.0, 2.0):
        for _ in made.send_due(now, None, urgent=True):
            pass
    assert (session.sent, session.sent_steps, queue.items, queue.steps, queue.in_hand) == ([1, 1], 2 * STEPS, 0, 0, 0)
    assert queue.dropped == {"not_encodable": 2}
    assert caplog.text.count("can't be encoded") == 1
