"""Episodes of a Gymnasium environment that a stored policy plays, and the process that evaluates a learner's policies by them.

The process is run as ``python -m`` with the file descriptor of a socket. It reads one request per line, as JSON, and answers each
with one line. It ends when the socket is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.child_process import begin_child, end_group_with_process
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.replay.demonstrations import Demonstration
from rl4sys_zmq.values import observation_space_from, space_from
from rl4sys_zmq.values.action_layout import ActionLayout, action_layout
from rl4sys_zmq.values.observations import have_same_form, leaves_of

CHECK_STEPS = 64
NICENESS = 10
MASK_KEY = "action_mask"
"""The key of the action mask in the ``info`` of an environment's reset and step, as Gymnasium's Taxi has it."""
SIMULATOR_EXTRAS = {"box2d": "gym", "mujoco": "mujoco"}
"""The pip extra of this package that installs a simulator, by a word in Gymnasium's message about its lack."""


def make_environment(arguments: Mapping[str, Any]) -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as exc:
        raise ConfigError(f"this needs gymnasium, which is not installed: pip install 'rl4sys-zmq[gym]' ({exc})") from exc
    try:
        return gymnasium.make(**{"disable_env_checker": True, **arguments})
    except Exception as exc:  # of the environment's own code
        text = " ".join(str(exc).split()).rstrip(".")
        if not text or not isinstance(exc, gymnasium.error.Error | ModuleNotFoundError | TypeError):
            text = f"{type(exc).__name__}: {text}"
        needs = isinstance(exc, gymnasium.error.DependencyNotInstalled | ModuleNotFoundError)
        extra = next((extra for name, extra in SIMULATOR_EXTRAS.items() if needs and name in text.lower()), "")
        hint = f"; this library's extra: pip install 'rl4sys-zmq[{extra}]'" if extra else ""
        own = isinstance(exc, ModuleNotFoundError) and ":" in str(arguments.get("id"))
        if own or isinstance(exc, gymnasium.error.UnregisteredEnv):
            hint = (
                "; for an environment of your own, name its module: --plugin MODULE (plugins in a learner's file), or "
                "module:ID with the module's folder in PYTHONPATH"
            )
        raise ConfigError(f"environment {arguments.get('id')!r}: {text}{hint}") from exc


def check_spaces(agent: FrozenAgent, env: Any, env_id: str) -> None:
    for key, ours, theirs in (
        ("observation_space", agent.spec.observation_space, observation_space_from(env.observation_space)),
        ("action_space", agent.spec.action_space, space_from(env.action_space)),
    ):
        if not have_same_form(ours, theirs):
            raise ConfigError(f"the policy has the {key} {ours}, but {env_id} has {theirs}; choose another environment", key=key)


def mask_in(info: Mapping[str, Any], layout: ActionLayout) -> Any:
    return info.get(MASK_KEY) if layout.choices else None


class _Step(NamedTuple):
    action: Any
    observation: Any
    reward: float
    terminated: bool
    info: Mapping[str, Any]


def _steps(agent: FrozenAgent, env: Any, seed: int, layout: ActionLayout, check: Callable[[], None] | None) -> Iterator[_Step]:
    observation, info = env.reset(seed=seed)
    traj, length, ended = None, 0, False
    while not ended:
        traj, action = agent.request_for_action(traj, observation, mask_in(info, layout))
        agent.add_to_trajectory(traj, action)
        observation, reward, terminated, truncated, info = env.step(action.act)
        length += 1
        ended = bool(terminated or truncated)
        if ended:
            agent.mark_end_of_trajectory(traj)
        yield _Step(action, observation, float(reward), bool(terminated), info)
        if check is not None and not ended and length % CHECK_STEPS == 0:
            check()


def play_episode(agent: FrozenAgent, env: Any, seed: int, check: Callable[[], None] | None = None) -> tuple[float, int]:
    """Play one episode with the agent's policy. Return the sum of the rewards and the number of steps.

    Action masks in the environment's ``info`` are obeyed. `seed` is that of the environment's reset. `check` is called every
    `CHECK_STEPS` steps, and can raise an exception.
    """
    total, length = 0.0, 0
    for step in _steps(agent, env, seed, action_layout(agent.spec.action_space), check):
        total += step.reward
        length += 1
    return total, length


def record_episode(agent: FrozenAgent, env: Any, seed: int, check: Callable[[], None] | None = None) -> Demonstration:
    """Play one episode, and return it as a demonstration. The arguments are those of `play_episode`."""
    spec = agent.spec
    leaves, layout = leaves_of(spec.observation_space), action_layout(spec.action_space)
    inputs = InputValidator(spec.observation_space, spec.action_space)
    rewards, actions, masks = list[float](), list[Any](), list[Any]()
    rows: list[list[Any]] = []
    for step in _steps(agent, env, seed, layout, check):
        rows.append(leaves.flatten(step.action.obs))
        masks.append(step.action.mask)
        actions.append(np.array(step.action.act))
        rewards.append(step.reward)
    rows.append(leaves.flatten(inputs.observation(step.observation)[0]))
    masks.append(inputs.mask(None if step.terminated else mask_in(step.info, layout)))
    every = np.ones(layout.logits, np.bool_)
    allowed = None if all(mask is None for mask in masks) else np.stack([every if mask is None else mask for mask in masks])
    chosen = np.array(actions, dtype=spec.action_space.dtype)
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Demonstration(columns, chosen, np.array(rewards, np.float32), step.terminated, allowed)


def answer(request: Mapping[str, Any], environments: dict[str, Any]) -> dict[str, Any]:
    """Play the episodes that the learner requests. Return lists of their returns and lengths, or the error, in a dict."""
    try:
        with FrozenAgent(request["policy"], seed=request["seed"]) as agent:
            env_id = request["env"]["id"]
            if env_id not in environments:
                environments[env_id] = make_environment(request["env"])
            check_spaces(agent, environments[env_id], env_id)
            seeds = np.random.SeedSequence(request["seed"]).generate_state(request["episodes"])
            episodes = [play_episode(agent, environments[env_id], int(seed)) for seed in seeds]
            not_finite = agent.stats()["policies_not_finite"]
    except RL4SysError as exc:
        return {"error": str(exc)[:1000]}
    except Exception as exc:  # noqa: BLE001 - of the user's environment; the learner reports it
        broken = environments.pop(request["env"]["id"], None)  # the next request makes a new one
        if broken is not None:
            with suppress(Exception):
                broken.close()
        return {"error": f"the environment raised {type(exc).__name__}: {exc}"[:1000]}
    returns, lengths = [total for total, _ in episodes], [length for _, length in episodes]
    return {"returns": returns, "lengths": lengths, "not_finite": not_finite}


def main(argv: list[str] | None = None) -> int:
    begin_child(signal.SIGINT, signal.SIGTERM)  # the learner closes the socket to end this process
    _guard = end_group_with_process()
    os.nice(NICENESS)
    (fd,) = argv if argv is not None else sys.argv[1:]
    environments: dict[str, Any] = {}
    with socket.socket(fileno=int(fd)) as end, end.makefile("r", encoding="ascii", newline="\n") as lines:
        try:
            setup = json.loads(next(lines))
            sys.path[:] = setup["path"]
            import_plugins(tuple(setup["plugins"]))
            for line in lines:
                end.sendall(json.dumps(answer(json.loads(line), environments)).encode("ascii") + b"\n")
        except (StopIteration, ConnectionError):
            pass  # the learner has closed the socket
        finally:
            for env in environments.values():
                env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
