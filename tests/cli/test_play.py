"""The loop of ``rl4sys-actor run``: ends, truncations, resets and masks, with an agent that records its calls."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, ObservationError
from rl4sys_zmq.ops.episodes import CHECK_STEPS, check_spaces, make_environment, record_episode
from rl4sys_zmq.ops.playing import EpisodeCounts, play
from rl4sys_zmq.replay.demonstrations import read_demonstrations, write_demonstrations
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, TupleSpace


class Env:
    """An environment whose observations count the steps of an episode.

    Each letter of `script` is one step: ``.`` continues, ``t`` truncates, ``x`` terminates, and ``b`` does both. `mask` returns
    the mask of the actions after so many steps, or None.
    """

    def __init__(self, script: str, mask: Callable[[int], list[int] | None] = lambda count: None) -> None:
        self._script, self._mask, self._at, self._count = script, mask, 0, 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self._count = 0
        return np.array([0.0], dtype=np.float32), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        kind = self._script[self._at % len(self._script)]
        self._at += 1
        self._count += 1
        return np.array([float(self._count)], dtype=np.float32), 1.0, kind in "xb", kind in "tb", self._info()

    def _info(self) -> dict[str, Any]:
        mask = self._mask(self._count)
        return {} if mask is None else {"action_mask": np.array(mask, np.int8)}


class Action:
    act = 0

    def __init__(self, log: list[Any], i: int) -> None:
        self.log, self.i = log, i

    def update_reward(self, reward: float) -> None:
        self.log.append(("reward", self.i, reward))


class Agent:
    """An agent that records every call."""

    version = 0
    spec = SimpleNamespace(observation_space=BoxSpace((1,)), action_space=DiscreteSpace(2))

    def __init__(self) -> None:
        self.log: list[Any] = []

    def request_for_actions(self, trajs: Any, obs: Any, masks: Any) -> Any:
        self.log.append(("request", obs.ravel().tolist()))
        self.log.append(("masks", None if masks is None else [np.asarray(mask).tolist() for mask in masks]))
        return list(range(len(obs))), [Action(self.log, i) for i in range(len(obs))]

    def add_to_trajectory(self, traj: int, action: Action) -> None:
        assert traj == action.i
        self.log.append(("add", traj))

    def mark_end_of_trajectory(
        self, traj: int, action: Action | None = None, *, truncated: bool, final_obs: Any, final_mask: Any
    ) -> None:
        self.log.append(("end", traj, truncated, None if final_obs is None else final_obs.tolist()))
        self.log.append(("final mask", None if final_mask is None else final_mask.tolist()))

    def of(self, name: str) -> list[Any]:
        return [entry[1:] for entry in self.log if entry[0] == name]


def alternating(count: int) -> list[int] | None:
    """Forbid action 0 after a reset, and action 1 after an even number of steps. Other steps have no mask."""
    return [0, 1] if count == 0 else None if count % 2 else [1, 0]


def run(envs: list[Env], tally: EpisodeCounts, **options: bool) -> Agent:
    agent = Agent()
    play(agent, envs, list(range(len(envs))), tally, **options)  # type: ignore[arg-type]
    return agent


def test_a_time_limit_hands_over_the_last_observation_and_a_death_does_not() -> None:
    tally = EpisodeCounts(episodes=3)
    agent = run([Env("..t.xb")], tally)
    assert agent.of("end") == [(0, True, [3.0]), (0, False, None), (0, False, None)]
    assert list(tally.returns) == [3.0, 2.0, 1.0]
    assert (tally.episodes, tally.steps) == (3, 6)


def test_after_an_end_the_next_request_sees_the_reset_observation() -> None:
    agent = run([Env(".x"), Env("...x")], EpisodeCounts(episodes=3))
    assert [obs for (obs,) in agent.of("request")] == [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 3.0]]


def test_a_limit_of_steps_is_exact_and_the_steps_of_unfinished_episodes_are_sent() -> None:
    tally = EpisodeCounts(steps=3)
    agent = run([Env("."), Env(".")], tally)
    assert agent.of("add") == [(0,), (1,), (0,)] and tally.steps == 3
    assert agent.of("end") == [(0, True, [2.0]), (1, True, [1.0])]
    assert tally.episodes == 0 and not tally.returns


def test_a_run_that_is_finished_from_outside_ends_after_its_turn() -> None:
    tally = EpisodeCounts()
    agent = Agent()
    play(agent, [Env("." * 99)], [0], tally, check=tally.finish)  # type: ignore[arg-type]
    assert tally.steps == CHECK_STEPS and agent.of("end") == [(0, True, [float(CHECK_STEPS)])]


def test_each_environment_is_seeded_once() -> None:
    envs = [Env(".x"), Env(".x")]
    run(envs, EpisodeCounts(episodes=4))
    assert [env.seeds[0] for env in envs] == [0, 1]
    assert all(seed is None for env in envs for seed in env.seeds[1:])


def test_rewards_come_before_the_step_is_stored() -> None:
    agent = run([Env("x")], EpisodeCounts(episodes=1))
    assert [entry[0] for entry in agent.log] == ["request", "masks", "reward", "add", "end", "final mask"]


def test_masks_in_the_info_of_an_environment_are_passed_on() -> None:
    agent = run([Env("...x", alternating), Env(".")], EpisodeCounts(episodes=2))
    once: list[Any] = [[0, 1], None, [1, 0], None]
    assert [masks for (masks,) in agent.of("masks")] == [mask and [mask, [True, True]] for mask in once * 2]
    assert agent.of("request")[4] == ([0.0, 4.0],)


@pytest.mark.parametrize(("script", "mask"), [(".t", [1, 0]), ("..t", None), (".x", None), (".b", None)])
def test_a_truncated_episode_hands_over_the_mask_of_its_last_observation(script: str, mask: list[int] | None) -> None:
    assert run([Env(script, alternating)], EpisodeCounts(episodes=1)).of("final mask") == [(mask,)]


def test_masks_are_left_out_where_there_are_none_or_nobody_wants_them() -> None:
    for envs, options in (([Env("x")], {}), ([Env("x", alternating)], {"masks": False})):
        assert set(run(envs, EpisodeCounts(episodes=2), **options).of("masks")) == {(None,)}
    assert run([Env(".t", alternating)], EpisodeCounts(episodes=1), masks=False).of("final mask") == [(None,)]


def test_a_mask_that_only_a_step_has_is_passed_on() -> None:
    agent = run([Env("..x", lambda count: [0, 1] if count else None)], EpisodeCounts(episodes=2))
    assert [masks for (masks,) in agent.of("masks")] == [None, [[0, 1]], [[0, 1]]] * 2


class Returning:
    """An environment that returns the given observations, the first one from each reset."""

    def __init__(self, *observations: Any) -> None:
        self._observations, self._at = observations, 0

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._at = 0
        return self._observations[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        last = self._at == len(self._observations) - 1
        return self._observations[self._at], 1.0, False, last, {}


class Seeing:
    """An agent that keeps the observations it is asked about, in a batch or alone."""

    version = 0

    def __init__(self, space: Any) -> None:
        self.spec = SimpleNamespace(observation_space=space, action_space=DiscreteSpace(2))
        self.seen: list[Any] = []

    def request_for_actions(self, trajs: Any, obs: Any, masks: Any) -> Any:
        (one,) = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else (obs,)
        self.seen.append(one[0].tolist())
        return [0], [Action([], 0)]

    def add_to_trajectory(self, traj: Any, action: Any) -> None: ...

    def mark_end_of_trajectory(self, traj: Any, action: Any, **end: Any) -> None: ...


FLOATS, BYTES = BoxSpace((2,), low=-1.0, high=1.0), BoxSpace((2,), "|u1", 0, 255)
NESTED: dict[str, Any] = {
    "array": (lambda space: space, lambda value: value),
    "dict": (lambda space: DictSpace({"a": space}), lambda value: {"a": value}),
    "tuple": (lambda space: TupleSpace((space,)), lambda value: (value,)),
}


@pytest.mark.parametrize("nested", NESTED)
def test_the_policy_sees_what_the_environment_returns_whatever_its_reset_returned(nested: str) -> None:
    space, value = NESTED[nested]
    agent = Seeing(space(FLOATS))
    env = Returning(value(np.array([0, 0])), value(np.array([0.25, 0.75])), value([0.5, 0.5]), value(np.zeros(2)))
    play(agent, [env], [0], EpisodeCounts(episodes=1))  # type: ignore[arg-type]
    assert agent.seen == [[0.0, 0.0], [0.25, 0.75], [0.5, 0.5]]


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize(
    ("space", "second", "words"),
    [
        (FLOATS, 0.5, "shape"),
        (FLOATS, np.zeros((1, 1), np.float32), "shape"),
        (FLOATS, np.array([np.nan, 0.0]), "finite"),
        (BYTES, np.array([0.5, 0.9]), "float64"),
        (BYTES, [300, 0], "change"),
    ],
)
def test_an_observation_that_its_space_cannot_hold_is_an_error_in_every_step(
    nested: str, space: Any, second: Any, words: str
) -> None:
    nest, value = NESTED[nested]
    first = value(np.zeros(2, space.dtype))
    for order in ((first, value(second)), (value(second), first)):
        with pytest.raises(ObservationError, match=words):
            play(Seeing(nest(space)), [Returning(*order, first)], [0], EpisodeCounts(episodes=1))  # type: ignore[arg-type]


def test_the_last_observation_of_a_recorded_episode_is_checked_too() -> None:
    with pytest.raises(ObservationError, match="float64"):
        record_episode(recorder(BYTES), Returning(np.zeros(2, np.uint8), np.array([0.5, 0.9])), 0)


@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_an_environment_without_a_render_mode_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def make(self: Any) -> None:
        self.observation_space, self.action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    Plain = type("Plain", (gymnasium.Env,), {"__init__": make})
    monkeypatch.setitem(gymnasium.registry, "Plain-v0", gymnasium.envs.registration.EnvSpec("Plain-v0", Plain))
    env = make_environment({"id": "Plain-v0"})
    assert isinstance(env.unwrapped, Plain)
    with pytest.raises(ConfigError, match=r"'Plain-v0': .*render_mode"):
        make_environment({"id": "Plain-v0", "render_mode": "human"})


def test_the_error_about_an_unknown_environment_says_how_to_name_one_of_ones_own() -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=r"Acrobo-v1.*--plugin.*module:ID"):
        make_environment({"id": "Acrobo-v1"})
    with pytest.raises(ConfigError, match=r"nowhere.*--plugin.*PYTHONPATH"):
        make_environment({"id": "nowhere:Nothing-v0"})


def recorder(space: Any, act: int = 0) -> Any:
    """Return an agent that always chooses `act`, and whose actions have a copy of the observation."""

    def choose(traj: Any, observation: Any, mask: Any) -> tuple[Any, Any]:
        return traj, SimpleNamespace(act=act, obs=observation.copy(), mask=None if mask is None else mask.astype(np.bool_))

    return SimpleNamespace(
        spec=SimpleNamespace(observation_space=space, action_space=DiscreteSpace(2)),
        request_for_action=choose,
        add_to_trajectory=lambda traj, action: None,
        mark_end_of_trajectory=lambda traj: None,
    )


class ReusingEnv:
    """An environment that always returns the same array, with new numbers in it."""

    def __init__(self) -> None:
        self._observation = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observation, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._observation += 1.0
        return self._observation, 1.0, bool(self._observation[0] == 3.0), False, {}


def test_a_recorded_episode_has_copies_of_the_observations() -> None:
    (observations,) = record_episode(recorder(BoxSpace((2,))), ReusingEnv(), 0).observations
    assert observations.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


class MaskedRecording(ReusingEnv):
    """An environment with these masks. It ends an episode of two steps by its time limit."""

    def __init__(self, masks: list[Any]) -> None:
        super().__init__()
        self._infos = iter({} if mask is None else {"action_mask": np.array(mask, np.int8)} for mask in masks)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset()[0], next(self._infos)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *_ = super().step(action)
        return observation, reward, False, bool(observation[0] == 2.0), next(self._infos)


def test_a_recorded_episode_has_the_masks_of_its_environment(tmp_path: Path) -> None:
    agent = recorder(BoxSpace((2,)), act=1)
    episode = record_episode(agent, MaskedRecording([[0, 1], None, [1, 0]]), 0)
    assert episode.masks is not None
    assert episode.masks.tolist() == [[False, True], [True, True], [True, False]]
    write_demonstrations(tmp_path / "d.npz", agent.spec.observation_space, agent.spec.action_space, [episode])
    (segment,) = read_demonstrations(tmp_path / "d.npz").segments
    np.testing.assert_array_equal(segment.masks, episode.masks)
    assert record_episode(agent, MaskedRecording([None] * 3), 0).masks is None


def test_an_environment_whose_actions_begin_at_another_number_is_refused() -> None:
    """Nothing shifts the actions of the policy, so the environment would get other ones than the policy has chosen."""
    agent: Any = SimpleNamespace(spec=SimpleNamespace(observation_space=BoxSpace((2,)), action_space=DiscreteSpace(3)))
    check_spaces(agent, SimpleNamespace(observation_space=BoxSpace((2,), high=1.0), action_space=DiscreteSpace(3)), "Any-v0")
    with pytest.raises(ConfigError, match=r"action_space .*, but Any-v0 has .*start=1"):
        check_spaces(agent, SimpleNamespace(observation_space=BoxSpace((2,)), action_space=DiscreteSpace(3, 1)), "Any-v0")
