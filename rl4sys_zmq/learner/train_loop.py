"""The loop of a learner thread: it builds an algorithm, trains a policy, publishes the weights and saves checkpoints."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import CheckpointError, Closed, ConfigError
from rl4sys_zmq.learner.alarms import PROCESS_KILLER, UPDATE_CHANGES_NOTHING, UPDATE_UNDONE
from rl4sys_zmq.learner.algorithms import (
    ALGORITHMS,
    Algorithm,
    FolderAlgorithm,
    IncrementalAlgorithm,
    TunableAlgorithm,
    WarmStartAlgorithm,
    planned_policy,
)
from rl4sys_zmq.learner.algorithms.entry import default_pacing_lag, readings
from rl4sys_zmq.learner.checkpoints import CheckpointManifest
from rl4sys_zmq.learner.demonstrating import TrainingDemonstrations
from rl4sys_zmq.learner.held_segments import DecodedSegmentMessage, streams_of, to_ranges
from rl4sys_zmq.learner.progress import CheckpointProgress, ObservedDataCounts
from rl4sys_zmq.learner.quantizer import WeightQuantizer
from rl4sys_zmq.learner.reporting import GatewaySender, LearnerThreadReporter, plain_text
from rl4sys_zmq.learner.suspects import CrashSuspectRecord
from rl4sys_zmq.learner.training import UpdateOutcome, UpdateRunner
from rl4sys_zmq.learner.validation import SegmentContentRules, SegmentValueLimits, content_errors
from rl4sys_zmq.learner.worker_storage import CheckpointStorage, WorkerStorage
from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.policies.initial_weights import read_weights
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.values import FlatWeights, PolicySnapshot, PolicySpec, observation_space_from, space_from
from rl4sys_zmq.weights import digest, encode_update
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, blob_digest, decode, spec_body, spec_to_document
from rl4sys_zmq.wire.messages import (
    AssignClient,
    ChangeParameters,
    CheckpointResult,
    DeliverSegments,
    Frame,
    FromLearnerThread,
    Message,
    OperatorAlarm,
    PolicyPublished,
    SaveCheckpoint,
    StopThread,
    StreamEnded,
    Submit,
    ThreadReady,
    ToActor,
    ToLearner,
    ToRemoteWorker,
    Verdict,
)

if TYPE_CHECKING:
    from rl4sys_zmq.learner.rank_group import RankGroup

__all__ = ["MAX_MESSAGE_FRAMES", "MAX_SEGMENT_STEPS", "TrainLoop"]

log = logging.getLogger(__name__)

DRAIN_MESSAGES = 256
MAX_SEGMENT_STEPS = 1 << 20
MAX_MESSAGE_FRAMES = 256
ASSIGN_S = 0.5
"""Time between two checks for a request to stop while the thread waits for its assignment, in seconds."""

MAX_POISONED = 3
"""Largest number of segments in a row that the algorithm can reject by an exception. If it rejects more, the client fails."""

CHECKPOINT_SHARE = 20
"""The shortest time between two periodic checkpoints, in multiples of the time that writing one takes."""


class TrainLoop:
    """The work of one learner thread: it receives segments, trains the algorithm, and publishes and saves the weights.

    The thread communicates with the gateway, the learner's network thread, by messages only.

    Attributes:
        turned_at: The time when the thread last looked for messages, on the monotonic clock, in seconds. Any thread can read it.
    """

    def __init__(
        self,
        down: Socket,
        upstream: GatewaySender,
        storage: WorkerStorage,
        stopping: threading.Event,
        replaced: threading.Event,
    ) -> None:
        self._down, self._send = down, upstream.send
        self._stopping, self._replaced = stopping, replaced
        self.turned_at = time.monotonic()
        self._poller = Poller()
        self._poller.register(down)
        self._assign = self._wait_for_assignment()
        self._ranks: RankGroup | None = None
        self._devices = ["cpu"]
        self._algorithm = self._build(storage.folder(self._assign))
        self._spec = self._algorithm.spec()
        own_limit = -1 if self._algorithm.max_policy_lag is None else self._algorithm.max_policy_lag
        self._max_policy_lag = self._assign.max_policy_lag if self._assign.max_policy_lag >= 0 else own_limit
        given = self._assign.pacing_lag
        self._pacing_lag = given
        if given < 0:
            default = default_pacing_lag(ALGORITHMS.get(self._assign.algorithm_name), self._algorithm.kind)
            self._pacing_lag = default if default is not None else 0
        self._schema = SegmentSchema.of(self._spec, MAX_SEGMENT_STEPS)
        self._bounds = SegmentValueLimits(self._schema, self._assign.max_magnitude, self._assign.max_reward)
        self._snapshot: PolicySnapshot | None = None
        self._before: PolicySnapshot | None = None
        self._published_master_digest = 0
        self._quantizer = WeightQuantizer(self._assign.wire_dtype, self._assign.weights_level, self._spec)
        self._version = self._resumed_version = -1
        self._lag_sum = self._lag_steps = 0
        self._slack_steps = 0
        self._rejected_in_a_row = 0
        self._progress = CheckpointProgress()
        self._store = storage.checkpoints(self._assign) if self._assign.checkpoints else None
        self._saved_updates = 0  # an algorithm without data is rebuilt from its seed and needs no checkpoint
        self._save_at = time.monotonic() + self._assign.checkpoint_every_s
        self._demonstrations: TrainingDemonstrations | None = None
        if self._assign.demonstrations:
            self._demonstrations = TrainingDemonstrations(self._assign, self._algorithm, self._schema, self._bounds)
        self._ready = self._resume()
        # A journal in memory ends with the process, and so do the segments that could have ended it.
        noted = self._assign.checkpoints and not self._replaced.is_set()
        self._suspects = CrashSuspectRecord(storage.suspects(self._assign) if noted else None)
        self._trainer = UpdateRunner(self._algorithm, self._suspects, max(0, self._saved_updates))
        self._reporter = LearnerThreadReporter(self._send, self._progress.observed)

    def run(self) -> None:
        """Receive messages and train until the message `StopThread` arrives."""
        if self._ranks is not None:
            self._ranks.start()
        self._send(self._ready)
        self._publish()
        if self._suspects.finding:
            log.warning("client %s: %s", self._assign.client_id, self._suspects.finding)
        if self._suspects.repeated:
            self._alarm(PROCESS_KILLER, self._suspects.finding)
        self._report()
        while True:
            self._poller.poll(self._reporter.rest_s)
            self.turned_at = time.monotonic()
            for _ in range(DRAIN_MESSAGES):
                message = self._read()
                if message is None:
                    break
                if isinstance(message, StopThread):
                    self._finish()
                    return
                self._handle(message)
                if not self._algorithm.demand():
                    break  # the batch is full: further messages belong to the next one
            self._train()
            if time.monotonic() >= self._save_at:
                self._save()
            self._report()
            self._reporter.report_figures(self._trainer.updates)

    def close(self, *, crashed: bool = False) -> None:
        """Record on disk that no segment is in training any more, and end the other ranks (processes) of the client.

        Only the learner thread calls this, at its end.

        Args:
            crashed: True if a rank was killed or does not answer. The record then stays, because a segment can be the cause.
        """
        try:
            self._suspects.close(crashed=crashed)
        finally:
            if self._ranks is not None:
                self._ranks.close()

    def expect_end(self, *, replaced: bool = False) -> None:
        """Record that the thread was asked to stop.

        If the process ends during an update after this call, the segments of the update are not suspected as the cause. Any
        thread can call this.

        Args:
            replaced: True if another learner thread takes over this client.
        """
        self._suspects.expect_end(disable=replaced)

    def _alarm(self, name: str, text: str, count: int = 1) -> None:
        self._send(OperatorAlarm(name, plain_text(text), count))

    def _handle(self, message: Message) -> None:
        match message:
            case DeliverSegments():
                self._take(message)
            case SaveCheckpoint():
                self._train(partial=message.partial)
                self._reporter.report_figures(self._trainer.updates, at_once=True)  # the status after a `save` has them
                self._save(message.token, asked=True)
            case StreamEnded():
                self._progress.forget((message.actor_id, message.origin))
            case ChangeParameters():
                assert isinstance(self._algorithm, TunableAlgorithm)  # since its entry has changeable parameters
                self._algorithm.change(message.parameters)
                if self._ranks is not None:
                    self._ranks.change(message.parameters)
            case AssignClient() | StopThread() | ToRemoteWorker() | ToLearner() | ToActor() | FromLearnerThread():
                log.warning("ignored a %s: it is not a message for a learner thread", type(message).__name__)
            case _:
                assert_never(message)

    def _finish(self) -> None:
        """Send the last reports, and write the last checkpoint, before the learner thread ends.

        Segments that wait for a full batch are not trained on. A journal on disk keeps them for the next start.
        """
        self._report(at_once=True)
        self._save()
        self._reporter.report_figures(self._trainer.updates, at_once=True)

    # ---- building

    def _wait_for_assignment(self) -> AssignClient:
        while True:
            message = self._read()
            if isinstance(message, AssignClient):
                return message
            if isinstance(message, StopThread):
                raise Closed("the learner thread was stopped before it was assigned a client")
            self._poller.poll(ASSIGN_S)

    def _read(self) -> Message | None:
        frames = self._down.recv(MAX_MESSAGE_FRAMES)
        if frames is not None:
            return decode(frames)
        return StopThread() if self._stopping.is_set() else None

    def _build(self, folder: Path | None) -> Algorithm:
        """Create the algorithm. `folder` is the place of its large data, if there is one."""
        a = self._assign
        spaces = observation_space_from(a.observation_space), space_from(a.action_space)
        make = ALGORITHMS.get(a.algorithm_name).load()
        plan = planned_policy(a.algorithm_name, *spaces, a.parameters)
        if plan is not None:
            self._check_size(plan)
        if a.torch_threads and "torch" in sys.modules:
            torch = importlib.import_module("torch")  # waits for another thread that is importing it
            # Set this before any computation: the number of threads changes the last bits. The number is this thread's own.
            torch.get_num_threads()  # its first call in a thread copies the process's number, and would undo the next line
            torch.set_num_threads(a.torch_threads)
        algorithm = make(*spaces, a.parameters, a.seed)
        if folder is not None and isinstance(algorithm, FolderAlgorithm):
            algorithm.use_folder(folder)
        if a.device != "cpu" or a.learners > 1:  # the module imports torch
            placement = importlib.import_module("rl4sys_zmq.learner.placement")
            placed = placement.place_algorithm(algorithm, a, self._stopping)
            self._devices, self._ranks = list(placed.devices), placed.group
        for line in readings(getattr(algorithm, "parameters", None)):
            log.info("client %s: %s", a.client_id, line)
        self._check_size(algorithm.spec())
        if a.publish_every_updates:
            algorithm.publish_every_updates = a.publish_every_updates
        return algorithm

    def _check_size(self, spec: PolicySpec) -> None:
        size, limit = spec.parameters, self._assign.max_parameters
        if size > limit:
            raise ConfigError(f"the policy has {size} parameters; max_parameters allows {limit}", key="max_parameters")

    # ---- checkpoints

    def _resume(self) -> ThreadReady:
        """Load the newest valid checkpoint into the algorithm, if there is one. Return the message that reports the result."""
        algorithm, number = self._algorithm, 0
        found = self._store.load() if self._store is not None else None
        if found is not None:
            manifest, state, _ = found
            said, ours = (manifest.client_id, manifest.algorithm_name), (self._assign.client_id, self._assign.algorithm_name)
            if said != ours:
                raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d} belongs to {said}, not to {ours}")
            if manifest.blob != blob_digest(self._spec.blob):
                problem = "the blob of its policy differs; resume with the version of the algorithm that wrote it"
                raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d}: {problem}")
            algorithm.load(state)
            if digest(*self._spec.flatten(algorithm.snapshot())) != manifest.digest:
                problem = "it gives other weights than were saved; resume with the version of the algorithm that wrote it"
                raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d}: {problem}")
            self._quantizer.steps = manifest.grid
            number = manifest.number
            if manifest.journal_id == self._assign.journal_id:
                self._progress = CheckpointProgress(manifest.marks, manifest.verdicts)
            else:
                words = "client %s: checkpoint %d belongs to another journal; its weights are used, its counts are not"
                log.warning(words, self._assign.client_id, manifest.number)
            self._progress.observed = ObservedDataCounts(manifest.steps, manifest.episodes, manifest.recent)
            self._version, self._resumed_version = manifest.version - 1, manifest.version
            self._saved_updates = manifest.updates
        else:
            if self._assign.init:
                self._start_from(Path(self._assign.init))
            if self._demonstrations is not None and self._demonstrations.clone():
                self._save_soon()
        return ThreadReady(
            spec_to_document(self._spec),
            algorithm.kind,
            algorithm.rollout_length,
            self._max_policy_lag,
            number,
            self._progress.as_documents(),
            dict(self._progress.verdicts),
            list(self._store.damaged) if self._store is not None else [],
            spec_body(self._spec),
            self._progress.observed.steps,
            max(0, self._saved_updates),
            self._progress.observed.episodes,
            [list(episode) for episode in self._progress.observed.recent],
            self._devices,
        )

    def _start_from(self, source: Path) -> None:
        """Load given policy weights from a file or folder into the new algorithm, and schedule a checkpoint of them.

        Raises:
            ConfigError: If the algorithm has no method `load_policy`, or the weights do not fit its policy.
            PolicyFolderError: If the source is missing or damaged.
        """
        algorithm = self._algorithm
        if not isinstance(algorithm, WarmStartAlgorithm):
            name = self._assign.algorithm_name
            raise ConfigError(f"algorithm {name} cannot start with given weights; it has no method load_policy", key="init")
        tensors = read_weights(source, self._spec)
        algorithm.load_policy({**algorithm.snapshot(), **tensors})
        log.info(
            "client %s starts with %d of %d tensors of %s", self._assign.client_id, len(tensors), len(self._spec.tensors), source
        )
        self._save_soon()

    def _save_soon(self) -> None:
        """Let the next checkpoint be written at once, because the algorithm's state is not that of its seed."""
        self._saved_updates = -1
        self._save_at = time.monotonic()

    def _save(self, token: int = 0, *, asked: bool = False) -> None:
        """Write a checkpoint if the state has changed or the gateway (the learner's network thread) has requested one.

        Args:
            token: The number that identifies the request of the gateway; 0 without a request.
            asked: True if the gateway has requested the checkpoint.
        """
        if self._store is None:
            if asked:
                self._reporter.report_verdicts()
                self._send(CheckpointResult(token, 0, max(self._version, 0), [], 0.0, ""))
            return
        self._save_at = time.monotonic() + self._assign.checkpoint_every_s
        if self._replaced.is_set() or (not asked and self._trainer.updates == self._saved_updates and not self._progress.moved):
            return
        began = time.monotonic()
        try:
            wanted = lambda: not self._replaced.is_set()  # noqa: E731
            flat, others = self._spec.flatten(self._algorithm.snapshot())
            manifest = self._manifest(digest(flat, others))
            policy = self._stored_policy(manifest, flat, others)
            manifest = self._store.write(manifest, self._state(self._store), policy=policy, wanted=wanted)
        except CheckpointError as exc:
            log.error("client %s: %s", self._assign.client_id, exc)
            self._send(CheckpointResult(token, 0, 0, [], time.monotonic() - began, plain_text(str(exc)[:500])))
            return
        duration_s = time.monotonic() - began
        self._save_at = max(self._save_at, time.monotonic() + CHECKPOINT_SHARE * duration_s)
        self._saved_updates, self._progress.moved = self._trainer.updates, False
        self._reporter.report_verdicts()
        marks = [[m.actor_id, m.origin, m.next_seq] for m in manifest.marks]
        self._send(CheckpointResult(token, manifest.number, manifest.version, marks, duration_s, ""))

    def _state(self, store: CheckpointStorage) -> Mapping[str, Any]:
        """Return the state of the algorithm for the next checkpoint in `store`."""
        if isinstance(self._algorithm, IncrementalAlgorithm):
            return self._algorithm.state_beyond(store.stored_pieces())
        return self._algorithm.state()

    def _stored_policy(self, manifest: CheckpointManifest, flat: FlatWeights, others: bytes) -> StoredPolicy:
        """Return the policy of a checkpoint in the form in which it can be exported, given its weights."""
        snapshot = PolicySnapshot(manifest.generation, manifest.version, manifest.digest, flat, others)
        returns = [total for total, _ in manifest.recent]
        origin = PolicyOrigin(
            client_id=manifest.client_id,
            algorithm_name=manifest.algorithm_name,
            updates=manifest.updates,
            steps=manifest.steps,
            saved_unix_s=manifest.saved_unix_s,
            episodes=manifest.episodes,
            mean_return=sum(returns) / len(returns) if returns else None,
        )
        return StoredPolicy(self._spec, snapshot, origin)

    def _manifest(self, now: int) -> CheckpointManifest:
        """Return the manifest (the description) of a checkpoint of the current state. `now` is a checksum of its weights.

        The manifest names a policy version. If the current weights are published, this is their version. Otherwise it is the
        next version, which these weights get when they are published by this learner thread, or by one that resumes from the
        checkpoint.
        """
        published = self._snapshot is not None and self._published_master_digest == now
        return CheckpointManifest(
            client_id=self._assign.client_id,
            journal_id=self._assign.journal_id,
            number=0,
            generation=self._assign.generation,
            version=self._version if published else self._version + 1,
            digest=now,
            grid=self._quantizer.steps,
            blob=blob_digest(self._spec.blob),
            algorithm_name=self._assign.algorithm_name,
            updates=self._trainer.updates,
            steps=self._progress.observed.steps,
            episodes=self._progress.observed.episodes,
            recent=self._progress.observed.recent,
            verdicts=dict(self._progress.verdicts),
            marks=self._progress.marks(),
            saved_unix_s=time.time(),
        )

    # ---- data in

    def _take(self, message: DeliverSegments) -> None:
        self._reporter.begin()
        nbytes = sum(len(frame) for frame in message.body)
        self._reporter.taken_bytes += nbytes
        submit = cast(Submit, decode(message.body, verify=False))
        batch = SegmentBatchReader(submit, self._schema)
        segments = batch.segments()
        refused = batch.errors(self._schema) if message.refused else {}  # the same check as in the gateway
        bad = content_errors(
            batch, segments, refused, SegmentContentRules(self._schema, self._bounds, self._assign.generation, self._version)
        )
        oldest = batch.oldest(self._assign.generation, self._first_version)
        key = (message.actor_id, message.origin)
        read = DecodedSegmentMessage(key, batch, segments, refused, bad, oldest, nbytes)
        place = message.skip
        while place < len(batch):
            if place > message.skip:
                self._train()  # the batch became full in the middle of the message
            place = self._take_some(read, place)
        self._reporter.taken_messages += 1
        if self._suspects.may_contain_suspects(read.key, batch.first_seq, batch.first_seq + len(batch)):
            self._train()  # with no other segments in hand
        if self._algorithm.kind != "onpolicy":
            read.release()
        if not self._trainer.held:
            self._barrier()

    def _take_some(self, message: DecodedSegmentMessage, start: int) -> int:
        """Pass the segments of a message to the algorithm until its batch is full or the message ends.

        Args:
            message: The message.
            start: Index of the first segment to process.

        Returns:
            The index of the next segment to process; the number of segments in the message if all are processed.
        """
        key, batch = message.key, message.batch
        first = batch.first_seq + start
        lags = self._version - message.oldest
        late = lags > self._max_policy_lag if self._max_policy_lag >= 0 else np.zeros(len(batch), np.bool_)
        drops = self._assign.on_lag == "drop"
        self._progress.take(key, first, first)
        observed = []
        end = batch.first_seq + len(batch)
        careful = self._suspects.may_contain_suspects(key, first, end)
        if not careful:
            self._suspects.note(key, first, end)
        refused, bad = message.refused, message.bad | self._suspects.reasons(key, batch.first_seq, end)
        evaluations = batch.evaluations
        for place, is_late in enumerate(late[start:].tolist(), start):
            seq = batch.first_seq + place
            if place in refused:
                self._progress.record_verdict(key, Verdict.REFUSED)
            elif place in bad:
                self._quarantine(message, place, bad[place])
            elif place in evaluations:
                self._record_verdict(key, seq, seq + 1, Verdict.EVALUATED)
                self._reporter.evaluated(*evaluations[place])
            elif drops and is_late:
                self._record_verdict(key, seq, seq + 1, Verdict.STALE)
            else:
                if careful:
                    self._suspects.clear()
                    self._suspects.note(key, seq, seq + 1)
                try:
                    self._trainer.observe(message, place, correct=is_late)
                except Exception as exc:  # noqa: BLE001 - `_reject` logs it or raises it again
                    self._reject(message, place, exc)
                    continue
                self._rejected_in_a_row = 0
                observed.append(place)
                if not self._algorithm.demand() or (careful and self._suspects.suspects(key, seq)):
                    break
        taken = [one for one in range(start, place + 1) if one not in refused]
        self._reporter.taken_items += len(taken)
        self._reporter.taken_steps += int(batch.steps[taken].sum())
        if self._algorithm.kind == "onpolicy":
            self._suspects.clear()
        self._progress.take(key, first, batch.first_seq + place + 1)
        self._note(key, batch, lags, observed)
        return place + 1

    def _note(self, key: Key, batch: SegmentBatchReader, lags: NDArray[np.int64], observed: Sequence[int]) -> None:
        """Update counts and metrics for segments that the algorithm has accepted. Off-policy, they also count as trained now.

        Args:
            key: The key of the stream: the actor's id, and the number of the actor's start that began the numbering.
            batch: The message of segments.
            lags: Number of versions by which each segment of the message is behind.
            observed: Indices of the accepted segments in the message.
        """
        for first, end in to_ranges(observed):
            if self._algorithm.kind != "onpolicy":
                self._record_verdict(key, batch.first_seq + first, batch.first_seq + end, Verdict.TRAINED)
        steps = batch.steps[observed]
        self._lag_sum += int((lags[observed] * steps).sum())
        self._lag_steps += int(steps.sum())
        ended = batch.returns(observed)
        if ended:
            at = (self._reporter.observed_steps + steps.cumsum()).tolist()
            self._reporter.ended((at[place], total, length) for place, total, length in ended)
        self._reporter.observed(lags[observed], steps)

    def _quarantine(self, message: DecodedSegmentMessage, place: int, reason: str) -> None:
        """Exclude a segment from training: count it as quarantined, and send it with the reason to the gateway, which keeps it.

        Args:
            message: The message that contains the segment.
            place: Index of the segment in the message.
            reason: The reason, for people to read.
        """
        seq = message.batch.first_seq + place
        self._record_verdict(message.key, seq, seq + 1, Verdict.QUARANTINED, reason)
        self._send(message.dead_letter(place, reason))

    def _barrier(self) -> None:
        reporter, before = self._reporter, self._progress.observed
        recent = before.recent if reporter.observed_episodes == before.episodes else tuple(reporter.recent)
        self._progress.barrier()
        self._progress.observed = ObservedDataCounts(reporter.observed_steps, reporter.observed_episodes, recent)

    def _reject(self, message: DecodedSegmentMessage, place: int, exc: Exception) -> None:
        """Quarantine a segment for which the algorithm has raised an exception.

        Without the exclusion (quarantine), each new learner thread would receive the segment again from the journal on disk. If
        more than `MAX_POISONED` segments in a row are rejected, the algorithm is assumed to be at fault, and its exception is
        raised.

        Args:
            message: The message that contains the segment.
            place: The index of the segment in the message.
            exc: The exception.
        """
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row > MAX_POISONED:
            raise exc
        log.error("client %s: the algorithm rejected a segment, which is quarantined", self._assign.client_id, exc_info=exc)
        self._quarantine(message, place, plain_text(f"the algorithm rejected it: {type(exc).__name__}: {exc}"[:500]))

    @property
    def _first_version(self) -> int:
        """Number of the first policy version that this learner thread publishes.

        It is also used for segments from earlier learner threads, to compute how old they are: a higher version number counts
        as this number.
        """
        return max(self._resumed_version, 0)

    def _record_verdict(self, key: Key, first: int, end: int, verdict: str, reason: str = "", replaces: str = "") -> None:
        """Record a verdict (the result of segments, such as trained), for the checkpoint and the report to the network thread.

        Args:
            key: The key of the stream: the actor's id, and the number of the actor's start that began the numbering.
            first: Sequence number of the first segment.
            end: Sequence number after the last segment.
            verdict: The verdict: trained, stale (too old), quarantined (unfit) or refused.
            reason: The reason, for quarantined segments; else empty.
            replaces: The verdict that the segments had before; empty if this is their first verdict.
        """
        self._progress.record_verdict(key, verdict, end - first, replaces)
        self._reporter.record_verdict(key, first, end, verdict, reason, replaces)

    # ---- learning

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
        self._suspects.clear_pending()

    def _undone(self, outcome: UpdateOutcome) -> None:
        """Exclude from training the segments that made an update fail, and report the problem to the operator.

        Args:
            outcome: The result of the update, which has been undone.
        """
        reason = plain_text(f"update {self._trainer.updates + 1} was undone: {outcome.reason}")
        trained = self._algorithm.kind != "onpolicy"
        for one in outcome.culprits:
            self._record_verdict(
                one.key, one.seq, one.seq + 1, Verdict.QUARANTINED, reason, replaces=Verdict.TRAINED if trained else ""
            )
            if one.message is not None:
                self._send(one.message.dead_letter(one.place, reason))
        self._alarm(UPDATE_UNDONE, f"{reason}; {len(outcome.culprits)} segments are quarantined")
        self._reporter.report_verdicts()

    def _publish(self) -> None:
        flat, others = self._spec.flatten(self._algorithm.snapshot())
        self._version += 1
        wire = self._quantizer.round(flat)
        new = PolicySnapshot(self._assign.generation, self._version, digest(wire, others), wire, others)
        self._published_master_digest = new.digest if wire is flat else digest(flat, others)
        writing = self._quantizer.encoding
        base = self._snapshot if writing.level else None
        header, payload = encode_update(self._assign.policy_id, base, new, writing, before=self._before)
        state: Frame = wire.astype("<f4", copy=False).view(np.uint8).data
        is_state = base is None and not others and len(payload) == len(state)
        if others:
            state = b"".join((state, others))
        self._before, self._snapshot = self._snapshot, new
        self._send(PolicyPublished(new.version, new.digest, (state, header) if is_state else (state, header, payload)))
        self._reporter.scalars["dist/version"] = new.version
        self._slack_steps = self._pacing_lag * self._algorithm.demand()
        if self._lag_steps:
            self._reporter.scalars["dist/policy_lag"] = self._lag_sum / self._lag_steps
            self._lag_sum = self._lag_steps = 0

    def _report(self, *, at_once: bool = False) -> None:
        self._reporter.report(self._algorithm.demand() + self._slack_steps, self._version, at_once=at_once)
