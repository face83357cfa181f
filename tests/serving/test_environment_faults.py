"""Faulty environments, invalid input and bad networks: typed errors, and each step is executed once."""

import fractions
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from kit import raising

gymnasium = pytest.importorskip("gymnasium")

from rl4sys_zmq.errors import (  # noqa: E402
    CallbackStuck,
    CallError,
    CallFailed,
    CallLost,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    PayloadError,
)
from rl4sys_zmq.rpc import Caller, session  # noqa: E402
from rl4sys_zmq.serving import GymEnvServer, RemoteEnv  # noqa: E402
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults  # noqa: E402

from .worlds import ROOM, Counting, Trouble  # noqa: E402

WAIT_S = 20.0


@pytest.fixture
def trouble(serve: Any) -> Any:
    """Yield a server of two `Trouble` environments, and the environments."""
    envs: list[Trouble] = []

    def make() -> Trouble:
        envs.append(Trouble())
        return envs[-1]

    server = serve(make, 2)
    yield server, envs
    for env in envs:
        env.release.set()


@pytest.mark.parametrize(("action", "words"), [(1, "ValueError: the arm is stuck"), (6, "SystemExit")])
def test_an_environment_that_raises_is_its_callers_and_goes_on_after_reset(
    trouble: Any, dial: Any, action: int, words: str
) -> None:
    server, _ = trouble
    env = dial(server, seed=1)
    with pytest.raises(CallFailed, match=words):
        env.step(action)
    with raising(CallRefused, r"the last step failed, .*; call reset", code=CallRefusalReason.GONE):
        env.step(0)
    assert server.status()["envs"][0]["pending"] == "its last step failed"
    env.reset()
    env.step(0)


def test_an_observation_of_another_shape_is_refused_by_the_space(trouble: Any, dial: Any) -> None:
    env = dial(trouble[0], seed=1)
    with raising(CallRefused, r"outside its space Box\(0\.0, 1000000000\.0, \(1,\), float64\)", code=CallRefusalReason.INVALID):
        env.step(4)
    with pytest.raises(CallRefused, match="outside its space; call reset"):
        env.step(0)
    env.reset()
    env.step(0)


def test_the_check_of_observations_can_be_left_out(serve: Any, dial: Any) -> None:
    env = dial(serve(Trouble, check_observations=False), seed=1)
    assert env.step(3)[0] == np.array([-1.0])


class Given(Counting):
    """An environment that returns one observation for ever."""

    def __init__(self, space: Any, observation: Any) -> None:
        super().__init__()
        self.observation_space, self.action_space, self._observation = space, gymnasium.spaces.Discrete(2), observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._observation, {}

    def step(self, action: Any) -> Any:
        return self._observation, 0.0, False, False, {}


