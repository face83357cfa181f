"""``rl4sys-learner keys``: a learner's keys, and the users that it lets in by theirs.

The list of users is a file that people edit: a table is appended or taken out as text, so that comments stay, and the
result is read again before it takes the file's place.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl4sys_zmq.cli.app import say
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.private import make_private, others_can_write, sync_folder
from rl4sys_zmq.security import (
    LEARNER_PUBLIC,
    LEARNER_SECRET,
    USERS_FILE,
    ServerKeys,
    UserKeys,
    load_access,
    new_key_pair,
    read_learner_public,
    read_server_keys,
    write_learner_public,
    write_server_keys,
    write_user_keys,
)

__all__ = ["add_user", "make_keys", "revoke_user"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_FREE_MESSAGES = """\
# The users that may reach this learner. A change is in force within a second; a mistake in here changes nothing.
# `rl4sys-learner keys DIR --user NAME` appends a table, `--revoke NAME` takes it out. By hand:
#
# [edge-7]                              # the user: a name, shown in status and logs
# key = "40 characters of Z85"          # its public key
# client_ids = ["luna"]                 # the policies that it may act for; ["*"] for all
# roles = ["submit", "read_weights"]    # "admin" sees the status, "call" uses a service
# expires = 2027-01-01                  # optional
#
# [edge-7.quota]                        # optional, each of them
# messages_per_s = 200
# bytes_per_s = 10_000_000
# actors = 8
# segment_steps = 10_000
# fetches_per_min = 60
"""


# ---- the learner


def make_keys(folder: Path) -> None:
    """Make the learner's keys and an empty list of users, unless they are there, and say what is there.

    Raises:
        ConfigError: when something can't be written, or what is there is damaged or open to others.
    """
    secret, public = folder / LEARNER_SECRET, folder / LEARNER_PUBLIC
    with _locked(folder, make=True):
        if secret.exists() or secret.is_symlink():
            learner = read_server_keys(secret).learner
            say(f"there already: {secret}")
        else:
            learner = new_key_pair()
            write_server_keys(secret, ServerKeys(learner))
            say(f"made {secret}: the learner's secret, which never leaves this machine")
        if public.exists():
            if read_learner_public(public) != learner.public:
                raise ConfigError(f"not the key of {LEARNER_SECRET}; remove it, and run this again", source=str(public))
            say(f"there already: {public}")
        else:
            write_learner_public(public, learner.public)
            say(f"made {public}: its public key")
        users = folder / USERS_FILE
        if users.exists():
            names = sorted(load_access(users).by_name)
            say(f"there already: {users}: {', '.join(names) or 'no users yet'}")
        else:
            _replace(users, _FREE_MESSAGES, 0o600)
            names = []
            say(f"made {users}: the list of users; no users yet")
    for warning in others_can_write(folder, users):
        say(warning)
    say(f"next: rl4sys-learner {'serve --keys ' + str(folder) if names else f'keys {folder} --user NAME'}")


# ---- the users


def add_user(folder: Path, name: str, client_ids: Sequence[str], roles: Sequence[str], expires: str | None) -> None:
    """Make ``NAME.keys`` and list its user.

    Raises:
        ConfigError: If the name is listed or invalid, the date is invalid or over, or a file cannot be used.
    """
    until = _date(expires) if expires is not None else None
    for client_id in client_ids:
        check_name(client_id, "--client-id")
    users, file = folder / USERS_FILE, folder / f"{name}.keys"
    with _locked(folder):
        learner = read_server_keys(folder / LEARNER_SECRET).learner
        text, mode = _read(users) if users.exists() else (_FREE_MESSAGES, 0o600)
        if name in _parsed(text, users):
            raise ConfigError(f"{name} is listed already; choose another name, or --revoke {name} first", source=str(users))
        own = new_key_pair()
        table = [
            f"[{name if _BARE.fullmatch(name) else json.dumps(name)}]",
            f"key = {json.dumps(own.public)}",
            f"client_ids = {json.dumps(list(dict.fromkeys(client_ids)), ensure_ascii=False)}",
            f"roles = {json.dumps(list(dict.fromkeys(roles)))}",
            *([f"expires = {until}"] if until is not None else []),
        ]
        write_user_keys(file, name, UserKeys(own, learner.public))
        try:
            _replace(users, text.rstrip("\n") + "\n\n" + "\n".join(table) + "\n", mode)
        except BaseException:
            file.unlink(missing_ok=True)  # a key that is not listed is of no use
            raise
    whom = "all clients" if "*" in client_ids else ", ".join(client_ids)
    say(f"made {file}: {', '.join(dict.fromkeys(roles))} for {whom}" + (f", until {until}" if until is not None else ""))
    say(f"listed in {users}; a running learner knows it within a second")
    if "submit" in roles:
        say(f"copy {file.name} to that machine (chmod 600), and say in the actor's configuration:")
        say(f'  "keys": "{file.name}"')
    if "admin" in roles:
        say(f"to see the status: rl4sys-learner status ADDRESS --keys {file}")


def revoke_user(folder: Path, name: str) -> None:
    """Take a user off the list.

    Raises:
        ConfigError: If the name is not listed, or its table cannot be taken out as text.
    """
    users = folder / USERS_FILE
    with _locked(folder):
        text, mode = _read(users)
        tables = _parsed(text, users)
        if name not in tables:
            known = ", ".join(sorted(tables)) or "no users"
            raise ConfigError(f"{name!r} is not listed; there are: {known}", source=str(users))
        rest = _without_table(text, name)
        del tables[name]
        if _parsed_or_none(rest) != tables:
            raise ConfigError(f"{name} is not written as a table of its own lines; take it out by hand", source=str(users))
        _replace(users, rest, mode)
    say(f"{name} is off the list in {users}; a running learner lets it in no more within a second")
    if (folder / f"{name}.keys").exists():
        say(f"{folder / f'{name}.keys'} is of no use any more: remove it")


def _date(text: str) -> str:
    """A date or a time as TOML writes it."""
    try:
        if len(text) == len("2027-01-01"):
            day = datetime.date.fromisoformat(text)
            moment = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)
            written = day.isoformat()
        else:
            moment = datetime.datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
            moment = moment.astimezone(datetime.UTC)
            written = moment.isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError) as exc:
        raise ConfigError(f"--expires {text!r} is no date like 2027-01-01 or 2027-01-01T12:00:00Z", key="expires") from exc
    if moment <= datetime.datetime.now(datetime.UTC):
        raise ConfigError(f"--expires {text} is over already", key="expires")
    return written


# ---- the file


def _without_table(text: str, name: str) -> str:
    """The text without the lines of a table and of those within it.

    Comments between it and the next header stay: they may be the next table's.
    """
    kept: list[str] = []
    loose: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        path = _header(line)
        if path:
            if inside and path != name:
                while loose and not loose[0].strip() and kept and not kept[-1].strip():
                    del loose[0]
                kept += loose
            inside, loose = path == name, []
        if not inside:
            kept.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            loose = []
        else:
            loose.append(line)
    return "".join([*kept, *(line for line in loose if line.strip())]).rstrip("\n") + "\n"


def _header(line: str) -> str:
    """The first name in a table's header; empty for any other line."""
    if not line.lstrip().startswith("["):
        return ""
    try:
        found = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ""
    return next(iter(found), "")


