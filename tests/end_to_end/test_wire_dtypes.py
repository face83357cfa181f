"""For each wire dtype: actors that follow, lose, lag and come late hold the learner's last version, bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.config import WeightsConfig
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, fake_spec

from .conftest import Lab

VERSIONS = 300
LATE_FROM = 250
HIDDEN = (40,)
WIRES = pytest.mark.parametrize(
    "weights",
    [{"wire_dtype": "fp32", "level": 2}, {"wire_dtype": "bf16"}, {"wire_dtype": "grid", "level": 2}],
    ids=lambda weights: weights["wire_dtype"],
)


class Drifting(FakeAlgorithm):
    """Moves as an optimiser does: on and on in about one direction."""

    def snapshot(self) -> Any:
        rng = np.random.default_rng(7)
        start, direction = rng.normal(0.0, 0.1, (2, self._spec.size))
        flat = start + 3e-3 * self.updates * direction + np.random.default_rng(self.updates).normal(0.0, 1e-5, start.size)
        return self._spec.views(flat.astype(np.float32))


def drifting(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    """Makes one, with a version for each segment of two steps."""
    return Drifting(fake_spec(HIDDEN), FakeParameters(steps_per_update=2, rollout_length=2))


register_algorithm("DRIFTING", drifting)


def disturb(agent: Any, loss: float, delay_s: float, seed: int = 1) -> None:
    """Updates are lost on their way to an actor, from the PUB and from the DEALER alike, or taken slowly."""
    follower, rng = agent._io._follower, random.Random(seed)
    take = follower._on_update

    def on_update(header: Any, payload: Any) -> None:
        time.sleep(delay_s)
        if rng.random() >= loss:
            take(header, payload)

    follower._on_update = on_update


@WIRES
def test_all_actors_hold_the_last_version(inproc_lab: Lab, weights: dict[str, Any]) -> None:
    learner = inproc_lab.learner(weights=weights)

    def join() -> Any:
        return inproc_lab.agent(learner, algorithm_name="DRIFTING")

    agents = [join(), join(), join()]
    normal, lossy, slow = agents
    disturb(lossy, 0.1, 0.0)
    disturb(slow, 0.0, 0.02)
    for version in range(1, VERSIONS + 1):
        inproc_lab.episode(normal, 2)
        normal.wait_version(version, 20.0)
        if version == LATE_FROM:
            agents.append(join())
    for agent in agents:
        assert agent.wait_version(VERSIONS, 20.0) == VERSIONS
        assert agent.digest == learner.digest("lab", VERSIONS)
        counters = agent.stats()["counters"]
        assert not [k for k in counters if k.startswith("weights_refused") and k != "weights_refused.gap"], counters
    flats = [agent._io.policy.snapshot.flat for agent in agents]
    assert all(flat.tobytes() == flats[0].tobytes() for flat in flats)
    masters = fake_spec(HIDDEN).flatten(learned(VERSIONS))
    if weights["wire_dtype"] == "bf16":
        assert not (flats[0].view(np.uint32) & np.uint32(0xFFFF)).any()
    error = np.abs(flats[0] - masters).max()
    assert error == 0 if weights["wire_dtype"] == "fp32" else 0 < error < 0.02
    assert normal.stats()["counters"]["fetches"] <= 2


def learned(updates: int) -> Any:
    """The tensors after so many updates."""
    algorithm = drifting(None, None, None, 0)
    algorithm.updates = updates
    return algorithm.snapshot()


@WIRES
def test_a_learner_that_goes_on_publishes_the_same_state(inproc_lab: Lab, tmp_path: Path, weights: dict[str, Any]) -> None:
    def start() -> Learner:
        config = LearnerConfig(bind=inproc_lab.new_address(), run_dir=tmp_path / "run", weights=WeightsConfig(**weights))
        return inproc_lab.stack.enter_context(Learner(config))

    first = start()
    agent = inproc_lab.agent(first, algorithm_name="DRIFTING")
    for version in range(1, 6):
        inproc_lab.episode(agent, 2)
        agent.wait_version(version, 20.0)
    first.drain(timeout_s=20.0)
    first.save(timeout_s=20.0)
    published = first.digest("lab", 5)
    first.close()
    second = start()
    assert second.wait(client_id="lab", version=5, timeout_s=20.0) == 5
    assert second.digest("lab", 5) == published


def test_who_says_otherwise_is_refused(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(weights={"wire_dtype": "bf16"})
    first = inproc_lab.agent(learner, algorithm_name="DRIFTING", weights={"wire_dtype": "bf16"})
    assert first.wait_version(0, 20.0) == 0
    with pytest.raises((HandshakeRefused, ConfigError), match=r"weights\.wire_dtype .*'bf16' on .* has 'grid'"):
        inproc_lab.agent(learner, algorithm_name="DRIFTING", weights={"wire_dtype": "grid"})


def test_the_first_actor_may_say_what_the_learner_does_not(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="DRIFTING", weights={"wire_dtype": "bf16", "level": 2})
    agent.wait_version(0, 20.0)
    assert not (agent._io.policy.snapshot.flat.view(np.uint32) & np.uint32(0xFFFF)).any()
