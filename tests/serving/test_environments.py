"""Remote environments behave like local ones: spaces, checker, results, leases."""

import gc
import threading
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import free_port, python_blocks, raising, until

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
)
from rl4sys_zmq.serving import (  # noqa: E402
    GymEnvClient,
    GymEnvClientWrapper,
    GymEnvServer,
    GymEnvServerWrapper,
    RemoteEnv,
    RemoteVectorEnv,
)

from .trees import same  # noqa: E402
from .worlds import ROOM, Counting, Room  # noqa: E402

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
def test_gymnasiums_checker_finds_nothing_that_it_does_not_find_here(serve: Any, dial: Any, env_id: str) -> None:
    remote = dial(serve(env_id, make_kwargs={"render_mode": "rgb_array"}))
    with closing(gymnasium.make(env_id, render_mode="rgb_array").unwrapped) as local:
        found = heard(remote)
        assert found <= heard(local)
    assert all("Box" in text for text in found)  # CartPole's unbounded box and Pendulum's actions
    assert (remote.spec.id, remote.render_mode) == (env_id, "rgb_array")
    assert "human" not in remote.metadata["render_modes"]


@pytest.mark.parametrize("env_id", FOUR)
def test_results_equal_local_ones_bit_for_bit(serve: Any, dial: Any, transport: Any, env_id: str, seed: int) -> None:
    remote = dial(serve(env_id, bind=transport.address()))
    with closing(gymnasium.make(env_id, disable_env_checker=True)) as local:
        assert remote.observation_space == local.observation_space
        assert remote.action_space == local.action_space
        local.action_space.seed(seed)
        assert same(local.reset(seed=seed), remote.reset(seed=seed))
        assert remote.np_random_seed == local.unwrapped.np_random_seed == seed
        for _ in range(150):
            action = local.action_space.sample()
            ours = local.step(action)
            assert same(ours, remote.step(action))
            if ours[2] or ours[3]:
                assert same(local.reset(), remote.reset())


def test_reset_takes_options_and_seeds_of_any_length(serve: Any, dial: Any) -> None:
    remote, local = dial(serve(ROOM)), Room()
    options = {"at": np.array([0.5, -0.5])}
    assert same(remote.reset(seed=2**100, options=options), local.reset(seed=2**100, options=options))
    assert remote.np_random_seed == 2**100
    remote.reset()
    assert remote.np_random_seed == 2**100
    with pytest.raises(gymnasium.error.Error):
        remote.reset(seed=-1)


@pytest.mark.parametrize(("mode", "kind"), [("rgb_array", np.ndarray), ("ansi", str)])
def test_it_renders_as_the_server_does(serve: Any, dial: Any, mode: str, kind: type) -> None:
    assert isinstance(dial(serve(ROOM, make_kwargs={"render_mode": mode}), seed=1).render(), kind)


def test_two_clients_never_have_one_environment(serve: Any, dial: Any) -> None:
    server = serve("CartPole-v1", 2)
    first, second = dial(server), dial(server, env_index=1)
    assert (first.env_index, second.env_index) == (0, 1)
    with raising(CallRefused, "2 of 2 environments are taken", code=CallRefusalReason.OCCUPIED):
        dial(server)
    with raising(CallRefused, "there is no environment 7", code=CallRefusalReason.UNKNOWN):
        dial(server, env_index=7)
    first.close()
    first.close()
    third = dial(server)
    assert third.env_index == 0
    with pytest.raises(CallRefused, match="call reset"):  # the episode of an earlier caller is not continued
        third.step(0)
    assert server.status()["taken"] == 2
    third.close()
    second.close()
    assert server.status()["taken"] == 0


def test_silence_is_kept_by_the_client_itself(serve: Any, dial: Any) -> None:
    server = serve("CartPole-v1", 1, lease_s=0.3)
    dial(server)
    heard_s = server._leases.holders()[0].last_message_s
    until(lambda: server._leases.holders()[0].last_message_s > heard_s, "the renewal of the lease", 10.0)


