from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from rl4sys_zmq.wire.messages import AnyBytes

Bytes = bytes | bytearray | memoryview | NDArray[Any]

VERSION: str

def missing() -> str: ...
def xxh3_64(data: Bytes, /) -> int: ...

# messages
def read_submit(
    frames: Sequence[Bytes], max_bytes: int, verify: bool, /
) -> tuple[int, int, int, str, AnyBytes, list[int], list[int]] | None: ...
def join_bodies(layout: str, heads: Sequence[bytes], bodies: Sequence[Bytes], /) -> bytes: ...