FLOATS = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
BYTES = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
NESTED: dict[str, Any] = {
    "array": (lambda space: space, lambda value: value),
    "dict": (lambda space: gymnasium.spaces.Dict(a=space), lambda value: {"a": value}),
    "tuple": (lambda space: gymnasium.spaces.Tuple([space]), lambda value: (value,)),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("given", [np.zeros(2), np.array([0, 1]), np.array([1.5, -3.0], np.float32)])
def test_floats_of_another_dtype_or_beyond_a_bound_are_one_warning(
    serve: Any, caplog: pytest.LogCaptureFixture, nested: str, given: Any, dial: Any
) -> None:
    nest, value = NESTED[nested]
    server = serve(Given(nest(FLOATS), value(given)))
    env = dial(server)
    for observation in (env.reset()[0], env.step(0)[0], env.step(0)[0]):
        array = observation if nested == "array" else observation["a"] if nested == "dict" else observation[0]
        assert array.dtype == np.float32
        assert array.tolist() == given.tolist()
    (warning,) = [record.getMessage() for record in caplog.records if "outside its space" in record.getMessage()]
    assert str(given.dtype) in warning
    assert "check_observations=False" in warning
    assert server.status()["counters"]["observations.outside"] == 3


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize(
    ("space", "given"),
    [
        (FLOATS, np.array([np.nan, 0.0])),
        (FLOATS, np.array([1e300, 0.0])),
        (FLOATS, np.zeros(3)),
        (BYTES, np.array([0.5, 0.5])),
        (BYTES, np.array([1, 2])),
    ],
)
def test_the_refusal_of_an_observation_has_its_dtype_and_the_switch(
    serve: Any, dial: Any, nested: str, space: Any, given: Any
) -> None:
    nest, value = NESTED[nested]
    env = dial(serve(Given(nest(space), value(given))))
    with pytest.raises(CallRefused, match=rf"is {given.dtype}\[{len(given)}\]\); check_observations=False"):
        env.reset()


def test_without_the_check_integers_are_exact_or_an_error(serve: Any, dial: Any) -> None:
    fine, lost = (dial(serve(Given(BYTES, np.array(given)), check_observations=False)) for given in ([1.0, 2.0], [1.0, 300.5]))
    assert fine.reset()[0].tolist() == [1, 2]
    with pytest.raises(CallFailed, match=r"300\.5\] change in uint8"):
        lost.reset()


class Odd(Counting):
    """An environment whose step returns an invalid result after each action except 0."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return [
            (observation, reward, terminated, truncated, info),
            (observation, fractions.Fraction(1, 2), terminated, truncated, info),
            (observation, 1 << 70, terminated, truncated, info),
            (observation, reward, np.zeros(2, bool), truncated, info),
            ([[1.0], [1.0, 2.0]], reward, terminated, truncated, info),
            (observation, reward, terminated, truncated),
            (object(), reward, terminated, truncated, info),
            (observation, reward, terminated, truncated, None),
        ][int(action)]


@pytest.mark.parametrize("action", range(1, 8))
def test_a_step_whose_answer_is_none_ends_the_episode(serve: Any, action: int, dial: Any) -> None:
    odd = Odd()
    odd.action_space = gymnasium.spaces.Discrete(8)
    env = dial(serve(odd, check_observations=False), seed=1)
    with pytest.raises(CallFailed):
        env.step(action)
    with raising(CallRefused, "call reset", code=CallRefusalReason.GONE):
        env.step(0)
    with pytest.raises(PayloadError):  # sends no request, so nothing changes
        env.reset(options={"lock": threading.Lock()})
    with pytest.raises(CallRefused, match="call reset"):
        env.step(0)
    assert odd.steps == 1
    env.reset()
    env.step(0)


def test_an_environment_that_hangs_holds_up_only_its_own_client(trouble: Any, dial: Any) -> None:
    server, envs = trouble
    hung, other = dial(server, seed=1, timeout_s=0.4, env_index=0), dial(server, seed=1, env_index=1)
    with pytest.raises(CallTimeout):
        hung.step(2)
    for _ in range(5):
        other.step(0)
    with raising(CallRefused, "the state of the episode is unknown; call reset", code=CallRefusalReason.GONE):
        hung.step(0)
    hung.close()
    with pytest.raises(CallRefused, match="2 of 2 environments are taken"):  # given back, but still in its step
        dial(server)
    envs[0].release.set()
    other.close()
    back = dial(server, seed=1)
    back.step(0)
    assert envs[0].steps == 1 + (back.env_index == 0)


@pytest.mark.parametrize("action", [np.zeros(3, int), 1.5, "left", {"a": 1}, None])
def test_an_action_of_another_shape_is_refused_and_the_episode_goes_on(trouble: Any, action: Any, dial: Any) -> None:
    env = dial(trouble[0], seed=1)
    with raising(CallRefused, r"does not fit: .*Discrete\(8\)", code=CallRefusalReason.INVALID):
        env.step(action)
    assert env.step(0)[0] == np.array([1.0])


def test_an_action_or_option_that_cannot_travel_is_refused_by_its_place(trouble: Any, dial: Any) -> None:
    env = dial(trouble[0])
    with pytest.raises(PayloadError, match=r"options'\]\['lock'\]"):
        env.reset(options={"lock": threading.Lock()})
    env.reset()
    with pytest.raises(PayloadError, match=r"actions'\]\[0\]"):
        env.step(object())
    env.step(0)


class Tensor:
    """An object like a tensor that requires gradients: its conversion to an array raises."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("detach it first")


def test_an_action_that_makes_no_array_is_told_as_one_that_cannot_travel_or_does_not_fit(serve: Any, dial: Any) -> None:
    env = dial(serve(ROOM), seed=1)
    action = env.action_space.sample()
    with pytest.raises(PayloadError, match=r"actions'\]\[0\]\['move'\]: a value of type .*Tensor cannot be converted.*detach it"):
        env.step({**action, "move": Tensor()})
    with raising(CallRefused, r"\['move'\] is a list", code=CallRefusalReason.INVALID):
        env.step({**action, "move": [[1.0], [1.0, 2.0]]})
    env.step(action)


def test_what_of_an_info_cannot_travel_is_left_out_and_counted(trouble: Any, dial: Any) -> None:
    server, _ = trouble
    env = dial(server, seed=1)
    assert env.step(5)[4] == {"fine": 1, "more": {"n": 2}}
    assert server.status()["counters"]["info.dropped"] == 3


NONSENSE = [None, 7, {}, {"token": "x"}, {"token": 1, "count": -3, "index": None}, {"token": 1, "count": 1, "index": "0"}]


@pytest.mark.parametrize("payload", NONSENSE, ids=repr)
def test_nonsense_is_refused(trouble: Any, payload: Any, dial: Any) -> None:
    server, _ = trouble
    with Caller(server.address) as client:
        for method in ("take", "step.0", "reset.1", "render.0"):
            with pytest.raises(CallRefused):
                client.call(method, payload)
        token = {"token": 5, "count": 1, "index": None}
        assert client.call("take", token) == [0]
        wrong: list[dict[str, Any]] = [
            {"actions": 3, "anew": []},
            {"actions": [], "anew": []},
            {"only": [True], "seeds": ["x"], "options": None},
        ]
        for more in wrong:
            for method in ("step.0", "reset.0"):
                with raising(CallRefused, code=CallRefusalReason.INVALID):
                    client.call(method, {"token": 5, **more})
    dial(server, seed=1, env_index=1)


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (NetworkFaults(cut_probability=0.02), "cuts"),
        (NetworkFaults(cut_probability=0.02, reset=False), "cuts"),
        (NetworkFaults(cut_probability=0.02, half_open=True), "half_open"),
        (NetworkFaults(latency_s=0.001, cut_probability=0.02), "cuts"),
    ],
    ids=["resets", "ends", "half-open", "delays"],
)
def test_each_step_is_executed_once_over_a_bad_network(
    serve: Any, dial: Any, seed: int, monkeypatch: pytest.MonkeyPatch, faults: NetworkFaults, kind: str
) -> None:
    monkeypatch.setattr(session, "SILENCE_S", 0.2)
    counting = Counting()
    with ChaosProxy(serve(counting).address, seed=seed) as proxy:
        env = dial(proxy, seed=1, timeout_s=WAIT_S)
        proxy.faults = faults
        steps = 0
        while proxy.counters.get(kind) < 2 and steps < 2000:
            if env.step(0)[3]:
                env.reset()
            steps += 1
        proxy.faults = NetworkFaults()
        assert proxy.counters.get(kind) >= 2
        assert counting.steps == steps
        env.close()


