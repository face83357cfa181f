"""The rule for valid names of clients, actors and so on, and the conversion of names to names of files and folders."""

from __future__ import annotations

import os
import re

from rl4sys_zmq.errors import ConfigError

MAX_NAME = 200
"""The longest name of a client, an actor, a key, a store or an environment, in characters."""

MAX_HOST = 40
"""The longest beginning of a host's name in the default name of an actor, in characters."""

NAME_RULE = f"1 to {MAX_NAME} printable characters without / \\ :, not starting or ending with a dot or space"

MAX_FOLDER_NAME = 200
_DIGEST_CHARS = 40
_FORBIDDEN = frozenset("/\\:")
_FROM_LIBRARIES = {"TRPO": "sb3:TRPO"}
"""RL4Sys's names of algorithms that a library trains here, and their names here."""


def is_name(value: object) -> bool:
    """Return True if a value is a valid name: 1 to 200 printable characters without ``/``, ``:`` and the like."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= MAX_NAME
        and value.isprintable()
        and value.strip(". ") == value
        and _FORBIDDEN.isdisjoint(value)
    )


def check_name(value: object, key: str) -> str:
    """Return a name unchanged if it is valid. Otherwise raise ConfigError for the configuration key `key`."""
    if not is_name(value):
        raise ConfigError(f"{key} {value!r:.60} is not a valid name; expected {NAME_RULE}", key=key)
    return str(value)


def new_actor_id() -> str:
    """Return the name of an actor that has none: its host, its process and a random number, such as ``cache-7.4121-9f3c01ab``."""
    host = re.sub(r"[^0-9A-Za-z._-]", "-", os.uname().nodename).strip(".")[:MAX_HOST] or "host"
    return f"{host}.{os.getpid()}-{os.urandom(4).hex()}"


def algorithm_key(name: str) -> str:
    """Return the form in which names of algorithms are compared and stored.

    The case of a name does not matter: ``ppo`` becomes ``PPO``, and ``SB3:trpo`` becomes ``sb3:TRPO``. The path of a user's own
    class, as in ``sb3:package.module:Class``, is kept. RL4Sys's name ``TRPO`` becomes ``sb3:TRPO``.
    """
    library, colon, own = name.partition(":")
    if not colon:
        return _FROM_LIBRARIES.get(name.upper(), name.upper())
    return f"{library.lower()}:{own if ':' in own else own.upper()}"


def folder_name(name: str, most: int = MAX_FOLDER_NAME) -> str:
    """Convert any text to a valid folder name of at most `most` characters. Different texts get different folder names.

    All characters except ASCII letters, digits, ``_ - ~`` and inner dots are percent-encoded. If the text has capital letters,
    ``%~`` and the positions of the capitals (a bit mask in hexadecimal) are appended, so that two names also differ on a file
    system that ignores case. A result that would be too long is cut, and ends in ``%-`` and a hash of the whole text. `name_of`
    converts all other results back.
    """
    from hashlib import sha256  # imported late: an actor checks names but creates no folder
    from urllib.parse import quote

    plain = quote(name, safe="", errors="surrogatepass")
    if plain.startswith(".") or not plain:
        plain = "%2E" + plain[1:] if plain else "%"
    capitals = sum(1 << place for place, letter in enumerate(name) if "A" <= letter <= "Z")
    encoded = f"{plain}%~{capitals:x}" if capitals else plain
    if len(encoded) <= most:
        return encoded
    return f"{_whole_characters(plain[: most - _DIGEST_CHARS - 10])}%-{sha256(plain.encode()).hexdigest()[:_DIGEST_CHARS]}"


def _whole_characters(plain: str) -> str:
    """Return the start of a percent-encoded text up to its last whole character."""
    escape = plain.rfind("%", max(0, len(plain) - 2))
    plain = plain[:escape] if escape >= 0 else plain
    while _decoded(plain) is None:
        plain = plain[:-3]
    return plain


def name_of(folder: str) -> str | None:
    """Convert a result of `folder_name` back to the original text.

    Return None if `folder` is not a result of `folder_name`, or contains a hash because the text was too long.
    """
    name = _decoded(folder)
    return name if name is not None and folder_name(name) == folder else None


def _decoded(folder: str) -> str | None:
    """Decode the percent-encoded part of a folder's name; None if the part is not the encoding of a text."""
    from urllib.parse import unquote

    plain, _, _ = folder.partition("%~")
    try:
        return "" if plain == "%" else unquote(plain, errors="surrogatepass")
    except UnicodeError:
        return None


def file_name(*parts: str, most: int = 80) -> str:
    """Return one file name made of several texts, joined with commas. Each part has at most `most` characters."""
    return ",".join(folder_name(part, most) for part in parts)
