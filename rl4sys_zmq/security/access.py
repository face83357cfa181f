"""The access list ``users.toml``: the users that a server accepts, with their rights and quotas.

An example of an entry::

    [edge-7]                              # the user: a name of your choice, shown in status and logs
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    client_ids = ["luna"]                 # the clients that the user may act for; ["*"] for all
    roles = ["submit", "read_weights"]    # also "admin" for status and commands, "call" for services, "relay" for relays
    expires = 2027-01-01T00:00:00Z        # optional

    [edge-7.quota]                        # optional, as is each key in it
    messages_per_s = 200
    bytes_per_s = 10_000_000
    actors = 8                            # live at the same time
    segment_steps = 10_000
    fetches_per_min = 60                  # requests for the complete weights
"""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4sys_zmq.config.options import Check, InvalidValue, check_value, integer, number, one_of, option, parse_options
from rl4sys_zmq.config.options import name as name_of_user
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.security.keys import KEY_CHARS, is_key

# The capacity of a token bucket, as the time in which it refills.
BURST_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The quota of one user: limits on messages, bytes, actors, segments and fetches. None: no limit."""

    messages_per_s: float | None = option(number(0, 1e15, above=True))
    """Over all connections of the user. For a short time, the messages of two seconds can come at once."""
    bytes_per_s: float | None = option(number(0, 1e15, above=True))
    """Over all connections of the user. For a short time, the bytes of two seconds can come at once."""
    actors: int | None = option(integer(1))
    """Number of actors that are live at the same time."""
    segment_steps: int | None = option(integer(1))
    """Number of steps of one segment."""
    fetches_per_min: float | None = option(number(0, 1e15, above=True))
    """Requests for the complete weights."""


class TokenBucket:
    """A rate limit: at most `rate` per second on average, and in a burst the amount of two seconds (at least 1)."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = self._level = max(1.0, rate * BURST_S)
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` if the bucket holds as much, or is full (its level then becomes negative); else return False."""
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < min(amount, self._size):
            return False
        self._level -= amount
        return True


class UserRateLimits:
    """The rate limits of one user, on messages, bytes and requests for weights. None: no limit."""

    __slots__ = ("fetches", "messages", "nbytes")

    def __init__(self, quota: Quota, now: float) -> None:
        self.messages = TokenBucket(quota.messages_per_s, now) if quota.messages_per_s is not None else None
        self.nbytes = TokenBucket(quota.bytes_per_s, now) if quota.bytes_per_s is not None else None
        self.fetches = TokenBucket(quota.fetches_per_min / 60, now) if quota.fetches_per_min is not None else None


USERS_FILE = "users.toml"
"""The file name of the access list in a folder of keys."""

ROLES = ("submit", "read_weights", "admin", "call", "relay")
"""The roles that a user can have.

``submit``: send segments. ``read_weights``: receive the policy. ``admin``: read the learner's status and send commands.
``call``: call services, such as inference, environments and actions. ``relay``: receive weights in order to pass them on,
without the secret key with which actors check them. A user with this role has no other role.
"""

RELAY_ROLE = "relay"

ANY_CLIENT = "*"
MAX_FILE_BYTES = 16 << 20


def _public_key(value: object) -> str:
    if not isinstance(value, str) or not is_key(value):
        raise ConfigError(f"not a public key: expected {KEY_CHARS} characters of Z85")
    return value


def _texts(value: object, check: Check[str]) -> frozenset[str]:
    if not isinstance(value, list):
        raise InvalidValue("a list of texts")
    return frozenset(check(item) for item in value)


def _client_ids(value: object) -> frozenset[str] | None:
    client_ids = _texts(value, name_of_user)
    return None if ANY_CLIENT in client_ids else client_ids


def _roles(value: object) -> frozenset[str]:
    roles = _texts(value, one_of(*ROLES))
    if RELAY_ROLE in roles and len(roles) > 1:
        others = ", ".join(sorted(roles - {RELAY_ROLE}))
        raise ConfigError(f"relay excludes {others}; give the relay a key of its own")
    return roles


def _quota(value: object) -> Quota:
    if not isinstance(value, dict):
        raise InvalidValue("a table")
    return Quota(**parse_options(Quota, value))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """One user of the access list: the holder of a key, with rights and quota.

    Attributes:
        name: The name of the user, which is the name of its table in the file.
        key: The user's public key, as 40 characters of Z85.
        client_ids: The clients for which the user may act. None: all.
        roles: Some of `ROLES`.
        expires_unix_s: The Unix time from which the key is refused, in seconds. None: never.
        quota: The limits on the user's messages and actors.
    """

    name: str
    key: str = option(_public_key, required=True)
    client_ids: frozenset[str] | None = option(_client_ids, required=True)
    roles: frozenset[str] = option(_roles, required=True)
    expires_unix_s: float | None
    quota: Quota = option(_quota, Quota())

    def may_act_for(self, client_id: str) -> bool:
        """Return True if the user may send and receive messages for a client."""
        return self.client_ids is None or client_id in self.client_ids

    def expired(self, unix_s: float) -> bool:
        """Return True if the user's key has expired at this Unix time, in seconds."""
        return self.expires_unix_s is not None and unix_s >= self.expires_unix_s


@dataclass(frozen=True, slots=True)
class AccessList:
    """The users that a server accepts, by name and by public key. Peers with other keys cannot connect."""

    by_name: Mapping[str, User] = field(default_factory=dict)
    by_key: Mapping[str, User] = field(default_factory=dict)


def load_access(path: Path, *, allow_empty: bool = True) -> AccessList:
    """Read an access list from a TOML file.

    Raises:
        ConfigError: If the file cannot be read, has no text and `allow_empty` is False, or has an invalid value. The message
            names the file, the user and the key.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"the file has more than {MAX_FILE_BYTES} bytes; shorten it", source=str(path))
        content = path.read_text()
        if not allow_empty and not content.strip():  # an editor that writes a file in place empties it first
            raise ConfigError("the file is empty; to remove all users, leave a comment in it: # no users", source=str(path))
        tables = tomllib.loads(content)
    except OSError as exc:
        remedy = "create one with `rl4sys-learner keys DIR --user NAME`"
        raise ConfigError(f"the list of users cannot be read ({exc.strerror}); {remedy}", source=str(path)) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"not TOML: {exc}", source=str(path)) from exc
    by_name: dict[str, User] = {}
    by_key: dict[str, User] = {}
    for name, table in tables.items():
        try:
            user = _user(name, table)
            other = by_key.get(user.key)
            if other is not None:
                raise ConfigError(f"{name}.key is the same as {other.name}.key; give each user its own", key=f"{name}.key")
        except ConfigError as exc:
            raise ConfigError(str(exc), key=exc.key, source=os.fspath(path)) from None
        by_name[name] = by_key[user.key] = user
    return AccessList(by_name, by_key)


def _user(name: str, table: object) -> User:
    check_value(name[:40], name, name_of_user)
    if not isinstance(table, dict):
        raise config_error(name, f"expected a table [{name}] with key, client_ids and roles")
    values: dict[str, Any] = parse_options(User, table, extra=("expires",), partial=True, section=name)
    for key in ("key", "client_ids", "roles"):
        if key not in values:
            raise ConfigError(f"{name}.{key} is missing", key=f"{name}.{key}")
    return User(name=name, expires_unix_s=_expires(f"{name}.expires", values.pop("expires", None)), **values)


def _expires(key: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC).timestamp()
    raise config_error(key, f"expected a date like 2027-01-01 or 2027-01-01T00:00:00Z, not {value!r:.80}")
