"""Updates of an algorithm that are undone if they fail. The segments at fault are found and removed.

An update fails if it raises, or if its loss or weights become non-finite. The state before the update is then restored, and the
segments at fault are found by halving the batch: trial updates are made on its parts, each from the kept state, and their
results are thrown away. The remaining segments are trained on. An off-policy algorithm learns from a replay, so it finds the
data at fault itself (`UndoableAlgorithm.discard`).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import RankError, TrainingDiverged
from rl4sys_zmq.learner.registry import Algorithm, UndoableAlgorithm
from rl4sys_zmq.learner.training.suspects import CrashSuspectRecord, SegmentInTraining
from rl4sys_zmq.learner.training.validation import DecodedSegmentMessage, is_finite
from rl4sys_zmq.weights import digest

MAX_TRIALS = 128
"""Largest number of trial updates for one failed update. Segments that they could not separate are removed together."""

MAX_DIVERGED = 3
"""Largest number of failed updates in a row that are undone: on-policy without a good segment, off-policy without data at
fault.
"""

RECENT_SEGMENTS, RECENT_BYTES = 1 << 16, 8 << 20
"""Off-policy: number of segments whose stream and sequence number are kept, and size of the kept messages in bytes."""


@dataclass(slots=True)
class UpdateOutcome:
    metrics: Mapping[str, float] | None = None  # None if the update was undone
    used: list[SegmentInTraining] = field(default_factory=list)  # on-policy: these now count as trained
    culprits: list[SegmentInTraining] = field(default_factory=list)  # to be quarantined
    reason: str = ""  # why the update was undone
    unchanged: bool = False  # no weight has changed although the learning rate is not 0


@dataclass(slots=True, eq=False)
class _ObservedMessage:
    first: int  # the number of the first of them in the order of observation
    key: Key
    first_seq: int  # of the message
    message: DecodedSegmentMessage | None  # None if it was discarded to save memory
    indices: list[int] = field(default_factory=list)  # of each segment in the message; `POPPED` after `pop`


POPPED = -1


class RecentSegments:
    """The latest segments that an off-policy algorithm has observed, by their number in the order of observation, from 0."""

    def __init__(self, max_segments: int, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_segments, self._max_bytes = max_segments, max_bytes
        self._next = 0
        self._messages: deque[_ObservedMessage] = deque()
        self._kept: deque[_ObservedMessage] = deque()  # those of `_messages` that still have their message

    def add(self, message: DecodedSegmentMessage, index: int) -> None:
        if not self._messages or self._messages[-1].message is not message:
            self._add_message(message)
        self._messages[-1].indices.append(index)
        self._next += 1

    def pop(self, number: int) -> SegmentInTraining | None:
        """Return the segment with this number, and forget it. Return None if it is not kept, or was observed before a restart."""
        at = bisect.bisect_right(self._messages, number, key=lambda one: one.first) - 1
        if at < 0 or number >= self._next:
            return None
        observed = self._messages[at]
        index, observed.indices[number - observed.first] = observed.indices[number - observed.first], POPPED
        if index == POPPED:
            return None
        return SegmentInTraining(observed.message, index, observed.key, observed.first_seq + index, False)

    def _add_message(self, message: DecodedSegmentMessage) -> None:
        observed = _ObservedMessage(self._next, message.key, message.batch.first_seq, message)
        self._messages.append(observed)
        self._kept.append(observed)
        self.nbytes += message.nbytes
        while self.nbytes > self._max_bytes and len(self._kept) > 1:
            self._drop_oldest_message()
        while self._next - self._messages[0].first > self._max_segments:
            if self._messages[0] is self._kept[0]:
                self._drop_oldest_message()
            self._messages.popleft()

    def _drop_oldest_message(self) -> None:
        oldest = self._kept.popleft()
        assert oldest.message is not None
        self.nbytes -= oldest.message.nbytes
        oldest.message = None


class UpdateRunner:
    """The object that makes the updates of one algorithm, undoes failed ones, and finds the segments at fault."""

    def __init__(self, algorithm: Algorithm, suspects: CrashSuspectRecord, updates: int = 0) -> None:
        self.updates = updates
        self.held: list[SegmentInTraining] = []  # on-policy: those that wait for the next update
        self._algorithm, self._suspects = algorithm, suspects
        self._onpolicy = algorithm.kind == "onpolicy"
        self._hooks = algorithm if isinstance(algorithm, UndoableAlgorithm) else None
        self._recent = RecentSegments(RECENT_SEGMENTS, RECENT_BYTES)
        self._careful = 0
        self._since_kept = self._diverged = self._trials = 0
        self._keep()

    def observe(self, message: DecodedSegmentMessage, index: int, *, correct: bool = False) -> None:
        """Give a segment of a message to the algorithm, and keep the segment. `correct` is that of `Algorithm.observe`."""
        self._algorithm.observe(message.segments[index], correct=correct)
        if self._onpolicy:
            seq = message.batch.first_seq + index
            self.held.append(SegmentInTraining(message, index, message.key, seq, correct))
        elif self._hooks is not None:
            self._recent.add(message, index)

    def update(self, *, partial: bool = False) -> UpdateOutcome | None:
        """Do one update if there is enough data, or with `partial` if there is any. Return the result; None without one."""
        noted = self._onpolicy and bool(self.held) and (partial or not self._algorithm.demand())
        if noted:
            self._try_suspects()
        metrics, failure = self._try(self.held if noted else (), partial=partial)
        if failure is not None and self._hooks is None and not self._onpolicy:
            raise failure
        if metrics is None and failure is None:
            return None
        reason = self._problem(metrics, failure, due=self._is_due(partial))
        if reason:
            return self._undo(reason, failure)
        if self._onpolicy:
            self._suspects.clear_suspects(self.held)
        used, self.held = self.held, []
        return UpdateOutcome(metrics, used, unchanged=self._advance(metrics or {}, due=self._is_due(partial)))

    def _try(
        self, batch: Sequence[SegmentInTraining], *, partial: bool, again: bool = False
    ) -> tuple[Mapping[str, float] | None, Exception | None]:
        """Do an update. Return its metrics or the exception that it raised. `batch` is recorded as in training meanwhile.

        With `again`, the algorithm first observes the segments of `batch` again.
        """
        metrics: Mapping[str, float] | None = None
        failure: Exception | None = None
        if batch:
            self._suspects.record(batch)
        try:
            if again:
                self._observe_again(batch)
            metrics = self._algorithm.update(partial=True) if partial else self._algorithm.update()
        except RankError:  # the record stays: a segment can have ended the rank
            raise
        except Exception as exc:  # noqa: BLE001 - the failure is the result
            failure = exc
        if batch:
            self._suspects.clear()
        return metrics, failure

    def _is_due(self, partial: bool) -> bool:
        """Return True if all weights must be checked after the next update, and the state before that update kept.

        Off-policy, this is so for updates whose weights can be published, and for those repeated after a failure.
        """
        every = self._algorithm.publish_every_updates
        return self._onpolicy or partial or self._careful > 0 or (self.updates + 1) % every == 0

    def _advance(self, metrics: Mapping[str, float], *, due: bool) -> bool:
        """Count a successful update, and copy the state if `due`. Return True if no weight has changed, which is a fault."""
        self.updates += 1
        self._diverged = 0
        self._careful = max(0, self._careful - 1)
        self._since_kept += 1
        if not due:
            return False
        before = self._weights
        self._keep()
        change = metrics.get("losses/weight_change")  # without a change that only keeps what the networks compute
        same = before == self._weights if change is None else change == 0.0
        return same and metrics.get("charts/learning_rate", 1.0) != 0.0

    def _keep(self) -> None:
        self._since_kept = 0
        self._state: Any = None
        if self._hooks is not None:
            self._state = self._hooks.checkpoint()
        elif self._onpolicy:
            self._state = self._algorithm.state()
        numbers_to_check = self._numbers_to_check()
        self._weights = digest(np.ascontiguousarray(numbers_to_check[0]).reshape(-1)) if numbers_to_check else -1

    def _restore(self) -> None:
        if self._hooks is not None:
            self._hooks.restore(self._state)
        else:
            self._algorithm.load(self._state)

    def _observe_again(self, batch: Sequence[SegmentInTraining]) -> None:
        for one in batch:
            self._algorithm.observe(one.segment, correct=one.correct)

    def _numbers_to_check(self) -> Sequence[NDArray[Any]]:
        if self._hooks is not None:
            return self._hooks.numbers_to_check()
        return [np.concatenate([tensor.reshape(-1) for tensor in self._algorithm.snapshot().values()])]

    def _problem(self, metrics: Mapping[str, float] | None, failure: Exception | None, *, due: bool) -> str:
        """Return the fault of an update from its metrics or exception (`failure`), or ""; with `due`, check all weights too."""
        if failure is not None:
            return f"the update raised {type(failure).__name__}: {failure}"[:300]
        for name, value in (metrics or {}).items() if self._hooks is not None or self._onpolicy else ():
            if "loss" in name.rpartition("/")[2] and not np.isfinite(value):
                return f"{name} is {value:g}"
        if due and not all(is_finite(array) for array in self._numbers_to_check()):
            return "the weights or the optimiser's state are not finite"
        return ""

    def _undo(self, reason: str, failure: Exception | None) -> UpdateOutcome | None:
        """Restore the state before a failed update, find the segments that made it fail, and remove them from the batch."""
        self._trials = 0
        if not self._onpolicy:
            return self._undo_replay(reason, failure)
        batch, self.held = self.held, []
        culprits, rest = self._find(batch), batch
        while culprits and rest:
            guilty = set(map(id, culprits))
            rest = [one for one in rest if id(one) not in guilty]
            if not rest or self._trials >= MAX_TRIALS or not self._fails(rest):
                break
            culprits = culprits + self._find(rest)
        if failure is not None and not rest:
            raise failure
        self._diverged = 0 if rest else self._diverged + 1
        if self._diverged > MAX_DIVERGED:
            raise TrainingDiverged(self._diverged, reason)
        self._restore()
        self._observe_again(rest)
        self.held = rest
        return UpdateOutcome(culprits=culprits, reason=reason)

    def _find(self, batch: list[SegmentInTraining]) -> list[SegmentInTraining]:
        """Return the segments that make a batch fail, by halving the batch; the whole batch if both halves succeed."""
        if len(batch) <= 1 or self._trials >= MAX_TRIALS:
            return batch
        half = len(batch) // 2
        failing = [part for part in (batch[:half], batch[half:]) if self._fails(part)]
        return [one for part in failing for one in self._find(part)] if failing else batch

    def _fails(self, part: list[SegmentInTraining]) -> bool:
        """Return True if an update on some segments of a batch fails, starting from the state before the batch."""
        self._trials += 1
        self._restore()
        metrics, failure = self._try(part, partial=True, again=True)
        return bool(self._problem(metrics, failure, due=True))

    def _undo_replay(self, reason: str, failure: Exception | None) -> UpdateOutcome | None:
        """Undo a failed update of an off-policy algorithm, and let the algorithm remove the data at fault from its replay.

        The kept state can be several updates old. Then these updates are undone too and repeated one by one, each with a full
        check, until the failing one is found.
        """
        if self._hooks is None:
            raise failure or TrainingDiverged(
                1, f"{reason}; an off-policy algorithm needs the methods of UndoableAlgorithm to undo this"
            )
        self._restore()
        if self._since_kept:  # repeat them one by one, so that the kept state is the one right before the failure
            self.updates -= self._since_kept
            self._careful, self._since_kept = self._since_kept + 1, 0
            return self.update()
        self._careful = 0
        numbers = self._hooks.discard()
        if failure is not None and not numbers:
            raise failure
        self._diverged = 0 if numbers else self._diverged + 1
        if self._diverged > MAX_DIVERGED:
            raise TrainingDiverged(self._diverged, reason)
        return UpdateOutcome(culprits=[one for one in map(self._recent.pop, numbers) if one is not None], reason=reason)

    def _try_suspects(self) -> None:
        """Make trial updates on each half of the waiting suspects, and throw the results away. See `CrashSuspectRecord`."""
        parts = self._suspects.parts(self.held)
        if not parts:
            return
        for part in parts:
            self._fails(part)
        self._restore()
        self._observe_again(self.held)
