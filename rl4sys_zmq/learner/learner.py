"""The public class `Learner`, which trains policies on the data of remote actors."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from typing import Any, Self, TypeVar

from rl4sys_zmq import native
from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.config.options import TIMEOUT_S, check_value
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import MemoryJournal
from rl4sys_zmq.delivery.journal_marks import JournalLoss
from rl4sys_zmq.errors import CheckpointError, Closed, ConfigError, LearnerUnavailable
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.learner.engines.base import check_engines
from rl4sys_zmq.learner.gateway.gateway import RELIEF_S, Gateway
from rl4sys_zmq.learner.gateway.operator import DROP_ACTOR, FORGET, GIVE_UP, RESTART, SET
from rl4sys_zmq.learner.run.alarm_messages import AlarmSender
from rl4sys_zmq.learner.run.history import HistorySink
from rl4sys_zmq.learner.run.log_files import newest_records
from rl4sys_zmq.learner.run.recorder import COMMENT, EventSinks, NullEventSink, Recorder
from rl4sys_zmq.learner.run.resume import (
    CHECKPOINTS,
    JOURNAL,
    RollbackSummary,
    move_misplaced,
    open_journal,
    return_to_checkpoint,
)
from rl4sys_zmq.learner.run.run_loggers import LoggerThread, close_s, describe_run, logger_classes
from rl4sys_zmq.learner.run.system import SystemThread
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.memory_watch import MemoryLimitThread
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.private import others_can_write
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security.authenticator import Authenticator
from rl4sys_zmq.wire.messages import OperatorCommand

log = get_logger(__name__)

CALL_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 60.0
HISTORY_BYTES = 1 << 22
"""The length of the end of the log with which the history begins, in bytes."""

T = TypeVar("T")


class Learner(Resource):
    """A learner, which receives segments from actors, trains one policy for each client, and publishes the weights.

    The learner runs a gateway thread, one learner thread for each client, a journal, and, with a run directory, a recorder.

    ::

        with Learner(LearnerConfig(bind="inproc://lab", run_dir=None)) as learner:
            ...  # actors connect from any process
            learner.wait(client_id="luna", version=3, timeout_s=30)

    Entering the block (or `start`) binds the sockets. Leaving it (or `close`) stops and joins the threads. With a run
    directory, the learner continues where the last learner in that directory stopped (see `LearnerConfig.resume`).

    Attributes:
        config: The configuration.
        resumed_clients: The clients that were in the run directory at the start.
        start_notes: Lines of text for a person about parameters in which the configuration differs from the earlier run.
        loss: The missing part of the journal, if the learner was started without it (``resume: accept-loss``); else None.
        rollback: What was undone to return to an earlier checkpoint; None unless ``config.resume`` names a checkpoint.
    """

    def __init__(self, config: LearnerConfig | None = None) -> None:
        self.config = config if config is not None else LearnerConfig()
        self.rollback: RollbackSummary | None = None
        self.loss: JournalLoss | None = None
        self.resumed_clients: tuple[str, ...] = ()
        self.start_notes: tuple[str, ...] = ()
        self._gateway: Gateway | None = None
        self._authenticator: Authenticator | None = None
        self._journal: DiskJournal | MemoryJournal | None = None
        self._recorder: Recorder | None = None
        self._alarms: AlarmSender | None = None
        self._loggers: list[LoggerThread] = []
        self._memory: MemoryLimitThread | None = None
        self._system: SystemThread | None = None
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Bind the sockets and start the threads.

        Raises:
            AddressInUse: If another socket is bound to the address.
            TransportError: If the address cannot be bound, or the Ray cluster cannot be reached.
            RunDirectoryError: If the run directory cannot be written.
            JournalLost: If the journal or a part of it is missing. With ``resume: accept-loss``, the learner starts without the
                missing part.
            JournalError, CheckpointError: If the saved state cannot be used, or another learner uses it.
            ConfigError: If a plugin cannot be imported, if the run directory needs an extra that is not installed, or if the
                saved state contradicts the configuration.
            Closed: If this learner was closed before.
            WorkerDied: If an unexpected error has ended the gateway thread during the start.
        """
        with self._lock:
            if self._closed:
                raise Closed("this learner is closed; create a new one")
            if self._gateway is not None:
                return self
            self._pid = os.getpid()
            import_plugins(self.config.plugins)
            native.default()  # a wrong word in the environment is an error here, and not with the first message
            check_engines(self.config)
            if self.config.ignored:
                log.warning("keys without a meaning for the learner are ignored: %s", ", ".join(self.config.ignored))
            sink, history = self._sinks()
            try:
                self._journal, restored = open_journal(self.config, self._wake)
                self.loss = self._journal.loss if isinstance(self._journal, DiskJournal) else None
                if self.loss is not None:
                    sink.event("loss_accepted", **self.loss.figures())
                self.resumed_clients = tuple(row.client_id for row in restored.clients) if restored is not None else ()
                self.rollback = return_to_checkpoint(self.config)
                if self.config.keys is not None:
                    self._authenticator = Authenticator(self.config.keys, self.config.users_file)
                self._gateway = gateway = Gateway(self.config, sink, history, self._journal, restored, self._authenticator)
                gateway.warnings = self._others_can_write(sink)
                gateway.rolled_back = self.rollback.client_id if self.rollback is not None else ""
                gateway.start()
                gateway.wait_open()
                self.start_notes = tuple(gateway.core.start_notes)
                if self._recorder is not None:
                    self._recorder.open()
                if self._alarms is not None:
                    self._alarms.start()
                for logger in self._loggers:
                    logger.start()
                if self._authenticator is not None:
                    self._authenticator.open(gateway.change_access)
                if self.config.max_memory_bytes is not None:
                    self._memory = MemoryLimitThread(self.config.max_memory_bytes, gateway.relieve, gateway.stop)
                    self._memory.start()
                if self.config.system_every_s:
                    self._system = SystemThread(self.config.system_every_s, self.config.run_dir, gateway.note_system)
                    self._system.start()
            except BaseException:
                self._end()
                raise
            atexit.register(self.close)
        return self

    def _sinks(self) -> tuple[EventSinks, HistorySink]:
        """Create everything that records the run, without any thread. Return all of it as one sink, and the history in it."""
        run_dir, loggers = self.config.run_dir, logger_classes(self.config)
        moved = move_misplaced(run_dir) if run_dir is not None else []
        if run_dir is not None or loggers:
            run = describe_run(self.config)
            self._loggers = [LoggerThread(name, logger, run) for name, logger in loggers.items()]
            if run_dir is not None:
                self._recorder = Recorder(run_dir, {**self.config.to_json(), COMMENT: {"id": run.run_id, "commit": run.commit}})
        if self.config.alarms is not None:
            self._alarms = AlarmSender(self.config.alarms, run_dir)
        history = HistorySink(newest_records(run_dir, HISTORY_BYTES) if run_dir is not None else ())
        parts = (self._recorder or NullEventSink(), history, self._alarms, *self._loggers)
        sink = EventSinks([part for part in parts if part is not None])
        for source, target in moved:
            sink.event("moved", source=source, target=target)
        return sink, history

    def __enter__(self) -> Self:
        return self.start()

    @property
    def address(self) -> str:
        """The URI that actors connect to. If the configured port is 0, this has the port that the system chose."""
        return self._running.address

    @property
    def pub_address(self) -> str:
        """The URI of the socket that publishes the weights."""
        return self._running.pub_address

    @property
    def inference_address(self) -> str:
        """The URI of the inference service, for actors that let the learner compute their actions (``inference: remote``)."""
        return self._running.inference_address

    def status(self) -> dict[str, Any]:
        """Return the state of the learner as a JSON document, the same as the command ``status`` shows.

        Raises:
            LearnerUnavailable: If the gateway thread does not answer within `CALL_TIMEOUT_S` seconds.
            Closed: If the learner is not running.
        """
        report = self._ask(self._running.status)
        if self._recorder is not None:
            report["recorder"] = self._recorder.counters.snapshot()
        report["alarm_messages"] = self._alarms.counters.snapshot() if self._alarms is not None else {}
        report["loggers"] = {logger.title: logger.counters.snapshot() for logger in self._loggers}
        return report

    def wait(self, *, client_id: str, version: int, timeout_s: float) -> int:
        """Wait until the weights of a policy version or a later one are published, and return the newest version number.

        Args:
            client_id: The client, which names the policy. It need not exist at the time of the call.
            version: The policy version to wait for.
            timeout_s: Longest time to wait, in seconds.

        Raises:
            ClientFailed: If the client's learner thread failed.
            ConfigError: If the client's algorithm could not be built.
            LearnerUnavailable: If the version is not published within `timeout_s` seconds.
            Closed: If the learner is closed during the wait.
        """
        gateway = self._running
        deadline = time.monotonic() + check_value("timeout_s", timeout_s, TIMEOUT_S)
        with gateway.published:
            while True:
                weight_history = gateway.weight_history(client_id)
                if weight_history is not None and weight_history.version >= version:
                    return weight_history.version
                failure = gateway.core.registry.failure(client_id)
                if failure is not None:
                    raise failure
                if self._closed or not gateway.alive:
                    raise Closed("the learner was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    held = "nothing" if weight_history is None else f"version {weight_history.version}"
                    raise LearnerUnavailable(
                        gateway.address, f"version {version} of client {client_id!r}; it has {held}", timeout_s
                    )
                gateway.published.wait(min(left, 0.5))

    def digest(self, client_id: str, version: int) -> int:
        """Return the digest (xxh3-64 checksum of all weights) of a policy version.

        Args:
            client_id: The client, which names the policy.
            version: Number of a version that the client's current learner thread has published.

        Raises:
            KeyError: If this learner thread has not published the version, or its digest is no longer kept.
            Closed: If the learner is not running.
        """
        gateway = self._running
        with gateway.published:
            weight_history = gateway.weight_history(client_id)
            digest = weight_history.digest_of(version) if weight_history is not None else None
        if digest is None:
            raise KeyError(f"no digest is kept for version {version} of client {client_id!r}")
        return digest

    def policy(self, client_id: str) -> StoredPolicy:
        """Return the newest published version of a policy, with the training that it comes from.

        Raises:
            ConfigError: If there is no such client, or it has published no version.
            LearnerUnavailable, Closed: Under the same conditions as in `status`.
        """
        core = self._running.core

        def find() -> StoredPolicy:
            client = core.registry.get(client_id)
            if client is None or client.publishing.history.version < 0:
                raise ConfigError(f"client {client_id!r} has published no version; wait for one", key="client_id")
            return client.stored_policy()

        return self._ask(find)

    def save(self, *, timeout_s: float, partial: bool = False) -> None:
        """Write a checkpoint of every running client now.

        Args:
            timeout_s: Longest time to wait, in seconds.
            partial: True to let each client first train on its incomplete batch.

        Raises:
            CheckpointError: If a checkpoint could not be written.
            LearnerUnavailable: If the checkpoints are not complete within `timeout_s` seconds.
            Closed: If the learner is not running.
        """
        gateway = self._running
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        asked = self._ask(lambda: gateway.core.dispatcher.save(partial=partial))
        if wait_for(asked.values(), timeout_s).not_done:
            raise LearnerUnavailable(gateway.address, "its checkpoints", timeout_s)
        for client_id, future in asked.items():
            if error := future.result():
                raise CheckpointError(f"client {client_id}", error)

    def drain(self, *, timeout_s: float) -> None:
        """Wait until every accepted segment is trained on, incomplete batches included, and write checkpoints.

        Actors can keep sending during the call. The call does not wait for clients that have failed.

        Args:
            timeout_s: Longest time to wait, in seconds.

        Raises:
            CheckpointError, LearnerUnavailable, Closed: Under the same conditions as in `save`.
        """
        gateway, deadline = self._running, time.monotonic() + check_value("timeout_s", timeout_s, TIMEOUT_S)
        while True:
            self.save(timeout_s=max(0.0, deadline - time.monotonic()), partial=True)
            clients = self.status()["clients"]
            starting = [name for name, client in clients.items() if client["state"] == "starting"]
            left = sum(client["pending"] for client in clients.values() if client["state"] == "running")
            if not starting and not left and not any(client["resuming"] for client in clients.values()):
                return
            if (remaining_s := deadline - time.monotonic()) <= 0:
                missing = f"the start of client {starting[0]!r}" if starting else f"{left} segments to be trained on"
                raise LearnerUnavailable(self.address, missing, timeout_s)
            if starting:  # it has no thread that `save` waits for
                with gateway.published:
                    gateway.published.wait(min(remaining_s, 0.05))

    def restart(self, client_id: str, *, give_up_pending: bool = False) -> None:
        """Replace the learner thread of a client that runs or has failed.

        With a run directory, the client continues from its newest checkpoint, and the segments accepted after that checkpoint
        are trained on again. Without one, training begins anew, and segments not trained on so far are rolled back.

        Args:
            client_id: The client.
            give_up_pending: True to roll back the segments accepted after the checkpoint, for an algorithm that fails on them.

        Raises:
            ConfigError: If there is no such client.
            LearnerUnavailable: If the gateway thread does not answer within `CALL_TIMEOUT_S` seconds.
            Closed: If the learner is not running.
        """
        gateway = self._running
        command = OperatorCommand(GIVE_UP if give_up_pending else RESTART, client_id)
        begun = self._ask(lambda: gateway.core.operator.do(command))
        error = begun.exception() if begun.done() else None
        if isinstance(error, ConfigError):  # if the client fails again, `wait` raises that
            raise error

    def forget(self, client_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Remove a client, and discard its pending segments.

        Its checkpoint folders are renamed to ``NUMBER.abandoned``. The sessions of its actors are closed. The next actor that
        joins with this `client_id` creates a new client without data.

        Args:
            client_id: The client.
            timeout_s: Longest time to wait, in seconds. This includes the rest of an update that is in progress.

        Returns:
            The numbers of segments (``accepted`` in all, and ``pending``), of ``actors``, and, with a run directory, of renamed
            ``checkpoints``.

        Raises:
            ConfigError: If there is no such client.
            CheckpointError: If the client's checkpoints cannot be renamed. The client then remains, in the state ``failed``.
            LearnerUnavailable: If the removal takes longer than `timeout_s`. It continues after the error.
            Closed: If the learner is closed.
        """
        return self._command(OperatorCommand(FORGET, client_id), timeout_s)

    def drop_actor(self, client_id: str, actor_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Close the session of an actor, and release its name, so that any process can join with this `actor_id` again.

        Normally the learner refuses an older incarnation of an actor, keeps a slot for the actor, and binds its name to one
        user. This call removes these three restrictions.

        The actor's pending segments will be trained on. Until then, an actor that returns continues the numbering of its
        segments. One that returns later with segments on disk can deliver a segment a second time, if the segment was accepted
        and the acknowledgement did not reach the actor.

        Args:
            client_id: The client.
            actor_id: The actor.
            timeout_s: Longest time to wait, in seconds.

        Returns:
            The numbers of ``streams``, of ``live`` streams (with an open session: 0 or 1), and of ``pending`` segments.

        Raises:
            ConfigError: If there is no such client or actor.
            LearnerUnavailable: If the command takes longer than `timeout_s`. It continues after the error.
            Closed: If the learner is closed.
        """
        return self._command(OperatorCommand(DROP_ACTOR, client_id, actor_id), timeout_s)

    def set_parameters(
        self, client_id: str, values: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, list[Any]]:
        """Change parameters of a client's algorithm. They are in force from the next update on, and survive a restart.

        Args:
            client_id: The client.
            values: New values by name.
            timeout_s: Longest time to wait, in seconds.

        Returns:
            For each parameter that has changed, a list of the old and the new value.

        Raises:
            ConfigError: If there is no such client, a parameter is unknown or cannot change in a running client, or a value is
                invalid.
            LearnerUnavailable: If the command takes longer than `timeout_s`. It continues after the error.
            Closed: If the learner is closed.
        """
        changes: dict[str, list[Any]] = self._command(OperatorCommand(SET, client_id, values=dict(values)), timeout_s)["changes"]
        return changes

    def _command(self, command: OperatorCommand, timeout_s: float) -> dict[str, Any]:
        gateway = self._running
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        begun = self._ask(lambda: gateway.core.operator.do(command))
        try:
            return begun.result(timeout_s).figures
        except FutureTimeout:
            raise LearnerUnavailable(gateway.address, f"the result of {command.command}", timeout_s) from None

    def raise_if_dead(self) -> None:
        """Raise the exception that ended one of the learner's threads. Do nothing if all threads run.

        Raises:
            MemoryExceeded: If the process uses more than `LearnerConfig.max_memory_bytes` and closing connections did not help.
            WorkerDied: If another thread ended with an exception: the gateway (network), the journal, the recorder (log and
                metrics) or the reader of the access list.
        """
        for part in (self._running, self._memory, self._authenticator, self._journal, self._recorder, self._alarms):
            if part is not None and not isinstance(part, MemoryJournal):
                part.raise_if_dead()

    def close(self) -> None:
        """Stop accepting data, let the learner threads finish their queues, and end all threads of the learner.

        If a learner thread is still busy after ``shutdown_timeout_s`` seconds, the exit of the process waits for it, at most
        `EXIT_TIMEOUT_S` seconds. The exit closes every learner that is still open. In a forked child, this does nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._end()
        atexit.unregister(self.close)

    def _end(self) -> None:
        gateway, recorder, journal, memory = self._gateway, self._recorder, self._journal, self._memory
        system, self._system = self._system, None
        self._gateway = self._recorder = self._journal = self._memory = None
        authenticator, self._authenticator = self._authenticator, None
        alarms, self._alarms = self._alarms, None
        loggers, self._loggers = self._loggers, []
        for thread in (memory, system):
            if thread is not None:
                thread.stop()
        deadline = time.monotonic() + self.config.shutdown_timeout_s
        if gateway is not None:
            gateway.stop()
            if not gateway.join_all(deadline):
                log.warning(
                    "a learner thread is still busy after %g s; the process waits for it when it exits",
                    self.config.shutdown_timeout_s,
                )
                for worker in gateway.core.registry.workers():
                    atexit.register(worker.join, EXIT_TIMEOUT_S)  # torch aborts a process that exits during an update
        if memory is not None:
            memory.join(RELIEF_S)
        if system is not None:
            system.join(RELIEF_S)
        if authenticator is not None:
            authenticator.close()
        for part in (alarms, journal, recorder):
            if part is not None:
                part.stop()
                part.join(max(0.5, deadline - time.monotonic()))
        for logger in loggers:
            logger.end([client.client_id for client in gateway.core.registry] if gateway is not None else [])
        for logger in loggers:
            if not logger.join(max(0.5, deadline + close_s(self.config) - time.monotonic())):
                log.warning("logger %s has not ended; it loses its last records", logger.title)

    def _others_can_write(self, sink: EventSink) -> tuple[str, ...]:
        """Log and return a warning for each part of the run directory that other users can write."""
        if self.config.run_dir is None:
            return ()
        warnings = others_can_write(*(self.config.run_dir / name for name in ("", JOURNAL, CHECKPOINTS)))
        for warning in warnings:
            log.warning("%s", warning)
            sink.event("others_can_write", warning=warning)
        return tuple(warnings)

    def _wake(self) -> None:
        gateway = self._gateway
        if gateway is not None:
            gateway.wake()

    def _ask(self, question: Callable[[], T]) -> T:
        gateway = self._running
        try:
            return gateway.call(question).result(CALL_TIMEOUT_S)
        except FutureTimeout:
            raise LearnerUnavailable(gateway.address, "its gateway thread", CALL_TIMEOUT_S) from None

    @property
    def _running(self) -> Gateway:
        if self._gateway is None:
            raise Closed("the learner is not running: use it in a with block, or call start()")
        return self._gateway
