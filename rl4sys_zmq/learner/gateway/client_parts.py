"""Parts of `ClientState`: publication, counts of segments, checkpoints, delivery from the journal, training metrics."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.stream import Key, SegmentStream
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.learner.lags import LAG_LIMITS, lag_report
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.policies import PolicyOrigin
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.weights import TAG_KEY_BYTES, EncodingOptions
from rl4sys_zmq.wire.messages import Frame, Verdict, WeightsSource
from rl4sys_zmq.wire.thread_messages import CheckpointResult, ThreadReady, TrainingMetrics


class ClientPublishing:
    """The data that the gateway needs to publish one client's weights.

    Attributes:
        policy_id: The id of the policy in messages, 8 bytes.
        history: The recent weights that the current learner thread has published.
        topic: The PUB topic of weights and beacons: 8 bytes, without the first one, which is the kind of the message.
        near: True as long as no peer from another machine, and no relay, was told the topic.
        tag_key: The secret key of the tags of versions (`rl4sys_zmq.weights.tag_of`); empty if versions get no tags.
        spec: The policy; None until the first learner thread is ready.
        spec_document: The description of the policy for new sessions, with the frames in `spec_body`.
        beacon_due: True if a new subscriber waits for a beacon.
        next_beacon_at: The earliest time for that beacon, on the monotonic clock, in seconds.
    """

    def __init__(self, policy_id: bytes, generation: int) -> None:
        self.policy_id = policy_id
        self.history = WeightHistory(generation)
        self.topic = os.urandom(8)  # a peer cannot guess it, so only invited peers subscribe
        self.near = True
        self.tag_key = b""
        self.spec: PolicySpec | None = None
        self.spec_document: dict[str, Any] = {}
        self.spec_body: tuple[Frame, ...] = ()
        self.beacon_due, self.next_beacon_at = False, 0.0

    def describe(self, message: ThreadReady, spec: PolicySpec, writing: EncodingOptions) -> None:
        """Store the description of the policy that a learner thread is going to publish."""
        self.spec, self.spec_document, self.spec_body = spec, message.spec, message.body
        self.history.describe(self.policy_id, writing)
        self.history.tag_with(self.tag_key)

    def start_tagging(self) -> None:
        """Publish a tag with each version from now on, under a new key, so that actors can take the weights from relays.

        An actor gets the key when it opens its next session.
        """
        self.tag_key = os.urandom(TAG_KEY_BYTES)
        self.history.tag_with(self.tag_key)

    def change_topic(self) -> None:
        """Continue under a new topic, and with tags under a new key."""
        self.topic = os.urandom(8)
        if self.tag_key:
            self.start_tagging()

    def source(self, client_id: str, pub: str) -> WeightsSource:
        """Return the answer to a relay that asks where the weights are published."""
        return WeightsSource(
            client_id=client_id,
            policy_id=self.policy_id,
            topic=self.topic,
            generation=self.history.generation,
            version=self.history.version,
            digest=self.history.digest,
            tensors=self.spec_document["tensors"],
            pub=pub,
        )


class SegmentCounts:
    """The counts of one client's segments. Each accepted segment is pending, has a final verdict, or is rolled back.

    Attributes:
        verdicts: The number of segments by verdict. A return to a checkpoint lowers the numbers.
        gap: The number of acknowledged segments that are not in the journal. They also count as accepted and rolled back.
        counters: The number of refused segments by reason.
    """

    def __init__(self) -> None:
        self.accepted = self.gap = self.rolled_back = 0
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.counters = Counters()

    def add_gap(self, count: int) -> None:
        """Count segments that were acknowledged, but are not in the journal."""
        self.accepted += count
        self.gap += count
        self.rolled_back += count

    def rewind(self, verdicts: Mapping[str, int]) -> None:
        """Return to the numbers of verdicts in a checkpoint. Duplicates stay, because checkpoints do not contain their number."""
        for verdict in Verdict.ALL:
            if verdict != Verdict.DUPLICATE:
                self.verdicts[verdict] = verdicts.get(verdict, 0)

    def balance(self, pending: int) -> int:
        """Count accepted segments without a final verdict that are not pending as rolled back. Return the number of new ones."""
        before = self.rolled_back
        judged = sum(self.verdicts[verdict] for verdict in Verdict.FINAL)
        self.rolled_back = max(0, self.accepted - judged - pending)
        return self.rolled_back - before


class CheckpointRecord:
    """The gateway's record of a client's checkpoints: the newest one, and the requests for further ones.

    Attributes:
        folder: The folder of the checkpoints; empty without a run directory.
        newest: The report of the newest checkpoint. Its number is 0 if there is none.
        saved_at: The time when the newest checkpoint was written or loaded, on the monotonic clock, in seconds.
        error: The reason why the last checkpoint could not be written; empty if it was written.
        marks: The mark of each stream below which the newest checkpoint includes all segments.
        asked: The requests for a checkpoint that are not answered so far, by number. The result is the error, or "".
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.newest = CheckpointResult(0, 0, 0, [], 0.0, "")
        self.saved_at = 0.0
        self.error = ""
        self.marks: dict[Key, int] = {}
        self.asked: dict[int, Future[str]] = {}
        self._older_marks: dict[Key, int] = {}

    def loaded(self, number: int, now: float) -> None:
        """Record the checkpoint that a learner thread has loaded. Its version follows with the first publication."""
        self.newest, self.saved_at = CheckpointResult(0, number, -1, [], 0.0, ""), now
        self.marks = self._older_marks = {}

    def on_first_version(self, version: int) -> None:
        """Record the first version of a learner thread, which is that of the checkpoint that it has loaded."""
        if self.newest.version < 0:
            self.newest = replace(self.newest, version=version)

    def written(self, message: CheckpointResult, now: float) -> dict[Key, int]:
        """Record the result of a checkpoint. Return the mark of each stream below which the journal can now delete entries.

        The marks are those of the checkpoint before the new one. So if the new checkpoint is damaged later, the journal still
        has all segments since the earlier one.
        """
        self.error = message.error
        if message.error or not message.number:
            return {}
        self.newest, self.saved_at = message, now
        self._older_marks, self.marks = self.marks, {(a, o): seq for a, o, seq in message.marks}
        return self._older_marks

    def give_up(self, error: str) -> None:
        """End all open requests for checkpoints, with `error` as their result."""
        while self.asked:
            self.asked.popitem()[1].set_result(error)

    def trimmed(self, stream: SegmentStream) -> bool:
        """Return True if the journal has no entries of a stream, so that nothing of the stream can be delivered again."""
        return not self.folder or self._older_marks.get(stream.key, 0) >= stream.accepted_end


