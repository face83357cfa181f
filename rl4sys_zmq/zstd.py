"""zstd frames without magic number, size or checksum, for where a header says what it is and a hash covers it."""

from __future__ import annotations

import threading

import zstandard

from rl4sys_zmq.errors import RL4SysError

__all__ = ["NotExpanded", "compress", "expand"]

_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS


Buffer = bytes | memoryview


class NotExpanded(RL4SysError):
    """Bytes that are not the zstd frame that they should be."""


class _Tools(threading.local):
    """They take as long to make as to compress a small array, and are not to be shared by threads."""

    def __init__(self) -> None:
        self.searching, self.counting = (_compressor(), _compressor(hash_log=6))
        self.decompressor = zstandard.ZstdDecompressor(format=_FORMAT)


def _compressor(**options: int) -> zstandard.ZstdCompressor:
    options = {"format": _FORMAT, "write_content_size": 0, "write_checksum": 0, **options}
    return zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, **options))


_tools = _Tools()


def compress(data: Buffer, *, repeats: bool = True) -> bytes:
    """One frame, at zstd's level 1.

    Args:
        data: the bytes.
        repeats: look for repetitions; where there are none, the frequencies of bytes are all that is to be had, and it is faster.
    """
    return (_tools.searching if repeats else _tools.counting).compress(data)


def expand(frame: Buffer, size: int) -> bytes:
    """What is in a frame, which is exactly `size` bytes; no more than that is allocated, whatever the frame claims.

    Raises:
        NotExpanded: when it is something else.
    """
    try:
        # zstandard allocates what a frame declares, and looks at max_output_size only when it declares nothing.
        declared = zstandard.get_frame_parameters(frame, format=_FORMAT).content_size
        if declared not in (zstandard.CONTENTSIZE_UNKNOWN, size):
            raise NotExpanded(f"a zstd frame that declares {declared} bytes, not {size}")
        out = _tools.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise NotExpanded(f"a zstd frame that does not expand: {exc}") from exc
    if len(out) != size:
        raise NotExpanded(f"a zstd frame of {len(out)} bytes, not {size}")
    return out
