"""A host goes back from a version of a policy: it gives up one version, also by several threads, and uses the next one."""

import random
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, digest, encode_update
from rl4sys_zmq.wire.messages import FetchWeights

SPEC = mlp_spec(BoxSpace((2,)), DiscreteSpace(2), "categorical", ())


WIDE = mlp_spec(BoxSpace((64,)), DiscreteSpace(2), "categorical", (64,))


def subscriber_of(versions: int, fetches: list[FetchWeights] | None = None) -> WeightSubscriber:
    """Return a subscriber that has had the versions from 0 on. It appends its requests to the list."""
    requests: list[FetchWeights] = [] if fetches is None else fetches
    subscriber = WeightSubscriber(
        Address.parse("tcp://10.0.0.99:1"), None, Counters(), random.Random(1), requests.append, lambda: None,
        AgentConfig(client_id="lab"),
    )  # fmt: skip
    snapshots = [PolicySnapshot(1, version, 0, np.zeros(SPEC.size, np.float32)) for version in range(versions)]
    for snapshot in snapshots[:1]:
        subscriber.take_up(SPEC, snapshot)
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


@pytest.mark.parametrize("level", [0, 1])
def test_the_version_after_one_that_was_rolled_back_is_used_at_once(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Its diff starts from the version that was rolled back, and needs the version before that one too."""
    options = EncodingOptions(level=level, tensors=WIDE.tensors)
    random_numbers = np.random.default_rng(1)
    start, move = (random_numbers.normal(size=WIDE.size).astype(np.float32) for _ in range(2))
    fetches: list[FetchWeights] = []
    subscriber = subscriber_of(0, fetches)
    welcome: Any = SimpleNamespace(policy_id=b"12345678", generation=1)
    monkeypatch.setattr(subscriber, "_welcome", welcome)
    monkeypatch.setattr(subscriber, "spec", WIDE)
    history, published = WeightHistory(1), list[PolicySnapshot]()
    history.describe(welcome.policy_id, options)

    def publish() -> tuple[int, bool]:
        """Publish the next version. Return the version that the actor then uses, and True if the diff needs two versions."""
        flat = start + move * np.float32(0.001 * len(published))
        new = PolicySnapshot(1, len(published), digest(flat, b""), flat)
        base, before = [*reversed(published), None, None][:2]
        header, payload = encode_update(welcome.policy_id, base, new, options, before=before)
        head = WeightsHeader.unpack(header)
        history.add(new, head, (header, payload), b"")
        published.append(new)
        subscriber._on_update(header, payload, b"", relayed=False)
        assert subscriber.policy is not None
        return subscriber.policy.version, head.predicted

    for version in range(5):
        assert publish() == (version, level > 0 and version > 1)
    for earlier in (3, 2):
        bad: Any = subscriber.policy
        subscriber.roll_back(bad)
        assert subscriber.policy is not None and subscriber.policy.version == earlier
    assert publish() == (5, level > 0)
    bad = subscriber.policy
    subscriber.roll_back(bad)
    subscriber.on_fetched(history.catch_up(1, 1))  # the learner's newest version is the one that was rolled back
    assert subscriber.held == (1, 2) and not subscriber.fetching
    assert publish() == (6, level > 0) and not fetches
