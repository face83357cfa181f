"""Remote environments as one vector environment behave like `SyncVectorEnv`, step for step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from kit import raising

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from rl4sys_zmq.errors import CallFailed, CallRefusalReason, CallRefused, ConfigError, PayloadError  # noqa: E402
from rl4sys_zmq.serving import RemoteVectorEnv  # noqa: E402
from rl4sys_zmq.serving.env_lease import EnvLease  # noqa: E402

from .worlds import ROOM, Counting, Trouble, same  # noqa: E402


def local(env_id: str, count: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gymnasium.make, env_id, disable_env_checker=True)] * count)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", ROOM])
def test_it_is_a_sync_vector_env(serve: Any, transport: Any, env_id: str, servers: int, seed: int) -> None:
    addresses = [serve(env_id, 4 // servers, bind=transport.address()).address for _ in range(servers)]
    here, there = local(env_id, 4), RemoteVectorEnv(addresses)
    try:
        assert there.num_envs == 4
        assert there.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert (there.observation_space, there.action_space) == (here.observation_space, here.action_space)
        here.action_space.seed(seed)
        assert same(there.reset(seed=seed), here.reset(seed=seed))
        assert there.np_random_seed == here.np_random_seed
        ended = 0
        for _ in range(80):
            actions = here.action_space.sample()
            ours, theirs = there.step(actions), here.step(actions)
            assert same(ours, theirs)
            ended += int(theirs[2].sum() + theirs[3].sum())
        assert ended > 0 or env_id == "Pendulum-v1"
        mask = np.array([True, False, True, False])
        options = {"reset_mask": mask}
        assert same(
            there.reset(seed=[1, None, 3, None], options=dict(options)), here.reset(seed=[1, None, 3, None], options=options)
        )
        actions = here.action_space.sample()
        assert same(there.step(actions), here.step(actions))
    finally:
        there.close()
        here.close()


class Meeting(Counting):
    """An environment whose `reset` returns only when the reset of another one runs at the same time."""

    def __init__(self, meet: Callable[[], object]) -> None:
        super().__init__()
        self._meet = meet

    def reset(self, **given: Any) -> Any:
        self._meet()
        return super().reset(**given)


def test_all_servers_reset_at_the_same_time(serve: Any) -> None:
    barrier = threading.Barrier(2, timeout=10.0)
    meet: list[Callable[[], object]] = [barrier.wait]
    there = RemoteVectorEnv([serve(partial(Meeting, lambda: meet[0]())).address for _ in range(2)])

    def lose(*parts: EnvLease) -> None:
        for part in parts:
            part.client.call("give", {"token": part._renewer.token})  # as if the server had ended the lease

    try:
        assert len(there.reset(seed=1)[0]) == 2
        lose(*there._parts)
        assert len(there.reset(seed=1)[0]) == 2
        meet[0] = lambda: None
        for part in there._parts:
            lose(part)
            assert len(there.reset(seed=1)[0]) == 2
            assert there.step(np.zeros(2, np.int64))[1].shape == (2,)
    finally:
        there.close()


def test_it_renders_and_takes_as_many_as_asked(serve: Any) -> None:
    server = serve(ROOM, 3, make_kwargs={"render_mode": "ansi"})
    first = RemoteVectorEnv(server.address, 2)
    first.reset(seed=0)
    assert first.render() == ("0", "0")
    with raising(CallRefused, "2 requested, 1 free; 2 of 3", code=CallRefusalReason.OCCUPIED):
        RemoteVectorEnv(server.address, 2)
    with pytest.raises(CallRefused, match="3 requested, 1 free"):
        RemoteVectorEnv([server.address], 9)
    first.close()
    first.close()
    with pytest.raises(CallRefused, match="9 requested; there are 3"):
        RemoteVectorEnv([server.address], 9)
    assert server.status()["taken"] == 0


def test_when_one_fails_all_begin_anew(serve: Any) -> None:
    addresses = [serve(Trouble, 2).address for _ in range(2)]
    envs = RemoteVectorEnv(addresses)
    try:
        envs.reset(seed=0)
        envs.step(np.array([0, 0, 0, 0]))
        with pytest.raises(CallFailed, match="the arm is stuck"):
            envs.step(np.array([0, 0, 0, 1]))
        with raising(CallRefused, "call reset", code=CallRefusalReason.GONE):
            envs.step(np.array([0, 0, 0, 0]))
        with pytest.raises(ConfigError, match="must reset all environments"):
            envs.reset(options={"reset_mask": np.array([False, False, False, True])})
        envs.reset()
        envs.step(np.array([0, 0, 0, 0]))
    finally:
        envs.close()


class Locked(Counting):
    """An environment whose reset raises while it is `locked`."""

    locked = False

    def reset(self, **options: Any) -> Any:
        if self.locked:
            raise ValueError("the door is locked")
        return super().reset(**options)


def test_a_reset_that_fails_on_one_server_leaves_no_episode_on_the_others(serve: Any) -> None:
    first, second = Locked(), Locked()
    envs = RemoteVectorEnv([serve(first).address, serve(second).address])
    try:
        envs.reset(seed=0)
        second.locked = True
        with pytest.raises(CallFailed, match="locked"):
            envs.reset(seed=1)
        second.locked = False
        with raising(CallRefused, "call reset", code=CallRefusalReason.GONE):
            envs.step(np.array([0, 0]))
        with pytest.raises(ConfigError, match="must reset all environments"):
            envs.reset(options={"reset_mask": np.array([False, True])})
        envs.reset()
        envs.step(np.array([0, 0]))
        assert (first.steps, second.steps) == (1, 1)
    finally:
        envs.close()


class Words(Counting):
    """An environment whose actions are strings."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(4)


