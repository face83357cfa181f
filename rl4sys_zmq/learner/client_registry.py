"""The clients of a learner: founding, failing, restarting, and the learner threads that come and go with that."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery import Journal, Restored, StreamTable
from rl4sys_zmq.errors import ClientFailed, ConfigError, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.learner.admission import ClientSettings, restore_configuration, settle_configuration
from rl4sys_zmq.learner.client import Client, ClientState
from rl4sys_zmq.learner.ports import Clock, Ports, WorkerPort
from rl4sys_zmq.learner.weight_history import WeightHistory
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.wire.messages import Failed, Hello

__all__ = ["SILENCE_S", "ClientRegistry"]

log = logging.getLogger(__name__)

SILENCE_S = 3.0
"""After how long an actor that says nothing is no longer live, in seconds."""

MAX_STILLBORN = 64
MAX_TOLD_GENERATION = 1 << 62
"""The highest generation that a new client takes from its first actor's word."""


class ClientRegistry:
    """All clients, by name and by the key that their learner thread speaks under. Changed by the core's thread only."""

    def __init__(self, config: LearnerConfig, journal: Journal, ports: Ports) -> None:
        """Makes an empty client registry.

        Args:
            config: the learner's.
            journal: where the clients' segments are.
            ports: where learner threads and the time come from.
        """
        self._config, self._journal, self._ports = config, journal, ports
        self._clients: dict[str, Client] = {}
        self._by_key: dict[bytes, Client] = {}
        self._stillborn: dict[str, str] = {}
        self._leaving: dict[str, Client] = {}
        self._retired: list[WorkerPort] = []
        self._policy_ids = itertools.count(1)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def get(self, client_id: str) -> Client | None:
        """The client of this name."""
        return self._clients.get(client_id)

    @property
    def full(self) -> bool:
        """There are as many clients as there may be."""
        return len(self._clients) >= self._config.max_clients

    def by_topic(self, topic: bytes) -> Client | None:
        """The client whose weights have this topic."""
        return next((client for client in self._clients.values() if client.topic == topic), None)

    def speaking(self, key: bytes) -> Client | None:
        """The client whose learner thread speaks under this key; None for an earlier life of one."""
        return self._by_key.get(key)

    def workers(self) -> list[WorkerPort]:
        """Return all learner threads that may still run."""
        return [*self._retired, *(worker for client in (*self, *self._leaving.values()) for worker in client.workers)]

    def failure(self, client_id: str) -> RL4SysError | None:
        """Why a client has stopped, or could not be built; None when neither is so."""
        client = self._clients.get(client_id)
        if client is not None:
            return ClientFailed(client_id, client.error) if client.error else None
        error = self._stillborn.get(client_id)
        return ConfigError(f"client {client_id!r} could not be built: {error}", key="algorithm_parameters") if error else None

    def found(self, hello: Hello) -> Client:
        """Makes the client that an actor names for the first time, and starts its learner thread.

        Raises:
            ConfigError: when its configuration cannot be settled.
            ProtocolError: ``QUOTA`` when there are too many, ``CONFLICT`` while one of this name is being forgotten.
        """
        if hello.client_id in self._leaving:
            raise ProtocolError(Refusal.CONFLICT, f"client {hello.client_id!r} is being forgotten")
        if self.full:
            limit = self._config.max_clients
            raise ProtocolError(Refusal.QUOTA, f"this learner has {limit} clients already (max_clients)")
        client = self._make(settle_configuration(self._config, hello), min(hello.held_generation, MAX_TOLD_GENERATION))
        self._clients[hello.client_id] = client
        self._stillborn.pop(hello.client_id, None)
        try:
            self._start(client)
        except BaseException:
            client.end_thread()
            del self._clients[hello.client_id]
            raise
        return client

    def restore(self, restored: Restored) -> None:
        """Makes the clients that the journal remembers, and starts their learner threads.

        Raises:
            ConfigError: when the configuration of one contradicts what it was.
        """
        now = self._ports.clock.monotonic()
        for row in restored.clients:
            client = self._make(restore_configuration(self._config, row.client_id, row.settings), row.generation)
            client.known = True
            client.accepted, client.gap = row.accepted, row.gap
            client.table.expired = row.expired
            client.table.restore((s for s in restored.streams if s.client_id == row.client_id), now)
            self._clients[row.client_id] = client
            self._start(client)

    def _make(self, settings: ClientSettings, last_generation: int) -> Client:
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
        clock = self._ports.clock
        return Client(settings, policy_id, _generation(last_generation, clock), table, folder, clock)

    def fail(self, client: Client, message: Failed) -> bool:
        """Stops a client on its learner thread's last words; True when it had never worked, and is forgotten.

        Then the next actor may say better what it is.
        """
        # A configuration that cannot be used is its user's mistake: one line. Anything else wants its trace.
        trace = "" if message.error.startswith(f"{ConfigError.__name__}:") else f"\n{message.trace}"
        log.error("client %s failed: %s%s", client.client_id, message.error, trace)
        self._by_key.pop(client.key, None)
        client.state, client.error = ClientState.FAILED, message.error
        client.end_thread()
        if client.known or client.life > 1:
            return False
        self._retired = [worker for worker in (*self._retired, *client.workers) if worker.alive]
        del self._clients[client.client_id]
        self._stillborn[client.client_id] = message.error
        while len(self._stillborn) > MAX_STILLBORN:
            del self._stillborn[next(iter(self._stillborn))]
        return True

    def restart(self, client: Client, *, give_up_pending: bool) -> int:
        """Gives a client a new learner thread and a new generation; returns how many segments were rolled back by now.

        With `give_up_pending` the journal gives up what is pending before the new thread is fed.
        """
        self._by_key.pop(client.key, None)
        client.end_thread(replaced=True)
        if give_up_pending:
            self._journal.drop_entries(client.client_id)
        rolled_back = 0 if self._journal.durable else client.roll_back()
        client.weight_history = WeightHistory(_generation(client.weight_history.generation, self._ports.clock))
        self._start(client)
        return rolled_back

    def detach(self, client: Client) -> None:
        """Ends a client: its learner thread is told to stop, and to write nothing more. The name is taken until `release`."""
        self._by_key.pop(client.key, None)
        client.end_thread(replaced=True)
        del self._clients[client.client_id]
        self._leaving[client.client_id] = client

    def release(self, client: Client) -> None:
        """Another client may have the name of one that was detached."""
        del self._leaving[client.client_id]
        self._retired = [worker for worker in (*self._retired, *client.workers) if worker.alive]

    def put_back(self, client: Client, error: str) -> None:
        """A client that was detached is there again, as one that has failed."""
        del self._leaving[client.client_id]
        client.state, client.error = ClientState.FAILED, error
        self._clients[client.client_id] = client

    def _start(self, client: Client) -> None:
        client.start(self._ports, self._config, self._journal)
        self._by_key[client.key] = client


def _generation(last: int, clock: Clock) -> int:
    """Return a new generation: the Unix time in ms, or one more than the last, so that it only grows."""
    return max(last + 1, int(clock.unix() * 1000))
