"""Tests of the file of marks: its content, the detection of losses with it, and a journal without it."""

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from kit import until

from rl4sys_zmq.delivery import journal_marks
from rl4sys_zmq.delivery.journal import ClientRow, JournalEntry, StreamRow
from rl4sys_zmq.delivery.journal_file import NO_RECOVERY, JournalLossRules
from rl4sys_zmq.delivery.journal_marks import (
    ClientAndStreamRows,
    JournalMarksFileWriter,
    JournalRowChanges,
    JournalStateInCheckpoint,
    read_marks,
)
from rl4sys_zmq.delivery.journal_rows import JournalCache
from rl4sys_zmq.errors import JournalError, JournalLost
from rl4sys_zmq.private import sync_folder

from .journal_bench import JournalBench


class Bench(JournalBench):
    """A journal of one client in a folder."""

    def __init__(self, folder: Path, recovery: JournalLossRules = NO_RECOVERY) -> None:
        super().__init__(folder / "journal.db", recovery=recovery)

    def append(self, first: int, end: int, actor: str = "a") -> None:
        self.journal.append([JournalEntry("c", actor, 1, first, end, 10, 0, 0, (b"frame",))])
        self.take(1)


def written(folder: Path, segments: int = 10, *, client: bool = True) -> int:
    bench = Bench(folder)
    if client:
        bench.journal.put_client(ClientRow("c", 3, {"seed": 7}, 0, 0, 0))
    bench.append(0, segments)
    bench.close()
    return bench.restored.journal_id


def rows(received: int = 5, streams: int = 1) -> ClientAndStreamRows:
    known = ClientAndStreamRows(77, {3}, {"c": ClientRow("c", 3, {"seed": 7}, received * streams, 1, 0)})
    for n in range(streams):
        known.streams["c", f"a{n}", 1] = StreamRow("c", f"a{n}", 1, 2, 0, received, 50, 1, True, False, "user")
    return known


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, known = tmp_path / "journal.marks", rows(streams=200)
    marks = JournalMarksFileWriter(path, known, flush=True)
    changes = JournalRowChanges(
        {"c": ClientRow("c", 4, {"seed": 8}, 2_000, 1, 0)}, {("c", "a0", 1): StreamRow("c", "a0", 1, 2, 3, 4, 5, 6, True, True)}
    )
    changes.apply_to(known)
    marks.note(changes)
    gone = JournalRowChanges(dropped_streams={("c", "a1", 1)})
    marks.drop(gone)
    gone.apply_to(known)
    marks.close()
    assert read_marks(path) == (known, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_dropped_client_is_forgotten_with_its_streams(tmp_path: Path) -> None:
    marks = JournalMarksFileWriter(tmp_path / "journal.marks", rows(), flush=False)
    marks.drop(JournalRowChanges(dropped_clients={"c"}))
    marks.close()
    found, _ = read_marks(tmp_path / "journal.marks")
    assert (found.journal_id, found.clients, found.streams) == (77, {}, {})


def test_a_dropped_client_leaves_nothing_in_memory() -> None:
    image = JournalCache(ClientAndStreamRows(7))
    for n in range(100):
        image.put_client(ClientRow(f"c{n}", 1, {"seed": n}, 0, 0, 0))
        image.client_values(image.changes.clients[f"c{n}"])
        image.drop_client(f"c{n}")
        image.commit()
    assert not image.rows.clients and not image._texts


def test_a_client_that_is_dropped_and_made_again_in_one_transaction_is_new() -> None:
    image = JournalCache(rows())
    image.add_to_client("c", 5, 0, 0)
    image.drop_client("c")
    image.put_client(ClientRow("c", 9, {}, 0, 0, 0))
    image.add_to_stream(("c", "b", 1), 0, 2, 20, 0)
    image.commit()
    assert image.rows.clients == {"c": ClientRow("c", 9, {}, 0, 0, 0)}
    assert list(image.rows.streams) == [("c", "b", 1)]


def test_a_full_file_is_made_anew_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_marks, "SPARE_BYTES", 4_096)
    path, known = tmp_path / "journal.marks", rows()
    marks = JournalMarksFileWriter(path, known, flush=False)
    for received in range(6, 500):
        changes = JournalRowChanges(dict(rows(received).clients), dict(rows(received).streams))
        changes.apply_to(known)
        marks.note(changes)
    marks.close()
    found, _ = read_marks(path)
    assert found.streams["c", "a0", 1].received == found.clients["c"].accepted == 499
    assert path.stat().st_size < 8_192


