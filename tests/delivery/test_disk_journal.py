"""A journal reports committed entries once and in order, and what it has reported survives."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.forks import forked_child

from rl4sys_zmq.delivery import disk_journal, journal_rows
from rl4sys_zmq.delivery.journal import (
    ClientRow,
    JournalEntry,
    JournalPage,
    StreamRow,
)
from rl4sys_zmq.delivery.journal_file import PAGE_BYTES, JournalLock, connect
from rl4sys_zmq.errors import JournalError, WorkerDied

from .journal_bench import DEADLINE_S, JournalBench

MAX_I64 = (1 << 63) - 1


def entry(
    first: int = 0,
    end: int | None = None,
    actor: str = "a",
    *,
    client: str = "c",
    origin: int = 1,
    refused: int = 0,
    skip: int = 0,
    size: int = 100,
) -> JournalEntry:
    frames = (b"prefix", memoryview(bytes([first % 256]) * size), b"")
    end = first + 1 if end is None else end
    return JournalEntry(client, actor, origin, first, end, 10 * (end - first), skip, refused, frames)


def values(e: JournalEntry) -> tuple[object, ...]:
    return (e.client_id, e.actor_id, e.origin, e.first_seq, e.end_seq, e.steps, e.skip, e.refused, tuple(map(bytes, e.frames)))


def stream_row(received: int = 0, first_seq: int = 0, incarnation: int = 1, actor: str = "a", **kwargs: Any) -> StreamRow:
    row = {"accepted_steps": 0, "refused": 0, "submits": True, "spooled": False, **kwargs}
    return StreamRow("c", actor, 1, incarnation, first_seq, received, **row)


class Faults:
    """A source of connections for a journal. Statements that begin with `broken` fail, if it is not empty."""

    connection: sqlite3.Connection

    def __init__(self) -> None:
        self.broken = ""
        self.error: sqlite3.Error = sqlite3.OperationalError("database or disk is full")
        self.statements: list[str] = []
        faults = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
                faults.statements.append(statement)
                if faults.broken and statement.startswith(faults.broken):
                    raise faults.error
                return super().execute(statement, *args)

        self._factory = Connection

    def connect(self, path: Path) -> sqlite3.Connection:
        self.connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False, factory=self._factory)
        return self.connection


MakeBench = Callable[..., JournalBench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MakeBench]:
    made = []

    def make(name: str = "journal.db", **kwargs: Any) -> JournalBench:
        made.append(JournalBench(tmp_path / name, **kwargs))
        return made[-1]

    yield make
    for b in made:
        b.close()


@pytest.fixture(params=["memory", "normal", "always"])
def any_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalBench]:
    b = JournalBench() if request.param == "memory" else JournalBench(tmp_path / "journal.db", fsync=request.param)
    yield b
    b.close()


def test_what_is_appended_comes_out_once_and_in_order(any_bench: JournalBench) -> None:
    entries = [entry(i // 3, actor="abc"[i % 3]) for i in range(300)]
    for i in range(0, 300, 7):
        any_bench.journal.append(entries[i : i + 7])
    out = any_bench.take(300)
    assert all(a is b for a, b in zip(out, entries, strict=True))
    assert any_bench.journal.committed() == []
    state = any_bench.settled()
    assert (state.error, state.queued_bytes, state.failures, state.damaged) == ("", 0, 0, 0)
    assert state.durable is any_bench.journal.durable


def test_a_page_comes_after_the_entries_that_were_appended_before(any_bench: JournalBench) -> None:
    first, second = entry(0), entry(1)
    any_bench.journal.append([first])
    any_bench.journal.read("c", 3, 0, 1 << 20)
    any_bench.journal.append([second])
    a, page, b = any_bench.take(3)
    assert (a, b) == (first, second)
    assert (page.token, page.more, page.damaged) == (3, False, 0)
    assert [values(e) for e in page.entries] == ([values(first)] if any_bench.journal.durable else [])


def test_every_operation_is_taken(any_bench: JournalBench) -> None:
    journal = any_bench.journal
    journal.put_client(ClientRow("c", 5, {"a": [1, None, "x"]}, 0, 0, 0))
    journal.put_stream(stream_row())
    journal.append([entry()])
    journal.add_gap("c", 3)
    journal.trim("c", {("a", 1): 1})
    journal.drop_stream("c", "a", 1)
    journal.drop_stream("c", "nobody", 1)
    any_bench.take(1)
    assert any_bench.settled().used_bytes == 0
    assert 0 < journal.journal_id <= MAX_I64


def test_everything_is_there_after_a_restart(bench: MakeBench) -> None:
    one = bench()
    entries = [entry(0, 3, refused=1), entry(0, 2, "b", origin=MAX_I64), entry(3, 4), entry(0, 1, client="d\0ä")]
    settings = {"algorithm": "PPO", "seed": MAX_I64, "nested": {"x": [1.5, None]}}
    one.journal.put_client(ClientRow("c", 5, settings, 0, 0, 0))
    one.journal.put_stream(stream_row(spooled=True))
    one.journal.append(entries)
    one.journal.add_gap("c", 10)
    one.take(4)
    used = one.settled().used_bytes
    assert used == sum(e.stored_bytes for e in entries)
    one.close()

    two = bench()
    assert two.restored.journal_id == one.journal.journal_id == two.journal.journal_id
    assert two.journal.state().used_bytes == used
    clients = {row.client_id: row for row in two.restored.clients}
    assert clients["c"] == ClientRow("c", 5, settings, 5 + 10, 1, 10)
    assert (clients["d\0ä"].accepted, clients["d\0ä"].gap) == (1, 0)
    streams = {(row.client_id, row.actor_id): row for row in two.restored.streams}
    assert streams["c", "a"] == stream_row(received=4, accepted_steps=40, refused=1, spooled=True)
    assert streams["c", "b"].origin == MAX_I64
    assert [values(e) for e in two.page().entries] == [values(e) for e in entries[:3]]
    assert [values(e) for e in two.page("d\0ä").entries] == [values(entries[3])]


def test_what_is_queued_at_the_end_is_committed(bench: MakeBench) -> None:
    one = bench()
    one.journal.append([entry(i) for i in range(2_000)])
    one.close()
    two = bench()
    two.journal.append([entry(2_000)])
    two.take(1)
    assert [e.first_seq for e in two.page().entries] == list(range(2_001))


def test_marks_only_grow_and_totals_belong_to_the_entries(bench: MakeBench) -> None:
    one = bench()
    one.journal.put_client(ClientRow("c", 7, {"v": 1}, 0, 0, 0))
    one.journal.put_stream(stream_row(received=5, first_seq=5, incarnation=3))
    one.journal.append([entry(5, 8)])
    one.journal.put_stream(stream_row(received=2, first_seq=1, incarnation=2, accepted_steps=999, refused=9, submits=False))
    one.journal.put_client(ClientRow("c", 6, {"v": 2}, 100, 100, 100))
    one.take(1)
    one.close()
    two = bench()
    assert two.restored.streams == (stream_row(received=8, first_seq=5, incarnation=3, accepted_steps=30, submits=False),)
    assert two.restored.clients == (ClientRow("c", 7, {"v": 2}, 3, 0, 0),)
    two.journal.put_stream(stream_row(received=20, first_seq=17, incarnation=4))
    two.journal.put_client(ClientRow("c", 9, {"v": 3}, 0, 0, 0))
    two.close()
    three = bench()
    assert three.restored.streams == (stream_row(received=20, first_seq=17, incarnation=4, accepted_steps=30),)
    assert three.restored.clients == (ClientRow("c", 9, {"v": 3}, 3, 0, 0),)


def test_totals_stop_at_what_a_row_can_hold(bench: MakeBench) -> None:
    one = bench()
    one.journal.add_gap("c", MAX_I64)
    one.journal.add_gap("c", MAX_I64)
    one.close()
    assert bench().restored.clients == (ClientRow("c", 0, {}, MAX_I64, 0, MAX_I64),)


def test_a_trim_takes_what_the_marks_cover_and_nothing_else(bench: MakeBench) -> None:
    b = bench()
    entries = [entry(0, 2), entry(2, 4), entry(4, 6), entry(0, 2, "b"), entry(0, 2, origin=2), entry(0, 2, client="d")]
    b.journal.append(entries)
    b.journal.trim("c", {("a", 1): 5, ("nobody", 1): MAX_I64})
    b.take(6)
    assert b.settled().used_bytes == sum(e.stored_bytes for e in entries[2:])
    assert [values(e) for e in b.page().entries] == [values(e) for e in entries[2:5]]
    b.journal.trim("c", {("a", 1): MAX_I64, ("b", 1): 2})
    assert [values(e) for e in b.page().entries] == [values(entries[4])]
    assert len(b.page("d").entries) == 1


def test_a_large_trim_is_done_in_parts(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "TRIM_ROWS", 10)
    b = bench()
    b.journal.append([entry(i, actor=actor) for actor in "ab" for i in range(35)])
    b.take(70)
    before = b.settled().commits
    b.journal.trim("c", {("a", 1): 34, ("b", 1): 35})
    state = b.settled()
    assert state.commits - before >= 7
    assert [e.first_seq for e in b.page().entries] == [34]
    assert state.used_bytes == entry(34).stored_bytes


def test_a_dropped_stream_is_gone_with_its_entries_and_not_its_counts(bench: MakeBench) -> None:
    one = bench()
    one.journal.append([entry(0, 3), entry(0, 1, "b")])
    one.journal.drop_stream("c", "a", 1)
    one.take(2)
    assert one.settled().used_bytes == entry().stored_bytes
    one.close()
    two = bench()
    assert [row.actor_id for row in two.restored.streams] == ["b"]
    assert two.restored.clients[0].accepted == 4
    assert [e.actor_id for e in two.page().entries] == ["b"]


def test_a_dropped_client_is_gone_with_all_that_is_its_own(bench: MakeBench) -> None:
    first = bench()
    for name in ("c", "other"):
        first.journal.put_client(ClientRow(name, 7, {}, 0, 0, 0))
    first.journal.put_stream(stream_row())
    first.journal.append([entry(0), entry(1), entry(0, client="other")])
    first.journal.drop_client("c")
    first.take(3)
    assert first.page().entries == ()
    assert len(first.page("other").entries) == 1
    assert first.journal.state().used_bytes == entry().stored_bytes
    first.close()
    again = bench()
    assert [c.client_id for c in again.restored.clients] == ["other"]
    assert [s.client_id for s in again.restored.streams] == ["other"]


def test_entries_are_given_up_and_counts_are_not(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "TRIM_ROWS", 2)
    first = bench()
    first.journal.put_client(ClientRow("c", 7, {}, 0, 0, 0))
    first.journal.append([entry(n) for n in range(9)])
    first.journal.drop_entries("c")
    first.take(9)
    assert first.page().entries == (), "the page that follows has none of them, however many there were"
    assert first.journal.state().used_bytes == 0
    first.journal.append([entry(9)])
    first.take(1)
    first.close()
    again = bench()
    assert (again.restored.clients[0].accepted, again.restored.streams[0].received) == (10, 10)
    assert len(again.page().entries) == 1


def test_an_actor_is_retired_in_all_its_streams(bench: MakeBench) -> None:
    first = bench()
    first.journal.put_stream(stream_row(actor="a", incarnation=9, spooled=True, owner="somebody"))
    first.journal.put_stream(stream_row(actor="b", incarnation=9))
    first.journal.append([entry(0), entry(1)])
    first.journal.retire_actor("c", "a")
    first.settled()
    first.take(2)
    first.close()
    a, b = sorted(bench().restored.streams, key=lambda s: s.actor_id)
    assert (a.incarnation, a.spooled, a.owner, a.received) == (0, False, "", 2)
    assert b.incarnation == 9


def test_an_empty_stream_that_is_dropped_expires_nobody(bench: MakeBench) -> None:
    first = bench()
    first.journal.put_client(ClientRow("c", 7, {}, 0, 0, 0))
    first.journal.put_stream(stream_row())
    first.journal.drop_stream("c", "a", 1, expires=False)
    first.settled()
    first.close()
    restored = bench().restored
    assert restored.streams == () and restored.clients[0].expired == 0


@pytest.mark.parametrize("drop", ["drop_client", "drop_entries"])
def test_what_gives_up_a_clients_entries_needs_no_room(bench: MakeBench, drop: str) -> None:
    b = bench(max_bytes=entry().stored_bytes * 2)
    b.journal.append([entry(0, client="other"), entry(0), entry(1), entry(2)])
    b.take(2)
    b.until(lambda state: state.error)
    getattr(b.journal, drop)("c")
    assert len(b.take(2)) == 2, "what was queued before it goes with it"
    assert b.page().entries == () and not b.settled().error


def test_a_page_behind_a_retirement_says_that_it_is_done(bench: MakeBench) -> None:
    b = bench(max_bytes=entry().stored_bytes)
    b.journal.put_stream(stream_row(actor="b", incarnation=9))
    b.journal.append([entry(0), entry(1)])
    b.take(1)
    b.until(lambda state: state.error)
    b.journal.retire_actor("c", "b")
    assert len(b.page().entries) == 1
    b.close()
    with sqlite3.connect(b.journal._path) as db:
        assert db.execute("SELECT incarnation FROM streams WHERE actor_id = 'b'").fetchone() == (0,)
    db.close()


def test_pages_follow_one_another(bench: MakeBench) -> None:
    b = bench()
    b.journal.append([entry(i, client=client, size=994) for i in range(5) for client in "cd"])  # each of 1,000 bytes
    b.take(10)
    seen: list[int] = []
    pages: list[JournalPage] = []
    after = 0
    while not pages or pages[-1].more:
        pages.append(b.page(after_row=after, max_bytes=2_500))
        after = pages[-1].last_row
        seen += [e.first_seq for e in pages[-1].entries]
    assert seen == list(range(5))
    assert [len(page.entries) for page in pages] == [2, 2, 1]
    assert [len(b.page(max_bytes=n).entries) for n in (0, 1_999, 2_000)] == [1, 1, 2]
    end = b.page(after_row=after)
    assert (end.entries, end.more, end.last_row) == ((), False, after)


def test_rows_go_on_when_everything_was_trimmed(bench: MakeBench) -> None:
    b = bench()
    b.journal.append([entry(i) for i in range(5)])
    b.take(5)
    last = b.page().last_row
    b.journal.trim("c", {("a", 1): 5})
    b.journal.append([entry(5)])
    b.take(1)
    assert [e.first_seq for e in b.page(after_row=last).entries] == [5]


def test_what_has_gathered_is_one_transaction(bench: MakeBench) -> None:
    faults = Faults()
    b = bench(connect=faults.connect)
    faults.broken = "COMMIT"
    b.journal.append([entry(0)])
    b.until(lambda state: state.failures)
    for i in range(1, 400):
        b.journal.append([entry(i)])
    failures = b.journal.state().failures
    b.until(lambda state: state.failures >= failures + 2)  # the last try began after the last append
    before = b.journal.state().commits
    faults.statements.clear()
    faults.broken = ""
    b.take(400)
    state = b.settled()
    assert state.commits == before + 1
    assert state.commit_s > 0
    assert sum(s.startswith("INSERT INTO entries") for s in faults.statements) == -(-400 // journal_rows.INSERT_ROWS)


def test_a_group_is_bounded(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_journal, "GROUP_ITEMS", 10)
    monkeypatch.setattr(disk_journal, "GROUP_BYTES", 5_000)
    b = bench()
    b.journal.append([entry(i) for i in range(100)])
    b.journal.append([entry(100 + i, size=2_000) for i in range(10)])
    b.journal.append([entry(110, size=20_000)])
    assert [e.first_seq for e in b.take(111)] == list(range(111))
    assert b.settled().commits >= 10 + 5 + 1


@pytest.mark.parametrize(("fsync", "level"), [("normal", 1), ("always", 2)])
def test_fsync_is_set_in_the_connection(bench: MakeBench, fsync: str, level: int) -> None:
    faults = Faults()
    b = bench(fsync=fsync, connect=faults.connect)
    b.settled()
    assert faults.connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert faults.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_full_journal_commits_nothing_until_a_trim_frees_room(bench: MakeBench) -> None:
    size = entry().stored_bytes
    b = bench(max_bytes=3 * size + 5, retry_s=60.0)
    b.journal.append([entry(i) for i in range(6)])
    assert [e.first_seq for e in b.take(3)] == [0, 1, 2]
    state = b.until(lambda state: state.error)
    assert "is full" in state.error
    assert "\n" not in state.error
    assert (state.used_bytes, state.queued_items) == (3 * size, 3)
    assert state.queued_bytes == 3 * entry().nbytes
    assert state.failures == 1
    assert len(b.page().entries) == 3, "a read does not wait behind what has no room"
    b.journal.trim("c", {("a", 1): 2})
    assert [e.first_seq for e in b.take(2)] == [3, 4]
    b.journal.trim("c", {("a", 1): 5})
    assert [e.first_seq for e in b.take(1)] == [5]
    state = b.settled()
    assert (state.error, state.used_bytes, state.queued_bytes) == ("", size, 0)


def test_a_client_with_nothing_queued_is_known_while_another_one_waits(bench: MakeBench) -> None:
    size = entry().stored_bytes
    b = bench(max_bytes=3 * size, retry_s=60.0)
    assert b.journal.queued("c") == 0
    b.journal.append([entry(0, client="d"), *(entry(i) for i in range(6))])
    b.take(3)
    b.until(lambda state: state.error)
    assert (b.journal.queued("c"), b.journal.queued("d")) == (4, 0)
    b.journal.trim("d", {("a", 1): 1})
    b.journal.trim("c", {("a", 1): 2})
    b.take(3)
    b.until(lambda state: state.error)
    assert (b.journal.queued("c"), b.journal.queued("d")) == (1, 0)
    b.journal.drop_client("c")
    b.take(1)
    b.settled()
    assert b.journal.queued("c") == 0


def test_an_entry_larger_than_the_limit_is_taken_alone(bench: MakeBench) -> None:
    b = bench(max_bytes=1_000, retry_s=60.0)
    b.journal.append([entry(0, size=5_000), entry(1)])
    b.take(1)
    b.until(lambda state: state.error)
    b.journal.trim("c", {("a", 1): 1})
    b.take(1)


def test_a_drop_frees_room_but_not_before_its_streams_own_entries(bench: MakeBench) -> None:
    size = entry().stored_bytes
    b = bench(max_bytes=2 * size, retry_s=60.0)
    b.journal.append([entry(0), entry(0, actor="b"), entry(1)])
    b.take(2)
    b.until(lambda state: state.error)
    b.journal.drop_stream("c", "a", 1)  # this waits, because the second entry of the stream waits
    b.journal.drop_stream("c", "b", 1)  # this makes room for it
    b.take(1)
    assert b.settled().used_bytes == 0


def test_a_disk_that_fails_and_heals_loses_nothing(bench: MakeBench) -> None:
    faults = Faults()
    one = bench(connect=faults.connect)
    one.journal.append([entry(0)])
    one.take(1)
    faults.broken = "COMMIT"
    one.journal.append([entry(1), entry(2)])
    one.journal.add_gap("c", 4)
    one.journal.trim("c", {("a", 1): 1})
    one.journal.append([entry(3)])
    state = one.until(lambda state: state.failures > 2)
    assert "database or disk is full" in state.error
    assert one.journal.committed() == []
    assert (state.used_bytes, state.queued_items) == (entry().stored_bytes, 5)
    assert len(one.page().entries) == 1, "what was committed can be read"
    faults.broken = ""
    assert [e.first_seq for e in one.take(3)] == [1, 2, 3]
    assert one.settled().error == ""
    one.close()
    two = bench()
    assert [e.first_seq for e in two.page().entries] == [1, 2, 3]
    assert two.restored.clients == (ClientRow("c", 0, {}, 4 + 4, 0, 4),)


def test_a_journal_that_fails_to_the_end_still_ends(bench: MakeBench) -> None:
    faults = Faults()
    one = bench(connect=faults.connect, retry_s=60.0)
    faults.broken = "COMMIT"
    one.journal.append([entry(0)])
    one.until(lambda state: state.error)
    one.close()
    assert one.journal.state().queued_items == 1
    faults.broken = ""
    assert bench().page().entries == ()


def test_a_disk_without_room_takes_trims_and_then_the_rest(bench: MakeBench) -> None:
    def small(path: Path) -> sqlite3.Connection:
        db = connect(path)
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA max_page_count = 16")  # 256 kB
        return db

    b = bench(connect=small)
    b.journal.append([entry(i, size=20_000) for i in range(4)])
    b.take(4)
    b.journal.append([entry(4 + i, size=20_000) for i in range(4)])
    state = b.until(lambda state: state.error)
    assert "full" in state.error
    b.journal.trim("c", {("a", 1): 4})
    assert [e.first_seq for e in b.take(4)] == [4, 5, 6, 7]
    assert b.settled().error == ""


def test_a_fault_of_the_code_ends_the_thread_loudly(bench: MakeBench) -> None:
    faults = Faults()
    b = bench(connect=faults.connect)
    faults.error = sqlite3.ProgrammingError("planted")
    faults.broken = "COMMIT"
    b.journal.append([entry(0)])
    assert b.journal.join(DEADLINE_S)
    with pytest.raises(WorkerDied, match="planted"):
        b.journal.raise_if_dead()
    assert "planted" in b.journal.state().error


def damage(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    db = sqlite3.connect(path)
    with db:
        change(db)
    db.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET frames = CAST(replace(frames, x'02020202', x'02030202') AS BLOB) WHERE first_seq = 2",
        "UPDATE entries SET steps = steps + 1 WHERE first_seq = 2",
        "UPDATE entries SET frames = 'text' WHERE first_seq = 2",
        "UPDATE entries SET actor_id = CAST(x'ff' AS TEXT) WHERE first_seq = 2",
    ],
)
def test_a_damaged_entry_is_left_out_and_counted(bench: MakeBench, tmp_path: Path, change: str) -> None:
    one = bench()
    one.journal.append([entry(i) for i in range(4)])
    one.close()
    damage(tmp_path / "journal.db", lambda db: db.execute(change))
    two = bench()
    for _ in range(2):
        page = two.page()
        assert [e.first_seq for e in page.entries] == [0, 1, 3]
        assert (page.damaged, page.more) == (1, False)
    assert two.journal.state().damaged == 1


def test_a_page_may_end_with_a_damaged_entry(bench: MakeBench, tmp_path: Path) -> None:
    one = bench()
    one.journal.append([entry(i) for i in range(2)])
    one.close()
    damage(tmp_path / "journal.db", lambda db: db.execute("UPDATE entries SET checksum = 0"))
    two = bench()
    page = two.page()
    assert (page.entries, page.damaged, page.more) == ((), 2, False)
    assert two.page(after_row=page.last_row).damaged == 0


def test_a_second_opener_is_refused(bench: MakeBench, tmp_path: Path) -> None:
    one = bench()
    with pytest.raises(JournalError, match=r"journal\.db.*in use by another learner.*\.lock"):
        bench()
    one.close()
    assert bench().restored.journal_id == one.journal.journal_id


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    lock = JournalLock(tmp_path / "journal.db")
    (tmp_path / "journal.db.lock").unlink()
    lock.renew()
    with forked_child():
        with pytest.raises(JournalError, match="in use by another learner"):
            JournalLock(tmp_path / "journal.db")
        os.close(lock._file)  # as the kernel does at the end of a process, without an unlock
        lock._file = -1
        JournalLock(tmp_path / "journal.db").close()  # while the child still runs


def test_a_file_that_another_program_holds_is_refused(bench: MakeBench, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(JournalError, match="locked"):
            bench()
    finally:
        other.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"no database at all" * 100, "not a database"), (b"SQLite format 3\0" + b"\xff" * 8_000, "move it|check its")],
)
def test_what_is_no_journal_is_refused(bench: MakeBench, tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    with pytest.raises(JournalError, match=says) as caught:
        bench()
    assert caught.value.path == str(tmp_path / "journal.db")
    assert (tmp_path / "journal.db").read_bytes() == content


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "CREATE TABLE theirs (x)"])
def test_another_schema_is_refused(bench: MakeBench, tmp_path: Path, statement: str) -> None:
    damage(tmp_path / "journal.db", lambda db: db.execute(statement))
    with pytest.raises(JournalError, match="schema version"):
        bench()


def test_settings_that_are_no_json_are_damage(bench: MakeBench, tmp_path: Path) -> None:
    one = bench()
    one.journal.put_client(ClientRow("c", 1, {}, 0, 0, 0))
    one.close()
    damage(tmp_path / "journal.db", lambda db: db.execute("UPDATE clients SET settings = '{'"))
    (tmp_path / "journal.marks").unlink()
    with pytest.raises(JournalError, match="damaged"):
        bench()


def test_a_folder_that_is_missing_is_refused(bench: MakeBench) -> None:
    with pytest.raises(JournalError, match="create its folder"):
        bench("nowhere/journal.db")


def test_a_file_that_cannot_be_written_is_refused(bench: MakeBench, tmp_path: Path) -> None:
    bench().close()
    with pytest.raises(JournalError, match="cannot be opened and written"):
        bench(connect=lambda path: sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None))


def test_the_journal_needs_no_temporary_files(bench: MakeBench) -> None:
    faults = Faults()
    bench(connect=faults.connect)
    assert faults.connection.execute("PRAGMA temp_store").fetchone() == (2,)
