"""For each wire dtype: actors that follow, lose messages, lag or join late hold the learner's last version, bit for bit."""

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.lossy_pub import LossyPub

from rl4sys_zmq.config import WeightsConfig
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.testing import ChaosProxy, FakeAlgorithm, FakeParameters, fake_spec
from rl4sys_zmq.transports import Address
from rl4sys_zmq.weights import WeightsHeader

from .conftest import Lab

VERSIONS = 300
LATE_FROM = 151
LOSS = 0.1
HIDDEN = (32, 32)
WIRES = pytest.mark.parametrize(
    "weights",
    [{"wire_dtype": "fp32"}, {"wire_dtype": "bf16"}, {"wire_dtype": "grid"}],
    ids=lambda weights: weights["wire_dtype"],
)


class Drifting(FakeAlgorithm):
    """A fake algorithm whose weights move like those of an optimiser: always in about the same direction."""

    def snapshot(self) -> Any:
        rng = np.random.default_rng(7)
        start, direction = rng.normal(0.0, 0.1, (2, self._spec.size))
        flat = start + 3e-3 * self.updates * direction + np.random.default_rng(self.updates).normal(0.0, 1e-5, start.size)
        return self._spec.views(flat.astype(np.float32))


def drifting(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    """Create a `Drifting` algorithm that publishes a version for each segment of two steps."""
    return Drifting(fake_spec(HIDDEN), FakeParameters(steps_per_update=2, rollout_length=2))


register_algorithm("DRIFTING", drifting)


class Slow:
    """A connection to a learner, through 127.0.0.3, that is paused now and then."""

    def __init__(self, lab: Lab, learner: Learner, rng: random.Random) -> None:
        self.address, self._proxies = proxied(lab, learner, "127.0.0.3", ("address", "pub"))
        self._rng, self._left, self.held = rng, 0, False

    def tick(self) -> bool:
        """Count a version. Return True if the connection was paused for several versions and now continues."""
        self._left -= 1
        if self._left > 0:
            return False
        was, self._left = self.held, self._rng.randint(5, 20)
        self.let_go() if was else self._hold()
        return was

    def _hold(self) -> None:
        self.held = True
        for proxy in self._proxies:
            proxy.pause()

    def let_go(self) -> None:
        self.held = False
        for proxy in self._proxies:
            proxy.resume()


def proxied(lab: Lab, learner: Learner, host: str, places: tuple[str, ...]) -> tuple[str, list[ChaosProxy]]:
    """Start proxies with the learner's own ports on another loopback address."""
    status = learner.status()
    ports = {place: Address.parse(status[place]).port for place in places}
    return f"tcp://{host}:{ports['address']}", [
        lab.stack.enter_context(ChaosProxy(status[place], seed=0, listen=(host, port))) for place, port in ports.items()
    ]


def lossy(lab: Lab, learner: Learner, seed: int) -> tuple[str, LossyPub]:
    """Return an address in 127.0.0.2 for a learner, and the relay behind it, which loses each tenth message of the PUB."""
    address, _ = proxied(lab, learner, "127.0.0.2", ("address",))
    pub = Address.parse(learner.status()["pub"])
    relay = LossyPub(pub, Address("tcp", "127.0.0.2", pub.port), seed=seed, loss=LOSS)
    return address, lab.stack.enter_context(closing(relay))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[list[WeightsHeader]]:
    """Record the headers of each reply of a learner to an actor that fetches weights."""
    found: list[list[WeightsHeader]] = []
    catch_up = WeightHistory.catch_up

    def noted(self: WeightHistory, generation: int, version: int) -> Any:
        answer = catch_up(self, generation, version)
        found.append([WeightsHeader.unpack(header) for header in answer.body[::2]])
        return answer

    monkeypatch.setattr(WeightHistory, "catch_up", noted)
    return found


@WIRES
def test_all_actors_hold_the_last_version(
    inproc_lab: Lab, weights: dict[str, Any], seed: int, answers: list[list[WeightsHeader]]
) -> None:
    """Over tcp: one actor follows, one loses a tenth of the messages, one is paused now and then, and one joins late."""
    learner = inproc_lab.learner(bind="tcp://127.0.0.1:0", weights={**weights, "level": 1})

    def join(address: str) -> Any:
        return inproc_lab.agent(address, algorithm_name="DRIFTING", seed=seed)

    normal = join(learner.address)
    lossy_address, relay = lossy(inproc_lab, learner, seed)
    way = Slow(inproc_lab, learner, random.Random(seed))
    losing, slow = join(lossy_address), join(way.address)
    agents, behind = [normal, losing, slow], 0
    for version in range(1, VERSIONS + 1):
        inproc_lab.train(normal, 2, version)
        lag = version - slow._io.weight_subscriber.policy.version
        if way.tick():
            assert lag > 0
            behind += 1
        if version == LATE_FROM:
            agents.append(join(learner.address))
            late_fetches = [headers for headers in answers if headers[-1].new_version >= LATE_FROM - 1]
            assert any(not headers[0].codec.is_diff for headers in late_fetches)
    way.let_go()
    for agent in agents:
        assert agent.wait_version(VERSIONS, 20.0) == VERSIONS
        assert agent.digest == learner.digest("lab", VERSIONS)
        counters = agent.stats()["counters"]
        assert not [k for k in counters if k.startswith("weights_refused") and k != "weights_refused.gap"], counters
        assert not counters.get("resyncs.digest")
    flats = [agent._io.weight_subscriber.policy.snapshot.flat for agent in agents]
    assert all(flat.tobytes() == flats[0].tobytes() for flat in flats)
    masters, _ = fake_spec(HIDDEN).flatten(learned(VERSIONS))
    if weights["wire_dtype"] == "bf16":
        assert not (flats[0].view(np.uint32) & np.uint32(0xFFFF)).any()
    error = np.abs(flats[0] - masters).max()
    assert error == 0 if weights["wire_dtype"] == "fp32" else 0 < error < 0.02
    merged = [h for h in answers if h[0].codec.is_diff and h[-1].new_version - h[0].base_version > 1]
    assert merged and relay.counters.get("dropped") > 0 and behind > 0
    assert losing.stats()["counters"]["weights_refused.gap"] > 0
    assert normal.stats()["counters"]["fetches"] <= 2


def learned(updates: int) -> Any:
    algorithm = drifting(None, None, None, 0)
    algorithm.updates = updates
    return algorithm.snapshot()


@WIRES
def test_a_learner_that_goes_on_publishes_the_same_state(inproc_lab: Lab, tmp_path: Path, weights: dict[str, Any]) -> None:
    def start() -> Learner:
        return inproc_lab.learner(run_dir=tmp_path / "run", weights=WeightsConfig(**weights))

    first = start()
    agent = inproc_lab.agent(first, algorithm_name="DRIFTING")
    inproc_lab.train(agent, 2, *range(1, 6))
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
    agent = inproc_lab.agent(learner, algorithm_name="DRIFTING", weights={"wire_dtype": "bf16", "level": 0})
    agent.wait_version(0, 20.0)
    assert agent._io.weight_subscriber.policy is not None
    assert not (agent._io.weight_subscriber.policy.snapshot.flat.view(np.uint32) & np.uint32(0xFFFF)).any()
