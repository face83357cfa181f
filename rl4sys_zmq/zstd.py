"""Compression of message parts with zstd, without zstd's magic number, size and checksum.

The message's own header and hash replace these three.
"""

from __future__ import annotations

import threading

import zstandard

from rl4sys_zmq.errors import RL4SysError

_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS


Buffer = bytes | memoryview


class DecompressionError(RL4SysError):
    """Bytes that are not a valid zstd frame of the expected size."""


class _ThreadCompressors(threading.local):
    """The compressors and the decompressor of one thread. They are expensive to create, and threads must not share them."""

    def __init__(self) -> None:
        self.searching, self.counting = (_compressor(), _compressor(hash_log=6))
        self.decompressor = zstandard.ZstdDecompressor(format=_FORMAT)


def _compressor(**options: int) -> zstandard.ZstdCompressor:
    options = {"format": _FORMAT, "write_content_size": 0, "write_checksum": 0, **options}
    return zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, **options))


_tools = _ThreadCompressors()


def compress(data: Buffer, *, repeats: bool = True) -> bytes:
    """Compress data to one zstd frame, at level 1. With `repeats` False, zstd hardly searches for repeated parts."""
    return (_tools.searching if repeats else _tools.counting).compress(data)


def expand(frame: Buffer, size: int) -> bytes:
    """Decompress a zstd frame whose content has exactly `size` bytes. The result never takes more memory than that."""
    try:
        # The zstandard library allocates what a frame declares. It uses max_output_size only if the frame declares nothing.
        declared = zstandard.get_frame_parameters(frame, format=_FORMAT).content_size
        if declared not in (zstandard.CONTENTSIZE_UNKNOWN, size):
            raise DecompressionError(f"a zstd frame declares {declared} bytes; expected {size}")
        out = _tools.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise DecompressionError(f"a zstd frame cannot be decompressed: {exc}") from exc
    if len(out) != size:
        raise DecompressionError(f"a zstd frame has {len(out)} bytes; expected {size}")
    return out
