"""Rank 0 of a client: it starts the other ranks, gives them the work of each update, and ends them.

The ranks are the processes that train one policy together (the option ``learners``). Rank 0 is the learner thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl4sys_zmq.child_process import child_environment, end_text
from rl4sys_zmq.errors import Closed, RankError, RankLost
from rl4sys_zmq.learner.rank_link import RankLink, encode_rank_message
from rl4sys_zmq.learner.rank_member import RANK_TIMEOUT_S, RankMember, open_store
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import AssignClient

__all__ = ["LOST_STATUS", "RANK_START_S", "RankGroup"]

log = logging.getLogger(__name__)

RANK_START_S = 180.0
"""The longest time from the start of a rank until it has built the algorithm, in seconds. Most of it is the import of torch."""

LOST_STATUS = 3
"""The exit status of a rank that has ended because it lost another rank. The other one is then at fault."""

_MODULE = "rl4sys_zmq.learner.rank_process"
_LOWEST_FD = 3
_LOOK_S = 0.1
_END_S = 1.0
"""Time for which rank 0 waits for the end of a rank, in seconds: before it names the rank at fault, and before it kills one."""

_REMEDY = "the client continues from its checkpoint when it is restarted"


@dataclass(frozen=True, slots=True)
class _OtherRank:
    """Another rank: its number, its process and the link to it."""

    rank: int
    process: subprocess.Popen[bytes]
    link: RankLink

    def end(self, patience_s: float) -> int | None:
        """Wait for the end of the process. Return its exit status, or None if it still runs after `patience_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(patience_s)
        return None


class RankGroup(RankMember, Resource):
    """The ranks of a client, as rank 0 sees them. It implements `rl4sys_zmq.learner.algorithms.compute.Ranks`.

    Only the learner thread uses it. It owns the processes of the other ranks. They end when the group is closed, or when this
    process ends in any way. If one of them fails, the group ends, and every further call raises `RankError`.
    """

    def __init__(self, assign: AssignClient, factory: str, devices: Sequence[torch.device], stopping: threading.Event) -> None:
        """Create the group. `start` starts its processes.

        Args:
            assign: The settings of the client.
            factory: The function or class that builds the algorithm, as ``"package.module:attribute"``.
            devices: The device of each rank.
            stopping: Set if the learner thread must end; `start` then gives up.
        """
        super().__init__(0, len(devices))
        self._assign, self._factory, self._devices, self._stopping = assign, factory, devices, stopping
        self._others: list[_OtherRank] = []
        self._store: Any = None
        self._differs = True
        self._failure = ""

    @property
    def pids(self) -> list[int]:
        """The process ids of the other ranks, in the order of the ranks."""
        return [other.process.pid for other in self._others]

    def start(self) -> None:
        """Start the other ranks, and wait until they have built the algorithm and are connected.

        Raises:
            RankError: If a rank cannot be started, fails, or is not ready within `RANK_START_S`.
            Closed: If the learner thread is asked to end.
        """
        try:
            self._store, port = open_store(self.size)
            for rank in range(1, self.size):
                self._others.append(_start_process(rank))
                self._send(self._others[-1:], self._setup(rank, port))
            deadline = time.monotonic() + RANK_START_S
            for other in self._others:
                self._await_ready(other, deadline)
            self.connect(self._store, self._assign.generation, self._devices[0])
        except BaseException:
            self.close()
            raise
        log.info("client %s: ranks 1 to %d have the pids %s", self._assign.client_id, self.size - 1, self.pids)

    def _setup(self, rank: int, port: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "size": self.size,
            "port": port,
            "device": str(self._devices[rank]),
            "factory": self._factory,
            "path": list(sys.path),
            "assign": [bytes(frame) for frame in encode(self._assign)],
        }

    def _await_ready(self, other: _OtherRank, deadline: float) -> None:
        while not select.select([other.link], [], [], _LOOK_S)[0]:
            if self._stopping.is_set():
                raise Closed("the learner thread was stopped before its ranks were ready")
            if time.monotonic() > deadline:
                raise RankLost(f"{self._name(other)} was not ready within {RANK_START_S:g} s; is the machine overloaded?")
        try:
            answer = other.link.receive()
        except (EOFError, OSError) as exc:
            raise self._lost() from exc
        if "failed" in answer:
            raise RankError(f"{self._name(other)} could not start: {answer['failed']}")

    # ---- work

    @contextmanager
    def leading(self, work: Mapping[str, Any], state: Callable[[], Any]) -> Iterator[None]:
        """Let the other ranks do the same work as the ``with`` block.

        Args:
            work: The argument for the algorithm's `follow`.
            state: Returns the state of the algorithm. The other ranks get it if it has changed outside of this method.

        Raises:
            RankError: If another rank has ended or does not answer, or if the block of an earlier call raised an exception.
        """
        self._send(self._others, {"state": state() if self._differs else None, "work": work})
        self._differs = False
        try:
            yield
        except BaseException as exc:
            # The other ranks still wait for this one to add up gradients. They cannot return to a common state.
            self._failure = self._failure or f"an update failed on rank 0 ({type(exc).__name__}: {exc}); {_REMEDY}"
            self.close()
            raise

    def add_up(self, tensor: Tensor) -> None:
        """Replace each element of a float32 tensor, in place, by its sum over all ranks.

        Raises:
            RankError: If another rank has ended, or has not called this within `RANK_TIMEOUT_S`.
        """
        try:
            super().add_up(tensor)
        except RankError as exc:
            raise self._lost() from exc

    def differ(self) -> None:
        """Record that the state of rank 0 has changed outside of `leading`."""
        self._differs = True

    def change(self, parameters: Mapping[str, Any]) -> None:
        """Let the other ranks use these parameters of the algorithm from the next work on.

        Raises:
            RankError: If another rank has ended or does not answer.
        """
        self._send(self._others, {"change": dict(parameters)})

    def _send(self, others: Sequence[_OtherRank], message: Mapping[str, Any]) -> None:
        if self._failure:
            raise RankError(self._failure)
        parts = encode_rank_message(message)
        for other in others:
            try:
                other.link.send_parts(parts)
            except OSError as exc:
                raise self._lost() from exc

    # ---- the end

    def _name(self, other: _OtherRank) -> str:
        return f"rank {other.rank} of {self.size} (pid {other.process.pid})"

    def _lost(self) -> RankError:
        """End the group after the loss of a rank. Return an error that names the rank."""
        deadline = time.monotonic() + _END_S
        ends = [(other, other.end(max(0.0, deadline - time.monotonic()))) for other in self._others]
        ended = [(other, code) for other, code in ends if code is not None]
        ended.sort(key=lambda pair: pair[1] == LOST_STATUS)
        if ended:
            other, code = ended[0]
            words = _last_words(other.link)
            text = f"{self._name(other)} ended with {end_text(code)}{words}"
        else:
            words = ""
            text = f"{' or '.join(map(self._name, self._others))} did not answer within {RANK_TIMEOUT_S:g} s"
        self._failure = f"{text}; {_REMEDY}" if words else text
        self.close()
        return RankError(self._failure) if words else RankLost(self._failure)

    def close(self) -> None:
        """End the other ranks. Every further call for work raises `RankError`."""
        self._failure = self._failure or "the ranks are closed"
        others, self._others = self._others, []
        for other in others:
            other.link.close()
        for other in others:
            if other.end(_END_S) is None:
                other.process.kill()
                other.process.wait()
        self._group = self._store = None


def _start_process(rank: int) -> _OtherRank:
    """Start the process of a rank, with one end of a socketpair.

    Raises:
        RankError: If no process can be started.
    """
    ours, theirs = socket.socketpair()
    try:
        ours.settimeout(RANK_TIMEOUT_S)
        with theirs:  # in a program without standard streams, it could have one of their numbers, which the child replaces
            theirs_fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs_fd,),
                close_fds=True,
                start_new_session=True,
                env=child_environment(),
            )
        finally:
            os.close(theirs_fd)
    except (OSError, subprocess.SubprocessError) as exc:
        ours.close()
        raise RankLost(f"the process of rank {rank} cannot be started: {exc}") from exc
    except BaseException:
        ours.close()
        raise
    return _OtherRank(rank, process, RankLink(ours))


def _last_words(link: RankLink) -> str:
    """Return the error that an ended rank has reported, with a leading colon; empty if it has reported none."""
    with contextlib.suppress(EOFError, OSError):
        return f": {link.receive().get('failed', '')}"
    return ""
