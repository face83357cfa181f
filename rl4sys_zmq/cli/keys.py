"""The command ``rl4sys-learner keys``: creates the keys of a learner, and adds or removes users in its access list.

The access list is a TOML file with one table for each user, which people also edit by hand. Therefore the command appends or
removes a table as text, which keeps comments. The new text is parsed before it replaces the file.
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

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.private import make_private, others_can_write, sync_folder
from rl4sys_zmq.security.access import USERS_FILE, load_access
from rl4sys_zmq.security.keys import (
    LEARNER_PUBLIC,
    LEARNER_SECRET,
    UserKeys,
    new_key_pair,
    read_learner_public,
    read_server_keys,
    write_learner_public,
    write_server_keys,
    write_user_keys,
)

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_FILE_HEADER = """\
# The users that can connect to this learner. A change takes effect within a second; an invalid file has no effect.
# `rl4sys-learner keys DIR --user NAME` appends a table, `--revoke NAME` removes it. By hand:
#
# [edge-7]                              # the user: a name, shown in status and logs
# key = "40 characters of Z85"          # the user's public key
# client_ids = ["luna"]                 # the clients that the user may act for; ["*"] for all
# roles = ["submit", "read_weights"]    # also "admin" for status and commands, "call" for services, "relay" for relays
# expires = 2027-01-01                  # optional
#
# [edge-7.quota]                        # optional, as is each key in it
# messages_per_s = 200
# bytes_per_s = 10_000_000
# actors = 8
# segment_steps = 10_000
# fetches_per_min = 60
"""


# ---- the learner


def make_keys(folder: Path) -> None:
    """Create the learner's keys and an empty list of users, and print the state of each file. Existing ones are not changed."""
    secret, public = folder / LEARNER_SECRET, folder / LEARNER_PUBLIC
    with _locked(folder, make=True):
        if secret.exists() or secret.is_symlink():
            learner = read_server_keys(secret)
            print_line(f"already there: {secret}")
        else:
            learner = new_key_pair()
            write_server_keys(secret, learner)
            print_line(f"created {secret}: the learner's secret; keep it on this machine")
        if public.exists():
            if read_learner_public(public) != learner.public:
                raise ConfigError(f"does not belong to {LEARNER_SECRET}; remove it, and run this again", source=str(public))
            print_line(f"already there: {public}")
        else:
            write_learner_public(public, learner.public)
            print_line(f"created {public}: the learner's public key")
        users = folder / USERS_FILE
        if users.exists():
            names = sorted(load_access(users).by_name)
            print_line(f"already there: {users}: {', '.join(names) or 'no users yet'}")
        else:
            _replace(users, _FILE_HEADER, 0o600)
            names = []
            print_line(f"created {users}: the list of users; no users yet")
    for warning in others_can_write(folder, users):
        print_line(warning)
    print_line(f"next: rl4sys-learner {'serve --keys ' + str(folder) if names else f'keys {folder} --user NAME'}")


# ---- the users


def add_user(folder: Path, name: str, client_ids: Sequence[str], roles: Sequence[str], expires: str | None) -> None:
    """Create a key pair for a user, write it to ``NAME.keys``, and add the user to the access list."""
    until = _date(expires) if expires is not None else None
    for client_id in client_ids:
        check_name(client_id, "--client-id")
    users, file = folder / USERS_FILE, folder / f"{name}.keys"
    with _locked(folder):
        learner = read_server_keys(folder / LEARNER_SECRET)
        text, mode = _read(users) if users.exists() else (_FILE_HEADER, 0o600)
        if name in tomllib.loads(text):
            raise ConfigError(f"{name} is already listed; choose another name, or --revoke {name} first", source=str(users))
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
            file.unlink(missing_ok=True)  # a key that is not listed is useless
            raise
    whom = "all clients" if "*" in client_ids else ", ".join(client_ids)
    print_line(
        f"created {file}: {', '.join(dict.fromkeys(roles))} for {whom}" + (f", until {until}" if until is not None else "")
    )
    print_line(f"added to {users}; a running learner accepts the key within a second")
    if "submit" in roles:
        print_line(f"copy {file.name} to the actor's machine (chmod 600), and add to the actor's configuration:")
        print_line(f'  "keys": "{file.name}"')
    if "relay" in roles:
        print_line(f"copy {file.name} to the relay (chmod 600): rl4sys-learner relay ADDRESS --upstream-keys {file.name}")
    if "admin" in roles:
        print_line(f"to see the status: rl4sys-learner status ADDRESS --keys {file}")


def revoke_user(folder: Path, name: str) -> None:
    users = folder / USERS_FILE
    with _locked(folder):
        text, mode = _read(users)
        tables = tomllib.loads(text)
        if name not in tables:
            known = ", ".join(sorted(tables)) or "no users"
            raise ConfigError(f"{name!r} is not listed; listed: {known}", source=str(users))
        rest = _without_table(text, name)
        del tables[name]
        if _parsed_or_none(rest) != tables:
            raise ConfigError(f"{name} is not in a separate table with separate lines; remove it by hand", source=str(users))
        _replace(users, rest, mode)
    print_line(f"removed {name} from {users}; a running learner refuses the key within a second")
    if (folder / f"{name}.keys").exists():
        print_line(f"{folder / f'{name}.keys'} is now useless: remove it")


def _date(text: str) -> str:
    """Check an expiry date or time, and return it in TOML's notation."""
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
        raise ConfigError(f"--expires {text!r} is not a date such as 2027-01-01 or 2027-01-01T12:00:00Z", key="expires") from exc
    if moment <= datetime.datetime.now(datetime.UTC):
        raise ConfigError(f"--expires {text} is in the past; give a later date", key="expires")
    return written


# ---- the file


def _without_table(text: str, name: str) -> str:
    """Return the text of the access list without the table of one user and its subtables.

    Comments between the table and the next header stay, because they can belong to the next table.
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
    """Return the user in the header of a table, such as ``edge-7`` for ``[edge-7.quota]``, or "" for any other line."""
    if not line.lstrip().startswith("["):
        return ""
    try:
        table = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ""
    return next(iter(table), "")


def _read(path: Path) -> tuple[str, int]:
    load_access(path)  # raises ConfigError if the list is invalid
    return path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777


def _parsed_or_none(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _replace(path: Path, text: str, mode: int) -> None:
    """Check the new text of the access list, and replace the file atomically."""
    target = path.resolve()  # keep a symbolic link as it is
    try:
        fd, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                if target.exists():
                    before = target.stat()
                    with contextlib.suppress(PermissionError):  # keep the owner: root may edit the list of another account
                        os.fchown(file.fileno(), before.st_uid, before.st_gid)
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
    """Lock the folder, so that two commands do not overwrite each other's changes. With `make`, create the folder first."""
    try:
        if make:
            make_private(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        remedy = "choose another" if make else f"create it first: rl4sys-learner keys {folder}"
        raise ConfigError(f"the folder cannot be used ({exc.strerror}); {remedy}", source=str(folder)) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