def test_a_server_that_is_started_again_mid_episode_says_reset_and_goes_on(serve: Any, dial: Any) -> None:
    counting = Counting()
    first = serve(counting)
    env, address = dial(first, seed=1, timeout_s=WAIT_S), first.address
    env.step(0)
    first.stop()
    second = serve(counting, bind=address)
    with pytest.raises((CallRefused, CallLost), match=r"(?s)call reset") as ended:  # CallLost if the call was resent in between
        env.step(0)
    assert isinstance(ended.value, CallLost) or getattr(ended.value, "code", None) is CallRefusalReason.GONE
    assert counting.steps == 1
    env.reset()
    env.step(0)
    assert counting.steps == 2
    assert second.status()["taken"] == 1


class Stopping(Counting):
    """An environment whose step stops its own server, and then records whether it was closed in the meantime."""

    server: GymEnvServer
    closed = closed_in_step = False

    def step(self, action: Any) -> Any:
        self.server.stop()
        self.closed_in_step = self.closed
        return super().step(action)

    def close(self) -> None:
        self.closed = True


def test_an_environment_that_stops_its_server_is_closed_by_the_servers_owner() -> None:
    made: list[Stopping] = []

    def make() -> Stopping:
        made.append(Stopping())
        return made[-1]

    server = GymEnvServer(make, bind=0)
    made[0].server = server
    server.start()
    env = RemoteEnv(server.address, timeout_s=1.0)
    env.reset(seed=1)
    with suppress(CallError):
        env.step(0)
    server.stop()
    assert (made[0].steps, made[0].closed_in_step, made[0].closed) == (1, False, True)
    env.close()


def test_a_server_that_is_stopped_while_an_environment_hangs_says_so(serve: Any, dial: Any) -> None:
    trouble = Trouble()
    server = serve(trouble)
    env = dial(server, seed=1, timeout_s=0.2)
    with pytest.raises(CallTimeout):
        env.step(2)
    with pytest.raises(CallbackStuck):
        server.stop(0.05)
    trouble.release.set()
    server.stop()
