"""Episodes of a Gymnasium environment that a stored policy plays: what an evaluation measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.actor.inputs import inputs_for
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.demonstrations import Demonstration
from rl4sys_zmq.values import observation_space_from, space_from
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import have_same_form, leaves_of

__all__ = ["MASK_KEY", "check_spaces", "make_environment", "play_episode", "record_episode"]

CHECK_STEPS = 64
MASK_KEY = "action_mask"
"""The key of the mask of allowed actions in the ``info`` of an environment's reset and step, as Gymnasium's Taxi has it."""
SIMULATOR_EXTRAS = {"box2d": "gym", "mujoco": "mujoco"}
"""The pip extra of this package that installs a simulator, by a word in Gymnasium's message about the missing simulator."""


def make_environment(arguments: Mapping[str, Any]) -> Any:
    """Create a Gymnasium environment.

    Args:
        arguments: Arguments of ``gymnasium.make``, with ``id``.

    Raises:
        ConfigError: If Gymnasium, the environment or a package that it needs is missing, or an argument is unknown.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as exc:
        raise ConfigError(f"this needs gymnasium, which is not installed: pip install 'rl4sys-zmq[gym]' ({exc})") from exc
    try:
        return gymnasium.make(**{"disable_env_checker": True, **arguments})
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as exc:
        text = " ".join(str(exc).split()) or type(exc).__name__
        needs = isinstance(exc, gymnasium.error.DependencyNotInstalled | ModuleNotFoundError)
        extra = next((extra for name, extra in SIMULATOR_EXTRAS.items() if needs and name in text.lower()), "")
        hint = f"; this library's extra: pip install 'rl4sys-zmq[{extra}]'" if extra else ""
        raise ConfigError(f"environment {arguments.get('id')!r}: {text}{hint}") from exc


def check_spaces(agent: FrozenAgent, env: Any, env_id: str) -> None:
    """Check that an environment has the spaces of a policy.

    Raises:
        ConfigError: If a space differs. The message has both.
    """
    for key, ours, theirs in (
        ("observation_space", agent.spec.observation_space, observation_space_from(env.observation_space)),
        ("action_space", agent.spec.action_space, space_from(env.action_space)),
    ):
        if not have_same_form(ours, theirs):
            raise ConfigError(f"the policy has the {key} {ours}, but {env_id} has {theirs}; choose another environment", key=key)


def record_episode(agent: FrozenAgent, env: Any, seed: int, check: Callable[[], None] | None = None) -> Demonstration:
    """Play one episode and return it as a demonstration, with its masks. The arguments are those of `play_episode`."""
    leaves = leaves_of(agent.spec.observation_space)
    layout = action_layout(agent.spec.action_space)
    observation, info = env.reset(seed=seed)
    traj, rewards, actions = None, [], []
    masks: list[Any] = []
    columns = [[np.array(leaf)] for leaf in leaves.flatten(observation)]  # copies: the environment can reuse its arrays
    while True:
        traj, action = agent.request_for_action(traj, observation, info.get(MASK_KEY) if layout.choices else None)
        agent.add_to_trajectory(traj, action)
        masks.append(action.mask)
        observation, reward, terminated, truncated, info = env.step(action.act)
        actions.append(np.array(action.act))
        rewards.append(float(reward))
        for column, leaf in zip(columns, leaves.flatten(observation), strict=True):
            column.append(np.array(leaf))
        if terminated or truncated:
            agent.mark_end_of_trajectory(traj)
            arrays = [np.array(column, dtype=space.dtype) for column, space in zip(columns, leaves.spaces, strict=True)]
            chosen = np.array(actions, dtype=agent.spec.action_space.dtype)
            final = info.get(MASK_KEY) if layout.choices and not terminated else None
            masks.append(inputs_for(agent.spec.observation_space, agent.spec.action_space).mask(final))
            free = np.ones(layout.logits, np.bool_)
            allowed = None if all(m is None for m in masks) else np.stack([free if m is None else m for m in masks])
            return Demonstration(arrays, chosen, np.array(rewards, np.float32), bool(terminated), allowed)
        if check is not None and len(actions) % CHECK_STEPS == 0:
            check()


def play_episode(agent: FrozenAgent, env: Any, seed: int, check: Callable[[], None] | None = None) -> tuple[float, int]:
    """Play one episode. Return its return and its length in steps.

    Actions that the environment forbids by a mask in its ``info`` are not chosen.

    Args:
        agent: The agent that acts.
        env: The environment.
        seed: The seed of the initial state.
        check: A function that is called each `CHECK_STEPS` steps, and ends the episode if it raises.
    """
    choices = action_layout(agent.spec.action_space).choices
    observation, info = env.reset(seed=seed)
    traj, total, length = None, 0.0, 0
    while True:
        traj, action = agent.request_for_action(traj, observation, info.get(MASK_KEY) if choices else None)
        agent.add_to_trajectory(traj, action)
        observation, reward, terminated, truncated, info = env.step(action.act)
        total += float(reward)
        length += 1
        if terminated or truncated:
            agent.mark_end_of_trajectory(traj)
            return total, length
        if check is not None and length % CHECK_STEPS == 0:
            check()