def _read(path: Path) -> tuple[str, int]:
    load_access(path)  # says what is wrong with it
    return path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777


def _parsed(text: str, path: Path) -> dict[str, Any]:
    found = _parsed_or_none(text)
    if found is None:
        raise ConfigError("not TOML", source=str(path))
    return found


def _parsed_or_none(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _replace(path: Path, text: str, mode: int) -> None:
    """Puts a new list in the place of the old one in one step, when it can be read.

    Raises:
        ConfigError: when it can't be, or be written.
    """
    target = path.resolve()  # a link stays one
    try:
        fd, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                if target.exists():
                    found = target.stat()
                    with contextlib.suppress(PermissionError):  # root edits a list that the learner's user must read
                        os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            load_access(Path(made))
            os.replace(made, target)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        sync_folder(target.parent)
    except OSError as exc:
        raise ConfigError(f"cannot be written: {exc.strerror}; choose a folder that you own", source=str(path)) from exc


@contextmanager
def _locked(folder: Path, *, make: bool = False) -> Iterator[None]:
    """Holds a lock on the folder, so that two commands at once do not lose each other's changes."""
    try:
        if make:
            make_private(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        remedy = "choose another" if make else f"make it first: rl4sys-learner keys {folder}"
        raise ConfigError(f"no folder to use ({exc.strerror}); {remedy}", source=str(folder)) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
