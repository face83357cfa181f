"""A server through which remote programs observe and control a device, such as a robot, and its client.

The names and signatures are agentlace's. On the wire, the server has two methods, which never run at the same time:

- ``obs`` takes a list of keys. The reply is a dict with a value for each key.
- ``act`` takes ``{key, payload, images}``. The reply is a dict. A call runs at most once.

Observations are published on the topic ``obs``. A dict with encoded images is sent as a tuple of the dict and the images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rl4sys_zmq.config.options import CALL_TIMEOUT_MS, callback, check_value, instance_of, optional
from rl4sys_zmq.errors import (
    CallRefusalReason,
    CallRefused,
    ConfigError,
    InvalidReply,
    PayloadError,
    ProtocolError,
    config_error,
)
from rl4sys_zmq.errors import RefusalReason as WireRefusal
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Caller, CallRefusedByCallback, Server, Subscription
from rl4sys_zmq.rpc.session import HELLO
from rl4sys_zmq.serving.config import ActionConfig, first_call, set_log_level
from rl4sys_zmq.serving.image_coding import code_images, read_images
from rl4sys_zmq.serving.inference import ThreadedServer
from rl4sys_zmq.values.trees import Tree, copy_tree

log = get_logger(__name__)

OBS, ACT = "obs", "act"
GROUP = "robot"
MAX_FAULTS = 64
"""Largest number of different faults of callbacks that are logged."""

ObsCallback = Callable[[set[str]], dict[str, Tree]]
"""Takes the requested keys, and returns a dict with these keys."""
ActCallback = Callable[[str, Tree], dict[str, Tree] | None]
"""Takes the key and the payload of an action, and returns any dict."""


class ActionServer(ThreadedServer):
    """A server that lets remote `ActionClient` objects observe and control a robot, or another device.

    One callback returns observations, the other runs actions. The server can call them in different threads, but only one at a
    time. If a callback raises an exception, the caller gets `CallFailed` and the server continues. While a callback blocks,
    further calls of either callback wait, at most until their timeouts. A callback can write to the arrays of its payload.

    If a callback returns None, or observations with other keys than the requested ones, the client gets the returned value, or
    an empty dict for None. Each such fault is logged once, and counted in the status as ``callback_odd``.
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
        """Create the server. It binds no address before `start`.

        Args:
            config: Configuration. Clients must use an equal configuration; see `ActionConfig`.
            obs_callback: Function that answers `ActionClient.obs`. None: calls of `obs` are refused.
            act_callback: Function that answers `ActionClient.act`. None: calls of `act` are refused.
            log_level: Level of the logger ``rl4sys_zmq``; None leaves it unchanged. The program configures handlers.
            keys: Folder of the server's keys (`rl4sys-learner keys DIR`). With None any peer that reaches the address can
                connect.
            users: Path of the access list. None: ``users.toml`` in `keys`.
            insecure: True to let other machines connect without keys.

        Raises:
            ConfigError: If other machines can reach the address and neither `keys` nor `insecure` is given.
        """
        self.config = config = check_value("config", config, instance_of(ActionConfig))
        self._obs_callback = check_value("obs_callback", obs_callback, optional(callback))
        self._act_callback = check_value("act_callback", act_callback, optional(callback))
        set_log_level(log_level)
        self._codecs = config.codecs
        self._faults: set[str] = set()
        self._server = Server(
            config.bind_address(),
            name="action",
            pub=config.broadcast_address(),
            terms=config.terms(),
            keys=keys,
            users=users,
            insecure=insecure,
        )
        self._server.register(OBS, self._obs, concurrency_group=GROUP)
        self._server.register(ACT, self._act, concurrency_group=GROUP)

    @property
    def pub_address(self) -> str:
        """The address at which observations are published, as a URI. Empty before `start`, and without a `broadcast_port`."""
        return self._server.pub_address

    def publish_obs(self, payload: dict[str, Tree]) -> int:
        """Publish an observation to all subscribers. Any thread can call this, also before `start`.

        A slow subscriber misses observations, but always gets the newest one. A new subscriber gets the newest observation at
        once.

        Args:
            payload: Any dict. Images under the keys in `ActionConfig.image_codecs` are encoded in the calling thread.

        Returns:
            The number of this observation, from 1.

        Raises:
            ConfigError: If the configuration has no `broadcast_port`.
            PayloadError: If the payload cannot be sent.
            Closed: After `stop`.
        """
        if self.config.broadcast_port is None:
            raise ConfigError("publish_obs needs a broadcast_port in ActionConfig", key="broadcast_port")
        if not isinstance(payload, dict):
            raise PayloadError("payload", f"an observation must be a dict, not a {type(payload).__name__}")
        plain, images = code_images(payload, self._codecs)
        try:
            return self._server.publish(OBS, (plain, images) if images else plain)
        except PayloadError as exc:
            raise PayloadError(exc.path.replace("payload[0]", "payload", 1) if images else exc.path, exc.problem) from exc

    def status(self) -> dict[str, Any]:
        """Return the server's address, callers, queues and counters. ``config`` has what all clients must also have."""
        return {**self._server.status(), "config": self.config.terms()}

    def _obs(self, keys: Tree) -> Tree:
        if self._obs_callback is None:
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, "this server has no obs_callback")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise CallRefusedByCallback(CallRefusalReason.INVALID, "obs takes a list of keys")
        unknown = _unknown("observation", keys, self.config.observation_keys)
        if unknown:
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, unknown)
        answer = self._obs_callback(set(keys))
        values = self._checked("obs_callback", answer)
        missing, extra = sorted(set(keys) - values.keys()), sorted(map(str, values.keys() - set(keys)))
        faults = [f"without {', '.join(missing)}"] if missing else []
        faults += [f"with {', '.join(extra)}, which was not requested"] if extra else []
        if faults and answer is not None:
            self._report(f"obs_callback returned a dict {' and '.join(faults)}")
        return self._coded(values)

    def _act(self, call: Tree) -> Tree:
        if self._act_callback is None:
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, "this server has no act_callback")
        match call:
            case {"key": str() as key, "payload": payload, "images": images, **rest} if not rest:
                pass
            case _:
                raise CallRefusedByCallback(CallRefusalReason.INVALID, "act takes key, payload and images")
        unknown = _unknown("action", [key], self.config.action_keys)
        if unknown:
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, unknown)
        try:
            payload = _joined(payload, images)
        except ProtocolError as exc:
            raise CallRefusedByCallback(CallRefusalReason.INVALID, str(exc)) from exc
        return self._coded(self._checked("act_callback", self._act_callback(key, payload)))

    def _coded(self, values: dict[str, Tree]) -> Tree:
        plain, images = code_images(values, self._codecs)
        return (plain, images) if images else plain

    def _checked(self, name: str, answer: object) -> dict[str, Tree]:
        if answer is None:
            self._report(f"{name} returned None, which counts as an empty dict")
            return {}
        if not isinstance(answer, dict):
            raise InvalidReply(f"{name} returned a {type(answer).__name__}; it must return a dict")
        return answer

    def _report(self, fault: str) -> None:
        """Count a wrong return value of a callback, and log it the first time. The client gets a reply all the same."""
        self._server.counters.add("callback_odd")
        if fault not in self._faults and len(self._faults) < MAX_FAULTS:
            self._faults.add(fault)
            log.warning("%s; the client gets what it returned", fault)


