"""Remote environments behave like local ones: spaces, checker, results, leases."""

from __future__ import annotations

import gc
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("Box2D")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from rl4sys_zmq.errors import (  # noqa: E402
    AddressInUse,
    CallFailed,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    Closed,
    ConfigError,
    TransportError,
)
from rl4sys_zmq.serving import GymEnvClientWrapper, GymEnvServer, GymEnvServerWrapper, RemoteEnv, RemoteVectorEnv  # noqa: E402

from .worlds import ROOM, Counting, Room, same  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/howto/environments.md"
MULTISERVERRL = PAGE.with_name("migration_multiserverrl.md")
FOUR = ["CartPole-v1", "LunarLander-v3", "Pendulum-v1", ROOM]


def heard(env: Any) -> set[str]:
    """Return the warnings of Gymnasium's checker."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    return {str(w.message) for w in caught if "Swig" not in str(w.message) and "swig" not in str(w.message)}


@pytest.mark.parametrize("env_id", FOUR)
def test_gymnasiums_checker_finds_nothing_that_it_does_not_find_here(serve: Any, env_id: str) -> None:
    server = serve(env_id, make_kwargs={"render_mode": "rgb_array"})
    local = gymnasium.make(env_id, render_mode="rgb_array").unwrapped
    remote = RemoteEnv(server.address)
    try:
        found = heard(remote)
        assert found <= heard(local)
        assert all("Box" in text for text in found)  # CartPole's unbounded box and Pendulum's actions
        assert remote.spec is not None
        assert (remote.spec.id, remote.render_mode) == (env_id, "rgb_array")
        assert "human" not in remote.metadata["render_modes"]
    finally:
        remote.close()
        local.close()


@pytest.mark.parametrize("env_id", FOUR)
def test_results_equal_local_ones_bit_for_bit(serve: Any, transport: Any, env_id: str, seed: int) -> None:
    remote = RemoteEnv(serve(env_id, bind=transport.address()).address)
    local = gymnasium.make(env_id, disable_env_checker=True)
    try:
        assert remote.observation_space == local.observation_space
        assert remote.action_space == local.action_space
        local.action_space.seed(seed)
        here, there = local.reset(seed=seed), remote.reset(seed=seed)
        assert same(here, there)
        assert remote.np_random_seed == local.unwrapped.np_random_seed == seed
        for _ in range(150):
            action = local.action_space.sample()
            ours, theirs = local.step(action), remote.step(action)
            assert same(ours, theirs)
            if ours[2] or ours[3]:
                assert same(local.reset(), remote.reset())
    finally:
        remote.close()
        local.close()


def test_reset_takes_options_and_seeds_of_any_length(serve: Any) -> None:
    with_options, local = RemoteEnv(serve(ROOM).address), Room()
    try:
        options = {"at": np.array([0.5, -0.5])}
        assert same(with_options.reset(seed=2**100, options=options), local.reset(seed=2**100, options=options))
        assert with_options.np_random_seed == 2**100
        with_options.reset()
        assert with_options.np_random_seed == 2**100
        with pytest.raises(gymnasium.error.Error):
            with_options.reset(seed=-1)
    finally:
        with_options.close()


def test_observations_are_the_users_own(serve: Any) -> None:
    env = RemoteEnv(serve(ROOM).address)
    try:
        first, info = env.reset(seed=1)
        first["image"][:] = 0
        first["where"][0][:] = 0
        info["at"][:] = 0
        assert env.step(env.action_space.sample())[0] in env.observation_space
    finally:
        env.close()


@pytest.mark.parametrize(("mode", "kind"), [("rgb_array", np.ndarray), ("ansi", str)])
def test_it_renders_as_the_server_does(serve: Any, mode: str, kind: type) -> None:
    env = RemoteEnv(serve(ROOM, make_kwargs={"render_mode": mode}).address)
    try:
        env.reset(seed=1)
        assert isinstance(env.render(), kind)
    finally:
        env.close()


def test_two_clients_never_have_one_environment(serve: Any) -> None:
    server = serve("CartPole-v1", 2)
    first, second = RemoteEnv(server.address), RemoteEnv(server.address, env_index=1)
    assert (first.env_index, second.env_index) == (0, 1)
    with pytest.raises(CallRefused, match="2 of 2 environments are taken") as refused:
        RemoteEnv(server.address)
    assert refused.value.code is CallRefusalReason.OCCUPIED
    with pytest.raises(CallRefused, match="there is no environment 7") as refused:
        RemoteEnv(server.address, env_index=7)
    assert refused.value.code is CallRefusalReason.UNKNOWN
    first.close()
    first.close()
    third = RemoteEnv(server.address)
    assert third.env_index == 0
    with pytest.raises(CallRefused, match="call reset"):  # the episode of an earlier caller is not continued
        third.step(0)
    assert server.status()["taken"] == 2
    third.close()
    second.close()
    assert server.status()["taken"] == 0


def test_a_lease_that_ran_out_and_was_taken_is_said_and_reset_asks_anew(serve: Any) -> None:
    server = serve("CartPole-v1", 1, lease_s=3600)
    first = RemoteEnv(server.address)
    first.reset(seed=1)
    server._leases.lease_s = 0.0  # as if an hour had passed
    second = RemoteEnv(server.address)
    server._leases.lease_s = 3600.0
    second.reset(seed=2)
    with pytest.raises(CallRefused, match="another caller has taken it") as refused:
        first.step(0)
    assert refused.value.code is CallRefusalReason.OCCUPIED
    with pytest.raises(CallRefused, match="1 of 1 environments are taken"):
        first.reset()
    second.step(0)
    second.close()
    first.reset()
    first.step(0)
    first.close()


def test_silence_is_kept_by_the_client_itself(serve: Any) -> None:
    server = serve("CartPole-v1", 1, lease_s=0.3)
    env = RemoteEnv(server.address)
    try:
        kept = env._env_lease._renewer
        heard_s = server._leases.holders()[0].last_message_s
        for _ in range(1000):  # until the lease is renewed
            if server._leases.holders()[0].last_message_s > heard_s:
                break
            kept.join(0.01)
        assert server._leases.holders()[0].last_message_s > heard_s
    finally:
        env.close()


def test_what_was_taken_without_an_answer_is_what_reset_takes(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("CartPole-v1", 3, lease_s=3600)
    env = RemoteEnv(server.address)
    server._leases.release(env._env_lease._renewer.token)  # as if the server had been started again
    others = [RemoteEnv(server.address), RemoteEnv(server.address)]
    lease = server._leases.lease

    def lose(*args: Any) -> Any:
        lease(*args)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(server._leases, "lease", lose)
        with pytest.raises(CallFailed, match="TimeoutError"):
            env.reset(seed=1)
    for act in (env.render, lambda: env.step(0)):
        with pytest.raises(CallRefused, match="call reset"):
            act()
    env.reset(seed=1)
    env.step(0)
    assert env.env_index == 2
    assert server.status()["taken"] == 3
    for one in (env, *others):
        one.close()
    assert server.status()["taken"] == 0


@pytest.mark.parametrize("kind", [RemoteEnv, RemoteVectorEnv])
def test_an_environment_that_is_dropped_is_given_back(serve: Any, kind: Any) -> None:
    server = serve("CartPole-v1", lease_s=3600)
    env = kind(server.address)
    env.reset(seed=1)
    env.itself = env  # a reference cycle, which the garbage collector frees
    keeper = (env._env_lease if kind is RemoteEnv else env._parts[0])._renewer
    del env
    gc.collect()
    assert keeper.join(10.0)
    assert server.status()["taken"] == 0


def test_a_server_takes_an_environment_an_id_or_a_factory() -> None:
    counting = Counting()
    with GymEnvServer(counting, bind="inproc://envs-one") as server:
        assert server.count == 1
    with GymEnvServer(Counting, 3, bind="inproc://envs-three") as server:
        assert server.count == 3
    for env, count, words in [
        (counting, 2, "count is 2"),
        ("CartPole-v1", 0, "count: expected an integer"),
        ("CartPoll-v1", 1, "CartPole"),
        ("CartPole-v77", 1, "v1"),
        (lambda: 7, 1, "creates a int"),
        (5, 1, "'int' object is not callable"),
        (lambda: 1 / 0, 1, "ZeroDivisionError"),
        (lambda: counting, 2, "returns the same environment twice"),
        (lambda: gymnasium.wrappers.TimeLimit(counting, 3), 2, "returns the same environment twice"),
        (gymnasium.Env, 1, "AttributeError: .*observation_space"),
        (Undescribed, 1, "TypeError: .*not iterable"),
    ]:
        with pytest.raises(ConfigError, match=words):
            GymEnvServer(env, count, bind="inproc://envs-none")
    with pytest.raises(ConfigError, match="quiet"):
        GymEnvServer("CartPole-v1", bind="inproc://envs-none", make_kwargs={"quiet": True})
    with pytest.raises(ConfigError, match="insecure"):
        GymEnvServer("CartPole-v1", bind="tcp://0.0.0.0:0")
    with pytest.raises(ConfigError, match="lease_s"):
        GymEnvServer("CartPole-v1", lease_s=0.0)


class Undescribed(Counting):
    """An environment whose metadata is not a dict."""

    metadata = 5  # type: ignore[assignment]


def test_environments_that_cannot_be_served_are_closed() -> None:
    made: list[Closing] = []

    def make() -> Closing:
        if len(made) == 2:
            raise OSError("no licence")
        made.append(Closing())
        return made[-1]

    with pytest.raises(ConfigError, match="OSError: no licence"):
        GymEnvServer(make, 3, bind="inproc://envs-none")
    assert [env.closed for env in made] == [1, 1]


class Closing(Counting):
    """An environment that counts its calls of `close`."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_environments_of_one_server_are_alike() -> None:
    kinds = iter([Counting, Room])
    with pytest.raises(ConfigError, match="environment 1 has the observation_space Dict"):
        GymEnvServer(lambda: next(kinds)(), 2, bind="inproc://envs-none")


