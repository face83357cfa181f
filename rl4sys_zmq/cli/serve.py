"""The command ``rl4sys-learner serve``: runs a learner in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.cli.app import print_line, require
from rl4sys_zmq.cli.progress import make_progress
from rl4sys_zmq.cli.signals import SignalHandlers, StopSignalReceived, check_signals
from rl4sys_zmq.cli.web import host_and_port, page_of, require_page
from rl4sys_zmq.config import ClientConfig, LearnerConfig
from rl4sys_zmq.config.options import with_source
from rl4sys_zmq.delivery.journal_marks import marks_path
from rl4sys_zmq.errors import CheckpointError, ConfigError, RunDirectoryError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.gateway.static_check import check_buildable
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore, read_manifest
from rl4sys_zmq.learner.run.resume import ACCEPT_LOSS, AUTO, CHECKPOINTS, JOURNAL, NEVER, has_state, state_dir
from rl4sys_zmq.learner.run.run_loggers import close_s
from rl4sys_zmq.logs import get_logger, outlive_output
from rl4sys_zmq.memory_watch import keep_freed_memory, memory_limit
from rl4sys_zmq.ops.local_actors import await_status
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.policies import read_policy
from rl4sys_zmq.policies.initial_weights import check_weights_source
from rl4sys_zmq.private import make_private, open_private
from rl4sys_zmq.transports import raise_descriptor_limit

log = get_logger(__name__)

POLL_S = 0.25
DESCRIPTORS_PER_ACTOR, OTHER_DESCRIPTORS = 2, 1024
"""The open files of a learner: one connection of each actor for messages and one for weights, and files and other peers."""


@contextmanager
def fresh_run_dir(preferred: Path) -> Iterator[Path]:
    """Create a run directory that no other run uses: `preferred`, or if that is in use `preferred`-2, -3, ...

    A new file ``config.json`` reserves the directory. If the ``with`` block raises before an entry of
    the log exists, the directory is removed.
    """
    for number in itertools.count(1):
        run_dir = preferred if number == 1 else preferred.with_name(f"{preferred.name}-{number}")
        try:
            make_private(run_dir)
            os.close(open_private(run_dir / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError as exc:
            if not run_dir.is_dir():
                raise RunDirectoryError(f"the run directory {run_dir} is a file; choose another --run-dir") from exc
        except OSError as exc:
            raise RunDirectoryError(
                f"the run directory {run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            ) from exc
    try:
        yield run_dir
    except BaseException:
        with contextlib.suppress(OSError):
            log = run_dir / "log.jsonl"
            if not log.exists() or not log.stat().st_size:
                log.unlink(missing_ok=True)
                for journal in (*run_dir.glob(f"{JOURNAL}*"), marks_path(run_dir / JOURNAL)):
                    journal.unlink(missing_ok=True)  # created by this start, and still empty
                (run_dir / "config.json").unlink()
                run_dir.rmdir()
        raise


@contextmanager
def print_saved_at_stop(run_dir: Path | None, again: str = "the same command continues") -> Iterator[None]:
    """Print the saved files if a signal ends the ``with`` block, in which the learner runs. `again` says how to continue."""
    try:
        yield
    except StopSignalReceived as exc:
        _print_saved(run_dir, str(exc), again)
        raise


def _print_saved(run_dir: Path | None, signal: str, again: str) -> None:
    if run_dir is None:
        print_line(f"{signal}: the learner has ended; nothing was saved, because it had no run directory")
        return
    print_line(f"{signal}: the learner has ended; files in {run_dir}")
    for folder in sorted((run_dir / CHECKPOINTS).glob("*")):
        try:
            newest = next(iter(CheckpointStore(folder).newest()), None)
            manifest = read_manifest(newest) if newest is not None else None
        except CheckpointError as exc:
            print_line(f"  {exc}")
            continue
        if manifest is not None:
            counts = f"version {manifest.version:,}, {manifest.steps:,} steps, {manifest.episodes:,} episodes"
            print_line(f"  {manifest.client_id}: checkpoint {manifest.number:,} with {counts}")
    if (run_dir / JOURNAL).exists():
        print_line(f"  {JOURNAL} has the segments accepted since the checkpoints, if any; {again}")


def serve(
    path: Path | None,
    overrides: Mapping[str, Any],
    *,
    debug: bool,
    max_memory_bytes: int | None,
    init: Path | None,
    client: str | None,
    web: str | None,
    web_keys: Path | None,
) -> None:
    """Run a learner with the options of a file and `overrides`. The help of the command describes the other arguments."""
    require("learner", "torch", "tensorboard", "rich")
    outlive_output()
    config = LearnerConfig.load(path, **overrides) if path is not None else LearnerConfig.from_mapping(overrides)
    config = _with_init(config, init, client)
    if web is not None:
        host_and_port(web)  # before the learner starts
        _check_page(config, web_keys)
    import_plugins(config.plugins, path)
    with with_source(str(path or "")):
        check_buildable(config)
    if max_memory_bytes is not None or config.max_memory_bytes is None:
        config = replace(config, max_memory_bytes=memory_limit(max_memory_bytes))
    if config.torch_threads is None:
        config = replace(config, torch_threads=1)
    keep_freed_memory()
    raise_descriptor_limit(DESCRIPTORS_PER_ACTOR * config.max_actors + OTHER_DESCRIPTORS)
    signals = SignalHandlers.current
    if signals is not None:
        signals.patience_s = config.shutdown_timeout_s + close_s(config) + 0.35
    if "thread" in config.engines:  # the other engines import the algorithm in a process of its own
        warm_up(_likely(config))  # before the learner listens: connections could take the descriptors that an import needs
    learner = start(config)
    with print_saved_at_stop(learner.config.run_dir), learner:
        inference = f", inference {learner.inference_address}" if learner.inference_address else ""
        print_line(f"learner at {learner.address} (weights {learner.pub_address}{inference})")
        files = f"files in {learner.config.run_dir}" if learner.config.run_dir is not None else "no files"
        print_line(f"{files}; Ctrl-C ends it")
        if learner.config.run_dir != config.run_dir and config.resume in (AUTO, NEVER):
            print_line(f"{config.run_dir} has an earlier run, which is not changed")
        _print_resumed(learner)
        for client_id, entry in learner.config.clients.items():
            if entry.init is not None:
                print_line(f"client {client_id} starts with the weights in {entry.init}, unless it has a checkpoint")
        with page_of(learner.address, web, web_keys), make_progress(debug=debug) as progress:
            while True:
                time.sleep(POLL_S)
                check_signals()
                report = await_status(learner)
                if report is not None:
                    progress.show(report, "" if report["clients"] else f"waiting for actors at {learner.address}")


def _check_page(config: LearnerConfig, keys: Path | None) -> None:
    require_page()
    if config.bind.startswith("inproc://"):
        raise ConfigError(f"a page cannot reach {config.bind} from its own process; bind the learner to tcp or ipc", key="web")
    if config.keys is not None and keys is None:
        remedy = "create an admin's with `rl4sys-learner keys DIR --user web --role admin`, and give --web-keys web.keys"
        raise ConfigError(f"the learner has keys, so its page needs some: {remedy}", key="web_keys")


def _with_init(config: LearnerConfig, init: Path | None, client_id: str | None) -> LearnerConfig:
    """Return the configuration in which one client starts with the weights at `init`. Check such paths of all clients."""
    if init is not None:
        check_weights_source(init)
        if client_id is None and not init.is_dir():
            raise ConfigError(f"init: {init} does not name a client; give --client ID", key="init")
        client_id = client_id or read_policy(init).origin.client_id
        entry = replace(config.clients.get(client_id, ClientConfig()), init=init)
        config = replace(config, clients={**config.clients, client_id: entry})
    for entry in config.clients.values():
        if entry.init is not None:
            check_weights_source(entry.init)
    return config


def _print_resumed(learner: Learner) -> None:
    if learner.resumed_clients:
        print_line(f"continues the run in this directory, with the clients: {', '.join(learner.resumed_clients)}")
    for note in learner.start_notes:
        print_line(note)
    if learner.loss is not None:
        print_line(
            f"a part of the journal is lost, as accepted: {learner.loss.words()}; what no checkpoint covers is rolled back"
        )
    back = learner.rollback
    if back is not None:
        newer = f"{len(back.abandoned)} newer checkpoint(s) are put aside" if back.abandoned else "it was the newest"
        print_line(
            f"client {back.client_id} returns to checkpoint {back.checkpoint}, version {back.version} ({newer}): "
            f"{back.undone_versions} versions and the verdicts of {back.undone_segments} segments are undone; segments that are "
            "still in the journal are trained on again, the others count as rolled back"
        )


def _likely(config: LearnerConfig) -> str:
    """Return the name of the algorithm that the first actor probably needs, to import it early."""
    named = [config.default_algorithm, *(entry.algorithm_name for entry in config.clients.values())]
    return next((name for name in named if name is not None and ALGORITHMS.has(name)), "PPO")


def start(config: LearnerConfig) -> Learner:
    """Start a learner. The learner continues the run in its run directory, or gets a new run directory."""
    if config.run_dir is None:
        return Learner(config).start()
    if config.resume not in (AUTO, NEVER, ACCEPT_LOSS):
        return Learner(replace(config, run_dir=state_dir(Path(config.resume)))).start()
    if config.resume != NEVER and config.durable and has_state(config.run_dir):
        return Learner(config).start()
    with fresh_run_dir(config.run_dir) as run_dir:
        return Learner(replace(config, run_dir=run_dir)).start()


def warm_up(algorithm: str) -> None:
    """Import an algorithm, which usually imports torch, before the learner needs it.

    The import runs in a separate thread. In the main thread, a signal could leave torch half imported while the gateway still
    runs.
    """
    failures: list[Exception] = []

    def load() -> None:
        try:
            ALGORITHMS.get(algorithm).load()
        except Exception as exc:  # noqa: BLE001  # raised below, in the caller's thread
            failures.append(exc)

    thread = threading.Thread(target=load, name="import-torch", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
    if failures:
        if isinstance(failures[0], ConfigError):
            raise failures[0]
        raise ConfigError(f"algorithm {algorithm} cannot be imported ({failures[0]}); reinstall its packages") from failures[0]
