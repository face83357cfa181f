"""A server of environments: any Gymnasium environment, stepped by clients elsewhere, each by one client at a time.

Its methods: ``describe`` says what is served, ``take``, ``keep`` and ``give`` are about leases (`rl4sys_zmq.serving.leases`);
``reset.I``, ``step.I`` and ``render.I`` act on all environments of a lease, whose first is I. Environment I has the
concurrency group I: one that hangs holds up its own client and nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import gymnasium

from rl4sys_zmq.errors import CallRefusal, ConfigError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Refuse, Server
from rl4sys_zmq.serving.addresses import listening
from rl4sys_zmq.serving.gymnasium_spaces import ElementReader, GymSpace
from rl4sys_zmq.serving.leases import LeaseTable
from rl4sys_zmq.values.space_forms import any_space_from, space_to_text
from rl4sys_zmq.values.trees import Tree, copy_tree
from rl4sys_zmq.wire.trees import drop_unsupported, pack_tree

__all__ = ["DEFAULT_PORT", "SERVICE", "GymEnvServer"]

log = logging.getLogger(__name__)

DEFAULT_PORT = 5546
SERVICE = "gym-envs"
LEASE_S = 60.0
MAX_COUNT = 1024
MAX_SEED_DIGITS = 100
INFO_DEPTH = 2
"""An info is in the tuple of one environment, in the list of all."""

Env = gymnasium.Env[Any, Any]


@dataclass(slots=True)
class _EnvSlot:
    """One environment and what became of it.

    Attributes:
        env: the environment.
        pending: why it cannot be stepped before a reset; empty when it can.
        token: the lease that called it last.
        steps: how many steps it made.
        episodes: how many of them ended an episode.
    """

    env: Env
    pending: str = "it was not reset yet"
    token: int = 0
    steps: int = 0
    episodes: int = 0


class GymEnvServer(Resource):
    """Serves environments. `start` or `run` it; `stop` joins.

    The environments are stepped by the server's threads, one call at a time each, not always by the same thread.

    Attributes:
        observation_space: of each.
        action_space: of each.
        count: how many there are.
    """

    def __init__(
        self,
        env: Env | str | Callable[[], Env],
        count: int = 1,
        *,
        bind: int | str = DEFAULT_PORT,
        make_kwargs: Mapping[str, Any] | None = None,
        lease_s: float = LEASE_S,
        check_observations: bool = True,
        keys: str | Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Makes the environments; binds nothing yet.

        Args:
            env: the id of a registered environment, what makes one, or one that is there. One that is there stays its owner's: it
                is not closed with the server.
            count: how many; more than one needs an id, or what makes one.
            bind: where clients come: a port of this machine, which no other machine reaches (0: a free one), or an address.
            make_kwargs: for `gymnasium.make`, with an id: ``{"render_mode": "rgb_array"}``.
            lease_s: after how many seconds of silence another client may take an environment.
            check_observations: refuse an observation that is outside the environment's space. Without it arrays are only given
                their space's dtype.
            keys: see `rl4sys_zmq.rpc.Server`.
            insecure: see there.

        Raises:
            ConfigError: when an environment cannot be made or described, whatever it raises; is made twice; has a space that
                cannot travel; or when a number is no sensible one.
            TransportError: for an address that is none.
        """
        if not 1 <= count <= MAX_COUNT:
            raise ConfigError(f"count is {count}; it is from 1 to {MAX_COUNT}", key="count")
        if not 0.0 < lease_s <= 86_400.0:
            raise ConfigError(f"lease_s is {lease_s}; it is more than 0 and at most a day", key="lease_s")
        self.count = count
        self._check = check_observations
        self._owned = not isinstance(env, gymnasium.Env)
        self._seats: list[_EnvSlot] = []
        try:
            with _told_as_config(env):
                for made in _make(env, count, dict(make_kwargs or {})):
                    self._seats.append(_EnvSlot(made))
                first = self._seats[0].env
                self.observation_space: GymSpace = first.observation_space
                self.action_space: GymSpace = first.action_space
                for i, seat in enumerate(self._seats):
                    for name in ("observation_space", "action_space"):
                        here, there = getattr(self, name), getattr(seat.env, name)
                        if here != there:
                            raise ConfigError(f"environment {i} has the {name} {there}, and environment 0 {here}", key=name)
                self._observations = any_space_from(self.observation_space, "observation_space")
                self._actions = any_space_from(self.action_space, "action_space")
                self._read_action = ElementReader(self._actions)
                self._about = self._describe(first, lease_s)
            self._server = Server(listening(bind), name=SERVICE, terms={"service": SERVICE}, keys=keys, insecure=insecure)
        except BaseException:
            self._close_envs()
            raise
        self._leases = LeaseTable(count, lease_s)
        register = self._server.register
        register("describe", lambda payload: self._about, concurrency_group="leases")
        for name, run in (("take", self._take), ("keep", self._keep), ("give", self._give)):
            register(name, run, concurrency_group="leases")
        for i in range(count):
            for name, act in (("reset", self._reset), ("step", self._step), ("render", self._render)):
                register(f"{name}.{i}", partial(self._run, act), concurrency_group=f"env.{i}")

    def start(self) -> Self:
        """Binds and serves in threads of its own.

        Raises:
            AddressInUse: when somebody else binds the address.
            TransportError: when it cannot be bound.
            Closed: after `stop`.
        """
        self._server.start()
        return self

    def run(self) -> None:
        """Serves until `stop`, or until an exception (Ctrl-C) ends the wait; then stops.

        Raises:
            TransportError: as `start` does.
            WorkerDied: when one of its threads has died.
        """
        try:
            self._server.run()
        finally:
            self.stop()

    @property
    def address(self) -> str:
        """Where it is bound, as a URI.

        Raises:
            Closed: before `start`.
        """
        return self._server.address

    def status(self) -> dict[str, Any]:
        """The status of its `Server`, and for each environment whether it is taken, in a call, and what it did.

        Counters: ``steps``, ``resets``, ``episodes``, ``info.dropped`` (values of an ``info`` that cannot travel).
        """
        envs = [
            {
                "taken": lease is not None,
                "in_call": lease is not None and lease.since_s is not None,
                "steps": seat.steps,
                "episodes": seat.episodes,
                "pending": seat.pending,
            }
            for seat, lease in zip(self._seats, self._leases.holders(), strict=True)
        ]
        return {**self._server.status(), "taken": self._leases.taken, "envs": envs}

    def raise_if_dead(self) -> None:
        """Raises WorkerDied when one of its threads has died."""
        self._server.raise_if_dead()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuses what waits, joins the threads and closes the environments that it made. A second call does nothing.

        Called by an environment, in a step, it only tells the threads to end; its owner's `stop` does the rest.

        Raises:
            CallbackStuck: when an environment does not return within `timeout_s` seconds; the environments stay open then.
        """
        self._server.stop(timeout_s)
        if not self._leases.in_use:
            self._close_envs()

    def close(self) -> None:
        """`stop` with its default time."""
        self.stop()

    def _close_envs(self) -> None:
        owned, self._owned = self._owned, False
        with ExitStack() as closing:  # all of them, though one raises
            for seat in self._seats if owned else ():
                closing.callback(seat.env.close)

    def _describe(self, env: Env, lease_s: float) -> Tree:
        """What a client must know to be such an environment."""
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
        pack_tree(about)  # rather here than when the first client comes
        return about

    # ---- leases

    def _take(self, payload: Tree) -> Tree:
        token, count, index = _fields(payload, token=int, count=int, index=int | None)
        if not 1 <= count <= self.count:
            raise Refuse(CallRefusal.OCCUPIED, f"{count} wanted; there are {self.count} environments in all")
        return list(self._leases.take(token, count, index))

    def _keep(self, payload: Tree) -> Tree:
        (token,) = _fields(payload, token=int)
        return self._leases.keep(token)

    def _give(self, payload: Tree) -> Tree:
        (token,) = _fields(payload, token=int)
        self._leases.give(token)
        return None

    # ---- environments

    def _run(self, act: Callable[[list[tuple[int, _EnvSlot]], Tree], Tree], payload: Tree) -> Tree:
        """One call on the environments of one lease."""
        (token,) = _fields(payload, token=int)
        with self._leases.use(token) as lease:
            seats = [(i, self._seats[i]) for i in lease.seats]
            for _, seat in seats:
                if seat.token != token:
                    seat.token, seat.pending = token, "this client has not reset it yet"
            return act(seats, payload)

    def _reset(self, seats: list[tuple[int, _EnvSlot]], payload: Tree) -> Tree:
        """Resets those that `only` names, with a seed each; their observations, infos and the seeds of their generators."""
        only, seeds, options = _fields(payload, only=list, seeds=list, options=dict | None)
        if len(only) != len(seats) or len(seeds) != len(seats):
            raise Refuse(CallRefusal.INVALID, f"{len(only)} places and {len(seeds)} seeds for {len(seats)} environments")
        numbers = [_seed(text) for text in seeds]
        chosen = zip(seats, only, numbers, strict=True)
        return [self._reset_one(i, seat, number, options) if wanted else None for (i, seat), wanted, number in chosen]

    def _reset_one(self, index: int, seat: _EnvSlot, seed: int | None, options: Tree) -> Tree:
        with _callback(seat, "its reset failed"):
            observation, info = seat.env.reset(seed=seed, options=None if options is None else copy_tree(options))
            self._server.counters.add("resets")
            used = getattr(seat.env.unwrapped, "_np_random_seed", None)
            return self._observation(index, seat, observation), self._info(info), str(used) if isinstance(used, int) else None

    def _step(self, seats: list[tuple[int, _EnvSlot]], payload: Tree) -> Tree:
        """Steps each with its action; one that `anew` names is reset instead, as `AutoresetMode.NEXT_STEP` says."""
        actions, anew = _fields(payload, actions=list, anew=list)
        if len(actions) != len(seats) or len(anew) != len(seats):
            raise Refuse(CallRefusal.INVALID, f"{len(actions)} actions for {len(seats)} environments")
        for (index, seat), action, again in zip(seats, actions, anew, strict=True):
            if seat.pending and not again:
                raise Refuse(CallRefusal.GONE, f"environment {index}: {seat.pending}; call reset()")
            wrong = "" if again else self._actions.mismatch(action)
            if wrong:
                raise Refuse(CallRefusal.INVALID, f"the action for environment {index} does not fit: {wrong}")
        out = []
        for (index, seat), action, again in zip(seats, actions, anew, strict=True):
            if again:
                observation, info, _ = self._reset_one(index, seat, None, None)
                out.append((observation, 0.0, False, False, info))
            else:
                out.append(self._step_one(index, seat, self._read_action(action)))
        return out

    def _step_one(self, index: int, seat: _EnvSlot, action: Any) -> Tree:
        with _callback(seat, "its last step failed"):
            observation, reward, terminated, truncated, info = seat.env.step(action)
            seat.steps += 1
            self._server.counters.add("steps")
            if terminated or truncated:
                seat.episodes += 1
                self._server.counters.add("episodes")
            return self._observation(index, seat, observation), reward, terminated, truncated, self._info(info)

    def _render(self, seats: list[tuple[int, _EnvSlot]], payload: Tree) -> Tree:
        return [seat.env.render() for _, seat in seats]

    def _observation(self, index: int, seat: _EnvSlot, observation: Any) -> Tree:
        space = self.observation_space
        if self._check and not space.contains(observation):
            seat.pending = "its last observation was outside its space"
            shown = f"{observation!r:.200}"
            raise Refuse(CallRefusal.INVALID, f"environment {index} gave an observation outside its space {space}: {shown}")
        return self._observations.to_tree(observation, cast=True)

    def _info(self, info: Any) -> Tree:
        if not isinstance(info, Mapping):
            raise TypeError(f"the environment gave the info {info!r:.60}, which is no dict")
        kept, dropped = drop_unsupported(info, "info", INFO_DEPTH)
        if dropped:
            if not self._server.counters.get("info.dropped"):
                log.warning("%s cannot travel: left out, as are all such from here on", ", ".join(dropped))
            self._server.counters.add("info.dropped", len(dropped))
        return kept


@contextmanager
def _callback(seat: _EnvSlot, problem: str) -> Iterator[None]:
    """What an environment does: unless all goes well it must be reset."""
    seat.pending = problem
    yield
    seat.pending = ""


@contextmanager
def _told_as_config(env: Env | str | Callable[[], Env]) -> Iterator[None]:
    """The border of what makes environments and of what they say of themselves."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as exc:
        raise ConfigError(f"environment {env!r:.80}: {type(exc).__name__}: {' '.join(str(exc).split())}", key="env") from exc


