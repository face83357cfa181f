"""Compression with zstd frames without magic number, size and checksum, which a header and a hash replace."""

from __future__ import annotations

import threading

import zstandard

from rl4sys_zmq.errors import RL4SysError

__all__ = ["NotExpanded", "compress", "expand"]

_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS


Buffer = bytes | memoryview


class NotExpanded(RL4SysError):
    """Bytes that are not the expected zstd frame."""


class _Tools(threading.local):
    """The (de)compressors of a thread. They are expensive to create, and threads must not share them."""

    def __init__(self) -> None:
        self.searching, self.counting = (_compressor(), _compressor(hash_log=6))
        self.decompressor = zstandard.ZstdDecompressor(format=_FORMAT)


def _compressor(**options: int) -> zstandard.ZstdCompressor:
    options = {"format": _FORMAT, "write_content_size": 0, "write_checksum": 0, **options}
    return zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, **options))


_tools = _Tools()


def compress(data: Buffer, *, repeats: bool = True) -> bytes:
    """Return one zstd frame, compressed at level 1.

    Args:
        data: The bytes.
        repeats: True to search for repetitions. False is faster, for data in which only the frequencies of bytes help.
    """
    return (_tools.searching if repeats else _tools.counting).compress(data)


def expand(frame: Buffer, size: int) -> bytes:
    """Return the content of a frame, which must have exactly `size` bytes. No more is allocated.

    Raises:
        NotExpanded: If the frame is invalid or its content has another size.
    """
    try:
        # The zstandard library allocates what a frame declares. It uses max_output_size only if the frame declares nothing.
        declared = zstandard.get_frame_parameters(frame, format=_FORMAT).content_size
        if declared not in (zstandard.CONTENTSIZE_UNKNOWN, size):
            raise NotExpanded(f"a zstd frame declares {declared} bytes; expected {size}")
        out = _tools.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise NotExpanded(f"a zstd frame cannot be decompressed: {exc}") from exc
    if len(out) != size:
        raise NotExpanded(f"a zstd frame has {len(out)} bytes; expected {size}")
    return out
