"""The registry of a learner's clients: it creates, fails, restarts and removes them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.credit import CreditAllocator
from rl4sys_zmq.delivery.journal import JournalContent
from rl4sys_zmq.delivery.table import StreamTable
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.errors import ClientFailed, ConfigError, ProtocolError, RefusalReason, RL4SysError
from rl4sys_zmq.interfaces import Journal, WorkerHandle
from rl4sys_zmq.learner.gateway.admission import ClientSettings, resolve_configuration
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.restored import GIVEN_UP, RestoredClient, restore_configuration
from rl4sys_zmq.liveness import SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.wire.messages import Hello
from rl4sys_zmq.wire.thread_messages import ThreadFailed

log = get_logger(__name__)

MAX_STILLBORN = 64
"""Largest number of errors that are kept for clients that failed before they were ready."""

MAX_REPORTED_GENERATION = 1 << 62
"""Limit on the generation that the first actor of a new client reports in its HELLO. The client begins with a higher one."""


class ClientRegistry:
    """The clients of a learner, by name and by the key of their worker. Only the gateway thread changes the registry.

    Attributes:
        published: A condition that is held while clients or policy versions change, and then notified. Another thread must hold
            it to read them.
    """

    def __init__(self, config: LearnerConfig, journal: Journal, callbacks: CoreCallbacks) -> None:
        self._config, self._journal, self._callbacks = config, journal, callbacks
        self.published = threading.Condition()
        self._clients: dict[str, ClientState] = {}
        self._by_key: dict[bytes, ClientState] = {}
        self._build_errors: dict[str, str] = {}
        self._detached: dict[str, ClientState] = {}
        self._retired: list[WorkerHandle] = []
        self._policy_ids = itertools.count(1)
        self._newest_generation = 0

    def __iter__(self) -> Iterator[ClientState]:
        return iter(list(self._clients.values()))

    def get(self, client_id: str) -> ClientState | None:
        """Return the client with this name, or None."""
        return self._clients.get(client_id)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold `published` during a change of clients or policy versions, and notify the threads that wait for a change."""
        with self.published:
            yield
            self.published.notify_all()

    @property
    def full(self) -> bool:
        """True if the learner has as many clients as `max_clients` allows."""
        return len(self._clients) >= self._config.max_clients

    def by_key(self, key: bytes) -> ClientState | None:
        """Return the client whose current worker has this key, or None."""
        return self._by_key.get(key)

    def workers(self) -> list[WorkerHandle]:
        """Return the handles of all learner threads that can still be running, including those of removed clients."""
        clients = (*self, *self._detached.values())
        return [*self._retired, *(handle for client in clients for handle in client.worker.handles)]

    def failure(self, client_id: str) -> RL4SysError | None:
        """Return the error that stopped a client or prevented its creation, or None if there is none."""
        client = self._clients.get(client_id)
        if client is not None:
            return ClientFailed(client_id, client.error) if client.error else None
        error = self._build_errors.get(client_id)
        return ConfigError(f"client {client_id!r} could not be built: {error}", key="algorithm_parameters") if error else None

    def create(self, hello: Hello) -> ClientState:
        """Create a client because its first actor has requested a session (`hello`), and start its learner thread."""
        if hello.client_id in self._detached:
            raise ProtocolError(
                RefusalReason.CONFLICT, f"client {hello.client_id!r} is being forgotten; join again when that is done"
            )
        if self.full:
            limit = self._config.max_clients
            raise ProtocolError(RefusalReason.QUOTA, f"this learner already has {limit} clients; raise max_clients to allow more")
        # Above the generations of all earlier clients: one of this name can have claimed the folder of the checkpoints.
        last = max(self._newest_generation, min(hello.held_generation, MAX_REPORTED_GENERATION))
        client = self._make(resolve_configuration(self._config, hello), last)
        self._clients[hello.client_id] = client
        self._build_errors.pop(hello.client_id, None)
        try:
            self._start(client)
        except BaseException:
            client.worker.end()
            del self._clients[hello.client_id]
            raise
        return client

    def restore(self, restored: JournalContent, rolled_back: str = "") -> list[RestoredClient]:
        """Create the clients that an earlier run has recorded, and start their learner threads.

        `rolled_back` is the id of the client that was returned to an earlier checkpoint; empty for none.
        """
        now = self._callbacks.monotonic()
        clients = [restore_configuration(self._config, row.client_id, row.settings) for row in restored.clients]
        for row, earlier in zip(restored.clients, clients, strict=True):
            client = self._make(earlier.settings, row.generation)
            client.known = True
            asked = row.settings.get(GIVEN_UP) or row.client_id == rolled_back
            client.replay.rollback_asked = bool(asked or self._config.resume == "accept-loss")
            client.books.accepted, client.books.gap = row.accepted, row.gap
            client.table.expired = row.expired
            client.table.restore((s for s in restored.streams if s.client_id == row.client_id), now)
            self._clients[row.client_id] = client
            self._start(client)
        return clients

    def _make(self, settings: ClientSettings, last_generation: int) -> ClientState:
        config, client_id = self._config, settings.client_id
        table = StreamTable(
            client_id,
            silence_s=SILENCE_S,
            lease_s=config.lease_s,
            max_actors=config.max_actors,
            journal_id=self._journal.journal_id,
        )
        folder = ""
        if self._journal.durable and config.run_dir is not None:
            folder = str(config.run_dir / "checkpoints" / folder_name(client_id))
        policy_id = next(self._policy_ids).to_bytes(8, "little")
        return ClientState(settings, policy_id, self._generation_after(last_generation), table, folder, self._callbacks)

    def fail(self, client: ClientState, message: ThreadFailed) -> bool:
        """Stop a client whose learner thread has failed. Return True if the client was removed.

        A client that was never ready is removed, so that the next actor can create it with a corrected configuration.
        """
        # A configuration error needs one log line only. Other errors need their trace.
        trace = f"\n{message.trace}" if message.trace else ""
        log.error("client %s failed: %s%s", client.client_id, message.error, trace)
        self._by_key.pop(client.worker.key, None)
        client.state, client.error = LearnerThreadState.FAILED, message.error
        client.worker.end()
        if client.known or client.worker.starts > 1:
            return False
        self._retire(client)
        del self._clients[client.client_id]
        self._build_errors[client.client_id] = message.error
        while len(self._build_errors) > MAX_STILLBORN:
            del self._build_errors[next(iter(self._build_errors))]
        return True

    def restart(self, client: ClientState, *, give_up_pending: bool) -> int:
        """Replace the learner thread of a client. Return the number of segments that are rolled back.

        With `give_up_pending`, these include the accepted segments that the checkpoint does not cover.
        """
        self._by_key.pop(client.worker.key, None)
        client.worker.end(replaced=True)
        client.replay.rollback_asked = give_up_pending
        if give_up_pending:
            self._journal.drop_entries(client.client_id)
        rolled_back = 0 if self._journal.durable else client.roll_back()
        client.publishing.history = WeightHistory(self._generation_after(client.publishing.history.generation))
        self._start(client)
        return rolled_back

    def suspend(self, client: ClientState, crash: str) -> bool:
        """Record a crash of a client's worker, described by `crash`. Return False if no other worker is to be started.

        The client is in the state ``starting`` until the next worker is ready.
        """
        self._by_key.pop(client.worker.key, None)
        restarts = client.worker.crashed(crash, ready=client.state is LearnerThreadState.RUNNING)
        # Pages that the journal still reads are for the worker that has crashed.
        client.replay.token, client.replay.page_after = 0, None
        if restarts:
            client.state = LearnerThreadState.STARTING
        return restarts

    def detach(self, client: ClientState) -> None:
        """Remove a client, and end its learner thread without a checkpoint.

        Its name stays reserved until `release` or `put_back`, because its checkpoints may have to be renamed first.
        """
        self._by_key.pop(client.worker.key, None)
        client.worker.end(replaced=True)
        del self._clients[client.client_id]
        self._detached[client.client_id] = client

    def release(self, client: ClientState) -> None:
        """Release the name of a client that `detach` has removed, so that a new client can have the name."""
        del self._detached[client.client_id]
        self._retire(client)

    def put_back(self, client: ClientState, error: str) -> None:
        """Restore a client that `detach` has removed, in the state ``failed`` with this error, because the removal failed."""
        del self._detached[client.client_id]
        client.state, client.error = LearnerThreadState.FAILED, error
        self._clients[client.client_id] = client

    def _retire(self, client: ClientState) -> None:
        self._retired = [handle for handle in (*self._retired, *client.worker.handles) if handle.alive]

    def _start(self, client: ClientState) -> None:
        """Start a new learner thread for a client."""
        publishing, journal = client.publishing, self._journal
        client.replay.token, client.replay.page_after = client.worker.starts + 1 if journal.durable else 0, None
        client.state, client.error = LearnerThreadState.STARTING, ""
        client.pool = CreditAllocator()
        if self._config.relays and not publishing.tag_key:
            publishing.start_tagging()
        assign = client.settings.assign(
            publishing.policy_id,
            publishing.history.generation,
            self._config,
            checkpoints=client.checkpoints.folder,
            journal_id=journal.journal_id,
            near=publishing.near,
        )
        client.worker.start(assign, self._callbacks.start_worker)
        self._by_key[client.worker.key] = client
        self._newest_generation = max(self._newest_generation, client.publishing.history.generation)

    def _generation_after(self, last: int) -> int:
        """Return the generation of a new learner thread: the Unix time in ms, but at least `last` + 1."""
        return max(last + 1, int(self._callbacks.unix() * 1000))
