"""Blocks of data of five kinds, and what their compression costs on this machine."""

import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

LEVELS = (1, 3, 6, 9, 12, 15, 19)
BLOCK = 1 << 17
"""Bytes of a block before compression."""
SHARES = {"log": 0.3, "table": 0.25, "source": 0.2, "counter": 0.15, "random": 0.1}
"""The kinds of blocks, and how often each begins. A kind lasts two to eight blocks."""


def make_blocks(count: int, seed: int) -> list[bytes]:
    """Return the blocks of a stream: log lines, tables, Python source, counters, and bytes that do not compress.

    No two blocks overlap, so that a compressor with a long memory has no advantage that a real stream would not give it.
    """
    rng = np.random.default_rng(seed)
    source = _source_blocks(rng)
    blocks: list[bytes] = []
    while len(blocks) < count:
        kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
        blocks += [next(source) if kind == "source" else _make(kind, rng) for _ in range(rng.integers(2, 9))]
    return blocks[:count]


def _source_blocks(rng: np.random.Generator) -> Iterator[bytes]:
    """Yield blocks of Python's library. After its last file, it begins again."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for pattern in ("*.py", "*/*.py") for path in library.glob(pattern))
    text = b""
    for index in cycle(rng.permutation(len(paths))):
        text += paths[index].read_bytes()
        while len(text) >= BLOCK:
            yield text[:BLOCK]
            text = text[BLOCK:]


def _make(kind: str, rng: np.random.Generator) -> bytes:
    match kind:
        case "log":
            users, times_ms = rng.integers(0, 500, 4000), rng.exponential(30.0, 4000)
            text = "".join(
                f'{{"t": {t}, "user": "u{user:04d}", "path": "/item/{user % 37}", "ms": {ms:.2f}}}\n'
                for t, (user, ms) in enumerate(zip(users, times_ms, strict=True))
            )
            return text.encode()[:BLOCK]
        case "table":
            start = int(rng.integers(10**9))
            walks = 20.0 + np.cumsum(rng.normal(0.0, 0.05, (4000, 4)), axis=0)
            text = "".join(
                f"{start + 10 * row},sensor-{row % 8},{a:.2f},{b:.2f},{c:.2f},{d:.2f}\n" for row, (a, b, c, d) in enumerate(walks)
            )
            return text.encode()[:BLOCK]
        case "counter":
            return np.cumsum(rng.integers(-3, 4, BLOCK // 4), dtype=np.int32).tobytes()
        case _:
            return rng.bytes(BLOCK)


@dataclass(frozen=True)
class Costs:
    """The costs of compression on this machine, measured before training.

    Attributes:
        sizes: Compressed bytes of each block at each level, ``[N, L]``.
        times_s: Processor time of the compression in seconds, ``[N, L]``.
    """

    sizes: NDArray[np.float64]
    times_s: NDArray[np.float64]

    @classmethod
    def measure(cls, blocks: list[bytes]) -> "Costs":
        """Compress each block at each level."""
        sizes, times_s = np.zeros((2, len(blocks), len(LEVELS)))
        for column, level in enumerate(LEVELS):
            compressor = zstandard.ZstdCompressor(level=level)
            for row, block in enumerate(blocks):
                began_s = time.thread_time()
                sizes[row, column] = len(compressor.compress(block))
                times_s[row, column] = time.thread_time() - began_s
        return cls(sizes, times_s)


_SAMPLER = zstandard.ZstdCompressor(level=1)


def sample(block: bytes) -> tuple[float, float]:
    """Return two estimates of how well a block compresses: the ratio of a small part, and the entropy of its bytes in bits."""
    part = block[BLOCK // 2 : BLOCK // 2 + 4096]
    shares = np.bincount(np.frombuffer(part, np.uint8), minlength=256) / len(part)
    shares = shares[shares > 0]
    return len(part) / len(_SAMPLER.compress(part)), float(-(shares * np.log2(shares)).sum())