def test_an_address_in_use_is_said(serve: Any) -> None:
    server = serve("CartPole-v1")
    with pytest.raises(AddressInUse), GymEnvServer("CartPole-v1", bind=server.address) as other:
        other.start()


@pytest.mark.parametrize("kind", [RemoteEnv, RemoteVectorEnv])
@pytest.mark.parametrize("timeout_s", [None, "a", 0, -1.0, float("nan")])
def test_a_time_that_is_none_is_said(kind: Any, timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        kind("inproc://nobody", timeout_s=timeout_s)


@pytest.mark.parametrize("kind", [RemoteEnv, lambda address: RemoteVectorEnv([address])])
@pytest.mark.parametrize("address", [None, 5, b"tcp://127.0.0.1:5"])
def test_an_address_that_is_none_is_said(kind: Any, address: Any) -> None:
    with pytest.raises(TransportError, match="is not an address"):
        kind(address)


def test_nobody_there_and_somebody_else_there(serve: Any) -> None:
    from rl4sys_zmq.rpc import Server

    with pytest.raises(CallTimeout, match="none has answered"):
        RemoteEnv("tcp://127.0.0.1:9", timeout_s=0.2)
    with Server("tcp://127.0.0.1:0", name="other") as other:
        other.start()
        with pytest.raises(CallRefused, match="service") as refused:
            RemoteEnv(other.address)
    assert refused.value.code is CallRefusalReason.MISMATCH


@pytest.mark.parametrize("kind", [RemoteEnv, RemoteVectorEnv])
def test_after_close_nothing_is_called(serve: Any, kind: Any) -> None:
    env = kind(serve("CartPole-v1").address)
    env.reset(seed=1)
    env.close()
    for _ in range(2):
        with pytest.raises(Closed):
            env.step(0 if kind is RemoteEnv else np.zeros(1, int))
        with pytest.raises(Closed):
            env.reset()


def test_the_state_of_a_simulator_can_be_read(serve: Any) -> None:
    server = serve("CartPole-v1", 2)
    local: Any = gymnasium.make("CartPole-v1")
    with RemoteEnv(server.address) as env:
        env.reset(seed=5)
        local.reset(seed=5)
        assert same(env.state, local.unwrapped.state) and same(env.get_wrapper_attr("state"), env.state)
        env.step(1)
        local.step(1)
        assert same(env.state, local.unwrapped.state)
        assert env.has_wrapper_attr("state") and env.unwrapped is env
    with RemoteEnv(serve(ROOM).address) as env:
        assert not hasattr(env, "state")
        env.reset()
        with pytest.raises(AttributeError, match="environment 0 has no attribute state"):
            _ = env.state
        env.step(env.action_space.sample())  # the episode continues
    local.close()


def test_a_state_that_cannot_be_sent_fails_the_call_only(serve: Any) -> None:
    class Opaque(Counting):
        state = object()

    with RemoteEnv(serve(Opaque).address) as env:
        env.reset()
        with pytest.raises(CallFailed):
            _ = env.state
        env.step(0)


def test_agentlaces_wrappers() -> None:
    served = GymEnvServerWrapper(gymnasium.make("CartPole-v1"), port=0)
    served.start(threaded=True)
    port = int(served.server.address.rpartition(":")[2])
    client = GymEnvClientWrapper("127.0.0.1", port)
    local = gymnasium.make("CartPole-v1")
    try:
        assert same(client.reset(seed=5)[0], local.reset(seed=5)[0])
        assert same(client.step(1), local.step(1))
        assert same(served.step(0), local.step(0))  # both callers step the same episode
        assert same(client.step(1), local.step(1))
    finally:
        client.close()
        served.close()
        local.close()


def test_the_page_for_users_runs(serve: Any) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    server = serve("CartPole-v1")
    exec(block.replace("tcp://127.0.0.1:5546", server.address), {})
    assert server.status()["counters"]["steps"] == 100


def test_the_environment_of_the_page_for_multiserverrl(serve: Any) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", MULTISERVERRL.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    port = int(serve("CartPole-v1", 2, make_kwargs={"render_mode": "rgb_array"}).address.rpartition(":")[2])
    first, second = (names["VirtualEnvironment"]("localhost", port) for _ in range(2))  # both at one port
    try:
        assert first.reset().shape == second.reset().shape == (4,)
        observation, reward, done, info = first.step(1)
        assert same(observation, first.state.astype(np.float32)) and (reward, done, info) == (1.0, False, {})
        assert first.render(mode="rgb_array").shape == (400, 600, 3)
    finally:
        first.close()
        second.close()
