"""A journal under test: its entries, pages and state."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from kit import until

from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import JournalContent, JournalHealth, JournalPage, MemoryJournal
from rl4sys_zmq.delivery.journal_file import NO_RECOVERY, Connect, JournalLossRules, connect

DEADLINE_S = 10.0


class JournalBench:
    """A journal on a disk, or in memory if there is no path."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        fsync: Literal["normal", "always"] = "normal",
        max_bytes: int = 1 << 30,
        retry_s: float = 0.02,
        connect: Connect = connect,
        recovery: JournalLossRules = NO_RECOVERY,
    ) -> None:
        self.news = threading.Event()
        if path is None:
            self.journal: Any = MemoryJournal()
            return
        options: dict[str, Any] = {"retry_s": retry_s, "connect": connect, "recovery": recovery}
        self.journal = DiskJournal(path, fsync=fsync, max_bytes=max_bytes, wake=self.news.set, **options)
        self.restored: JournalContent = self.journal.open()

    def take(self, count: int) -> list[Any]:
        """Wait for the next `count` entries and pages, and return them. No more may arrive with them."""
        taken: list[Any] = self.journal.committed()
        deadline = time.monotonic() + DEADLINE_S
        while len(taken) < count:
            assert self.news.wait(deadline - time.monotonic()), f"{len(taken)} of {count} came; {self.journal.state()}"
            self.news.clear()
            taken += self.journal.committed()
        assert len(taken) == count
        return taken

    def until(self, condition: Callable[[JournalHealth], object]) -> JournalHealth:
        """Wait until the journal's state meets a condition, and return the state."""
        read = self.journal.state
        met: JournalHealth = until(lambda: condition(state := read()) and state, read, DEADLINE_S, 0.002)
        return met

    def settled(self) -> JournalHealth:
        return self.until(lambda state: not state.queued_items)

    def page(self, client: str = "c", after_row: int = 0, max_bytes: int = 1 << 30) -> JournalPage:
        self.journal.read(client, 7, after_row, max_bytes)
        (page,) = self.take(1)
        assert isinstance(page, JournalPage)
        assert (page.client_id, page.token) == (client, 7)
        return page

    def close(self) -> None:
        self.journal.stop()
        assert self.journal.join(DEADLINE_S)