class ActionClient(Resource):
    """A client that requests observations and actions from an `ActionServer`. Any thread can use it.

    Attributes:
        config: Configuration, equal to the server's; see `ActionConfig`.
        task_id: Name of the client in logs.
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
        """Connect, and compare the configuration with the server's.

        There are two forms: ``ActionClient(ip, config)`` and ``ActionClient(ip, port, task_id=..., config=config)``.

        Args:
            server_ip: Host of the server, or its whole URI (`ActionServer.address`).
            config_or_port: Configuration; or a port or URI that replaces the `port_number` of `config`.
            wait_for_server: True to wait without limit until a server answers. False to wait for one timeout.
            config: Configuration, if `config_or_port` is a port or URI.
            task_id: Name for logs.
            timeout_ms: Longest time to wait for a reply, in milliseconds; None: the configuration's `timeout_s`.
            keys: The user's key file (``NAME.keys``), if the server requires keys.

        Raises:
            CallTimeout: If no server answered.
            CallRefused: Code ``mismatch`` if the configurations differ. The message names each such field with both values.
            ConfigError: If an argument or the address is invalid.
        """
        if isinstance(config_or_port, ActionConfig):
            if config is not None:
                raise ConfigError("two configurations were given; give one", key="config")
            config, config_or_port = config_or_port, None
        if config is None:
            raise ConfigError("an ActionClient needs an ActionConfig: ActionClient(ip, config)", key="config")
        self.config, self.task_id = check_value("config", config, instance_of(ActionConfig)), task_id
        timeout_s = config.timeout_s if timeout_ms is None else check_value("timeout_ms", timeout_ms, CALL_TIMEOUT_MS) / 1000
        self._codecs = config.codecs
        address = config.dial_address(server_ip, config_or_port)
        self._client = Caller(address, timeout_s=timeout_s, terms=config.terms(), keys=keys)
        try:
            first_call(task_id or "ActionClient", lambda: self._client.call(HELLO, {"terms": None}), wait=wait_for_server)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The server's address, as a URI."""
        return self._client.address

    def obs(self, keys: Iterable[str] | None = None, timeout_s: float | None = None) -> dict[str, Tree]:
        """Request observations.

        Args:
            keys: Keys to request. None: all `observation_keys` of the configuration.
            timeout_s: Longest time to wait, in seconds. None: the timeout of this client.

        Returns:
            The values of the requested keys. The caller can write to the arrays.

        Raises:
            CallRefused: Code ``unknown`` for a key that is not in the configuration; nothing is sent.
            CallFailed: If the server's callback raised an exception, or did not return a dict.
            CallTimeout: If no reply arrived in time.
            ProtocolError: If the images are malformed, or decoding them needs Pillow (extra ``images``).
        """
        wanted = self.config.observation_keys if keys is None else [keys] if isinstance(keys, str) else list(keys)
        self._check("observation", OBS, wanted, self.config.observation_keys)
        return _decode_reply(self._client.call(OBS, sorted(set(wanted)), timeout_s))

    def act(self, key: str, payload: Tree = None, timeout_s: float | None = None) -> dict[str, Tree]:
        """Request an action. The server runs the action at most once, even if messages are lost or the server restarts.

        Args:
            key: Key of the action.
            payload: Argument of the server's callback, usually a dict. None: an empty dict.
            timeout_s: Longest time to wait, in seconds. None: the timeout of this client.

        Returns:
            The return value of the server's callback. The caller can write to the arrays.

        Raises:
            CallRefused: Code ``unknown`` for a key that is not in the configuration; nothing is sent. Code ``too_large`` for a
                payload over the size limit.
            CallFailed: If the server's callback raised an exception.
            CallTimeout: If no reply arrived in time. The action may have run, or may still be running.
            CallLost: If the server was restarted during the call. The action may have run.
            PayloadError: If the payload has a type that cannot be sent. Nothing is sent.
            ProtocolError: If the images are malformed, or decoding them needs Pillow (extra ``images``).
        """
        self._check("action", ACT, [key], self.config.action_keys)
        plain, images = code_images({} if payload is None else payload, self._codecs)
        try:
            answer = self._client.call(ACT, {"key": key, "payload": plain, "images": images}, timeout_s, once=True)
        except PayloadError as exc:
            raise PayloadError(exc.path.replace("payload['payload']", "payload", 1), exc.problem) from exc
        return _decode_reply(answer)

    def get_observation(self) -> dict[str, Tree]:
        """Return the values of all observation keys, as `obs` does. agentlace's documentation uses this name."""
        return self.obs()

    def send_action(self, payload: Tree) -> dict[str, Tree]:
        """Call `act` with the only action key of the configuration. agentlace's documentation uses this name.

        Raises:
            ConfigError: If the configuration does not have exactly one action key.
        """
        if len(self.config.action_keys) != 1:
            raise config_error("action_keys", f"send_action needs exactly one; there are {len(self.config.action_keys)}: use act")
        return self.act(self.config.action_keys[0], payload)

    def register_obs_callback(self, callback: Callable[[dict[str, Tree]], None]) -> Subscription:
        """Call `callback` with each published observation, in a separate thread.

        A slow callback misses observations: only the newest observation waits until the callback returns. The newest observation
        that exists is passed at once. An exception of the callback is logged and counted. Each call of this method adds a
        callback.

        Returns:
            The subscription. Its attribute `number` is the number of the last observation that the callback received.

        Raises:
            ConfigError: If the configuration has no `broadcast_port`.
            Closed: After `stop`.
        """
        if self.config.broadcast_port is None:
            raise ConfigError("register_obs_callback needs a broadcast_port in ActionConfig", key="broadcast_port")
        return self._client.subscribe(OBS, lambda payload, number: callback(_decode_reply(payload)))

    def stats(self) -> dict[str, Any]:
        """Return the counters of this client's calls, by name."""
        return self._client.stats()

    def stop(self) -> None:
        """Close the connections and end the threads. A second call does nothing."""
        self.close()

    def close(self) -> None:
        """Do the same as `stop`."""
        self._client.close()

    def _check(self, kind: str, method: str, keys: Iterable[str], known: Iterable[str]) -> None:
        unknown = _unknown(kind, keys, known)
        if unknown:
            raise CallRefused(method, self.address, CallRefusalReason.UNKNOWN, unknown)


def _unknown(kind: str, keys: Iterable[object], known: Iterable[str]) -> str:
    """Return an error message that names the unknown keys, or ""."""
    names = set(known)
    other = sorted({repr(key) for key in keys if not isinstance(key, str) or key not in names})
    return f"there is no {kind} key {', '.join(other)}; the keys are: {', '.join(sorted(names)) or 'none'}" if other else ""


def _joined(plain: Tree, images: Tree) -> Tree:
    """Return a copy of the received values `plain`, to which the decoded `images` are added under their keys."""
    arrays = read_images(images)
    values = copy_tree(plain)
    if not arrays:
        return values
    if not isinstance(values, dict) or not arrays.keys() <= values.keys():
        raise ProtocolError(WireRefusal.MALFORMED, "images for keys that the payload does not have")
    return {**values, **arrays}


def _decode_reply(coded: Tree) -> dict[str, Tree]:
    plain, images = coded if isinstance(coded, tuple) and len(coded) == 2 else (coded, {})
    values = _joined(plain, images)
    if not isinstance(values, dict):
        raise ProtocolError(WireRefusal.MALFORMED, f"the reply is a {type(values).__name__}, not a dict")
    return values
