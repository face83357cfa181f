"""Reading of policies from a learner's checkpoints, also while the learner runs."""

from __future__ import annotations

from pathlib import Path

from rl4sys_zmq.errors import CheckpointError, ConfigError, PolicyFolderError
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.resume import CHECKPOINTS
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name, name_of
from rl4sys_zmq.policies import StoredPolicy, read_policy

log = get_logger(__name__)

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
