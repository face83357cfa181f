"""A server of Gymnasium environments. Remote callers reset and step the environments; each has one caller at a time.

The server has these methods:

- ``describe`` returns a description of the environments.
- ``take``, ``keep`` and ``give`` get, renew and return a lease (`rl4sys_zmq.serving.leases`).
- ``reset.I``, ``step.I``, ``render.I`` and ``state.I`` act on all environments of a lease. I is the smallest index of these
  environments. Calls with different I run in parallel, so an environment that hangs delays only its own caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np

from rl4sys_zmq.config.options import check_value, flag, integer, mapping, number
from rl4sys_zmq.errors import CallRefusalReason, ConfigError, config_error
from rl4sys_zmq.liveness import ENV_LEASE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import CallRefusedByCallback, Server
from rl4sys_zmq.serving.config import bind_address
from rl4sys_zmq.serving.gymnasium_spaces import GymSpace, clipped, element_reader
from rl4sys_zmq.serving.leases import LeaseTable
from rl4sys_zmq.values.space_conversion import any_space_from, space_to_text
from rl4sys_zmq.values.trees import Tree, copy_tree, flatten, leaf_paths
from rl4sys_zmq.wire.trees import drop_unsupported, pack_tree

log = get_logger(__name__)

DEFAULT_PORT = 5546
SERVICE = "gym-envs"
MAX_COUNT = 1024
MAX_SEED_DIGITS = 100
INFO_DEPTH = 2
"""Nesting depth of an info dict in a reply: in the tuple of one environment, in the list of all."""

Env = gymnasium.Env[Any, Any]


@dataclass(slots=True)
class _EnvSlot:
    index: int
    env: Env
    pending: str = "it has not been reset"  # the reason why the environment must be reset before the next step, or ""
    token: int = 0  # that of the lease of the last caller
    steps: int = 0
    episodes: int = 0


class GymEnvServer(Resource):
    """A server that lets remote callers use Gymnasium environments of this process.

    Background threads of the server step the environments. Calls on one environment never overlap, but can come from different
    threads.

    Attributes:
        observation_space: Observation space of each environment.
        action_space: Action space of each environment.
        count: Number of environments.
    """

    def __init__(
        self,
        env: Env | str | Callable[[], Env],
        count: int = 1,
        *,
        bind: int | str = DEFAULT_PORT,
        make_kwargs: Mapping[str, Any] | None = None,
        lease_s: float = ENV_LEASE_S,
        check_observations: bool = True,
        keys: str | Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Create the environments. The server binds no address before `start`.

        Args:
            env: Id of a registered environment, a function that creates an environment, or an environment. The server does not
                close an environment that is passed in.
            count: Number of environments. More than one needs an id or a function.
            bind: Port of 127.0.0.1 (0: any free port), or an address.
            make_kwargs: Arguments of `gymnasium.make`, if `env` is an id, such as ``{"render_mode": "rgb_array"}``.
            lease_s: Time without a message from a caller after which another caller can get its environments, in seconds.
            check_observations: True to refuse an observation that is outside the environment's space. The first finite float
                that is beyond the bounds of its Box or has another dtype is a warning, because Gymnasium's own environments
                return such floats. False to only cast arrays to the dtype of the space; integers must fit in this dtype.
            keys: Folder of the server's keys; see `rl4sys_zmq.rpc.Server`.
            insecure: True to let other machines connect without keys.

        Raises:
            ConfigError: If an environment cannot be created or described, `env` returns the same environment twice, a space
                cannot be sent, or a number is out of range.
            TransportError: If the address is invalid.
        """
        self.count = count = check_value("count", count, integer(1, MAX_COUNT))
        lease_s = check_value("lease_s", lease_s, number(0, 86_400, above=True))
        self._check = check_value("check_observations", check_observations, flag)
        self._owned = not isinstance(env, gymnasium.Env)
        self._slots: list[_EnvSlot] = []
        try:
            with _as_config_error(env):
                kwargs = check_value("make_kwargs", {} if make_kwargs is None else make_kwargs, mapping)
                for index, made in enumerate(make_environments(env, count, kwargs)):
                    self._slots.append(_EnvSlot(index, made))
                first = self._slots[0].env
                self.observation_space: GymSpace = first.observation_space
                self.action_space: GymSpace = first.action_space
                for slot in self._slots:
                    for name in ("observation_space", "action_space"):
                        here, there = getattr(self, name), getattr(slot.env, name)
                        if here != there:
                            raise config_error(name, f"environment {slot.index} has {there}, but environment 0 has {here}")
                self._observations = any_space_from(self.observation_space, "observation_space")
                self._actions = any_space_from(self.action_space, "action_space")
                self._read_action = element_reader(self._actions)
                self._about = self._describe(first, lease_s)
            self._server = Server(bind_address(bind), name=SERVICE, terms={"service": SERVICE}, keys=keys, insecure=insecure)
        except BaseException:
            self._close_envs()
            raise
        self._leases = LeaseTable(count, lease_s)
        register = self._server.register
        register("describe", lambda payload: self._about, concurrency_group="leases")
        register("take", self._lease, concurrency_group="leases")
        for name, on_lease in (("keep", self._leases.renew), ("give", self._leases.release)):
            register(name, partial(_with_token, on_lease), concurrency_group="leases")
        for i in range(count):
            for name, act in (("reset", self._reset), ("step", self._step), ("render", self._render), ("state", self._state)):
                register(f"{name}.{i}", partial(self._run, act), concurrency_group=f"env.{i}")

    def start(self) -> Self:
        """Bind the address, and serve in background threads.

        Raises:
            AddressInUse: If another process has bound the address.
            TransportError: If the address cannot be bound.
            Closed: After `stop`.
        """
        self._server.start()
        return self

    def run(self) -> None:
        """Bind the address, and block until another thread calls `stop` or Ctrl-C is pressed. Then stop.

        Raises:
            TransportError: As `start`.
            WorkerDied: If one of the server's threads ended with an exception.
        """
        try:
            self._server.run()
        finally:
            self.stop()

    @property
    def address(self) -> str:
        """The bound address, as a URI.

        Raises:
            Closed: Before `start`.
        """
        return self._server.address

    def status(self) -> dict[str, Any]:
        """Return the status of the RPC server and of each environment.

        ``taken`` is the number of environments that a caller has leased. ``envs`` has a dict for each environment: ``taken``,
        ``in_call``, ``steps``, ``episodes`` and ``pending`` (why the environment must be reset, or ""). The
        ``counters`` include ``steps``, ``resets``, ``episodes``, ``info.dropped`` (info values that cannot be sent) and
        ``observations.outside`` (the number of observations with floats outside their Box or of another dtype).
        """
        envs = [
            {
                "taken": lease is not None,
                "in_call": lease is not None and lease.call_started_s is not None,
                "steps": slot.steps,
                "episodes": slot.episodes,
                "pending": slot.pending,
            }
            for slot, lease in zip(self._slots, self._leases.holders(), strict=True)
        ]
        return {**self._server.status(), "taken": self._leases.taken, "envs": envs}

    def raise_if_dead(self) -> None:
        """Raise `WorkerDied` if one of the server's threads ended with an exception."""
        self._server.raise_if_dead()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuse waiting calls, join the threads and close the environments that the server created.

        A second call does nothing. If an environment calls `stop` during its own step, the threads are only asked to end; then
        call `stop` a second time from another thread.

        Raises:
            CallbackStuck: If an environment does not return within `timeout_s` seconds. The environments stay open.
        """
        self._server.stop(timeout_s)
        if not self._leases.in_use:
            self._close_envs()

    def close(self) -> None:
        """Call `stop` with its default timeout."""
        self.stop()

    def _close_envs(self) -> None:
        owned, self._owned = self._owned, False
        with ExitStack() as closing:  # close all of them, even if one raises
            for slot in self._slots if owned else ():
                closing.callback(slot.env.close)

    def _describe(self, env: Env, lease_s: float) -> Tree:
        spec = env.spec
        metadata, _ = drop_unsupported(dict(env.metadata), "metadata", 1)
        modes = [m for m in metadata.get("render_modes") or [] if m != "human" or env.render_mode == "human"]
        kwargs, _ = drop_unsupported(dict(spec.kwargs), "kwargs", 1) if spec is not None else ({}, [])
        about = {
            "count": self.count,
            "lease_s": float(lease_s),
            "observation_space": space_to_text(self._observations),
            "action_space": space_to_text(self._actions),
            "metadata": {**metadata, "render_modes": modes},
            "render_mode": env.render_mode,
            "id": spec.id if spec is not None else None,
            "kwargs": kwargs,
            "max_episode_steps": spec.max_episode_steps if spec is not None else None,
        }
        pack_tree(about)  # raises here rather than at the first call
        return about

    def _lease(self, payload: Tree) -> Tree:
        token, count, index = _fields(payload, token=int, count=int, index=int | None)
        if not 1 <= count <= self.count:
            problem = f"{count} requested; there are {self.count} environments in all"
            raise CallRefusedByCallback(CallRefusalReason.OCCUPIED, problem)
        return list(self._leases.lease(token, count, index))

    def _run(self, act: Callable[[list[_EnvSlot], Tree], Tree], payload: Tree) -> Tree:
        """Call `act` with the environments that a caller has leased. The payload has the token that identifies the lease."""
        (token,) = _fields(payload, token=int)
        with self._leases.use(token) as lease:
            slots = [self._slots[i] for i in lease.slots]
            for slot in slots:
                if slot.token != token:
                    slot.token, slot.pending = token, "this caller has not reset it"
            return act(slots, payload)

    def _reset(self, slots: list[_EnvSlot], payload: Tree) -> Tree:
        """Reset the environments with True in the payload's ``only``. Return observation, info and seed of each, else None."""
        only, seeds, options = _fields(payload, only=list, seeds=list, options=dict | None)
        if len(only) != len(slots) or len(seeds) != len(slots):
            raise _invalid(f"{len(only)} flags and {len(seeds)} seeds for {len(slots)} environments")
        chosen = zip(slots, only, [_seed(text) for text in seeds], strict=True)
        return [self._reset_one(slot, seed, options) if wanted else None for slot, wanted, seed in chosen]

    def _reset_one(self, slot: _EnvSlot, seed: int | None, options: Tree) -> Tree:
        with _callback(slot, "its reset failed"):
            observation, info = slot.env.reset(seed=seed, options=None if options is None else copy_tree(options))
            self._server.counters.add("resets")
            used = getattr(slot.env.unwrapped, "_np_random_seed", None)
            return self._observation(slot, observation), self._info(info), str(used) if isinstance(used, int) else None

    def _step(self, slots: list[_EnvSlot], payload: Tree) -> Tree:
        """Step each environment with its action in the payload, or reset the environment if its flag in ``anew`` is True.

        The flag is True after the end of an episode. Return the observation, reward, flags and info of each environment.
        """
        actions, anew = _fields(payload, actions=list, anew=list)
        if len(actions) != len(slots) or len(anew) != len(slots):
            raise _invalid(f"{len(actions)} actions for {len(slots)} environments")
        steps = list(zip(slots, actions, anew, strict=True))
        for slot, action, again in steps:
            if slot.pending and not again:
                raise CallRefusedByCallback(CallRefusalReason.GONE, f"environment {slot.index}: {slot.pending}; call reset()")
            wrong = "" if again else self._actions.mismatch(action)
            if wrong:
                raise _invalid(f"the action for environment {slot.index} does not fit: {wrong}")
        return [self._step_one(slot, action, again) for slot, action, again in steps]

    def _step_one(self, slot: _EnvSlot, action: Tree, again: bool) -> Tree:
        if again:
            observation, info, _ = self._reset_one(slot, None, None)
            return observation, 0.0, False, False, info
        action = self._read_action(action)
        with _callback(slot, "its last step failed"):
            observation, reward, terminated, truncated, info = slot.env.step(action)
            slot.steps += 1
            self._server.counters.add("steps")
            if terminated or truncated:
                slot.episodes += 1
                self._server.counters.add("episodes")
            return self._observation(slot, observation), reward, terminated, truncated, self._info(info)

    def _render(self, slots: list[_EnvSlot], payload: Tree) -> Tree:
        return [slot.env.render() for slot in slots]

    def _state(self, slots: list[_EnvSlot], payload: Tree) -> Tree:
        for slot in slots:
            if not slot.env.has_wrapper_attr("state"):
                raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, f"environment {slot.index} has no attribute state")
        return [slot.env.get_wrapper_attr("state") for slot in slots]

    def _observation(self, slot: _EnvSlot, observation: Any) -> Tree:
        if self._check and not self.observation_space.contains(observation):
            tree = self._observations.to_tree(observation)
            leaves, structure = flatten(tree)
            named = zip(leaf_paths(structure, "observation"), leaves, strict=True)
            kinds = ", ".join(f"{path} is {leaf.dtype}{list(leaf.shape)}" for path, leaf in named if isinstance(leaf, np.ndarray))
            text = (
                f"environment {slot.index} returned an observation outside its space {self.observation_space}: "
                f"{observation!r:.200} ({kinds:.200}); check_observations=False (serve-env --no-check) leaves the check out"
            )
            if not self.observation_space.contains(clipped(self._observations, tree)):
                slot.pending = "its last observation was outside its space"
                raise _invalid(text)
            if not self._server.counters.get("observations.outside"):
                log.warning("%s; such floats are sent in the dtype of their space, and later ones without a warning", text)
            self._server.counters.add("observations.outside")
        return self._observations.to_tree(observation, cast=True)

    def _info(self, info: Any) -> Tree:
        if not isinstance(info, Mapping):
            raise TypeError(f"the environment returned the info {info!r:.60}, which is not a dict")
        kept, dropped = drop_unsupported(info, "info", INFO_DEPTH)
        if dropped:
            if not self._server.counters.get("info.dropped"):
                log.warning(
                    "%s cannot be sent and is dropped; later values like this are dropped without a warning", ", ".join(dropped)
                )
            self._server.counters.add("info.dropped", len(dropped))
        return kept


