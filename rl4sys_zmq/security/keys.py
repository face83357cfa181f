"""Keys for CURVE, the encryption and authentication of ZeroMQ: key pairs, files with keys, and functions that set keys on
sockets.

A key is 32 bytes, written as 40 characters of Z85. The files are TOML::

    learner.secret    public, secret                    0600, only on the learner's machine learner.public    public
    0644, readable by all NAME.keys         name, public, secret, learner     0600, one for each user: an actor, a caller or a
    person

Keys protect connections over tcp and ipc. On inproc, libzmq ignores CURVE, because the messages never leave the process.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import make_private, sync_folder
from rl4sys_zmq.transports.network import curve
from rl4sys_zmq.transports.sockets import Secure

LEARNER_SECRET, LEARNER_PUBLIC = "learner.secret", "learner.public"
KEY_CHARS = 40
_MAX_FILE_BYTES = 4096
_PLAIN = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_Z85 = frozenset(z85.Z85CHARS.decode())


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret key. The ``repr`` does not show the secret key."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserKeys:
    """The keys of a user: the user's key pair, and the learner's public key, with which the user authenticates the learner."""

    own: KeyPair
    learner_public: str


def is_key(text: str) -> bool:
    """Return True if a text has the form of a key."""
    return len(text) == KEY_CHARS and _Z85.issuperset(text)


def new_key_pair() -> KeyPair:
    """Return a new random key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def curve_server(keys: KeyPair, zap_domain: str) -> Secure:
    """Return a function that makes a bound socket accept only connections with keys (CURVE). Call it before the socket is
    bound.

    The function that was registered for `zap_domain` by `register_domain` accepts or denies each peer. Without such a function,
    no peer can connect. On inproc, nothing is checked.

    Raises:
        ConfigError: If the name of the domain is empty. With an empty name, libzmq would accept every peer while no ZAP handler
            runs.
    """
    if not zap_domain:
        raise ConfigError("an empty ZAP domain would accept every peer; give it a name", key="zap_domain")

    def secure(raw: zmq.Socket[bytes]) -> None:
        raw.setsockopt(zmq.CURVE_SERVER, 1)
        raw.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode("ascii"))
        raw.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode("ascii"))
        raw.setsockopt(zmq.ZAP_DOMAIN, zap_domain.encode("utf-8"))
        raw.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    return secure


def curve_client(keys: UserKeys) -> Secure:
    """Return a function that makes a connecting socket use keys (CURVE). Call it before the socket connects. Not for inproc.

    The socket then connects only to a learner with the public key in `keys`.
    """
    return curve((keys.own.public, keys.own.secret, keys.learner_public))


def write_server_keys(path: str | os.PathLike[str], keys: KeyPair) -> None:
    """Write the key pair of a server to a file with mode 0600, usually ``learner.secret``, in a folder with mode 0700.

    Raises:
        ConfigError: If the file already exists (it is not overwritten) or cannot be written.
    """
    _write(Path(path), {"public": keys.public, "secret": keys.secret}, 0o600)


def write_learner_public(path: str | os.PathLike[str], public: str) -> None:
    """Write a learner's public key to a file that all accounts can read. Raise ConfigError if the file exists."""
    _write(Path(path), {"public": public}, 0o644)


def write_user_keys(path: str | os.PathLike[str], name: str, keys: UserKeys) -> None:
    """Write the name and the keys of a user to a file, usually ``NAME.keys``.

    Raises:
        ConfigError: If the name is not 1 to 64 letters, digits and ``._@-``, or the file exists or cannot be written.
    """
    if not _PLAIN.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name; use 1 to 64 letters, digits, '.', '_', '@' or '-'", key="name", source=str(path)
        )
    own = keys.own
    values = {"name": name, "public": own.public, "secret": own.secret, "learner": keys.learner_public}
    _write(Path(path), values, 0o600)


def _write(path: Path, values: Mapping[str, str], mode: int) -> None:
    # TOML's literal strings: Z85 and names contain no single quotes and no control characters.
    text = "".join(f"{key} = '{value}'\n" for key, value in values.items())
    try:
        make_private(path.parent)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)  # the umask may have removed bits
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # do not leave an incomplete key
            raise
        sync_folder(path.parent)
    except FileExistsError as exc:
        raise ConfigError("the file already exists; move it away, or choose another name", source=str(path)) from exc
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}; choose a folder that you own", source=str(path)) from exc


def read_server_keys(path: str | os.PathLike[str]) -> KeyPair:
    """Read the key pair of a server from a file, usually ``learner.secret``.

    Raises:
        ConfigError: If the file is missing, a link, owned by another account, accessible to others or damaged, or if its public
            key does not belong to its secret. The message names the file and the remedy.
    """
    return _pair(_read(Path(path), secret=True), str(path))


def read_learner_public(path: str | os.PathLike[str]) -> str:
    """Return the public key in a file, usually ``learner.public``. Raise ConfigError if it is missing or damaged."""
    return _key(_read(Path(path), secret=False), "public", str(path))


def read_user_keys(path: str | os.PathLike[str]) -> tuple[str, UserKeys]:
    """Return the name and the keys of a user from a file, usually ``NAME.keys``.

    Raises:
        ConfigError: If the file is missing, damaged or accessible to other accounts, or the name is missing or invalid.
    """
    source = str(path)
    table = _read(Path(path), secret=True)
    name = table.get("name")
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise ConfigError("name: missing or invalid; create new keys", key="name", source=source)
    return name, UserKeys(_pair(table, source), _key(table, "learner", source))


def _read(path: Path, *, secret: bool) -> dict[str, object]:
    source = str(path)
    try:
        # O_NONBLOCK: if the path is a pipe, `open` must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if secret else 0))
        with os.fdopen(fd, "rb") as file:
            _check_access(os.fstat(file.fileno()), source, secret=secret)
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as exc:
        raise ConfigError("no such file; create the keys first, or give the folder that has them", source=source) from exc
    except OSError as exc:
        if path.is_symlink():
            raise ConfigError("is a symbolic link, which others could redirect; give the file itself", source=source) from exc
        raise ConfigError(f"cannot be read: {exc.strerror}; it must belong to the user who runs this", source=source) from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError("is too long for a key file; give another file", source=source)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        # Without the cause, which would quote a part of the file and so perhaps of the secret.
        raise ConfigError("is damaged (not TOML); copy it again, or create new keys", source=source) from None


def _check_access(status: os.stat_result, source: str, *, secret: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("is not a regular file; give another", source=source)
    if not secret:
        return
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"belongs to user {status.st_uid}, not to {os.geteuid()} who runs this; chown {os.geteuid()} {source}", source=source
        )
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"other accounts can access this secret (mode {mode:04o}); chmod 600 {source}", source=source)


def _key(table: Mapping[str, object], name: str, source: str) -> str:
    value = table.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{name}: missing; copy the file again, or create new keys", key=name, source=source)
    if not is_key(value):
        raise ConfigError(
            f"{name}: not {KEY_CHARS} characters of Z85; copy the file again, or create new keys", key=name, source=source
        )
    return value


def _pair(table: Mapping[str, object], source: str) -> KeyPair:
    pair = KeyPair(_key(table, "public", source), _key(table, "secret", source))
    try:
        belongs = zmq.curve_public(pair.secret.encode("ascii")).decode("ascii") == pair.public
    except (ValueError, zmq.ZMQError):  # some texts of 40 characters of Z85 do not decode to 32 bytes
        belongs = False
    if not belongs:
        raise ConfigError(
            "public: does not belong to this secret; copy the file again, or create new keys", key="public", source=source
        )
    return pair
