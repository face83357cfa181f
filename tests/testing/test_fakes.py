"""The algorithm and the environment that users have in their tests."""

import threading
from typing import Any

import numpy as np
import pytest
from kit import python, segment_with

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import Algorithm
from rl4sys_zmq.testing import FakeAlgorithm, fake_spec, fake_weights
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

SPACES = (BoxSpace((4,)), DiscreteSpace(2))


def segment(steps: Any, episode: int = 1, index: int = 0) -> Any:
    return segment_with(steps, "cut", episode_id=episode, segment_index=index)


def make(kind: str = "onpolicy", parameters: Any = None, **defaults: Any) -> Any:
    return FakeAlgorithm.factory(kind, **defaults)(*SPACES, parameters or {}, 5)


@pytest.mark.parametrize("kind", ["onpolicy", "offpolicy"])
def test_is_an_algorithm(kind: str) -> None:
    fake = make(kind)
    assert isinstance(fake, Algorithm) and fake.kind == kind
    assert fake.spec() == fake_spec()


@pytest.mark.parametrize(("kind", "updates"), [("onpolicy", 1), ("offpolicy", 3)])
def test_updates_follow_from_steps(kind: str, updates: int) -> None:
    fake = make(kind, steps_per_update=10)
    fake.observe(segment(9))
    assert fake.update() is None and fake.demand() == 1
    fake.observe(segment(21, index=1), correct=True)
    assert fake.demand() == 0
    done = 0
    while fake.update() is not None:
        done += 1
    assert done == fake.updates == updates and fake.demand() == 10
    assert (fake.segments, fake.steps, fake.corrected, fake.keys) == (2, 30, 1, [(1, 0), (1, 1)])


def test_weights_are_a_function_of_seed_and_updates() -> None:
    fake = make(steps_per_update=1)
    seen = set()
    for update in range(4):
        snapshot = fake.snapshot()
        flat, _ = fake.spec().flatten(snapshot)
        assert np.array_equal(flat, fake_weights(fake.spec(), update, 5)) and flat.dtype == np.float32
        seen.add(flat.tobytes())
        for tensor in snapshot.values():
            tensor += 1  # a copy, which the algorithm does not use
        fake.observe(segment(1))
        fake.update()
    assert len(seen) == 4


def test_fails_when_told_to() -> None:
    fake = make(steps_per_update=1, fail_after_updates=1)
    fake.observe(segment(1))
    assert fake.update() is not None
    fake.observe(segment(1))
    with pytest.raises(RuntimeError, match="as configured"):
        fake.update()


def test_a_slow_update_goes_on_when_released() -> None:
    factory = FakeAlgorithm.factory(steps_per_update=1, slow_s=60)
    fake = factory(*SPACES, {}, 0)
    fake.observe(segment(1))
    thread = threading.Thread(target=fake.update, name="rl4sys-slow")
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    factory.release.set()
    thread.join(10)
    assert not thread.is_alive()


def test_state_goes_back() -> None:
    fake, other = make(steps_per_update=10), make(steps_per_update=10)
    fake.observe(segment(12, episode=2**64 - 1))
    fake.update()
    fake.observe(segment(3))
    other.load(fake.state())
    assert other.state() == fake.state()
    assert other.demand() == 10 and other.keys == fake.keys[:1]  # segments that wait for an update are delivered again
    assert np.array_equal(other.spec().flatten(other.snapshot())[0], fake.spec().flatten(fake.snapshot())[0])


def test_parameters_override_defaults_and_are_checked() -> None:
    factory = FakeAlgorithm.factory(steps_per_update=5)
    fake = factory(*SPACES, {"steps_per_update": 7, "rollout_length": 3}, 0)
    assert (fake.demand(), fake.rollout_length) == (7, 3)
    assert factory.made == [fake]
    with pytest.raises(ConfigError, match="steps_per_update"):
        factory(*SPACES, {"step_per_update": 7}, 0)
    with pytest.raises(ConfigError):
        FakeAlgorithm.factory(nonsense=1)
    with pytest.raises(ConfigError, match="onpolicy"):
        FakeAlgorithm.factory("sideways")


def test_acts_in_a_box_too() -> None:
    fake = FakeAlgorithm.factory()(DiscreteSpace(3), BoxSpace((2,)), {}, 0)
    assert fake.spec().document["head"] == "gaussian"


def test_needs_no_torch() -> None:
    python("-c", "import sys, rl4sys_zmq.testing; assert 'torch' not in sys.modules")


def test_a_last_part_of_a_batch_makes_an_update_when_asked() -> None:
    fake = make(steps_per_update=10)
    assert fake.update(partial=True) is None
    fake.observe(segment(1))
    assert fake.update() is None
    assert fake.update(partial=True) == {"fake/updates": 1.0, "fake/steps": 1.0}
    assert fake.update(partial=True) is None and fake.demand() == 10
    off = make("offpolicy", steps_per_update=10)
    off.observe(segment(9))
    assert off.update(partial=True) is None and off.demand() == 1


def test_the_task_without_velocities_shows_position_and_angle() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from rl4sys_zmq.testing.hidden_velocities import ENV

    env, whole = gymnasium.make(ENV), gymnasium.make("CartPole-v1")
    assert env.observation_space.shape == (2,) and env.spec.max_episode_steps == 500
    shown, every = env.reset(seed=3)[0], whole.reset(seed=3)[0]
    for action in (0, 1, 1):
        assert shown.tolist() == every[[0, 2]].tolist() and env.observation_space.contains(shown)
        shown, every = env.step(action)[0], whole.step(action)[0]
