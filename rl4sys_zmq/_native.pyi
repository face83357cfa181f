from typing import Any

from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview | NDArray[Any]

VERSION: str

def missing() -> str: ...
def xxh3_64(data: Bytes, /) -> int: ...
