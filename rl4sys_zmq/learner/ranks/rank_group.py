"""Rank 0 of a client, in the learner thread: it starts the other ranks, gives them the work of each update, and ends them."""

from __future__ import annotations

import contextlib
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl4sys_zmq.child_process import ChildProcess, end_text, module_path, start_error_text, start_with_socketpair
from rl4sys_zmq.errors import Closed, RankError, RankLost
from rl4sys_zmq.learner.ranks.rank_member import RANK_TIMEOUT_S, RankLink, RankMember, encode_rank_message, open_store
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import AssignClient

log = get_logger(__name__)

RANK_START_S = 180.0
"""The longest time until a rank has built the algorithm. Most of it is the import of torch."""

LOST_STATUS = 3
"""The exit status of a rank that has ended because it lost another one, which is then at fault."""

_MODULE = "rl4sys_zmq.learner.ranks.rank_process"
_LOOK_S = 0.1
_END_S = 1.0
"""Time for which rank 0 waits for the end of a rank, before it names the one at fault, and before it kills one."""

_REMEDY = "the client continues from its checkpoint when it is restarted"


@dataclass(frozen=True, slots=True)
class _OtherRank:
    rank: int
    process: ChildProcess
    link: RankLink


class RankGroup(RankMember, Resource):
    """The ranks of a client, as rank 0 sees them. It implements `rl4sys_zmq.learner.registry.compute.Ranks`.

    Only the learner thread uses it. The other ranks end when the group is closed, or when this process ends in any way. If one
    of them fails, the group ends, and every further call raises `RankError`.
    """

    def __init__(self, assign: AssignClient, factory: str, devices: Sequence[torch.device], stopping: threading.Event) -> None:
        super().__init__(0, len(devices))
        self._assign, self._factory, self._devices, self._stopping = assign, factory, devices, stopping
        self._others: list[_OtherRank] = []
        self._store: Any = None
        self._differs = True
        self._failure = ""

    @property
    def pids(self) -> list[int]:
        return [other.process.pid for other in self._others]

    def start(self) -> None:
        """Start the other ranks, and wait until they have built the algorithm and are connected.

        They connect when all are ready, which takes milliseconds. A rank that is stopped then has `RANK_TIMEOUT_S` to continue.
        """
        try:
            self._store, port = open_store(self.size)
            for rank in range(1, self.size):
                self._others.append(_start_process(rank))
                self._send(self._others[-1:], self._setup(rank, port))
            self._await_ready(time.monotonic() + RANK_START_S)
            self._send(self._others, {"connect": True})
            self._await_connecting(time.monotonic() + RANK_TIMEOUT_S)
            try:
                self.connect(self._store, self._assign.generation, self._devices[0])
            except RankError as exc:
                raise self._lost(exc) from exc
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
            "path": module_path(),
            "assign": [bytes(frame) for frame in encode(self._assign)],
        }

    def _await_ready(self, deadline: float) -> None:  # a rank that is ready sends nothing more, unless it ends
        waiting, links = list(self._others), {other.link.fileno(): other for other in self._others}
        poll = select.poll()
        for descriptor in links:
            poll.register(descriptor, select.POLLIN)
        while waiting:
            if self._stopping.is_set():
                raise Closed("the learner thread was stopped before its ranks were ready")
            if time.monotonic() > deadline:
                names = " and ".join(map(self._name, waiting))
                raise RankLost(f"{names} not ready within {RANK_START_S:g} s; is the machine overloaded?")
            for descriptor, _ in poll.poll(_LOOK_S * 1e3):
                other = links[descriptor]
                try:
                    answer = other.link.receive()
                except (EOFError, OSError) as exc:
                    raise self._lost(exc) from exc
                if "failed" in answer:
                    raise RankError(f"{self._name(other)} could not start: {answer['failed']}")
                waiting.remove(other)

    def _await_connecting(self, deadline: float) -> None:
        """Wait until all other ranks have begun to connect, or one has ended. A call of `connect` cannot be interrupted."""
        while not self.connecting(self._store, self._assign.generation):
            if time.monotonic() > deadline or any(other.process.poll() is not None for other in self._others):
                raise self._lost(TimeoutError())
            if self._stopping.wait(_LOOK_S / 10):
                raise Closed("the learner thread was stopped before its ranks were ready")

    @contextmanager
    def leading(self, work: Mapping[str, Any], state: Callable[[], Any]) -> Iterator[None]:
        """Let the other ranks do `work`, while rank 0 does the same in the ``with`` block.

        If the state of rank 0 has changed outside of this method, the ranks first get the result of `state`.
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
        try:
            super().add_up(tensor)
        except RankError as exc:
            raise self._lost(exc) from exc

    def differ(self) -> None:
        """Note that the other ranks now differ from rank 0. The next call of `leading` sends them rank 0's state."""
        self._differs = True

    def change(self, parameters: Mapping[str, Any]) -> None:
        self._send(self._others, {"change": dict(parameters)})

    def _send(self, others: Sequence[_OtherRank], message: Mapping[str, Any]) -> None:
        if self._failure:
            raise RankError(self._failure)
        parts = encode_rank_message(message)
        for other in others:
            try:
                other.link.send_parts(parts)
            except OSError as exc:
                raise self._lost(exc) from exc

    def _name(self, other: _OtherRank) -> str:
        return f"rank {other.rank} of {self.size} (pid {other.process.pid})"

    def _lost(self, error: Exception) -> RankError:
        """End the group after the loss of a rank. Return an error that names the rank."""
        deadline = time.monotonic() + _END_S
        for other in self._others:
            other.process.ends_within(deadline - time.monotonic())
        ended = [(other, code) for other in self._others if (code := other.process.poll()) is not None]
        ended.sort(key=lambda pair: pair[1] == LOST_STATUS)
        if ended:
            other, code = ended[0]
            reported = _last_words(other.link)
            text = f"{self._name(other)} ended with {end_text(code)}{reported}"
        else:
            reported = ""
            names = " or ".join(map(self._name, self._others))
            cause = f"no answer for {RANK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error
            text = f"{names} runs but does not answer ({cause}); is it stopped?"
        self._failure = f"{text}; {_REMEDY}" if reported else text
        self.close()
        return RankError(self._failure) if reported else RankLost(self._failure)

    def close(self) -> None:
        """End the other ranks. Every further call for work raises `RankError`."""
        self._failure = self._failure or "the ranks are closed"
        others, self._others = self._others, []
        for other in others:
            other.link.close()
        for other in others:
            other.process.end(_END_S)
        self._group = self._store = None


def _start_process(rank: int) -> _OtherRank:
    try:
        ours, process = start_with_socketpair("-m", _MODULE, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as exc:
        raise RankLost(f"the process of rank {rank} cannot be started: {start_error_text(exc)}") from exc
    ours.settimeout(RANK_TIMEOUT_S)
    return _OtherRank(rank, process, RankLink(ours))


def _last_words(link: RankLink) -> str:
    """Return the error that an ended rank has reported, with a leading colon; empty if there is none."""
    with contextlib.suppress(EOFError, OSError):
        while "failed" not in (message := link.receive()):
            pass  # it was ready
        return f": {message['failed']}"
    return ""