@contextmanager
def _callback(slot: _EnvSlot, problem: str) -> Iterator[None]:
    """Mark the environment as one that must be reset, for the reason `problem`, if the ``with`` block raises an exception."""
    slot.pending = problem
    yield
    slot.pending = ""


@contextmanager
def _as_config_error(env: Env | str | Callable[[], Env]) -> Iterator[None]:
    """Convert every exception of the ``with`` block to `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as exc:
        raise ConfigError(f"environment {env!r:.80}: {type(exc).__name__}: {' '.join(str(exc).split())}", key="env") from exc


def make_environments(env: Env | str | Callable[[], Env], count: int, kwargs: dict[str, Any]) -> Iterator[Env]:
    """Yield `count` environments, from an ID with arguments of `gymnasium.make`, from a function, or the given one."""
    if isinstance(env, gymnasium.Env):
        if count != 1:
            raise config_error("count", f"{count}, and one environment was given; give its id, or a function that creates one")
        yield env
        return
    known: list[Env] = []
    for _ in range(count):
        made = gymnasium.make(env, **{"disable_env_checker": True, **kwargs}) if isinstance(env, str) else env()
        if not isinstance(made, gymnasium.Env):
            raise ConfigError(f"{env!r:.80} creates a {type(made).__name__}, which is not a gymnasium.Env", key="env")
        if any(made.unwrapped is one for one in known):  # two concurrency groups would step it at the same time
            raise ConfigError(f"{env!r:.80} returns the same environment twice; create a new one each time", key="env")
        known.append(made.unwrapped)
        yield made


def _invalid(problem: str) -> CallRefusedByCallback:
    return CallRefusedByCallback(CallRefusalReason.INVALID, problem)


def _with_token(on_lease: Callable[[int], Tree], payload: Tree) -> Tree:
    return on_lease(*_fields(payload, token=int))


def _fields(payload: Tree, **kinds: Any) -> list[Any]:
    """Return the fields of a payload that `kinds` names. Refuse the call if one is missing or of the wrong type."""
    if not isinstance(payload, dict):
        raise _invalid(f"the payload must be a dict, not a {type(payload).__name__}")
    for name, kind in kinds.items():
        if not isinstance(payload.get(name), kind):
            raise _invalid(f"{name} has the wrong type {type(payload.get(name)).__name__}")
    return [payload.get(name) for name in kinds]


def _seed(text: Tree) -> int | None:
    """Convert a received seed to an integer. Seeds are sent as text, because a seed can have more than 64 bits."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_SEED_DIGITS or not text.isascii() or not text.isdigit():
        raise _invalid(f"the seed {text!r:.40} is not an integer of at least 0")
    return int(text)
