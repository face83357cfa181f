"""Remote environments as one vector environment behave like `SyncVectorEnv`, step for step."""

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from kit import raising

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from rl4sys_zmq.errors import CallFailed, CallRefusalReason, CallRefused, ConfigError, PayloadError  # noqa: E402
from rl4sys_zmq.serving import RemoteVectorEnv  # noqa: E402
from rl4sys_zmq.serving.remote_env import LeasedEnvClient  # noqa: E402

from .trees import same  # noqa: E402
from .worlds import ROOM, Counting, Trouble  # noqa: E402


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", ROOM])
def test_it_is_a_sync_vector_env(serve: Any, transport: Any, env_id: str, servers: int, seed: int) -> None:
    addresses = [serve(env_id, 4 // servers, bind=transport.address()).address for _ in range(servers)]
    made = SyncVectorEnv([partial(gymnasium.make, env_id, disable_env_checker=True)] * 4)
    with closing(made) as here, closing(RemoteVectorEnv(addresses)) as there:
        assert there.num_envs == 4
        assert there.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert (there.observation_space, there.action_space) == (here.observation_space, here.action_space)
        here.action_space.seed(seed)
        assert same(there.reset(seed=seed), here.reset(seed=seed))
        assert there.np_random_seed == here.np_random_seed
        ended = 0
        for _ in range(80):
            actions = here.action_space.sample()
            theirs = here.step(actions)
            assert same(there.step(actions), theirs)
            ended += int(theirs[2].sum() + theirs[3].sum())
        assert ended > 0 or env_id == "Pendulum-v1"
        seeds, options = [1, None, 3, None], {"reset_mask": np.array([True, False, True, False])}
        assert same(there.reset(seed=seeds, options=dict(options)), here.reset(seed=seeds, options=options))
        actions = here.action_space.sample()
        assert same(there.step(actions), here.step(actions))


def vector(*servers: Any) -> Any:
    return closing(RemoteVectorEnv([server.address for server in servers]))


def refuses_to_continue(envs: Any, actions: Any) -> None:
    """Assert that no server continues its episode: only a reset of all environments begins a new one."""
    with raising(CallRefused, "call reset", code=CallRefusalReason.GONE):
        envs.step(actions)
    mask = np.zeros(envs.num_envs, bool)
    mask[-1] = True
    with pytest.raises(ConfigError, match="must reset all environments"):
        envs.reset(options={"reset_mask": mask})
    envs.reset()


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

    def lose(*parts: LeasedEnvClient) -> None:
        for part in parts:
            part.client.call("give", {"token": part._renewer.token})  # as if the server had ended the lease

    with vector(*(serve(partial(Meeting, lambda: meet[0]())) for _ in range(2))) as there:
        assert len(there.reset(seed=1)[0]) == 2
        lose(*there._parts)
        assert len(there.reset(seed=1)[0]) == 2
        meet[0] = lambda: None
        for part in there._parts:
            lose(part)
            assert len(there.reset(seed=1)[0]) == 2
            assert there.step(np.zeros(2, np.int64))[1].shape == (2,)


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
    with vector(serve(Trouble, 2), serve(Trouble, 2)) as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 0, 0, 0]))
        with pytest.raises(CallFailed, match="the arm is stuck"):
            envs.step(np.array([0, 0, 0, 1]))
        refuses_to_continue(envs, np.array([0, 0, 0, 0]))
        envs.step(np.array([0, 0, 0, 0]))


class Locked(Counting):
    """An environment whose reset raises while it is `locked`."""

    locked = False

    def reset(self, **options: Any) -> Any:
        if self.locked:
            raise ValueError("the door is locked")
        return super().reset(**options)


def test_a_reset_that_fails_on_one_server_leaves_no_episode_on_the_others(serve: Any) -> None:
    first, second = Locked(), Locked()
    with vector(serve(first), serve(second)) as envs:
        envs.reset(seed=0)
        second.locked = True
        with pytest.raises(CallFailed, match="locked"):
            envs.reset(seed=1)
        second.locked = False
        refuses_to_continue(envs, np.array([0, 0]))
        envs.step(np.array([0, 0]))
        assert (first.steps, second.steps) == (1, 1)


class Words(Counting):
    """An environment whose actions are strings."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(4)


@pytest.mark.parametrize("word", [object(), "\ud800", 7], ids=["object", "surrogate", "number"])
def test_an_action_for_a_second_server_that_cannot_go_there_loses_no_step_of_the_first(serve: Any, word: Any) -> None:
    first, second = Words(), Words()
    with vector(serve(first), serve(second)) as envs:
        envs.reset()
        with pytest.raises((PayloadError, CallRefused)):
            envs.step(("x", word))
        made = first.steps
        refuses_to_continue(envs, ("x", "y"))
        assert (first.steps, second.steps) == (made, 0)  # no further step was running
        envs.step(("x", "y"))


def test_what_does_not_fit_is_said_before_anything_is_asked(serve: Any) -> None:
    with vector(serve("CartPole-v1", 2)) as envs:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"options": {"reset_mask": np.array([True, False])}}, "must reset all environments"),
            ({"seed": [1, 2, 3]}, "3 seeds for 2"),
            ({"seed": 1.5}, "the seed 1.5 is neither an integer"),
            ({"seed": [1, "a"]}, "the seed 'a'"),
            ({"seed": -1}, "-1"),
            ({"options": [1]}, "options: expected a mapping"),
            ({"options": {"reset_mask": np.zeros(2, bool)}}, "reset_mask"),
        ]
        for arguments, words in wrong:
            with pytest.raises(ConfigError, match=words):
                envs.reset(**arguments)
        assert envs.reset(seed=np.int64(3))[1] == {} and envs.np_random_seed == (3, 4)
        for actions, words in ((np.array([0, 1, 0]), "3 actions for 2"), (None, "not a batch"), (7, "not a batch of actions")):
            with pytest.raises(ConfigError, match=words):
                envs.step(actions)
        envs.step(np.array([0, 1]))
    with pytest.raises(ConfigError, match="no address"):
        RemoteVectorEnv([])


def test_servers_of_other_spaces_make_no_vector(serve: Any) -> None:
    with pytest.raises(ConfigError, match="observation_space"):
        vector(serve("CartPole-v1"), serve("Pendulum-v1"))