@pytest.mark.parametrize("word", [object(), "\ud800", 7], ids=["object", "surrogate", "number"])
def test_an_action_for_a_second_server_that_cannot_go_there_loses_no_step_of_the_first(serve: Any, word: Any) -> None:
    first, second = Words(), Words()
    envs = RemoteVectorEnv([serve(first).address, serve(second).address])
    try:
        envs.reset()
        with pytest.raises((PayloadError, CallRefused)):
            envs.step(("x", word))
        made = first.steps
        with raising(CallRefused, "call reset", code=CallRefusalReason.GONE):
            envs.step(("x", "y"))
        assert (first.steps, second.steps) == (made, 0)  # no further step was running
        envs.reset()
        envs.step(("x", "y"))
    finally:
        envs.close()


def test_what_does_not_fit_is_said_before_anything_is_asked(serve: Any) -> None:
    envs = RemoteVectorEnv(serve("CartPole-v1", 2).address)
    try:
        with pytest.raises(ConfigError, match="must reset all environments"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        seeds: list[tuple[Any, str]] = [
            ([1, 2, 3], "3 seeds for 2"),
            (1.5, "the seed 1.5 is neither an integer"),
            ([1, "a"], "the seed 'a'"),
            (-1, "-1"),
        ]
        for seed, words in seeds:
            with pytest.raises(ConfigError, match=words):
                envs.reset(seed=seed)
        with pytest.raises(ConfigError, match="options are a list"):
            envs.reset(options=[1])  # type: ignore[arg-type]
        assert envs.reset(seed=np.int64(3))[1] == {}  # type: ignore[arg-type]
        assert envs.np_random_seed == (3, 4)
        with pytest.raises(ConfigError, match="reset_mask"):
            envs.reset(options={"reset_mask": np.zeros(2, bool)})
        envs.reset(seed=1)
        with pytest.raises(ConfigError, match="3 actions for 2"):
            envs.step(np.array([0, 1, 0]))
        for actions in (None, 7):
            with pytest.raises(ConfigError, match="not a batch of actions"):
                envs.step(actions)
        envs.step(np.array([0, 1]))
    finally:
        envs.close()
    with pytest.raises(ConfigError, match="no address"):
        RemoteVectorEnv([])


def test_servers_of_other_spaces_make_no_vector(serve: Any) -> None:
    with pytest.raises(ConfigError, match="observation_space"):
        RemoteVectorEnv([serve("CartPole-v1").address, serve("Pendulum-v1").address])
