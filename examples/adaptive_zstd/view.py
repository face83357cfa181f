"""The observation of a sender."""

import math
from collections import deque
from dataclasses import dataclass, field

from adaptive_zstd.bandwidth import MB
from adaptive_zstd.data import BLOCK, LEVELS

QUEUE = 4
"""Compressed blocks that can wait for the socket."""
FEATURES = 10


@dataclass
class View:
    """The sender's knowledge. The real and the virtual sender fill it in the same way."""

    waiting: int = 0
    """Blocks in the queue."""
    waiting_bytes: float = 0.0
    sending_s: float = 0.0
    """The time since the socket took the last block: large while the link is stalled."""
    sends: deque[tuple[float, float, float]] = field(default_factory=lambda: deque([(1e4, -0.01, 0.0)], maxlen=8))
    """Bytes, start and end of the last sends."""
    ratio: float = 2.0
    """The ratio of the last block."""
    slowness: float = 0.0
    """Logarithm of the last compressions' times, relative to the mean time of their levels."""
    action: int = 0

    def compressed(self, action: int, size: float, took_s: float, usual_s: float) -> None:
        """Note the compression of a block."""
        self.action, self.ratio = action, BLOCK / size
        self.slowness += 0.2 * (math.log(took_s / usual_s) - self.slowness)

    def throughput(self) -> tuple[float, float]:
        """Return the bytes/s of the last sends, and the share of this time for which the socket did not take more bytes.

        The throughput is the bandwidth of the link if that share is above 0, and otherwise less.
        """
        sends = tuple(self.sends)
        elapsed_s = max(sends[-1][2] - sends[0][1], 1e-5)
        return sum(size for size, _, _ in sends) / elapsed_s, sum(end_s - start_s for _, start_s, end_s in sends) / elapsed_s

    def observation(self, estimates: tuple[float, float]) -> list[float]:
        """Return the features, about -2 to 2 each, ``[FEATURES]``. `estimates` are those of `data.sample` for the next block."""
        rate, blocked = self.throughput()
        return [
            math.log10(rate / (2 * MB)),
            blocked,
            self.waiting / QUEUE,
            math.log10(self.waiting_bytes / rate + 1e-3) + 2.0,
            math.log10(self.sending_s + 1e-3) + 2.0,
            self.slowness,
            math.log2(self.ratio) / 2.0,
            math.log2(estimates[0]) / 2.0,
            estimates[1] / 4.0 - 1.0,
            self.action / len(LEVELS),
        ]
