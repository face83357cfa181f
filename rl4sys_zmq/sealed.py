"""JSON documents that begin with their *seal*, a checksum (xxh3-128) of everything after the seal.

The checksum detects accidental changes, not attacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import xxhash

_HEAD = b'{"seal": "'
_DIGEST_BYTES = 32


def seal_document(document: Mapping[str, object]) -> bytes:
    """Return a document as JSON text: first the key with the seal, then one line for each key of the document."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    rest = ('",\n' + ",\n".join(lines) + "\n}\n").encode("ascii")
    return _HEAD + xxhash.xxh3_128_hexdigest(rest).encode() + rest


def seal_holds(data: bytes) -> bool:
    """Return True if the bytes begin with a seal and have not changed since `seal_document` returned them."""
    at = len(_HEAD) + _DIGEST_BYTES
    return data[: len(_HEAD)] == _HEAD and xxhash.xxh3_128_hexdigest(data[at:]).encode() == data[len(_HEAD) : at]
