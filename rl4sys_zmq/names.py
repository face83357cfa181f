"""Names that come from outside: the rule for them, and the one function that makes a part of a path of one."""

from __future__ import annotations

from rl4sys_zmq.errors import ConfigError

__all__ = ["MAX_NAME", "NAME_RULE", "check_name", "file_name", "folder_name", "is_name", "name_of"]

MAX_NAME = 200
"""The longest name of a client, an actor, a key, a store or an environment, in characters."""

NAME_RULE = f"1 to {MAX_NAME} printable characters without / \\ :, not starting or ending with a dot or space"

MAX_FOLDER_NAME = 200
_DIGEST_CHARS = 40
_FORBIDDEN = frozenset("/\\:")


def is_name(value: object) -> bool:
    """True for a text that keeps `NAME_RULE`."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= MAX_NAME
        and value.isprintable()
        and value.strip(". ") == value
        and _FORBIDDEN.isdisjoint(value)
    )


def check_name(value: object, key: str) -> str:
    """A name, if it is one.

    Raises:
        ConfigError: naming `key` and the rule.
    """
    if not is_name(value):
        raise ConfigError(f"{key} {value!r:.60} is not a name: {NAME_RULE}", key=key)
    return str(value)


def folder_name(name: str, most: int = MAX_FOLDER_NAME) -> str:
    """The one part of a path that belongs to a name, whatever the name is: no two names share one, and none leads elsewhere.

    Everything but ASCII letters, digits, ``_ - ~`` and inner dots is percent-encoded. A name with capital letters ends in
    ``%~`` and, in hexadecimal, the places of the capitals, so that two names differ on a file system that takes capital and
    small letters for the same. One that is too long ends in ``%-`` and a digest of the whole. `name_of` reads the others back.

    Args:
        name: any text.
        most: how many characters the result may have, at least 64.
    """
    from hashlib import sha256  # an actor has names to check, but no folder to make
    from urllib.parse import quote

    plain = quote(name, safe="", errors="surrogatepass")
    if plain.startswith(".") or not plain:
        plain = "%2E" + plain[1:] if plain else "%"
    capitals = sum(1 << place for place, letter in enumerate(name) if "A" <= letter <= "Z")
    encoded = f"{plain}%~{capitals:x}" if capitals else plain
    if len(encoded) <= most:
        return encoded
    return f"{plain[: most - _DIGEST_CHARS - 10]}%-{sha256(plain.encode()).hexdigest()[:_DIGEST_CHARS]}"


def name_of(folder: str) -> str | None:
    """The name whose `folder_name` this is; None for that of a name that was too long, and for what is none."""
    from urllib.parse import unquote

    plain, _, _ = folder.partition("%~")
    try:
        name = "" if plain == "%" else unquote(plain, errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    return name if folder_name(name) == folder else None


def file_name(*parts: str, most: int = 80) -> str:
    """The file name that belongs to several names together, each with at most `most` characters of it."""
    return ",".join(folder_name(part, most) for part in parts)
