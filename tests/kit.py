"""Helpers for tests of several folders: they wait for a condition, expect an error, play episodes, and run programs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.security import ServerKeys, UserKeys, new_key_pair, write_server_keys, write_user_keys
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

if TYPE_CHECKING:
    from rl4sys_zmq.learner import Learner

T = TypeVar("T")

PATIENCE_S = 60.0
"""The longest wait. It is only reached by a failure, since a busy machine may be slow."""


def until(
    ready: Callable[[], T | None], what: object = "the condition", timeout_s: float = PATIENCE_S, every_s: float = 0.01
) -> T:
    """Poll a condition until it is true, and return its value. A function as `what` describes the state when time is over."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not (value := ready()):
        assert time.monotonic() < deadline, f"{what() if callable(what) else what}: not within {timeout_s:g} s"
        pause.wait(every_s)
    return value


@contextmanager
def raising(error: type[BaseException], words: str | None = None, **fields: Any) -> Iterator[None]:
    """Expect an error with these values of its attributes, such as its code or key, and a text that matches `words`."""
    with pytest.raises(error, match=words) as caught:
        yield
    assert {name: getattr(caught.value, name) for name in fields} == fields


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python(*arguments: object, **options: Any) -> str:
    """Run an interpreter with these arguments, such as ``-c`` and code, and return its output. It must succeed in silence."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **{"timeout": PATIENCE_S, **options})
    assert (done.returncode, done.stderr) == (0, ""), f"exit status {done.returncode}:\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def python_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def write_keys(folder: Path, users: Mapping[str, Sequence[str]], client_ids: Sequence[str] = ("*",)) -> None:
    """Write the keys of a server and of users with these roles to a folder. A user without roles is not on the access list."""
    server = ServerKeys(new_key_pair())
    write_server_keys(folder / "learner.secret", server)
    (folder / "users.toml").touch(mode=0o600)
    with (folder / "users.toml").open("w") as listed:
        for name, roles in users.items():
            pair = new_key_pair()
            write_user_keys(folder / f"{name}.keys", name, UserKeys(pair, server.learner.public))
            if roles:
                listed.write(f"[{name}]\nkey = '{pair.public}'\nclient_ids = {list(client_ids)}\nroles = {list(roles)}\n")


def segment_with(steps: int = 3, end: str = "terminated", **columns: Any) -> Segment:
    """Return a segment of zeros, for Box(4) and Discrete, with other values in `columns`. `end` can be truncated or cut too."""
    defaults: dict[str, Any] = {
        "observations": np.zeros((steps + (end != "terminated"), 4), np.float32),
        "actions": np.zeros(steps, np.int64),
        "rewards": np.zeros(steps, np.float32),
        "log_probs": np.zeros(steps, np.float32),
        "versions": np.zeros(steps, np.uint64),
        "masks": None,
        "generation": 1,
        "episode_id": 1,
        "segment_index": 0,
        "terminated": end == "terminated",
        "truncated": end == "truncated",
    }
    return Segment(**{**defaults, **columns})


def joined(learner: Learner, **options: Any) -> RL4SysAgent:
    """Return an actor of a learner. Unless the options say otherwise, its spaces are Box(4) and Discrete(2)."""
    spaces = {"observation_space": BoxSpace((4,)), "action_space": DiscreteSpace(2)}
    defaults = {"client_id": "lab", "train_server_address": learner.address, "connect_timeout_s": PATIENCE_S, **spaces}
    return RL4SysAgent(config=AgentConfig(**{**defaults, **options}))


def play(agent: RL4SysAgent, observations: int | Iterable[Any], reward: float = 1.0, **end: Any) -> None:
    """Play one episode with these observations, or with this many of Box(4). `end` goes to `mark_end_of_trajectory`."""
    traj = action = None
    rows = (np.full(4, step, np.float32) for step in range(observations)) if isinstance(observations, int) else observations
    for observation in rows:
        traj, action = agent.request_for_action(traj, observation)
        action.update_reward(reward)
        agent.add_to_trajectory(traj, action)
    assert traj is not None
    agent.mark_end_of_trajectory(traj, action, **end)


def play_batch(agent: RL4SysAgent, batches: Iterable[Any], reward: float = 1.0) -> None:
    """Play one episode in each of several environments, with a batch of observations for each step."""
    trajs: Any = None
    actions: Any = ()
    for batch in batches:
        trajs, actions = agent.request_for_actions(trajs, batch)
        for traj, action in zip(trajs, actions, strict=True):
            agent.add_to_trajectory(traj, action)
            action.update_reward(reward)
    for traj, action in zip(trajs, actions, strict=True):
        agent.mark_end_of_trajectory(traj, action)


def drained(learner: Learner, *agents: RL4SysAgent, client_id: str = "lab") -> dict[str, Any]:
    """Deliver the agents' segments, let the learner judge all, and return the client's status."""
    for agent in agents:
        agent.flush(PATIENCE_S)
    learner.drain(timeout_s=PATIENCE_S)
    client: dict[str, Any] = learner.status()["clients"][client_id]
    return client
