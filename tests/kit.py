"""Helpers for tests of several folders: they wait for a condition, expect an error, play episodes, and run programs."""

from __future__ import annotations

import os
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

from rl4sys_zmq import AgentConfig, RL4SysAgent, native
from rl4sys_zmq.replay import StatePiece
from rl4sys_zmq.security.keys import UserKeys, new_key_pair, write_server_keys, write_user_keys
from rl4sys_zmq.testing.check_policy import random_observations
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space, space_to_json
from rl4sys_zmq.wire.thread_messages import AssignClient

if TYPE_CHECKING:
    from rl4sys_zmq.learner import Learner
    from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest

T = TypeVar("T")
BOX, DISCRETE = BoxSpace((3,)), DiscreteSpace(3)

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


def forms() -> list[str]:
    """Return the forms of an actor that this run has: both, unless RL4SYS_NATIVE chooses or the extension is missing."""
    chosen = {"never": ["pure"], "always": ["compiled"]}.get(os.environ.get(native.VARIABLE, ""))
    return chosen or (["pure", "compiled"] if native.load() is not None else ["pure"])


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
    server = new_key_pair()
    write_server_keys(folder / "learner.secret", server)
    (folder / "users.toml").touch(mode=0o600)
    with (folder / "users.toml").open("w") as listed:
        for name, roles in users.items():
            pair = new_key_pair()
            write_user_keys(folder / f"{name}.keys", name, UserKeys(pair, server.public))
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


def random_segment(
    steps: int, seed: int = 0, end: str = "terminated", spaces: Any = (BOX, DISCRETE), *, masked: bool = False, **columns: Any
) -> Segment:
    """Return a segment of random numbers, for Box(3) and Discrete(3) unless other spaces are given."""
    rng, rows = np.random.default_rng(seed), steps + (end != "terminated")
    masks = rng.random((rows, spaces[1].n)) < 0.6 if masked else None
    if masks is not None:
        masks[:, 0] |= ~masks.any(axis=1)
    drawn: dict[str, Any] = {
        "observations": random_observations(spaces[0], rows, rng),
        "actions": random_observations(spaces[1], steps, rng),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "log_probs": np.full(steps, -1.0, np.float32),
        "masks": masks,
        "episode_id": seed,
    }
    return segment_with(steps, end, **{**drawn, **columns})


class OneSegmentMessage:
    """A fake `DecodedSegmentMessage` with one segment."""

    key = ("a", 1)

    def __init__(self, seq: int, segment: Segment) -> None:
        self.segments, self.nbytes = [segment], segment.nbytes
        self.batch, self.first_seq = self, seq


def assignment(name: str, actions: Space | None = None, parameters: Any = None, **changes: Any) -> AssignClient:
    """Return the assignment of a client to its learner thread, for Box(3) and Discrete(2), with other fields in `changes`."""
    defaults: dict[str, Any] = {
        "client_id": "c",
        "policy_id": bytes(8),
        "generation": 7,
        "algorithm_name": name,
        "parameters": dict(parameters or {}),
        "observation_space": space_to_json(BOX),
        "action_space": space_to_json(actions or DiscreteSpace(2)),
        "seed": 3,
        "max_policy_lag": -1,
        "on_lag": "drop",
        "pacing_lag": -1,
        "publish_every_updates": 0,
        "max_parameters": 10**7,
        "checkpoints": "",
        "checkpoint_every_s": 10.0,
        "journal_id": 1,
    }
    return AssignClient(**{**defaults, **changes})


def manifest(**changes: Any) -> CheckpointManifest:
    """Return the manifest of a checkpoint, with other fields in `changes`."""
    from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest

    names = ("journal_id", "generation", "version", "digest", "trained_digest", "updates", "steps")
    defaults: dict[str, Any] = {"client_id": "c", "algorithm_name": "X", "verdicts": {}, "marks": (), **dict.fromkeys(names, 1)}
    return CheckpointManifest(**{**defaults, **changes})


def assert_same_state(one: Any, other: Any, *, ordered: bool = False) -> None:
    """Assert that two states have equal types, keys, dtypes, shapes and bits. `ordered` compares the order of keys too."""
    assert type(one) is type(other)
    if isinstance(one, Mapping):
        assert one.keys() == other.keys() and (list(one) == list(other) or not ordered)
        one, other = [one[key] for key in one], [other[key] for key in one]
    elif isinstance(one, StatePiece):
        one, other = (one.name, one.arrays), (other.name, other.arrays)
    if isinstance(one, (list, tuple)):
        for mine, theirs in zip(one, other, strict=True):
            assert_same_state(mine, theirs, ordered=ordered)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, float):
        assert np.float64(one).tobytes() == np.float64(other).tobytes()
    elif hasattr(one, "layout"):  # a tensor, with a dtype that NumPy may not have
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        mine, theirs = (tensor.detach().cpu().contiguous().reshape(-1) for tensor in (one, other))
        torch = sys.modules["torch"]
        assert not one.numel() or torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    else:
        assert one == other


def open_agent(learner: Learner | str, client_id: str = "lab", **options: Any) -> RL4SysAgent:
    """Open an actor of a client, for Box(4) and Discrete(2) unless `options` say otherwise."""
    defaults: dict[str, Any] = {
        "observation_space": BoxSpace((4,)),
        "action_space": DiscreteSpace(2),
        "linger_ms": 0,
        "connect_timeout_s": 20.0,
        "seed": 1,
    }
    address = learner if isinstance(learner, str) else learner.address
    config = AgentConfig(client_id=client_id, train_server_address=address, **{**defaults, **options})
    return RL4SysAgent(config=config)


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
