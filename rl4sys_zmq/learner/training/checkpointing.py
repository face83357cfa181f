"""The checkpoints that a learner thread loads at its start and writes during the training, and the record of the segments in
them, so that a checkpoint and the journal agree.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.registry import Algorithm, IncrementalAlgorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointedStreamProgress, CheckpointManifest
from rl4sys_zmq.learner.run.worker_storage import CheckpointStorage
from rl4sys_zmq.learner.training.publishing import PolicyPublisher
from rl4sys_zmq.learner.training.reporting import ObservedDataCounts, plain_text
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.values import FlatWeights, PolicySnapshot
from rl4sys_zmq.weights import digest
from rl4sys_zmq.wire import blob_digest
from rl4sys_zmq.wire.messages import Verdict
from rl4sys_zmq.wire.thread_messages import AssignClient, CheckpointResult

log = get_logger(__name__)

CHECKPOINT_SHARE = 20
"""The shortest time between two periodic checkpoints, in multiples of the time that writing one takes."""

FROM_PARAMETERS = frozenset({"epsilon", "noise_std", "scale"})
"""The tensors of a policy that follow from the algorithm's parameters, which can differ from those of the checkpoint."""


_COUNTED = (*Verdict.FINAL, Verdict.REFUSED)


def _counts(verdicts: Mapping[str, int]) -> dict[str, int]:
    return {verdict: verdicts.get(verdict, 0) for verdict in _COUNTED}


class CheckpointMarks:
    """The marks and verdicts of a client's streams that the next checkpoint stores: those of the last barrier.

    A *barrier* is a moment when every received segment has a verdict, for example right after an update. A checkpoint stores
    the marks of the last barrier. Segments received after the barrier wait for the next update of an on-policy algorithm and
    are not part of its saved state; after a restart, the journal delivers them again.
    """

    def __init__(self, marks: Iterable[CheckpointedStreamProgress] = (), verdicts: Mapping[str, int] | None = None) -> None:
        # Those of removed streams count too.
        self.verdicts = _counts(verdicts or {})
        self._marks = {(m.actor_id, m.origin): replace(m, verdicts=_counts(m.verdicts)) for m in marks}
        self._since: dict[Key, CheckpointedStreamProgress] = {}  # since the last barrier
        self.observed = ObservedDataCounts()  # until the last barrier
        self.moved = False  # since the last checkpoint: the owner sets it to False then

    def receive(self, key: Key, first: int, end: int) -> None:
        """Record that the segments ``[first, end)`` were received. They must be the next segments of their stream."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = CheckpointedStreamProgress(*key, first, _counts({}))
        since.next_seq = end

    def record_verdict(self, key: Key, verdict: str, count: int = 1, replaces: str = "") -> None:
        """Count segments with a verdict. With `replaces`, they had that verdict before, perhaps before the last barrier."""
        if not replaces:
            self._since[key].verdicts[verdict] += count
            return
        tally = self._since.get(key) or self._marks.get(key)
        for name, change in ((verdict, count), (replaces, -count)):
            if tally is not None:
                tally.verdicts[name] += change
            if key not in self._since:
                self.verdicts[name] += change
        self.moved = True

    def barrier(self) -> None:
        """Record that all segments received so far have a verdict and are part of the algorithm's state."""
        self.moved |= bool(self._since)
        for key, since in self._since.items():
            tally = self._marks.get(key) or self._marks.setdefault(key, CheckpointedStreamProgress(*key, 0, _counts({})))
            tally.next_seq = since.next_seq
            for verdict, count in since.verdicts.items():
                tally.verdicts[verdict] += count
                self.verdicts[verdict] += count
        self._since.clear()

    def forget(self, key: Key) -> None:
        """Remove the mark of a stream, because the learner has deleted its records."""
        self._marks.pop(key, None)

    def marks(self) -> tuple[CheckpointedStreamProgress, ...]:
        """Return the marks of the last barrier, for a checkpoint."""
        return tuple(replace(mark, verdicts=dict(mark.verdicts)) for mark in self._marks.values())

    def as_documents(self) -> list[Any]:
        """Return `marks` as lists ``[actor_id, origin, next_seq, verdicts]``, for `ThreadReady`."""
        return [[m.actor_id, m.origin, m.next_seq, m.verdicts] for m in self.marks()]


