"""A robot, or anything that can be observed and acts, as a server; and whoever steers it as a client.

The names and call shapes are those of agentlace; `docs/howto/migration_agentlace.md` says what is different. Methods on the wire:
``obs`` (a list of keys; answered with a dict) and ``act`` (``{key, payload, images}``; answered with a dict, run at most once),
both in the concurrency group ``robot``; the topic ``obs`` is what is published. A dict that has coded images travels as a
tuple of the dict and of the images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import AnswerError, CallRefusal, CallRefused, CallTimeout, ConfigError, PayloadError, ProtocolError
from rl4sys_zmq.errors import Refusal as WireRefusal
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Caller, Refuse, Server, Subscription
from rl4sys_zmq.rpc.session import HELLO
from rl4sys_zmq.serving.action_config import ActionConfig
from rl4sys_zmq.serving.image_coding import code_images, read_images
from rl4sys_zmq.values.trees import Tree, copy_tree

__all__ = ["ActCallback", "ActionClient", "ActionServer", "ObsCallback"]

log = logging.getLogger(__name__)

OBS, ACT = "obs", "act"
LANE = "robot"

ObsCallback = Callable[[set[str]], dict[str, Tree]]
"""The keys that somebody asks for; answered with these keys and their values."""
ActCallback = Callable[[str, Tree], dict[str, Tree]]
"""The key of an action and its payload; answered with any dict."""


class ActionServer(Resource):
    """Answers clients (`ActionClient`) out of two callbacks, which never run at the same time: a robot is one thing.

    The callbacks of different calls may run in different threads, one after another. What they raise goes to the caller
    (`CallFailed`), and the server lives on. One that blocks holds up the other calls of the robot, until their callers' time is
    over; nothing else waits for it. The arrays of a payload belong to the callback.
    """

    def __init__(
        self,
        config: ActionConfig,
        obs_callback: ObsCallback | None = None,
        act_callback: ActCallback | None = None,
        log_level: int | None = None,
        *,
        keys: str | Path | None = None,
        users: str | Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Binds nothing yet.

        Args:
            config: what clients must agree with, and where to bind.
            obs_callback: answers `ActionClient.obs`; None: it is refused.
            act_callback: answers `ActionClient.act`; None: it is refused.
            log_level: of the logger ``rl4sys_zmq``; None: as it is. Handlers are the program's.
            keys: the folder of the server's keys (`rl4sys-learner keys DIR`); None: whoever reaches the address may come in.
            users: the access list; None: ``users.toml`` in `keys`.
            insecure: let other machines come in without keys.

        Raises:
            ConfigError: for an address that other machines reach, without keys and without `insecure`.
        """
        if log_level is not None:
            logging.getLogger("rl4sys_zmq").setLevel(log_level)
        self.config = config
        self._obs_callback, self._act_callback = obs_callback, act_callback
        self._codecs = config.codecs
        self._server = Server(
            config.bind_address(),
            name="action",
            pub=config.broadcast_address(),
            terms=config.terms(),
            keys=keys,
            users=users,
            insecure=insecure,
        )
        self._server.register(OBS, self._obs, concurrency_group=LANE)
        self._server.register(ACT, self._act, concurrency_group=LANE)

    def start(self, threaded: bool = False) -> None:
        """Binds and serves.

        Args:
            threaded: return when it is bound, and serve in threads of its own; else serve until `stop` is called by another
                thread, or an exception (Ctrl-C) ends the wait.

        Raises:
            AddressInUse: when somebody else binds the address.
            TransportError: when it cannot be bound.
            Closed: after `stop`.
        """
        if threaded:
            self._server.start()
        else:
            self._server.run()

    @property
    def address(self) -> str:
        """Where it is bound, as a URI; raises Closed before `start`."""
        return self._server.address

    @property
    def pub_address(self) -> str:
        """Where observations are published, as a URI; empty before `start`, and when they are not."""
        return self._server.pub_address

    def publish_obs(self, payload: dict[str, Tree]) -> int:
        """Tells every client that has registered a callback; from any thread, also before `start`.

        Slow clients get the newest observation rather than each, late ones the newest that there is.

        Args:
            payload: any dict; images are coded in the calling thread.

        Returns:
            The number of this observation, from 1.

        Raises:
            ConfigError: when the configuration has no `broadcast_port`.
            PayloadError: when the payload can't travel.
            Closed: after `stop`.
        """
        if self.config.broadcast_port is None:
            raise ConfigError("publish_obs needs a broadcast_port in ActionConfig", key="broadcast_port")
        if not isinstance(payload, dict):
            raise PayloadError("payload", f"an observation is a dict, not a {type(payload).__name__}")
        plain, images = code_images(payload, self._codecs)
        try:
            return self._server.publish(OBS, (plain, images) if images else plain)
        except PayloadError as exc:
            raise PayloadError(exc.path.replace("payload[0]", "payload", 1) if images else exc.path, exc.problem) from exc

    def status(self) -> dict[str, Any]:
        """What it has done: see `rl4sys_zmq.rpc.Server.status`; and ``config``, what clients must agree with."""
        return {**self._server.status(), "config": self.config.terms()}

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuses what waits (``closing``), joins the threads and closes the sockets. A second call does nothing.

        Raises:
            CallbackStuck: when a callback still runs after `timeout_s` seconds; its thread ends when it returns.
        """
        self._server.stop(timeout_s)

    def close(self) -> None:
        """`stop` with its default time."""
        self.stop()

    def _obs(self, keys: Tree) -> Tree:
        """The method ``obs``."""
        if self._obs_callback is None:
            raise Refuse(CallRefusal.UNKNOWN, "this server has no obs_callback")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise Refuse(CallRefusal.INVALID, "obs takes a list of keys")
        unknown = _unknown("observation", keys, self.config.observation_keys)
        if unknown:
            raise Refuse(CallRefusal.UNKNOWN, unknown)
        answer = self._obs_callback(set(keys))
        values = self._checked("obs_callback", answer)
        missing, extra = sorted(set(keys) - values.keys()), sorted(map(str, values.keys() - set(keys)))
        faults = [f"without {', '.join(missing)}"] if missing else []
        faults += [f"with {', '.join(extra)}, which nobody asked for"] if extra else []
        if faults:
            raise AnswerError(f"obs_callback answered {' and '.join(faults)}")
        return self._coded(values)

    def _act(self, call: Tree) -> Tree:
        """The method ``act``."""
        if self._act_callback is None:
            raise Refuse(CallRefusal.UNKNOWN, "this server has no act_callback")
        match call:
            case {"key": str() as key, "payload": payload, "images": images, **rest} if not rest:
                pass
            case _:
                raise Refuse(CallRefusal.INVALID, "act takes key, payload and images")
        unknown = _unknown("action", [key], self.config.action_keys)
        if unknown:
            raise Refuse(CallRefusal.UNKNOWN, unknown)
        try:
            payload = _joined(payload, images)
        except ProtocolError as exc:
            raise Refuse(CallRefusal.INVALID, str(exc)) from exc
        return self._coded(self._checked("act_callback", self._act_callback(key, payload)))

    def _coded(self, values: dict[str, Tree]) -> Tree:
        plain, images = code_images(values, self._codecs)
        return (plain, images) if images else plain

    @staticmethod
    def _checked(name: str, answer: object) -> dict[str, Tree]:
        if not isinstance(answer, dict):
            raise AnswerError(f"{name} answered a {type(answer).__name__}; it must answer a dict")
        return answer


class ActionClient(Resource):
    """Asks an `ActionServer` for observations and has it act. Any thread may use it.

    Attributes:
        config: the configuration, equal to the server's.
        task_id: what the caller calls it, for logs.
    """

    def __init__(
        self,
        server_ip: str,
        config_or_port: ActionConfig | int | str | None = None,
        wait_for_server: bool = False,
        *,
        config: ActionConfig | None = None,
        task_id: str = "",
        timeout_ms: float | None = None,
        keys: str | Path | None = None,
    ) -> None:
        """Connects, and compares the configuration with the server's.

        Both call shapes are taken: ``ActionClient(ip, config)`` and ``ActionClient(ip, port, task_id=..., config=config)``.

        Args:
            server_ip: the server's host, or its whole URI (`ActionServer.address`).
            config_or_port: the configuration; or a port or URI to dial instead of the configuration's.
            wait_for_server: wait until a server is there, however long that takes; else for one timeout.
            config: the configuration, when the second argument is not.
            task_id: a name for logs.
            timeout_ms: how long to wait for an answer, in milliseconds; None: the configuration's `timeout_s`.
            keys: the file of this client's keys (``NAME.keys``), for a server that has keys.

        Raises:
            CallTimeout: no server answered.
            CallRefused: with the code ``mismatch``, naming each field that differs with both values.
            ConfigError: for arguments or an address that cannot be.
        """
        port = None
        if isinstance(config_or_port, ActionConfig):
            if config is not None:
                raise ConfigError("two configurations; give one", key="config")
            config = config_or_port
        else:
            port = config_or_port
        if config is None:
            raise ConfigError("an ActionClient needs an ActionConfig: ActionClient(ip, config)", key="config")
        self.config, self.task_id = config, task_id
        timeout_s = config.timeout_s if timeout_ms is None else timeout_ms / 1000
        self._codecs = config.codecs
        self._client = Caller(config.dial_address(server_ip, port), timeout_s=timeout_s, terms=config.terms(), keys=keys)
        try:
            self._meet(wait_for_server)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Whom it calls, as a URI."""
        return self._client.address

    def obs(self, keys: Iterable[str] | None = None, timeout_s: float | None = None) -> dict[str, Tree]:
        """Asks for observations.

        Args:
            keys: which; None: all of the configuration.
            timeout_s: how long to wait, in seconds; None: the client's.

        Returns:
            The values by key, exactly those that were asked for; its arrays belong to the caller.

        Raises:
            CallRefused: ``unknown`` for a key that the configuration does not have (nothing is sent).
            CallFailed: the callback raised, or did not answer what was asked.
            CallTimeout: no answer came in time.
            ProtocolError: images that are none, or that need Pillow (extra ``images``).
        """
        wanted = self.config.observation_keys if keys is None else [keys] if isinstance(keys, str) else list(keys)
        self._check("observation", OBS, wanted, self.config.observation_keys)
        return _answer(self._client.call(OBS, sorted(set(wanted)), timeout_s))

    def act(self, key: str, payload: Tree = None, timeout_s: float | None = None) -> dict[str, Tree]:
        """Has the server act, at most once, whatever becomes of messages, connections and the server.

        Args:
            key: which action.
            payload: for the callback, usually a dict; None: an empty one.
            timeout_s: how long to wait, in seconds; None: the client's.

        Returns:
            The callback's answer; its arrays belong to the caller.

        Raises:
            CallRefused: ``unknown`` for a key that the configuration does not have (nothing is sent); ``too_large``.
            CallFailed: the callback raised.
            CallTimeout: no answer came in time; it may have acted, or may yet if it has begun.
            CallLost: the server was started again meanwhile; whether it acted is unknown.
            PayloadError: the payload can't travel (nothing is sent).
            ProtocolError: images that are none, or that need Pillow (extra ``images``).
        """
        self._check("action", ACT, [key], self.config.action_keys)
        plain, images = code_images({} if payload is None else payload, self._codecs)
        try:
            answer = self._client.call(ACT, {"key": key, "payload": plain, "images": images}, timeout_s, once=True)
        except PayloadError as exc:
            raise PayloadError(exc.path.replace("payload['payload']", "payload", 1), exc.problem) from exc
        return _answer(answer)

    def get_observation(self) -> dict[str, Tree]:
        """`obs` of all keys, under the name of agentlace's page."""
        return self.obs()

    def send_action(self, payload: Tree) -> dict[str, Tree]:
        """`act` for a configuration with one action key, under the name of agentlace's page.

        Raises:
            ConfigError: when there is not exactly one key.
        """
        if len(self.config.action_keys) != 1:
            raise ConfigError(
                f"send_action needs one action key; there are {len(self.config.action_keys)}: use act", key="action_keys"
            )
        return self.act(self.config.action_keys[0], payload)

    def register_obs_callback(self, callback: Callable[[dict[str, Tree]], None]) -> Subscription:
        """Has `callback` called with what the server publishes, in a thread of its own.

        The newest wins: what comes while the callback runs replaces what waits, and numbers never go back. A newcomer gets the
        newest that there is. What the callback raises is logged and counted. Each call adds a callback.

        Returns:
            The subscription; its `number` is that of the last observation that the callback has had.

        Raises:
            ConfigError: when the configuration has no `broadcast_port`.
            Closed: after `stop`.
        """
        if self.config.broadcast_port is None:
            raise ConfigError("register_obs_callback needs a broadcast_port in ActionConfig", key="broadcast_port")
        return self._client.subscribe(OBS, lambda payload, number: callback(_answer(payload)))

    def stats(self) -> dict[str, Any]:
        """Its counters; see `rl4sys_zmq.rpc.Caller`."""
        return self._client.stats()

    def stop(self) -> None:
        """Ends its connections and threads. A second call does nothing."""
        self.close()

    def close(self) -> None:
        """As `stop`."""
        self._client.close()

    def _meet(self, wait_for_server: bool) -> None:
        """The first call says what this side expects."""
        while True:
            try:
                self._client.call(HELLO, {"terms": None})
                return
            except CallTimeout as exc:
                if not wait_for_server:
                    raise
                log.warning("%swaiting for an action server: %s", f"{self.task_id}: " if self.task_id else "", exc)

    def _check(self, kind: str, method: str, keys: Iterable[str], known: Iterable[str]) -> None:
        unknown = _unknown(kind, keys, known)
        if unknown:
            raise CallRefused(method, self.address, CallRefusal.UNKNOWN, unknown)


def _unknown(kind: str, keys: Iterable[object], known: Iterable[str]) -> str:
    """What to say of keys that are not there; empty when all are."""
    names = set(known)
    other = sorted({repr(key) for key in keys if not isinstance(key, str) or key not in names})
    return f"there is no {kind} key {', '.join(other)}; there is {', '.join(sorted(names)) or 'none'}" if other else ""


def _joined(plain: Tree, images: Tree) -> Tree:
    """Values with their images where they were; the arrays are copies."""
    arrays = read_images(images)
    values = copy_tree(plain)
    if not arrays:
        return values
    if not isinstance(values, dict) or not arrays.keys() <= values.keys():
        raise ProtocolError(WireRefusal.MALFORMED, "images without their places")
    return {**values, **arrays}


def _answer(coded: Tree) -> dict[str, Tree]:
    """A dict that came, with or without images."""
    plain, images = coded if isinstance(coded, tuple) and len(coded) == 2 else (coded, {})
    values = _joined(plain, images)
    if not isinstance(values, dict):
        raise ProtocolError(WireRefusal.MALFORMED, f"an answer that is a {type(values).__name__}, not a dict")
    return values
