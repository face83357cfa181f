"""The command ``rl4sys-learner export``: writes the policy of a client to a folder, for use without a learner."""

from __future__ import annotations

import time
from pathlib import Path

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.ops.curves import WINDOW
from rl4sys_zmq.ops.report import byte_text, span_text
from rl4sys_zmq.policies import StoredPolicy, read_policy
from rl4sys_zmq.policies.folder import ONNX, SPEC, encode_policy, write_policy
from rl4sys_zmq.policies.graphs.export import encode_onnx


def export(run: Path, client_id: str | None, output: Path, *, force: bool) -> None:
    """Write a policy folder from a run directory, and print what it contains."""
    path, policy = stored_policy(run, client_id)
    files = encode_policy(policy)
    skipped = ""
    try:
        files[ONNX] = encode_onnx(policy)
    except ConfigError as exc:
        skipped = str(exc)
    write_policy(output, files, force=force)
    print_line(f"{describe_policy(policy)}, from {path}")
    for name, data in sorted(files.items()):
        print_line(f"  {output / name}  {byte_text(len(data))}")
    if skipped:
        print_line(f"  {ONNX} is left out: {skipped}")


def stored_policy(run: Path, client_id: str | None) -> tuple[Path, StoredPolicy]:
    """Return a policy with its folder, from a run directory or from the folder of a policy or a checkpoint."""
    if not (run / SPEC).exists():
        return newest_policy(run, client_id)
    policy = read_policy(run)
    if client_id not in (None, policy.origin.client_id):
        raise ConfigError(f"{run} has the policy of client {policy.origin.client_id!r}, not of {client_id!r}", key="client")
    return run, policy


def describe_policy(policy: StoredPolicy) -> str:
    """Return one line about a policy: its client, algorithm, version, age and training."""
    origin, snapshot = policy.origin, policy.snapshot
    age = span_text(max(0.0, time.time() - origin.saved_unix_s))
    trained = f"{origin.steps:,} steps, {origin.updates:,} {'update' if origin.updates == 1 else 'updates'}"
    if origin.mean_return is not None:
        trained += f", mean return of the last {min(WINDOW, origin.episodes or 0)} training episodes {origin.mean_return:.1f}"
    return f"client {origin.client_id}, {origin.algorithm_name}, version {snapshot.version}, saved {age} ago ({trained})"
