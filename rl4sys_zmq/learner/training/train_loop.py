"""The loop of a learner thread: it reads messages, gives segments to the algorithm, trains, and lets weights be published."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import assert_never

import numpy as np

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.learner.alarms import PROCESS_KILLER, UPDATE_CHANGES_NOTHING, UPDATE_UNDONE
from rl4sys_zmq.learner.registry import TunableAlgorithm
from rl4sys_zmq.learner.run.worker_storage import WorkerStorage
from rl4sys_zmq.learner.training.building import build_algorithm, load_initial_policy, max_policy_lag, pacing_lag, set_publishing
from rl4sys_zmq.learner.training.checkpointing import TrainingCheckpoints
from rl4sys_zmq.learner.training.demonstrating import TrainingDemonstrations
from rl4sys_zmq.learner.training.joining import is_joinable, take_joined
from rl4sys_zmq.learner.training.publishing import PolicyPublisher
from rl4sys_zmq.learner.training.reporting import GatewaySender, LearnerThreadReporter, plain_text
from rl4sys_zmq.learner.training.suspects import CrashSuspectRecord, streams_of, to_ranges
from rl4sys_zmq.learner.training.training import UpdateOutcome, UpdateRunner
from rl4sys_zmq.learner.training.validation import DecodedSegmentMessage, SegmentContentRules, SegmentValueLimits, decode_message
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES, MAX_SEGMENT_STEPS
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies.head_parameters import BOUNDED_HEADS
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.wire import SegmentSchema, spec_body, spec_to_document
from rl4sys_zmq.wire.messages import Verdict
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    ChangeParameters,
    ChangeWeightsLevel,
    DeliverSegments,
    FromLearnerThread,
    OperatorAlarm,
    RemoteWorkerControl,
    SaveCheckpoint,
    StopThread,
    StreamEnded,
    ThreadMessage,
    ThreadReady,
    TrainingMetrics,
    WorkerMessage,
    decode_thread_message,
)

log = get_logger(__name__)

DRAIN_MESSAGES = 256
ASSIGN_S = 0.5
"""Time between two checks for a request to stop while the thread waits for its assignment, in seconds."""

MAX_POISONED = 3
"""Largest number of segments in a row that the algorithm can reject by an exception. If it rejects more, the client fails."""


class WorkerQueue:
    """The messages to a learner thread in the gateway's process, oldest first. The gateway appends, the thread removes.

    Attributes:
        awake: False while the thread waits. Who appends a message then sets this to True, and wakes the thread.
    """

    __slots__ = ("awake", "messages")

    def __init__(self) -> None:
        self.messages: deque[WorkerMessage] = deque()
        self.awake = True


class LearnerThreadInbox:
    """The object from which a learner thread reads its messages.

    In the gateway's process, the messages are in a `WorkerQueue`, and the PULL socket only wakes the thread. In other
    processes, the messages come encoded through the socket.
    """

    def __init__(self, pull: Socket, queue: WorkerQueue | None, stopping: threading.Event) -> None:
        self._pull, self._queue, self._stopping = pull, queue, stopping
        self._joined: deque[DeliverSegments] = deque()
        self._poller = Poller()
        self._poller.register(pull)

    def read(self) -> ThreadMessage | None:
        """Return the next message. If there is none, return `StopThread` when the thread has been asked to stop, else None.

        Short messages with segments that wait in the `WorkerQueue` are joined to one for each stream.
        """
        if self._joined:
            return self._joined.popleft()
        if self._queue is None:
            message: WorkerMessage | None = self._pull.recv(MAX_MESSAGE_FRAMES)
        else:
            message = self._queue.messages.popleft() if self._queue.messages else None
        if message is None:
            return StopThread() if self._stopping.is_set() else None
        if not isinstance(message, DeliverSegments):
            return decode_thread_message(message)
        if self._queue is None or not self._queue.messages or not is_joinable(message):
            return message
        self._joined.extend(take_joined(message, self._queue.messages))
        return self._joined.popleft()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a message, or for `timeout_s` seconds."""
        queue = self._queue
        if queue is None:
            self._poller.poll(timeout_s)
            return
        queue.awake = False  # before the look, so that no message can come unnoticed between the two
        if not queue.messages and not self._joined and self._poller.poll(timeout_s):
            self._pull.recv()
        queue.awake = True

    def wait_for_assignment(self) -> AssignClient:
        while not isinstance(message := self.read(), AssignClient):
            if isinstance(message, StopThread):
                raise Closed("the learner thread was stopped before it was assigned a client")
            self.wait(ASSIGN_S)
        return message


