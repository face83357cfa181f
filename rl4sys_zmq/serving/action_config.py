"""The configuration that an action server and its callers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.images import NEEDS_PILLOW, ImageCodec, has_pillow
from rl4sys_zmq.serving.addresses import address_of
from rl4sys_zmq.transports import Address
from rl4sys_zmq.wire.trees import Tree

__all__ = ["ActionConfig"]

MAX_KEYS = 1024
MAX_KEY = 256


@dataclass(frozen=True)
class ActionConfig:
    """The configuration of both sides, checked when it is created.

    Server and caller must agree on `action_keys`, `observation_keys`, `version` and `image_codecs`, and either both or neither
    must have a `broadcast_port`. Otherwise the server refuses the caller; the error names the differences. Addresses and timeouts
    can differ.

    Attributes:
        port_number: Port (0: a free one) or URI (``tcp://``, ``ipc://``, ``inproc://``) for calls.
        action_keys: Keys that `ActionClient.act` accepts.
        observation_keys: Keys that `ActionClient.obs` can request.
        broadcast_port: Port or URI for `ActionServer.publish_obs`; None: observations are not published.
        version: The version of your own program's protocol. The library only compares it.
        bind: Interface on which the server binds ports that are numbers. If other machines can reach it, the server needs
            `keys` or `insecure=True`. A caller connects to the host that it is given.
        image_codecs: Codec of each image key: ``"jpeg"`` (quality 90), ``"jpeg:75"``, ``"png"``, or an `ImageCodec`. It
            applies to the top-level entries of an observation, of an action's payload and of its reply. Needs the extra
            ``images``. Entries that are not arrays are sent unchanged.
        timeout_s: Default time that a caller waits for a reply, in seconds.
    """

    port_number: int | str
    action_keys: Sequence[str]
    observation_keys: Sequence[str]
    broadcast_port: int | str | None = None
    version: str = "0.0.1"
    bind: str = "127.0.0.1"
    image_codecs: Mapping[str, str | ImageCodec] = field(default_factory=dict)
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: If a field is invalid. It names the field.
        """
        for name in ("action_keys", "observation_keys"):
            object.__setattr__(self, name, _keys(name, getattr(self, name)))
        if not isinstance(self.version, str):
            raise ConfigError(f"version is {self.version!r}; expected a string", key="version")
        if type(self.timeout_s) not in (int, float) or not 0 < self.timeout_s <= 86_400:
            raise ConfigError(f"timeout_s is {self.timeout_s!r}; expected more than 0 and at most 86400 seconds", key="timeout_s")
        self._address("port_number", self.bind)
        if self.broadcast_port is not None:
            self._address("broadcast_port", self.bind)
        if not isinstance(self.image_codecs, Mapping):
            raise ConfigError(f"image_codecs is {self.image_codecs!r:.60}, not a map of keys to codecs", key="image_codecs")
        object.__setattr__(self, "image_codecs", {key: _codec(key, codec) for key, codec in self.image_codecs.items()})
        if self.image_codecs and not has_pillow():
            raise ConfigError(f"image_codecs: {NEEDS_PILLOW}", key="image_codecs")

    @property
    def codecs(self) -> dict[str, ImageCodec]:
        """The parsed `image_codecs`."""
        return {key: codec for key, codec in self.image_codecs.items() if isinstance(codec, ImageCodec)}

    def terms(self) -> dict[str, Tree]:
        """Return the session parameters, which must be equal on both sides. The order of keys does not matter."""
        return {
            "action_keys": sorted(self.action_keys),
            "observation_keys": sorted(self.observation_keys),
            "version": self.version,
            "broadcast_port": "none" if self.broadcast_port is None else "given",
            "image_codecs": [f"{key}={c.format}:{c.quality}" for key, c in sorted(self.codecs.items())],
        }

    def bind_address(self) -> Address:
        """Return the address that the server binds."""
        return self._address("port_number", self.bind)

    def broadcast_address(self) -> Address | None:
        """Return the address for published observations; None if they are not published."""
        return None if self.broadcast_port is None else self._address("broadcast_port", self.bind)

    def dial_address(self, server_ip: str, port: int | str | None = None) -> Address:
        """Return the address that a caller connects to.

        Args:
            server_ip: Host, or a whole URI, which takes precedence over any port.
            port: Port or URI to use in place of `port_number`.

        Raises:
            ConfigError: If the address can only be bound, such as port 0.
        """
        if type(server_ip) is not str or not server_ip:
            raise ConfigError(f"server_ip is {server_ip!r}; expected a host or a URI", key="server_ip")
        if "://" in server_ip:
            address = address_of("server_ip", server_ip)
        else:
            given = self.port_number if port is None else port
            address = address_of("port_number", given, server_ip)
            if address.scheme == "tcp" and isinstance(given, str):
                address = address_of("server_ip", address.port, server_ip)  # the port of a URI that the server binds
        if address.is_fresh:
            raise ConfigError(f"{address.uri} is only an address to bind; connect to ActionServer.address", key="server_ip")
        return address

    def _address(self, name: str, host: str) -> Address:
        return address_of(name, getattr(self, name), host)


def _keys(name: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise ConfigError(f"{name} is {given!r:.60}; expected a list of names", key=name)
    keys = list(given) if isinstance(given, Sequence) else sorted(given)
    for key in keys:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
            raise ConfigError(f"{name} has {key!r:.60}; a key must be a string of 1 to {MAX_KEY} characters", key=name)
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"{name} contains {', '.join(twice)} more than once", key=name)
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{name} has {len(keys)} keys; the limit is {MAX_KEYS}", key=name)
    return keys


def _codec(key: object, given: object) -> ImageCodec:
    if not isinstance(key, str):
        raise ConfigError(f"image_codecs has the key {key!r:.60}, which is not a string", key="image_codecs")
    codec = given
    if isinstance(given, str):
        form, _, quality = given.partition(":")
        codec = ImageCodec(form, int(quality)) if quality.isdecimal() else ImageCodec(form) if not quality else None
    if not isinstance(codec, ImageCodec) or codec.format not in ("png", "jpeg") or not 1 <= codec.quality <= 100:
        raise ConfigError(
            f"image_codecs[{key!r}] is {given!r:.60}; expected jpeg, jpeg:1 to jpeg:100, or png", key="image_codecs"
        )
    return codec