def _make(env: Env | str | Callable[[], Env], count: int, kwargs: dict[str, Any]) -> Iterator[Env]:
    if isinstance(env, gymnasium.Env):
        if count != 1:
            raise ConfigError(f"one environment was given, and count is {count}; give its id, or what makes one", key="count")
        yield env
        return
    known: list[Env] = []
    for _ in range(count):
        made = gymnasium.make(env, **{"disable_env_checker": True, **kwargs}) if isinstance(env, str) else env()
        if not isinstance(made, gymnasium.Env):
            raise ConfigError(f"{env!r:.80} makes a {type(made).__name__}, which is no gymnasium.Env", key="env")
        if any(made.unwrapped is one for one in known):  # two lanes would step it at the same time
            raise ConfigError(f"{env!r:.80} makes one environment twice", key="env")
        known.append(made.unwrapped)
        yield made


def _fields(payload: Tree, **kinds: Any) -> list[Any]:
    """The named fields of a payload that nobody vouches for."""
    if not isinstance(payload, dict):
        raise Refuse(CallRefusal.INVALID, f"the payload is no dict but a {type(payload).__name__}")
    for name, kind in kinds.items():
        if not isinstance(payload.get(name), kind):
            raise Refuse(CallRefusal.INVALID, f"{name} is a {type(payload.get(name)).__name__}")
    return [payload.get(name) for name in kinds]


def _seed(text: Tree) -> int | None:
    """A seed travels as digits: it may have more than 64 bits."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_SEED_DIGITS or not text.isascii() or not text.isdigit():
        raise Refuse(CallRefusal.INVALID, f"the seed {text!r:.40} is no number from 0 on")
    return int(text)