class TrainLoop:
    """The work of one learner thread: it receives segments, trains the algorithm, and publishes and saves the weights."""

    def __init__(
        self,
        inbox: LearnerThreadInbox,
        upstream: GatewaySender,
        storage: WorkerStorage,
        stopping: threading.Event,
        replaced: threading.Event,
    ) -> None:
        self._inbox, self._send = inbox, upstream.send
        self.turned_at = time.monotonic()  # when the thread last looked for messages. Any thread can read it.
        self._assign = inbox.wait_for_assignment()
        self._algorithm, self._devices, self._ranks = build_algorithm(self._assign, storage.folder(self._assign), stopping)
        self._spec = self._algorithm.spec()
        self._max_policy_lag = max_policy_lag(self._algorithm, self._assign)
        self._pacing_lag = pacing_lag(self._algorithm, self._assign)
        self._schema = SegmentSchema.of(self._spec, MAX_SEGMENT_STEPS)
        in_box = self._spec.document.get("head") in BOUNDED_HEADS
        self._bounds = SegmentValueLimits(self._schema, self._assign.max_magnitude, self._assign.max_reward, in_box=in_box)
        self._publisher = PolicyPublisher(self._assign, self._spec, self._send)
        self._lag_sum = self._lag_steps = 0
        self._slack_steps = 0
        self._rejected_in_a_row = 0
        store = storage.checkpoints(self._assign) if self._assign.checkpoints else None
        self._checkpoints = TrainingCheckpoints(self._assign, self._algorithm, self._publisher, store, replaced)
        self._ready = self._resume()
        self._progress = self._checkpoints.progress
        # A journal in memory ends with the process, and so do the segments that could have ended it.
        noted = self._assign.checkpoints and not replaced.is_set()
        self.suspects = CrashSuspectRecord(storage.suspects(self._assign) if noted else None)
        self._trainer = UpdateRunner(self._algorithm, self.suspects, max(0, self._checkpoints.saved_updates))
        self._reporter = LearnerThreadReporter(self._send, self._progress.observed)

    def run(self) -> None:
        if self._ranks is not None:
            self._ranks.start()
        self._send(self._ready)
        self._publish()
        if self._algorithm.kind == "offpolicy":
            self._slack_steps = 0  # until the next version, because the demand can include the steps of `learning_starts`
        if self.suspects.finding:
            log.warning("client %s: %s", self._assign.client_id, self.suspects.finding)
        if self.suspects.repeated:
            self._alarm(PROCESS_KILLER, self.suspects.finding)
        self._report()
        while True:
            self._inbox.wait(self._reporter.rest_s)
            self.turned_at = time.monotonic()
            for _ in range(DRAIN_MESSAGES):
                message = self._inbox.read()
                if message is None:
                    break
                if isinstance(message, StopThread):
                    self._report(at_once=True)
                    self._save()  # a journal on disk keeps segments that wait for a full batch
                    self._reporter.report_figures(self._trainer.updates, at_once=True)
                    return
                self._handle(message)
                if not self._algorithm.demand():
                    break  # the batch is full: further messages belong to the next one
            self._train()
            if self._checkpoints.is_due:
                self._save()
            self._report()
            self._reporter.report_figures(self._trainer.updates)

    def close(self, *, crashed: bool = False) -> None:
        """End the training record and the other ranks. After a crash (`crashed`), the segments in training stay on record.

        Only the learner thread calls this.
        """
        try:
            self.suspects.close(crashed=crashed)
        finally:
            if self._ranks is not None:
                self._ranks.close()

    def _alarm(self, name: str, text: str, count: int = 1) -> None:
        self._send(OperatorAlarm(name, plain_text(text), count))

    def _handle(self, message: ThreadMessage) -> None:
        match message:
            case DeliverSegments():
                self._on_segments(message)
            case SaveCheckpoint():
                self._train(partial=message.partial)
                self._reporter.report_figures(self._trainer.updates, at_once=True)  # the status after a `save` has them
                self._save(message.token, asked=True)
            case StreamEnded():
                self._progress.forget((message.actor_id, message.origin))
            case ChangeParameters():
                assert isinstance(self._algorithm, TunableAlgorithm)  # since its entry has changeable parameters
                self._algorithm.change(message.parameters)
                set_publishing(self._algorithm, self._assign)
                if self._ranks is not None:
                    self._ranks.change(message.parameters)
            case ChangeWeightsLevel():
                self._publisher.change_level(message.level)
            case AssignClient() | StopThread() | RemoteWorkerControl() | FromLearnerThread():
                log.warning("ignored a %s: it is not a message for a learner thread", type(message).__name__)
            case _:
                assert_never(message)

    def _resume(self) -> ThreadReady:
        """Load the newest valid checkpoint into the algorithm, if there is one.

        Without a checkpoint, the algorithm gets the weights and clones the demonstrations that its settings name.
        """
        algorithm, checkpoints = self._algorithm, self._checkpoints
        demonstrations = None
        if self._assign.demonstrations:
            demonstrations = TrainingDemonstrations(self._assign, algorithm, self._schema, self._bounds)
        if not checkpoints.load():
            if self._assign.init:
                load_initial_policy(algorithm, self._assign)
                checkpoints.save_soon()
            if demonstrations is not None and demonstrations.clone(
                lambda scalars: self._send(TrainingMetrics(0, 0, scalars, [], 0, []))
            ):
                checkpoints.save_soon()
        progress, observed = checkpoints.progress, checkpoints.progress.observed
        return ThreadReady(
            spec=spec_to_document(self._spec),
            kind=algorithm.kind,
            rollout_length=algorithm.rollout_length,
            max_policy_lag=self._max_policy_lag,
            checkpoint=checkpoints.number,
            marks=progress.as_documents(),
            verdicts=dict(progress.verdicts),
            damaged=list(checkpoints.damaged),
            body=spec_body(self._spec),
            steps=observed.steps,
            updates=max(0, checkpoints.saved_updates),
            episodes=observed.episodes,
            recent=[list(episode) for episode in observed.recent],
            devices=list(self._devices),
        )

    def _save(self, token: int = 0, *, asked: bool = False) -> None:
        result = self._checkpoints.save(self._trainer.updates, token, asked=asked)
        if result is not None:
            if not result.error:
                self._reporter.report_verdicts()
            self._send(result)

    def _on_segments(self, message: DeliverSegments) -> None:
        self._reporter.start_clock()
        rules = SegmentContentRules(self._schema, self._bounds, self._assign.generation, self._publisher.version)
        decoded = decode_message(message, rules, self._publisher.first_version)
        batch = decoded.batch
        self._reporter.taken_bytes += decoded.nbytes
        index = message.skip
        while index < len(batch):
            if index > message.skip:
                self._train()  # the batch became full in the middle of the message
            index = self._observe_some(decoded, index)
        self._reporter.taken_messages += message.joined
        if self.suspects.contains_suspects(decoded.key, batch.first_seq, batch.first_seq + len(batch)):
            self._train()  # with no other segments in hand
        if self._algorithm.kind != "onpolicy":
            decoded.release()
        if not self._trainer.held:
            self._barrier()

    def _observe_some(self, message: DecodedSegmentMessage, start: int) -> int:
        key, batch = message.key, message.batch
        first = batch.first_seq + start
        lags = [self._publisher.version - oldest for oldest in message.oldest]
        longest = self._max_policy_lag if self._max_policy_lag >= 0 else math.inf
        drops = self._assign.on_lag == "drop"
        self._progress.receive(key, first, first)
        observed = []
        end = batch.first_seq + len(batch)
        careful = self.suspects.contains_suspects(key, first, end)
        if not careful:
            self.suspects.note(key, first, end)
        refused, bad = message.refused, message.bad | self.suspects.reasons(key, batch.first_seq, end)
        onpolicy = self._algorithm.kind == "onpolicy"
        for index in range(start, len(batch)):
            seq, segment, is_late = batch.first_seq + index, message.segments[index], lags[index] > longest
            if index in refused:
                self._progress.record_verdict(key, Verdict.REFUSED)
            elif index in bad:
                self._quarantine(message, index, bad[index])
            elif segment.evaluation:
                self._record_verdict(key, seq, seq + 1, Verdict.EVALUATED)
                made_by, total, length = batch.heads[["version", "episode_return", "episode_length"]][index].tolist()
                self._reporter.evaluated(made_by, total, length)
            elif onpolicy and segment.source:
                self._record_verdict(key, seq, seq + 1, Verdict.OVERRIDDEN)
                self._reporter.overridden(segment.steps)
            elif drops and is_late:
                self._record_verdict(key, seq, seq + 1, Verdict.STALE)
            else:
                if careful:
                    self.suspects.clear()
                    self.suspects.note(key, seq, seq + 1)
                try:
                    self._trainer.observe(message, index, correct=is_late)
                except Exception as exc:  # noqa: BLE001 - `_reject` logs it or raises it again
                    self._reject(message, index, exc)
                    continue
                self._rejected_in_a_row = 0
                observed.append(index)
                if segment.source:
                    self._reporter.overridden(segment.steps)
                if not self._algorithm.demand() or (careful and self.suspects.suspects(key, seq)):
                    break
        taken = [one for one in range(start, index + 1) if one not in refused]
        self._reporter.taken_items += len(taken)
        self._reporter.taken_steps += sum(batch.steps[one] for one in taken)
        if onpolicy:
            self.suspects.clear()
        self._progress.receive(key, first, batch.first_seq + index + 1)
        self._note(message, lags, observed)
        return index + 1

    def _note(self, message: DecodedSegmentMessage, lags: Sequence[int], observed: Sequence[int]) -> None:
        """Update counts and metrics for observed segments of a message. Off-policy, these also count as trained now."""
        if not observed:
            return
        key, batch = message.key, message.batch
        for first, end in to_ranges(observed):
            if self._algorithm.kind != "onpolicy":
                self._record_verdict(key, batch.first_seq + first, batch.first_seq + end, Verdict.TRAINED)
        segments, steps = [message.segments[index] for index in observed], [batch.steps[index] for index in observed]
        behind = [lags[index] for index in observed]
        self._lag_sum += sum(map(operator.mul, behind, steps))
        self._lag_steps += sum(steps)
        at = self._reporter.observed_steps
        for segment, count in zip(segments, steps, strict=True):
            at += count
            if segment.episode_return is not None:
                self._reporter.ended(at, segment.episode_return, segment.episode_length or 0)
        joined = segments[0].rewards if len(segments) == 1 else np.concatenate([segment.rewards for segment in segments])
        self._reporter.observed(behind, steps, float(np.add.reduce(joined, dtype=np.float64)))

    def _quarantine(self, message: DecodedSegmentMessage, index: int, reason: str) -> None:
        seq = message.batch.first_seq + index
        self._record_verdict(message.key, seq, seq + 1, Verdict.QUARANTINED, reason)
        self._send(message.dead_letter(index, reason))

    def _barrier(self) -> None:
        self._progress.barrier()
        self._progress.observed = self._reporter.counts()

    def _reject(self, message: DecodedSegmentMessage, index: int, exc: Exception) -> None:
        """Quarantine segment number `index` of a message, because the algorithm has raised the exception `exc` for it.

        So no later learner thread receives the segment. If the algorithm has raised an exception for more than `MAX_POISONED`
        segments in a row, the fault is assumed to be in the algorithm: the segment is not quarantined, and `exc` is raised.
        """
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row > MAX_POISONED:
            raise exc
        log.error("client %s: the algorithm rejected a segment, which is quarantined", self._assign.client_id, exc_info=exc)
        self._quarantine(message, index, plain_text(f"the algorithm rejected it: {type(exc).__name__}: {exc}"[:500]))

    def _record_verdict(self, key: Key, first: int, end: int, verdict: str, reason: str = "", replaces: str = "") -> None:
        self._progress.record_verdict(key, verdict, end - first, replaces)
        self._reporter.record_verdict(key, first, end, verdict, reason, replaces)

    def _train(self, *, partial: bool = False) -> None:
        while (outcome := self._trainer.update(partial=partial)) is not None:
            if outcome.metrics is None:
                self._undone(outcome)
                continue
            if outcome.unchanged:
                text = "changed no weight, although the learning rate is not 0: are the gradients 0, or is the rate too small?"
                self._alarm(UPDATE_CHANGES_NOTHING, f"update {self._trainer.updates} {text}")
            self._reporter.scalars.update(outcome.metrics)
            for key, first, end in streams_of(outcome.used):
                self._record_verdict(key, first, end, Verdict.TRAINED)
            self._barrier()
            self._reporter.report_verdicts()
            if partial or self._trainer.updates % self._algorithm.publish_every_updates == 0:
                self._publish()
        self.suspects.clear_pending()

    def _undone(self, outcome: UpdateOutcome) -> None:
        reason = plain_text(f"update {self._trainer.updates + 1} was undone: {outcome.reason}")
        trained = self._algorithm.kind != "onpolicy"
        for one in outcome.culprits:
            self._record_verdict(
                one.key, one.seq, one.seq + 1, Verdict.QUARANTINED, reason, replaces=Verdict.TRAINED if trained else ""
            )
            if one.message is not None:
                self._send(one.message.dead_letter(one.index, reason))
        self._alarm(UPDATE_UNDONE, f"{reason}; {len(outcome.culprits)} segments are quarantined")
        self._reporter.report_verdicts()

    def _publish(self) -> None:
        self._publisher.publish(self._algorithm.snapshot())
        self._reporter.scalars["dist/version"] = self._publisher.version
        self._slack_steps = self._pacing_lag * self._algorithm.demand()
        if self._lag_steps:
            self._reporter.scalars["dist/policy_lag"] = self._lag_sum / self._lag_steps
            self._lag_sum = self._lag_steps = 0

    def _report(self, *, at_once: bool = False) -> None:
        self._reporter.report(self._algorithm.demand() + self._slack_steps, self._publisher.version, at_once=at_once)