class TrainingCheckpoints:
    """The checkpoints of one algorithm in training. Only its learner thread uses this object.

    Attributes:
        progress: The record of the segments that the next checkpoint covers.
        number: The number of the checkpoint that was loaded; 0 without one.
        saved_updates: Updates in the newest checkpoint; 0 without one, as an algorithm without data is rebuilt from its seed; -1:
            save now.
    """

    def __init__(
        self,
        assign: AssignClient,
        algorithm: Algorithm,
        publisher: PolicyPublisher,
        store: CheckpointStorage | None,
        replaced: threading.Event,
    ) -> None:
        self._assign, self._algorithm, self._publisher = assign, algorithm, publisher
        self._spec = algorithm.spec()
        self._store, self._replaced = store, replaced
        self.progress = CheckpointMarks()
        self.number = self.saved_updates = 0
        self._save_at = time.monotonic() + assign.checkpoint_every_s

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._save_at

    @property
    def damaged(self) -> Sequence[str]:
        return self._store.damaged if self._store is not None else ()

    def load(self) -> bool:
        """Load the newest valid checkpoint into the algorithm, and return True. Return False if there is none."""
        loaded = self._store.load() if self._store is not None else None
        if loaded is None:
            return False
        manifest, state = loaded
        theirs, ours = (manifest.client_id, manifest.algorithm_name), (self._assign.client_id, self._assign.algorithm_name)
        if theirs != ours:
            raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d} belongs to {theirs}, not to {ours}")
        if manifest.blob != blob_digest(self._spec.blob):
            problem = "the blob of its policy differs; resume with the version of the algorithm that wrote it"
            raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d}: {problem}")
        self._algorithm.load(state)
        if self._trained_digest(*self._spec.flatten(self._algorithm.snapshot())) != manifest.trained_digest:
            problem = "it gives other weights than were saved; resume with the version of the algorithm that wrote it"
            raise CheckpointError(self._assign.checkpoints, f"{manifest.number:08d}: {problem}")
        self._publisher.resume(manifest.version, manifest.grid)
        self.number, self.saved_updates = manifest.number, manifest.updates
        if manifest.journal_id == self._assign.journal_id:
            self.progress = CheckpointMarks(manifest.marks, manifest.verdicts)
        else:
            text = "client %s: checkpoint %d belongs to another journal; its weights are used, its counts are not"
            log.warning(text, manifest.client_id, manifest.number)
        self.progress.observed = ObservedDataCounts(manifest.steps, manifest.episodes, manifest.recent, manifest.overridden_steps)
        return True

    def save_soon(self) -> None:
        """Write the next checkpoint at once, because the algorithm's state is not the initial one of its seed."""
        self.saved_updates = -1
        self._save_at = time.monotonic()

    def save(self, updates: int, token: int = 0, *, asked: bool = False) -> CheckpointResult | None:
        """Write a checkpoint if the state has changed, or if the gateway has requested a checkpoint (`asked`, `token`)."""
        if self._store is None:
            return CheckpointResult(token, 0, max(self._publisher.version, 0), [], 0.0, "") if asked else None
        self._save_at = time.monotonic() + self._assign.checkpoint_every_s
        if self._replaced.is_set() or (not asked and updates == self.saved_updates and not self.progress.moved):
            return None
        began = time.monotonic()
        try:
            flat, others = self._spec.flatten(self._algorithm.snapshot())
            manifest = self._manifest(updates, flat, others)
            policy = self._stored_policy(manifest, flat, others)
            if isinstance(self._algorithm, IncrementalAlgorithm):
                state = self._algorithm.state_beyond(self._store.stored_pieces())
            else:
                state = self._algorithm.state()
            manifest = self._store.write(manifest, state, policy=policy, wanted=lambda: not self._replaced.is_set())
        except CheckpointError as exc:
            log.error("client %s: %s", self._assign.client_id, exc)
            return CheckpointResult(token, 0, 0, [], time.monotonic() - began, plain_text(str(exc)[:500]))
        duration_s = time.monotonic() - began
        self._save_at = max(self._save_at, time.monotonic() + CHECKPOINT_SHARE * duration_s)
        self.saved_updates, self.progress.moved = updates, False
        marks = [[m.actor_id, m.origin, m.next_seq] for m in manifest.marks]
        return CheckpointResult(token, manifest.number, manifest.version, marks, duration_s, "")

    def _stored_policy(self, manifest: CheckpointManifest, flat: FlatWeights, others: bytes) -> StoredPolicy:
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

    def _trained_digest(self, flat: FlatWeights, others: bytes) -> int:
        """Return the digest of the policy's weights, with zeros in place of the tensors that follow from parameters."""
        kept = flat.copy()
        views = self._spec.views(kept, others)
        for name in FROM_PARAMETERS & views.keys():
            if views[name].dtype == kept.dtype:
                views[name][...] = 0.0
        return digest(kept, others)

    def _manifest(self, updates: int, flat: FlatWeights, others: bytes) -> CheckpointManifest:
        weights_digest = digest(flat, others)
        return CheckpointManifest(
            client_id=self._assign.client_id,
            journal_id=self._assign.journal_id,
            generation=self._assign.generation,
            version=self._publisher.version_of(weights_digest),
            digest=weights_digest,
            trained_digest=self._trained_digest(flat, others),
            grid=self._publisher.quantizer.steps,
            blob=blob_digest(self._spec.blob),
            algorithm_name=self._assign.algorithm_name,
            updates=updates,
            **self.progress.observed._asdict(),
            verdicts=dict(self.progress.verdicts),
            marks=self.progress.marks(),
            saved_unix_s=time.time(),
        )
