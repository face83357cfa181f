"""A real sender: a queue, a thread, and a TCP socket whose other end reads at the bandwidth of a profile."""

import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import numpy as np
import zstandard
from numpy.typing import NDArray

from adaptive_zstd.bandwidth import GRID_S, Profile
from adaptive_zstd.data import LEVELS
from adaptive_zstd.view import QUEUE, View

SOCKET_BYTES = 1 << 15
"""The buffer of each end of the socket. Without this, the kernel would hide several seconds of a slow link."""
LATE_S = 0.2
"""A receiver that the machine runs late catches up on the bandwidth of this time."""

Chooser = Callable[[View, bytes], int]
"""A method: it chooses the index of the level for a block."""


class Link:
    """A TCP socket whose other end reads at the bandwidth of a profile, decompresses, and counts."""

    def __init__(self, bandwidth: Profile) -> None:
        self.delivered = 0
        """Bytes that have arrived, after decompression."""
        self._bandwidth = bandwidth
        self._seconds = len(bandwidth) * GRID_S
        self._capacity = np.concatenate([[0.0], np.cumsum(bandwidth * GRID_S)])
        """Bytes that the link can carry until each step."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            self.sender = socket.socket()
            self.sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            self.sender.connect(server.getsockname())
            self._receiver, _ = server.accept()
        self._receiver.setblocking(False)
        self.began_s = time.perf_counter()
        self._thread = threading.Thread(target=self._receive, name="receiver")

    def __enter__(self) -> "Link":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.sender.close()

    def over(self) -> bool:
        """Return True when the profile has ended."""
        return time.perf_counter() - self.began_s >= self._seconds

    def _granted(self, seconds: float) -> float:
        """Return the bytes that the link can carry until this time."""
        place = min(int(seconds / GRID_S), len(self._bandwidth) - 1)
        return float(self._capacity[place] + self._bandwidth[place] * (seconds - place * GRID_S))

    def _receive(self) -> None:
        """Read as much as the link carries. While nothing has been sent, its bandwidth is lost."""
        decompressor, used = zstandard.ZstdDecompressor().decompressobj(), 0.0
        with self._receiver:
            while (now_s := time.perf_counter() - self.began_s) < self._seconds:
                granted = self._granted(now_s)
                used = max(used, self._granted(max(now_s - LATE_S, 0.0)))
                if granted - used < 2048:
                    time.sleep(0.001)
                    continue
                try:
                    received = self._receiver.recv(int(granted - used))
                except BlockingIOError:  # nothing has been sent
                    used = granted
                    time.sleep(0.0005)
                    continue
                if not received:
                    return
                used += len(received)
                while received:
                    self.delivered += len(decompressor.decompress(received))
                    received = decompressor.unused_data
                    if decompressor.eof:
                        decompressor = zstandard.ZstdDecompressor().decompressobj()


class Sender:
    """A queue of compressed blocks, and a thread that puts them on the socket."""

    def __init__(self, link: Link, usual_s: NDArray[np.float64]) -> None:
        self.view = View()
        self.view.sends[0] = (1e4, time.perf_counter() - 0.01, time.perf_counter())
        self._link, self._usual_s = link, usual_s
        self._compressors = [zstandard.ZstdCompressor(level=level) for level in LEVELS]
        self._queue: queue.Queue[bytes] = queue.Queue(QUEUE)
        self._sending_since_s: float | None = None
        """The start of the running send. None while the thread waits for a block."""
        self._thread = threading.Thread(target=self._send_all, name="sender")

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._put(b"")
        self._thread.join()

    def send(self, block: bytes, action: int) -> None:
        """Compress a block, and put it into the queue when there is room."""
        began_s = time.perf_counter()  # not the processor's time: on a shared processor the wait counts too
        data = self._compressors[action].compress(block)
        self.view.compressed(action, len(data), time.perf_counter() - began_s, self._usual_s[action])
        self._put(data)
        self._look()

    def _look(self) -> None:
        now_s, since_s, waiting = time.perf_counter(), self._sending_since_s, [len(data) for data in tuple(self._queue.queue)]
        if since_s is None:  # the thread takes the first block as soon as it runs
            since_s, waiting = now_s, waiting[1:]
        self.view.waiting, self.view.waiting_bytes = len(waiting), sum(waiting)
        self.view.sending_s = now_s - since_s

    def _put(self, data: bytes) -> None:
        """Wait for room as long as the link may run: while it is stalled, nothing can be sent."""
        while self._thread.is_alive():
            try:
                return self._queue.put(data, timeout=0.1)
            except queue.Full:
                if self._link.over():
                    return None
        return None

    def _send_all(self) -> None:
        try:
            while data := self._queue.get():
                self._sending_since_s = began_s = time.perf_counter()
                self._link.sender.sendall(data)
                self._sending_since_s = None
                self.view.sends.append((len(data), began_s, time.perf_counter()))
        except OSError:  # the receiver closes at the end of the profile; what it has not read is not counted
            return


def run(bandwidth: Profile, blocks: list[bytes], usual_s: NDArray[np.float64], choose: Chooser) -> float:
    """Return the goodput of a method in bytes/s: what the receiver has after decompression."""
    with Link(bandwidth) as link, Sender(link, usual_s) as sender:
        row = 0
        while not link.over():
            block = blocks[row % len(blocks)]
            sender.send(block, choose(sender.view, block))
            row += 1
    return link.delivered / (len(bandwidth) * GRID_S)


def run_command(bandwidth: Profile, blocks: list[bytes]) -> float:
    """Return the goodput of ``zstd --adapt``, which writes to the same kind of socket."""
    with Link(bandwidth) as link:
        words = ["zstd", "--adapt", "-q", "-c"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=link.sender.fileno(), stderr=subprocess.DEVNULL, bufsize=0
        ) as command:
            assert command.stdin is not None
            row = 0
            try:
                while not link.over():
                    command.stdin.write(blocks[row % len(blocks)])
                    row += 1
            except BrokenPipeError:  # the receiver closes at the end of the profile
                pass
            command.kill()
    return link.delivered / (len(bandwidth) * GRID_S)
