"""Several host threads go back from the same version of a policy: only one version is given up."""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

SPEC = mlp_spec(BoxSpace((2,)), DiscreteSpace(2), "categorical", ())


def subscriber_of(versions: int) -> WeightSubscriber:
    """Return a subscriber that has had the versions from 0 on."""
    subscriber = WeightSubscriber(
        Address.parse("tcp://10.0.0.99:1"), None, Counters(), random.Random(1), lambda _: None, lambda: None,
        AgentConfig(client_id="lab"),
    )  # fmt: skip
    snapshots = [PolicySnapshot(1, version, 0, np.zeros(SPEC.size, np.float32)) for version in range(versions)]
    subscriber.take_up(SPEC, snapshots[0])
    for snapshot in snapshots[1:]:
        subscriber._swap(snapshot)
    return subscriber


class WatchedLock:
    """A lock that tells when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waited.set()
            self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("other", ["roll_back", "swap"])
def test_a_change_in_another_thread_waits_for_the_end_of_a_rollback(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    subscriber, lock = subscriber_of(3), WatchedLock()
    bad: Any = subscriber.policy
    newer = PolicySnapshot(1, 3, 0, np.ones(SPEC.size, np.float32))
    change = (lambda: subscriber.roll_back(bad)) if other == "roll_back" else (lambda: subscriber._swap(newer))
    thread = threading.Thread(target=change)

    class Previous(deque[Any]):
        def pop(self) -> Any:  # type: ignore[override]
            if thread.ident is None:
                thread.start()
                assert lock.waited.wait(10.0)
            return super().pop()

    monkeypatch.setattr(subscriber, "_changing", lock)
    monkeypatch.setattr(subscriber, "_previous", Previous(subscriber._previous, maxlen=2))
    previous = subscriber.roll_back(bad)
    thread.join(10.0)
    assert previous is not None and subscriber.policy is not None
    assert previous.version == 1
    assert subscriber.policy.version == (1 if other == "roll_back" else 3)
    assert [policy.version for policy in subscriber._previous] == ([0] if other == "roll_back" else [0, 1])


def test_each_version_that_was_rolled_back_is_remembered() -> None:
    subscriber = subscriber_of(3)
    given_up = []
    for expected in (1, 0):
        bad = subscriber.policy
        assert bad is not None
        given_up.append(bad)
        now = subscriber.roll_back(bad)
        assert now is not None and now.version == expected and subscriber.roll_back(bad) is now
    assert all(map(subscriber.was_rolled_back, given_up))
    current = subscriber.policy
    assert current is not None and not subscriber.was_rolled_back(current)
    assert subscriber.roll_back(current) is None and subscriber.policy is current
