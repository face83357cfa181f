"""Measurements of processes and of the machine on which they run."""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import ConfigError

MAX_HOST = 80

REPORT_S = 10.0
"""Time between two reports of an actor."""

Usage = dict[str, Any]
"""The figures of one process and its machine: the fields of `rl4sys_zmq.wire.messages.ActorReport`, by name."""


class UsageSampler:
    """A sampler of processor time, memory, disk and network. Rates count from the sample before. Use it in one thread.

    Raises:
        ConfigError: If psutil is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        """Begin to measure. `folder` is where the free space of the disk is measured; None for the working directory."""
        try:
            self._psutil: Any = importlib.import_module("psutil")
        except ImportError as exc:
            raise ConfigError(f"figures of processes and machines need psutil ({exc}): pip install psutil") from exc
        self._folder = folder if folder is not None else Path()
        self._host = platform.node()[:MAX_HOST]
        self._seconds: dict[int, float] = {}  # of processor time, by process
        self._at, self._machine = time.monotonic(), self._read_machine()
        self.sample()

    def sample(self, pids: Iterable[int] = ()) -> dict[int, Usage]:
        """Return the figures of this process, and of each of `pids` with its descendants, unless it has ended."""
        now, machine = time.monotonic(), self._read_machine()
        elapsed_s = max(now - self._at, 1e-3)
        busy, total, sent, received = (new - old for new, old in zip(machine, self._machine, strict=True))
        memory = self._psutil.virtual_memory()
        shared = {
            "host_cpu": round(min(1.0, max(0.0, busy / total)), 3) if total > 0 else 0.0,
            "host_memory_bytes": memory.total,
            "host_memory_free_bytes": memory.available,
            "disk_free_bytes": self._disk_free_bytes(),
            "net_sent_bytes_s": round(max(0, sent) / elapsed_s),
            "net_received_bytes_s": round(max(0, received) / elapsed_s),
        }
        before, self._seconds, self._at, self._machine = self._seconds, {}, now, machine
        families = {os.getpid(): [os.getpid()], **self._families(pids)}
        found: dict[int, Usage] = {}
        for pid, family in families.items():
            used_s, rss_bytes, threads = 0.0, 0, 0
            for member in family:
                try:
                    process = self._psutil.Process(member)
                    with process.oneshot():
                        times, memory_info, count = process.cpu_times(), process.memory_info(), process.num_threads()
                except self._psutil.Error:  # it has ended
                    continue
                self._seconds[member] = times.user + times.system
                used_s += max(0.0, self._seconds[member] - before.get(member, self._seconds[member]))
                rss_bytes, threads = rss_bytes + memory_info.rss, threads + count
            if threads:
                cpu = round(used_s / elapsed_s, 3)
                found[pid] = {"host": self._host, "pid": pid, "cpu": cpu, "rss_bytes": rss_bytes, "threads": threads, **shared}
        return found

    def _families(self, pids: Iterable[int]) -> dict[int, list[int]]:
        """Return each process with its descendants."""
        families = {pid: [pid] for pid in pids}
        children: defaultdict[int, list[int]] = defaultdict(list)
        for process in self._psutil.process_iter(["ppid"]) if families else ():
            children[process.info["ppid"]].append(process.pid)
        for family in families.values():
            for member in family:
                family += children[member]
        return families

    def _read_machine(self) -> tuple[float, float, int, int]:
        """Return the busy and the whole processor time, and the bytes sent and received over all networks but loopback."""
        times = self._psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        cards = [card for name, card in self._psutil.net_io_counters(pernic=True).items() if name != "lo"]
        return total - idle, total, sum(card.bytes_sent for card in cards), sum(card.bytes_recv for card in cards)

    def _disk_free_bytes(self) -> int:
        try:
            found = os.statvfs(self._folder)
        except OSError:  # it was removed, is not created yet, or its server does not answer
            return 0
        return found.f_bavail * found.f_frsize