def test_what_was_taken_without_an_answer_is_what_reset_takes(serve: Any, dial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("CartPole-v1", 3, lease_s=3600)
    env = dial(server)
    server._leases.release(env._env_lease._renewer.token)  # as if the server had been started again
    others = [dial(server), dial(server)]
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
    assert (env.env_index, server.status()["taken"]) == (2, 3)
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
        (counting, 2, "count: 2, and one"),
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
    with pytest.raises(ConfigError, match="observation_space: environment 1 has Dict"):
        GymEnvServer(lambda: next(kinds)(), 2, bind="inproc://envs-none")


def test_an_address_in_use_is_said(serve: Any) -> None:
    server = serve("CartPole-v1")
    with pytest.raises(AddressInUse), GymEnvServer("CartPole-v1", bind=server.address) as other:
        other.start()


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
def test_after_close_nothing_is_called(serve: Any, dial: Any, kind: Any) -> None:
    env = dial(serve("CartPole-v1"), kind, seed=1)
    env.close()
    for _ in range(2):
        with pytest.raises(Closed):
            env.step(0 if kind is RemoteEnv else np.zeros(1, int))
        with pytest.raises(Closed):
            env.reset()


def test_the_state_of_a_simulator_can_be_read(serve: Any, dial: Any) -> None:
    env = dial(serve("CartPole-v1", 2), seed=5)
    with closing(gymnasium.make("CartPole-v1")) as local:
        local.reset(seed=5)
        assert same(env.state, local.unwrapped.state) and same(env.get_wrapper_attr("state"), env.state)
        env.step(1)
        local.step(1)
        assert same(env.state, local.unwrapped.state)
    assert env.has_wrapper_attr("state") and env.unwrapped is env
    env = dial(serve(ROOM))
    assert not hasattr(env, "state")
    env.reset()
    with pytest.raises(AttributeError, match="environment 0 has no attribute state"):
        _ = env.state
    env.step(env.action_space.sample())  # the episode continues


def test_a_state_that_cannot_be_sent_fails_the_call_only(serve: Any, dial: Any) -> None:
    class Opaque(Counting):
        state = object()

    env = dial(serve(Opaque), seed=1)
    with pytest.raises(CallFailed):
        _ = env.state
    env.step(0)


def test_agentlaces_wrappers() -> None:
    with closing(GymEnvServerWrapper(gymnasium.make("CartPole-v1"), port=0)) as served:
        served.start(threaded=True)
        port = int(served.server.address.rpartition(":")[2])
        with closing(GymEnvClientWrapper("127.0.0.1", port)) as client, closing(gymnasium.make("CartPole-v1")) as local:
            assert same(client.reset(seed=5)[0], local.reset(seed=5)[0])
            assert same(client.step(1), local.step(1))
            assert same(served.step(0), local.step(0))  # both callers step the same episode
            assert same(client.step(1), local.step(1))


def test_agentlaces_client_waits_for_its_server_and_for_a_free_environment() -> None:
    port, made = free_port(), list[GymEnvClient]()

    def waiting() -> threading.Thread:
        thread = threading.Thread(target=lambda: made.append(GymEnvClient("127.0.0.1", port, 0.01, timeout_ms=50)))
        thread.start()
        return thread

    first = waiting()
    first.join(0.2)
    assert not made
    with closing(GymEnvServerWrapper(gymnasium.make("CartPole-v1"), port=port)) as served:
        served.start(threaded=True)
        first.join(10.0)
        assert made[0].reset(seed=1)[0].shape == (4,)
        second = waiting()
        second.join(0.1)
        assert len(made) == 1  # the environment is not free
        made[0].close()
        second.join(10.0)
        assert made[1].reset(seed=1)[0].shape == (4,)
        made[1].close()


def test_the_page_for_users_runs(serve: Any) -> None:
    (block,) = python_blocks(PAGE)
    server = serve("CartPole-v1")
    exec(block.replace("tcp://127.0.0.1:5546", server.address), {})
    assert server.status()["counters"]["steps"] == 100


def test_the_environment_of_the_page_for_multiserverrl(serve: Any) -> None:
    (block,) = python_blocks(MULTISERVERRL)
    names: dict[str, Any] = {}
    exec(block, names)
    port = int(serve("CartPole-v1", 2, make_kwargs={"render_mode": "rgb_array"}).address.rpartition(":")[2])
    make = names["VirtualEnvironment"]
    with closing(make("localhost", port)) as first, closing(make("localhost", port)) as second:  # both at one port
        assert first.reset().shape == second.reset().shape == (4,)
        observation, reward, done, info = first.step(1)
        assert same(observation, first.state.astype(np.float32)) and (reward, done, info) == (1.0, False, {})
        assert first.render(mode="rgb_array").shape == (400, 600, 3)