def test_a_new_file_that_cannot_be_written_loses_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_marks, "SPARE_BYTES", 4_096)
    path, known = tmp_path / "journal.marks", rows()
    marks = JournalMarksFileWriter(path, known, flush=False)
    changes = JournalRowChanges({"d": ClientRow("d", 1, {"long": "x" * 8_000}, 0, 0, 0)}, {})
    changes.apply_to(known)

    def full(file: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        marks.note(changes)
    marks.note(changes)
    marks.close()
    found, _ = read_marks(path)
    assert found.clients["d"].settings == {"long": "x" * 8_000}


def test_the_rename_of_a_new_file_is_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a loss of power could bring the old file back, with streams that have been removed since."""
    done: list[str] = []
    rename = os.rename

    def renamed(old: Path, new: Path) -> None:
        done.append("rename")
        rename(old, new)

    def synced(folder: Path) -> None:
        done.append(f"sync {folder}")
        sync_folder(folder)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr("rl4sys_zmq.delivery.journal_marks.sync_folder", synced)
    JournalMarksFileWriter(tmp_path / "journal.marks", rows(), flush=True).close()
    assert done == ["rename", f"sync {tmp_path}"]


def test_a_damaged_line_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.marks"
    JournalMarksFileWriter(path, rows(), flush=False).close()
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"a0"') + 1] ^= 1
    path.write_bytes(raw)
    found, damaged = read_marks(path)
    assert (damaged, list(found.clients), found.streams) == (1, ["c"], {})


def test_a_journal_that_is_gone_is_refused_and_comes_back_with_its_rows(tmp_path: Path) -> None:
    lineage = written(tmp_path)
    (tmp_path / "journal.db").unlink()
    with pytest.raises(JournalLost, match="'c': 10 acknowledged segments") as caught:
        Bench(tmp_path)
    assert caught.value.segments == {"c": 10}
    assert not (tmp_path / "journal.db").exists()
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True))
    bench.close()
    assert bench.restored.journal_id == lineage
    assert bench.restored.clients == (ClientRow("c", 3, {"seed": 7}, 10, 0, 0),)
    assert bench.restored.streams[0].received == 10
    assert bench.journal.state().lost == 10
    again = Bench(tmp_path)
    again.close()
    assert (again.journal.loss, again.restored) == (None, bench.restored)


def test_marks_that_are_behind_or_gone_or_damaged_stop_nothing(tmp_path: Path) -> None:
    written(tmp_path, 5)
    old = (tmp_path / "journal.marks").read_bytes()
    bench = Bench(tmp_path)
    bench.append(5, 9)
    bench.close()
    for marks in (old, b"", b"garbage\n" * 100, None):
        if marks is None:
            (tmp_path / "journal.marks").unlink()
        else:
            (tmp_path / "journal.marks").write_bytes(marks)
        again = Bench(tmp_path)
        again.close()
        assert again.restored.streams[0].received == 9
        found, _ = read_marks(tmp_path / "journal.marks")
        assert found.streams["c", "a", 1].received == 9


def test_what_is_dropped_on_purpose_is_no_loss(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.journal.put_client(ClientRow("c", 3, {}, 0, 0, 0))
    bench.append(0, 4)
    bench.append(0, 4, "b")
    bench.journal.drop_stream("c", "a", 1)
    bench.close()
    again = Bench(tmp_path)
    again.close()
    assert [row.actor_id for row in again.restored.streams] == ["b"]


def test_another_journal_in_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    written(tmp_path)
    theirs = written(tmp_path / "x", 3)
    (tmp_path / "x" / "journal.db").rename(tmp_path / "journal.db")
    with pytest.raises(JournalLost, match="is not the one of"):
        Bench(tmp_path)
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True))
    bench.close()
    assert bench.restored.journal_id == theirs
    Bench(tmp_path).close()


def test_checkpoints_tell_too(tmp_path: Path) -> None:
    lineage = written(tmp_path)
    ahead = JournalStateInCheckpoint("c", lineage, 14, {("a", 1): 14, ("dropped", 1): 5})
    for harmless in (
        JournalStateInCheckpoint("c", lineage, 10, {("a", 1): 10}),
        JournalStateInCheckpoint("unknown", lineage, 0, {}),
    ):
        Bench(tmp_path, JournalLossRules(witnesses=[harmless])).close()
    with pytest.raises(JournalLost, match="'c': 4 acknowledged segments"):
        Bench(tmp_path, JournalLossRules(witnesses=[ahead]))
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True, witnesses=[ahead, JournalStateInCheckpoint("other", 99, 3, {})]))
    bench.close()
    assert (bench.restored.clients[0].accepted, bench.restored.streams[0].received) == (14, 14)
    Bench(tmp_path, JournalLossRules(witnesses=[ahead, JournalStateInCheckpoint("other", 99, 3, {})])).close()  # loss accepted
    with pytest.raises(JournalLost, match="'third': 3 acknowledged segments, and those accepted after"):
        Bench(tmp_path, JournalLossRules(witnesses=[JournalStateInCheckpoint("third", 98, 3, {})]))


def test_a_journal_that_can_t_be_read_is_made_anew_with_what_can(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "journal.db"
    raw = bytearray(path.read_bytes())
    at = raw.index(b"CREATE TABLE clients")
    raw[at : at + 6] = b"CRXATE"
    path.write_bytes(raw)
    with pytest.raises(JournalLost, match=r"is damaged .*'c': 10 acknowledged segments"):
        Bench(tmp_path)
    assert path.read_bytes() == raw
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True))
    bench.close()
    assert bench.restored.streams[0].received == 10
    assert (tmp_path / "journal.db.damaged").read_bytes() == raw
    (tmp_path / "journal.marks").unlink()
    path.write_bytes(raw)
    with pytest.raises(JournalError, match="is not a journal, or is damaged"):
        Bench(tmp_path)


@pytest.mark.parametrize("index", ["entries_by_mark", "entries_by_client"])
@pytest.mark.parametrize("empty", [False, True], ids=["unreadable", "empty"])
def test_a_damaged_index_costs_no_entry(tmp_path: Path, index: str, empty: bool) -> None:
    """Both indexes are read at the start. Otherwise a request for entries would fail again and again."""
    written(tmp_path)
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    raw = bytearray(path.read_bytes())
    at = (page - 1) * size
    raw[at : at + 5] = b"\x0a\0\0\0\0" if empty else bytes(5)  # the type of the page, and the number of its cells
    path.write_bytes(raw)
    with pytest.raises(JournalLost, match="is damaged"):
        Bench(tmp_path)
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True))
    page = bench.page()
    bench.close()
    assert [(entry.first_seq, entry.end_seq) for entry in page.entries] == [(0, 10)]


def test_a_damaged_name_of_a_column_is_noticed_at_the_start(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "journal.db"
    path.write_bytes(path.read_bytes().replace(b"frames BLOB", b"grames BLOB"))
    with pytest.raises(JournalLost, match=r"is damaged \(its definition of TABLE entries is damaged"):
        Bench(tmp_path)
    bench = Bench(tmp_path, JournalLossRules(accept_loss=True))
    bench.append(10, 12)
    bench.close()
    assert bench.restored.streams[0].received == 10


def test_nothing_is_told_before_the_marks_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.append(0, 1)
    full = threading.Event()
    full.set()
    write = journal_marks._write

    def refuse(file: int, data: bytes, at: int) -> None:
        if full.is_set():
            raise OSError(28, os.strerror(28))
        write(file, data, at)

    monkeypatch.setattr(journal_marks, "_write", refuse)
    bench.journal.append([JournalEntry("c", "a", 1, 1, 4, 10, 0, 0, (b"frame",))])
    bench.until(lambda state: state.failures)
    assert bench.journal.committed() == []
    assert "No space" in bench.journal.state().error
    full.clear()
    bench.take(1)
    bench.close()
    again = Bench(tmp_path)
    again.close()
    assert (again.restored.streams[0].received, again.restored.clients[0].accepted) == (4, 4)


def test_marks_that_are_deleted_under_it_are_written_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(0, 3)
    (tmp_path / "journal.marks").unlink()
    until((tmp_path / "journal.marks").exists, "the file of marks")
    bench.close()
    found, _ = read_marks(tmp_path / "journal.marks")
    assert found.streams["c", "a", 1].received == 3


def test_a_place_that_another_learner_has_taken_is_left_to_it(tmp_path: Path) -> None:
    """The folder is moved, and another learner starts in its old place. The first one stops acknowledging and reports why."""
    place = tmp_path / "run"
    place.mkdir()
    one = Bench(place)
    one.append(0, 3)
    place.rename(tmp_path / "elsewhere")
    place.mkdir()
    two = Bench(place)
    one.journal.append([JournalEntry("c", "a", 1, 3, 5, 10, 0, 0, (b"frame",))])
    one.until(lambda state: "in use by another learner" in state.error)
    assert one.journal.committed() == []
    two.append(0, 1)
    two.close()
    one.close()
