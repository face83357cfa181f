"""The learner as a user holds it: start it, ask it, close it."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Self, TypeVar

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery import MemoryJournal
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal_loss import Loss
from rl4sys_zmq.errors import CheckpointError, Closed, ConfigError, LearnerUnavailable, MemoryExceeded
from rl4sys_zmq.learner.gateway import Gateway
from rl4sys_zmq.learner.memory_watch import MemoryWatch
from rl4sys_zmq.learner.operator import DROP_ACTOR, FORGET, GIVE_UP, RESTART
from rl4sys_zmq.learner.recorder import EventSink, NullEventSink, Recorder
from rl4sys_zmq.learner.resume import CHECKPOINTS, JOURNAL, Rollback, go_back, open_journal
from rl4sys_zmq.learner.run_paths import tidy
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.private import others_can_write
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security import AccessList, Authenticator
from rl4sys_zmq.wire.messages import Command

__all__ = ["Learner"]

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 60.0
RELIEF_S = 1.0

T = TypeVar("T")


class Learner(Resource):
    """A learner process in an object: one gateway thread, one learner thread per client, a recorder and a journal.

    ::

        with Learner(LearnerConfig(bind="inproc://lab", run_dir=None)) as learner:
            ...  # actors anywhere
            learner.wait(client_id="luna", version=3, timeout_s=30)

    Entering the block (or `start`) binds the sockets; leaving it drains and joins. With a run directory it goes on where the
    last learner there stopped (`LearnerConfig.resume`).

    Attributes:
        config: as given.
        resumed_clients: those that the run directory knew at the start.
        loss: what of the journal is gone, and was accepted (``resume: accept-loss``); None when nothing is.
        rollback: what going back to the checkpoint that ``config.resume`` names has undone; None when it names none.
    """

    def __init__(self, config: LearnerConfig | None = None) -> None:
        self.config = config if config is not None else LearnerConfig()
        self.rollback: Rollback | None = None
        self.loss: Loss | None = None
        self.resumed_clients: tuple[str, ...] = ()
        self._gateway: Gateway | None = None
        self._authenticator: Authenticator | None = None
        self._journal: DiskJournal | MemoryJournal | None = None
        self._recorder: Recorder | None = None
        self._memory: MemoryWatch | None = None
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Binds the sockets and starts the threads.

        Raises:
            AddressInUse, TransportError: when something else is bound there, or nothing can be.
            RunDirectoryError: when the run directory cannot be written.
            JournalLost: when the journal, or a part of it, is gone; ``resume: accept-loss`` goes on without it.
            JournalError, CheckpointError: when its state cannot be used, or another learner uses it.
            ConfigError: when a plugin cannot be imported, when the run directory needs an extra that is not installed, or when
                what it holds contradicts the configuration.
            Closed: when it was closed before.
        """
        with self._lock:
            if self._closed:
                raise Closed("this learner is closed; make a new one")
            if self._gateway is not None:
                return self
            import_plugins(self.config.plugins)
            sink: EventSink = NullEventSink()
            if self.config.run_dir is not None:
                self._recorder = sink = Recorder(self.config.run_dir, self.config.to_json())
            try:
                self._tidy(sink)
                self._journal, restored = open_journal(self.config, self._wake)
                self.loss = self._journal.loss if isinstance(self._journal, DiskJournal) else None
                if self.loss is not None:
                    sink.event("loss_accepted", **self.loss.figures())
                self.resumed_clients = tuple(row.client_id for row in restored.clients) if restored is not None else ()
                self.rollback = go_back(self.config)
                if self.config.keys is not None:
                    self._authenticator = Authenticator(self.config.keys, self.config.users_file)
                self._gateway = Gateway(self.config, sink, self._journal, restored, self._authenticator)
                self._gateway.warnings = self._others_can_write(sink)
                self._gateway.start()
                self._gateway.wait_open()
                if self._recorder is not None:
                    self._recorder.open()
                if self._authenticator is not None:
                    self._authenticator.open(self._change_access)
                if self.config.max_memory_bytes is not None:
                    self._memory = MemoryWatch(self.config.max_memory_bytes, self._relieve, self._gateway.stop)
                    self._memory.start()
            except BaseException:
                self._end()
                raise
            atexit.register(self.close)
        return self

    def __enter__(self) -> Self:
        return self.start()

    @property
    def address(self) -> str:
        """Where actors connect: a URI, with the port that was bound."""
        return self._running.address

    @property
    def pub_address(self) -> str:
        """Where the weights are published."""
        return self._running.pub_address

    @property
    def inference_address(self) -> str:
        """Where actors ask for actions (``inference: remote``)."""
        return self._running.inference_address

    def status(self) -> dict[str, Any]:
        """The state of all clients, their actors, queues, credit and verdicts, as a JSON document.

        Raises:
            LearnerUnavailable: when the gateway thread does not answer in time.
            Closed: when the learner is not running.
        """
        report = self._ask(self._running.status)
        if self._recorder is not None:
            report["recorder"] = self._recorder.counters.snapshot()
        return report

    def wait(self, *, client_id: str, version: int, timeout_s: float) -> int:
        """Waits until `client_id` has published `version` or a later one; returns its current version.

        Raises:
            ClientFailed: when its learner thread stopped.
            ConfigError: when it could not be built.
            LearnerUnavailable: when that takes longer than `timeout_s` seconds.
            Closed: when the learner is closed meanwhile.
        """
        gateway = self._running
        deadline = time.monotonic() + timeout_s
        with gateway.published:
            while True:
                weight_history = gateway.weight_history(client_id)
                if weight_history is not None and weight_history.version >= version:
                    return weight_history.version
                failure = gateway.failure(client_id)
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
        """The xxh3-64 digest of a version of the current generation.

        Raises:
            KeyError: when it was not published, or too many versions ago.
        """
        gateway = self._running
        with gateway.published:
            weight_history = gateway.weight_history(client_id)
            found = weight_history.digest_of(version) if weight_history is not None else None
        if found is None:
            raise KeyError(f"no digest of version {version} of client {client_id!r}")
        return found

    def save(self, *, timeout_s: float, partial: bool = False) -> None:
        """Writes a checkpoint of every running client now.

        Args:
            timeout_s: how long that may take.
            partial: each client first does an update with what waits for a full batch.

        Raises:
            CheckpointError: when one could not be written.
            LearnerUnavailable: when it takes longer.
            Closed: when the learner is not running.
        """
        gateway = self._running
        try:
            errors = self._ask(lambda: gateway.save(partial=partial)).result(timeout_s)
        except FutureTimeout:
            raise LearnerUnavailable(gateway.address, "its checkpoints", timeout_s) from None
        if errors:
            client_id, error = next(iter(errors.items()))
            raise CheckpointError(f"client {client_id}", error)

    def drain(self, *, timeout_s: float) -> None:
        """Trains until nothing that was accepted is pending, the last partial batches too, and writes checkpoints.

        Actors may go on; then it ends at a moment at which they had nothing on its way.

        Raises:
            CheckpointError, LearnerUnavailable, Closed: as `save` does.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.save(timeout_s=max(0.0, deadline - time.monotonic()), partial=True)
            clients = self.status()["clients"].values()
            left = sum(c["pending"] for c in clients if c["state"] == "running")
            if not left and not any(c["resuming"] for c in clients):
                return
            if time.monotonic() >= deadline:
                raise LearnerUnavailable(self.address, f"{left} segments to be trained on", timeout_s)

    def restart(self, client_id: str, *, give_up_pending: bool = False) -> None:
        """Gives a client, failed or not, a new learner thread, in a new generation.

        With checkpoints it goes back to the newest, and is fed again what came since. Without, it starts afresh, and what was
        accepted and not yet trained is counted as rolled back.

        Args:
            client_id: whose.
            give_up_pending: does not feed it again what came since the checkpoint, which is counted as rolled back: for an
                algorithm that fails on just that.

        Raises:
            ConfigError: when there is no such client.
            LearnerUnavailable, Closed: as `status` does.
        """
        gateway = self._running
        command = Command(GIVE_UP if give_up_pending else RESTART, client_id)
        begun = self._ask(lambda: gateway.do(command))
        error = begun.exception() if begun.done() else None
        if isinstance(error, ConfigError):  # a client that fails again is for `wait` to tell
            raise error

    def forget(self, client_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Removes a client: its learner thread, its rows in the journal. Its checkpoints are put aside (``NUMBER.abandoned``).

        Its actors are sent away; the next one that joins founds the client anew, under the same name if it likes.

        Args:
            client_id: which.
            timeout_s: how long that may take, in seconds: a learner thread that is in an update is waited for.

        Returns:
            How many segments were ``accepted``, how many of them were ``pending`` and are gone, how many ``actors`` it had, and,
            with a run directory, how many ``checkpoints`` were put aside.

        Raises:
            ConfigError: when there is no such client.
            CheckpointError: when its checkpoints can't be put aside; then the client is there still, and has failed.
            LearnerUnavailable: when it takes longer; it goes on.
            Closed: when the learner is closed.
        """
        return self._command(Command(FORGET, client_id), timeout_s)

    def drop_actor(self, client_id: str, actor_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Drops the record of an actor: it fences off no incarnation, has no place and no owner any more, and may join again.

        What was accepted of it stays, and what is pending will be trained on. Its marks are kept until then; should it come
        back before, it goes on where it was. A spool that comes back later may bring again what its actor was never told of.

        Args:
            client_id: whose.
            actor_id: which.
            timeout_s: how long that may take, in seconds.

        Returns:
            How many ``streams`` it had, whether it was ``live`` (1 or 0), and how many segments are ``pending``.

        Raises:
            ConfigError: when there is no such client or actor.
            LearnerUnavailable: when it takes longer; it goes on.
            Closed: when the learner is closed.
        """
        return self._command(Command(DROP_ACTOR, client_id, actor_id), timeout_s)

    def _command(self, command: Command, timeout_s: float) -> dict[str, Any]:
        gateway = self._running
        begun = self._ask(lambda: gateway.do(command))
        try:
            return begun.result(timeout_s).figures
        except FutureTimeout:
            raise LearnerUnavailable(gateway.address, f"{command.command} to be done", timeout_s) from None

    def raise_if_dead(self) -> None:
        """Surfaces the death of a thread of ours.

        Raises:
            MemoryExceeded: when its process holds more than `LearnerConfig.max_memory_bytes`, and nothing has helped.
            WorkerDied: when the gateway, the journal or the recorder ended with an exception.
        """
        self._running.raise_if_dead()
        if self._memory is not None:
            if isinstance(self._memory.error, MemoryExceeded):
                raise self._memory.error
            self._memory.raise_if_dead()
        if self._authenticator is not None:
            self._authenticator.raise_if_dead()
        if isinstance(self._journal, DiskJournal):
            self._journal.raise_if_dead()
        if self._recorder is not None:
            self._recorder.raise_if_dead()

    def close(self) -> None:
        """Stops taking data, lets the learner threads finish what is in hand, and joins them, within ``shutdown_timeout_s``.

        A learner thread that is busy even then is waited for when the process ends. Called by itself at that time, at the latest.
        """
        with self._lock:
            self._closed = True
            self._end()
        atexit.unregister(self.close)

    def _end(self) -> None:
        gateway, recorder, journal, memory = self._gateway, self._recorder, self._journal, self._memory
        self._gateway = self._recorder = self._journal = self._memory = None
        authenticator, self._authenticator = self._authenticator, None
        if memory is not None:
            memory.stop()
        deadline = time.monotonic() + self.config.shutdown_timeout_s
        if gateway is not None:
            gateway.stop()
            if not gateway.join_all(deadline):
                log.warning(
                    "a learner thread is still busy after %g s; the process waits for it at its end",
                    self.config.shutdown_timeout_s,
                )
                for thread in gateway.learner_threads():
                    atexit.register(thread.join, EXIT_TIMEOUT_S)  # torch aborts a process that ends under its feet
        if memory is not None:
            memory.join(RELIEF_S)
        if authenticator is not None:
            authenticator.close()
        if journal is not None:
            journal.stop()
            journal.join(max(0.5, deadline - time.monotonic()))
        if recorder is not None:
            recorder.stop()
            recorder.join(max(0.5, deadline - time.monotonic()))

    def _tidy(self, sink: EventSink) -> None:
        """Moves what an earlier version left in the way, and says so."""
        if self.config.run_dir is not None:
            for source, target in tidy(self.config.run_dir):
                sink.event("moved", source=source, target=target)

    def _others_can_write(self, sink: EventSink) -> tuple[str, ...]:
        """What of the run directory others may change, said once."""
        if self.config.run_dir is None:
            return ()
        found = others_can_write(*(self.config.run_dir / name for name in ("", JOURNAL, CHECKPOINTS)))
        for warning in found:
            log.warning("%s", warning)
            sink.event("others_can_write", warning=warning)
        return tuple(found)

    def _change_access(self, access: AccessList) -> None:
        gateway = self._gateway
        if gateway is not None:
            with suppress(Closed):
                gateway.call(lambda: gateway.change_access(access))

    def _relieve(self, everybody: bool) -> int:
        """Has the gateway thread end connections; 0 where it does not answer."""
        gateway = self._gateway
        if gateway is None:
            return 0
        try:
            return gateway.call(lambda: gateway.relieve(everybody=everybody)).result(RELIEF_S)
        except FutureTimeout:
            return 0

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
