"""The client of a simulated learner: its accounts are those in earnest; only its thread and its queues are the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl4sys_zmq.delivery import CreditPool, Entry, Ledger, StreamTable
from rl4sys_zmq.learner.admission import ClientSettings
from rl4sys_zmq.learner.client import Client
from rl4sys_zmq.testing.sim_disk import SimJournal, SlowLedger
from rl4sys_zmq.testing.sim_thread import SCHEMA, SimThread

__all__ = ["SETTINGS", "LearnerParts", "SimClient"]

QUEUE_ITEMS = 64
SETTINGS = ClientSettings("sim", "SIM", "onpolicy", {}, SCHEMA.observation_space, SCHEMA.action_space, 0, None, "drop", 0.0, None)


class SimClient(Client):
    """A client without sockets.

    Attributes:
        thread: its learner thread.
        slack_steps: steps that may come beyond the demand: what came without credit, was taken back, or was fed again.
    """

    thread: SimThread
    slack_steps = 0

    def begin(self, thread: SimThread, pool: CreditPool, *, durable: bool) -> None:
        """Gives it a (new) learner thread; in the place of `start`."""
        self.thread, self.pool, self.schema = thread, pool, SCHEMA
        self.life += 1
        self.replaying, self.page_after = self.life if durable else 0, None

    def shares(self, ledger_bytes: int) -> tuple[int, int]:
        """A small queue."""
        items = max(0, QUEUE_ITEMS - self.queued) // max(1, len(self.table.live()))
        return (items, 1 << 20) if items and ledger_bytes else (0, 0)

    def replay(self, entry: Entry) -> None:
        """What is fed again was never demanded of this thread."""
        before = self.pool.transit.steps
        super().replay(entry)
        self.slack_steps += self.pool.transit.steps - before

    def deliver(self, entry: Entry, skip: int) -> None:
        """Straight into the inbox."""
        self.thread.inbox.append((entry, skip))


@dataclass(frozen=True)
class LearnerParts:
    """What a learner is built from; a test plants a bug by giving another part."""

    table: type[StreamTable] = StreamTable
    pool: type[CreditPool] = CreditPool
    ledger: Callable[[], Ledger] = SlowLedger
    journal: type[SimJournal] = SimJournal
    thread: type[SimThread] = SimThread
    client: type[SimClient] = SimClient
