"""The policies in a run directory: the newest in its checkpoints, and the best, with the highest mean return in evaluations.

::

    RUN/best/CLIENT/policy/
      spec.json, policy.safetensors, ...    the policy (`rl4sys_zmq.policies.folder`)
      evaluation.json                       the evaluation: environment, episodes, mean return, version, time

A better version replaces the folder by one exchange of two names, so at each moment the path has a whole policy.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import CheckpointError, ConfigError, PolicyFolderError
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.resume import BEST, CHECKPOINTS
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name, name_of
from rl4sys_zmq.policies import StoredPolicy, read_policy
from rl4sys_zmq.policies.folder import encode_policy, read_file
from rl4sys_zmq.private import exchange_paths, make_private, sync_folder, write_folder
from rl4sys_zmq.sealed import seal_document, seal_holds

log = get_logger(__name__)

EVALUATION = "evaluation.json"
MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The result of the evaluation of one policy version.

    Attributes:
        generation: The generation of the version.
        version: Number of the version.
        steps: Environment steps of the training up to the version.
        updates: Updates of the training up to the version.
        env: Arguments of ``gymnasium.make``, with ``id``.
        seed: Seed of the initial states.
        episodes: Number of episodes. The returns and `mean_length` (in steps) are over these episodes.
        evaluated_unix_s: Unix time of the evaluation, in seconds.
    """

    generation: int
    version: int
    steps: int
    updates: int
    env: Mapping[str, Any]
    seed: int
    episodes: int
    mean_return: float
    min_return: float
    max_return: float
    mean_length: float
    evaluated_unix_s: float

    def comparable(self, other: EvaluationRecord) -> bool:
        """Return True if both results are from the same episodes: environment, seed and number of episodes are equal."""
        return (self.env, self.seed, self.episodes) == (other.env, other.seed, other.episodes)


class BestPolicyFolder:
    """The folder ``RUN/best/CLIENT`` with the best policy of a client. One thread uses it.

    Attributes:
        policy: The path of the policy folder: a valid one after the first `offer`.
        record: The evaluation of the policy in the folder; None if there is none.
    """

    def __init__(self, run_dir: Path, client_id: str) -> None:
        """Read the record of an earlier start of the learner. A damaged record is logged and counts as none."""
        self._folder = run_dir / BEST / folder_name(client_id)
        self.policy = self._folder / "policy"
        self._new = self._folder / ".new"
        self.record = self._read()

    def offer(self, policy: StoredPolicy, record: EvaluationRecord) -> bool:
        """Keep a policy if its mean return is higher than that of the best policy so far. Return True if the policy is kept.

        A best policy whose evaluation had another environment, seed or number of episodes cannot be compared, and is replaced.

        Raises:
            OSError, PolicyFolderError, ConfigError: If the policy cannot be written. The old one is still there.
        """
        before = self.record
        if before is not None and record.comparable(before) and record.mean_return <= before.mean_return:
            return False
        make_private(self._folder)
        shutil.rmtree(self._new, ignore_errors=True)  # of a process that was killed
        write_folder(self._new, {**encode_policy(policy), EVALUATION: seal_document(asdict(record))})
        if self.policy.exists():
            exchange_paths(self._new, self.policy)
        else:
            self._new.rename(self.policy)
        sync_folder(self._folder)
        self.record = record
        shutil.rmtree(self._new, ignore_errors=True)
        return True

    def abandon(self) -> None:
        """Rename the policy, so that it is no longer the best one. Nothing is deleted.

        Raises:
            OSError: If the policy cannot be renamed.
        """
        if self.policy.exists():
            self.policy.rename(self._folder / f"policy.abandoned-{time.time_ns() // 1_000_000}")
        self.record = None

    def _read(self) -> EvaluationRecord | None:
        file, old = self.policy / EVALUATION, self.policy.with_name(f".{self.policy.name}.old")
        if not self.policy.exists() and old.exists():  # a kill within an exchange that was not one step
            old.rename(self.policy)
        if not file.exists():
            return None
        try:
            data = read_file(file, MAX_RECORD_BYTES)
            if not seal_holds(data):
                raise ValueError("its contents have changed since it was written")
            document = json.loads(data)
            return EvaluationRecord(**{field.name: document[field.name] for field in fields(EvaluationRecord)})
        except (PolicyFolderError, ValueError, KeyError, TypeError) as exc:
            log.warning("%s is damaged and is replaced after the next evaluation: %s", file, exc)
            return None


TRIES = 5
"""Largest number of times that the list of checkpoints is read, because a running learner removes old ones meanwhile."""


def newest_policy(run_dir: Path, client_id: str | None = None) -> tuple[Path, StoredPolicy]:
    """Return the newest saved policy in a learner's checkpoints, with the folder of the checkpoint, for example to export it.

    A checkpoint whose policy is damaged is logged and skipped.

    Args:
        run_dir: The run directory of a learner, which can be running.
        client_id: The client; None if the directory has only one.

    Raises:
        ConfigError: If there is no such client or no checkpoint, or several clients and none is named. The message says what to
            do. Also if safetensors is not installed.
        CheckpointError: If the folder of the checkpoints cannot be read, or a checkpoint in it belongs to another client.
        PolicyFolderError: If no checkpoint has an intact policy.
    """
    client_id = _choose_client(run_dir, client_id)
    store = CheckpointStore(run_dir / CHECKPOINTS / folder_name(client_id))
    problem: PolicyFolderError | None = None
    for _ in range(TRIES):
        paths = store.newest()
        for path in paths:
            try:
                policy = read_policy(path)
            except PolicyFolderError as exc:
                if not path.exists():
                    continue  # removed by the learner since it was listed
                problem = exc
                log.warning("checkpoint %s is skipped: %s", path.name, exc)
            else:
                if policy.origin.client_id != client_id:
                    raise CheckpointError(path, f"it belongs to client {policy.origin.client_id!r}, not to {client_id!r}")
                return path, policy
        if all(path.exists() for path in paths):
            break
    if problem is not None and paths:
        raise problem
    raise ConfigError(
        f"client {client_id!r} in {run_dir} has no checkpoint so far; a running learner writes one every checkpoint_every_s "
        "seconds, and at its end",
        key="run",
    )


def _choose_client(run_dir: Path, client_id: str | None) -> str:
    try:
        folders = sorted(path.name for path in (run_dir / CHECKPOINTS).iterdir() if path.is_dir())
    except OSError as exc:
        raise ConfigError(f"{run_dir} is no run directory with checkpoints ({exc.strerror or exc})", key="run") from exc
    names = [name_of(folder) or folder for folder in folders]
    if client_id is not None:
        if folder_name(client_id) not in folders:
            known = f"it has {', '.join(names)}" if names else "it has none so far"
            raise ConfigError(f"{run_dir} has no checkpoints of a client {client_id!r}; {known}", key="client")
        return client_id
    if len(names) != 1:
        known = f"has the clients {', '.join(names)}; name one with --client ID" if names else "has no checkpoints so far"
        raise ConfigError(f"{run_dir} {known}", key="client")
    return names[0]