@dataclass(slots=True)
class JournalReplayProgress:
    """The progress of the replay: the delivery of journal entries to a learner thread that has loaded a checkpoint.

    Attributes:
        token: The number of the replay in progress, which the pages of the journal repeat; 0 if there is none. During a replay,
            the learner thread receives new segments through the pages too.
        page_after: The row after which the next page begins; None if no page has to be requested.
        segments: The number of segments that were delivered again.
        rollback_asked: True if an operator has asked to give up accepted segments; False again after the replay.
    """

    token: int = 0
    segments: int = 0
    page_after: int | None = None
    rollback_asked: bool = False


class TrainingFigures:
    """The training metrics of a client for its status. Means are over the last `RECENT_EPISODES` episodes."""

    def __init__(self, monotonic: Callable[[], float], unix: Callable[[], float]) -> None:
        self._monotonic, self._unix = monotonic, unix
        self._lags = [0] * (len(LAG_LIMITS) + 1)
        self._metrics = TrainingMetrics(0, 0, {}, [], 0, [])
        self._returns: deque[tuple[float, float]] = deque(maxlen=RECENT_EPISODES)
        self._evaluations: deque[tuple[int, float, int]] = deque(maxlen=RECENT_EPISODES)
        self._pace: deque[tuple[float, int]] = deque(maxlen=64)

    def continue_from(self, message: ThreadReady) -> None:
        """Continue with the totals of a new learner thread, which come from its checkpoint."""
        self._metrics = TrainingMetrics(message.steps, message.updates, self._metrics.scalars, [], message.episodes, [])
        self._returns.clear()
        self._returns.extend((total, length) for total, length in message.recent)
        self._pace.clear()

    def note(self, metrics: TrainingMetrics) -> None:
        """Record metrics that the learner thread has sent."""
        merged = {**self._metrics.scalars, **metrics.scalars}
        self._metrics = TrainingMetrics(metrics.step, metrics.update, merged, [], metrics.ended, [])
        if metrics.lags:
            self._lags = [before + new for before, new in zip(self._lags, metrics.lags, strict=True)]
        self._pace.append((self._monotonic(), metrics.step))
        self._returns.extend((total, length) for _, total, length in metrics.episodes)
        self._evaluations.extend((version, total, length) for version, total, length in metrics.evaluations)

    def note_evaluation(self, scalars: Mapping[str, float]) -> int:
        """Record the metrics of an evaluation of the policy. Return the number of training episodes so far."""
        metrics = self._metrics
        self._metrics = replace(metrics, scalars={**metrics.scalars, **scalars})
        return metrics.ended

    def policy_origin(self, client_id: str, algorithm_name: str) -> PolicyOrigin:
        """Return the description of the training that has made the newest policy version, for stored policies."""
        return PolicyOrigin(
            client_id=client_id,
            algorithm_name=algorithm_name,
            updates=self._metrics.update,
            steps=self._metrics.step,
            saved_unix_s=self._unix(),
            episodes=self._metrics.ended,
            mean_return=_mean([total for total, _ in self._returns]),
        )

    def report(self, now: float, evaluated: int) -> dict[str, Any]:
        """Return the part of the client's status about its training, as JSON."""
        metrics = self._metrics
        return {
            "updates": metrics.update,
            "steps": metrics.step,
            "steps_per_s": self._steps_per_s(now),
            "episodes": metrics.ended,
            "mean_return": _mean([total for total, _ in self._returns]),
            "mean_length": _mean([length for _, length in self._returns]),
            "mean_reward": metrics.scalars.get("charts/mean_reward"),
            "evaluation": self._evaluation_report(evaluated),
            "policy_lag": metrics.scalars.get("dist/policy_lag", 0.0),
            "policy_lags": lag_report(self._lags),
            "scalars": metrics.scalars,
        }

    def _evaluation_report(self, evaluated: int) -> dict[str, Any]:
        """Return the part of the status about the episodes of actors with ``explore: false``; empty if there are none."""
        if not self._evaluations:
            return {}
        versions, totals, lengths = zip(*self._evaluations, strict=True)
        return {"episodes": evaluated, "mean_return": _mean(totals), "mean_length": _mean(lengths), "version": max(versions)}

    def _steps_per_s(self, now: float) -> float:
        if len(self._pace) < 2:
            return 0.0
        (began, first), (_, last) = self._pace[0], self._pace[-1]
        return (last - first) / max(now - began, 1e-3)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
