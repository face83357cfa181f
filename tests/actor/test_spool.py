"""Segments in a spool reach each learner's journal once and in order, at whatever time the process dies."""

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.forks import forked_child
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit import segment_with

from rl4sys_zmq.actor.io.spool import DELETE_DELAY_S, MAX_HOLE, RETRY_S, Spool, SpoolLimits
from rl4sys_zmq.actor.segments import Outbox, QueuedSegmentInfo
from rl4sys_zmq.errors import ProtocolError, SpoolError
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, join_submit, pack_segment, read_submit
from rl4sys_zmq.wire.segments import HEAD

ROOMY = SpoolLimits(1 << 30)

Opened = Callable[..., Spool]
"""A function that opens a spool, in the test's folder or in a given one."""


class Clock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def unpacked(number: int, steps: int = 1, width: int = 2) -> Segment:
    return segment_with(
        steps,
        "cut",
        observations=np.full((steps + 1, width), number, dtype=np.float32),
        versions=np.full(steps, 2**64 - 1 - number, dtype=np.uint64),
        generation=2**63 + number,
        episode_id=number,
    )


def segment(number: int, steps: int = 1, width: int = 2) -> PackedSegment:
    return pack_segment(unpacked(number, steps, width))


def numbers(packed: Iterable[PackedSegment] | None) -> list[int | None]:
    assert packed is not None
    heads = [np.frombuffer(p.head, HEAD)[0] for p in packed]
    return [int(head["episode_id"]) if head["steps"] else None for head in heads]


def take(source: Spool | Outbox, count: int) -> list[PackedSegment]:
    """Take up to `count` segments."""
    taken: list[PackedSegment] = []
    while len(taken) < count and (packed := source.take()) is not None:
        taken.append(packed)
    return taken


def segments(*which: int) -> list[PackedSegment]:
    return [segment(n) for n in which]


SIZE = segment(0).nbytes


def killed(spool: Spool, folder: Path) -> Path:
    """Return a copy of the folder that a kill at this moment would leave. No spool has opened the copy."""
    copy = folder.with_name(f"{folder.name}+")
    copy.mkdir()
    for name in ("spool.db", "spool.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy / name)
    spool._file.close()
    return copy


def database(spool: Spool) -> sqlite3.Connection:
    connection = spool._file._connection
    assert connection is not None
    return connection


def refuse(spool: Spool) -> None:
    """Make the disk refuse writes, with sqlite's own error at the first write of each transaction."""
    database(spool).execute("PRAGMA query_only=ON")


def accept(spool: Spool) -> None:
    database(spool).execute("PRAGMA query_only=OFF")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    """Yield a function that opens spools. At the end, close the spools that the test left open."""
    spools: list[Spool] = []

    def opens(where: Path = folder, limits: SpoolLimits = ROOMY, **options: Any) -> Spool:
        spools.append(Spool(where, "luna", limits, **options))
        return spools[-1]

    yield opens
    for spool in spools:
        spool._file.close()


def law(spool: Spool) -> bool:
    return spool.submitted == sum(spool.dropped.values()) + spool.base_seq + len(spool)


def test_segments_come_out_as_they_went_in(opened: Opened) -> None:
    spool = opened()
    put = [segment(0), segment(1, 300, 64), segment(2, 2, 3)]
    assert put[1].large
    spool.put(put)
    assert take(spool, 8) == []
    assert spool.reconcile(0, 0) == []
    assert [e.head for e in spool._untaken] == [QueuedSegmentInfo(p.generation, p.oldest_version, p.steps, p.nbytes) for p in put]
    assert (spool.untaken_items, spool.untaken_steps, spool.nbytes) == (3, 303, sum(p.nbytes for p in put))
    out = take(spool, 8)
    for a, b in zip(put, out, strict=True):
        assert (a.layout, a.head, a.small, a.digests) == (b.layout, b.head, b.small, b.digests)
        assert [bytes(f) for f in a.large] == [bytes(f) for f in b.large]
        assert (a.steps, a.generation, a.oldest_version, a.nbytes) == (b.steps, b.generation, b.oldest_version, b.nbytes)
    assert join_submit(0, 0, out).heads == join_submit(0, 0, put).heads
    assert (spool.untaken_items, spool.untaken_steps, len(spool._taken), spool.peek()) == (0, 0, 3, None)
    assert law(spool)


def test_the_files_are_private(opened: Opened, folder: Path) -> None:
    opened().put(segments(1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}


def test_a_restart_goes_on_where_the_marks_say(opened: Opened, folder: Path) -> None:
    first = opened()
    first.reconcile(0, 0)
    first.put(segments(*range(10)))
    take(first, 6)
    first.release(2)
    first.set_journal(77)
    actor, origin, incarnation = first.actor_id, first.origin, first.incarnation
    copy = killed(first, folder)
    second = opened(copy)
    assert (second.actor_id, second.origin, second.journal_id) == (actor, origin, 77)
    assert second.incarnation > incarnation
    assert numbers(second.reconcile(5, 3)) == [3, 4]
    assert (second.base_seq, len(second._taken)) == (3, 2)
    assert numbers(take(second, 9)) == [5, 6, 7, 8, 9]
    assert law(second)
    assert second.submitted == 10


def test_late_deletions_are_harmless_and_made_with_the_next_write(opened: Opened, folder: Path) -> None:
    clock = Clock()
    spool = opened(monotonic=clock)
    spool.reconcile(0, 0)
    spool.put(segments(0, 1, 2))
    take(spool, 3)
    spool.release(1)

    def count() -> Any:
        return database(spool).execute("SELECT count(*) FROM rows").fetchone()[0]

    assert (count(), spool.next_deadline()) == (3, clock.now + DELETE_DELAY_S)
    clock.now += DELETE_DELAY_S
    spool.tick()
    assert (count(), spool.next_deadline()) == (2, float("inf"))
    spool.release(2)
    spool.put(segments(3))
    assert count() == 2
    spool.release(99)
    second = opened(killed(spool, folder))
    assert (second.base_seq, len(second)) == (2, 2)
    assert second.reconcile(3, 3) == []
    assert (second.base_seq, len(second)) == (3, 1)


def test_the_clock_may_go_back(opened: Opened, folder: Path) -> None:
    first = opened(clock=Clock(2e9))
    first.close()
    second = opened(clock=Clock(1e9))
    assert second.incarnation > first.incarnation
    assert second.origin == first.origin


def test_a_higher_incarnation_is_kept(opened: Opened, folder: Path) -> None:
    """The learner knew a higher incarnation than the actor's own. The next start is above both."""
    first = opened(folder)
    raised = first.incarnation + 10**15
    first.set_incarnation(raised)
    assert first.incarnation == raised
    first.close()
    assert opened(folder).incarnation > raised


def test_the_oldest_that_are_not_taken_are_dropped(opened: Opened) -> None:
    spool = opened(limits=SpoolLimits(5 * SIZE))
    spool.reconcile(0, 0)
    spool.put(segments(*range(5)))
    take(spool, 2)
    spool.put(segments(5, 6))
    assert spool.dropped == {"spool_bytes": 2}
    assert numbers(take(spool, 9)) == [4, 5, 6]
    spool.put(segments(7))
    assert spool.dropped == {"spool_bytes": 3}
    assert (len(spool), spool.nbytes) == (5, 5 * SIZE)
    assert law(spool)


def test_what_is_too_old_is_dropped(opened: Opened) -> None:
    clock, monotonic = Clock(), Clock(50.0)
    spool = opened(limits=SpoolLimits(1 << 20, max_age_s=10.0), clock=clock, monotonic=monotonic)
    spool.reconcile(0, 0)
    spool.put(segments(0, 1))
    take(spool, 1)
    clock.now += 4
    spool.put(segments(2))
    assert spool.next_deadline() == monotonic.now + 6
    clock.now += 6
    spool.tick()
    assert spool.dropped == {"spool_age": 1}
    assert numbers(take(spool, 9)) == [2]
    assert spool.next_deadline() == float("inf")


def test_the_owner_drops_from_the_head(opened: Opened, folder: Path) -> None:
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(*range(5)))
    take(spool, 1)
    assert spool.drop_head(2, "lag") == 2
    assert numbers(take(spool, 1)) == [3]
    assert spool.drop_head(9, "lag") == 1
    spool.set_journal(1)
    second = opened(killed(spool, folder))
    assert second.dropped == {"lag": 3}
    assert numbers(second.reconcile(1, 0)) == [0]
    assert numbers(take(second, 9)) == [3]
    assert law(second)


def test_what_was_put_after_the_start_has_not_been_received(opened: Opened, folder: Path) -> None:
    """Two segments were received from memory while the disk refused. The next two must not be mistaken for them."""
    first = opened()
    first.reconcile(0, 0)
    first.put(segments(0, 1))
    refuse(first)
    first.put(segments(2, 3))
    assert numbers(take(first, 9)) == [0, 1, 2, 3]
    second_folder = killed(first, folder)
    second = opened(second_folder)
    second.put(segments(4))
    third = opened(killed(second, second_folder))
    third.put(segments(5))
    assert numbers(third.reconcile(4, 1)) == [1, None, None]
    assert (third.base_seq, third.submitted) == (1, 6)
    assert numbers(take(third, 9)) == [4, 5]
    assert law(third)
    fourth = opened(killed(third, third._file.path.parent))
    assert numbers(fourth.reconcile(5, 2)) == [None, None, 4]
    assert numbers(take(fourth, 9)) == [5]


def test_an_absurd_mark_makes_no_absurd_hole(opened: Opened, folder: Path) -> None:
    first = opened()
    first.put(segments(0, 1))
    second = opened(killed(first, folder))
    assert second.reconcile(2**62, 0) == []
    assert MAX_HOLE < 2**62
    assert (second.base_seq, len(second)) == (2**62, 0)
    assert law(second)


def test_a_placeholder_is_refused_as_an_item(opened: Opened, folder: Path) -> None:
    first = opened()
    first.put(segments(0))
    second = opened(killed(first, folder))
    packed = second.reconcile(2, 0)
    assert packed is not None
    message = join_submit(0, 0, packed)
    whole, error = read_submit(message)
    assert isinstance(whole, Segment) and whole.episode_id == 0
    assert isinstance(error, ProtocolError)


def test_segments_go_on_in_memory_and_follow_in_order(opened: Opened, folder: Path) -> None:
    clock = Clock(0.0)
    spool = opened(limits=SpoolLimits(1 << 30, memory_items=3), monotonic=clock)
    spool.reconcile(0, 0)
    spool.put(segments(0, 1))
    refuse(spool)
    spool.put(segments(2, 3))
    assert (spool.memory_items, spool.counters.get("spool_errors")) == (2, 1)
    assert "readonly" in (spool.error or "")
    assert numbers(take(spool, 3)) == [0, 1, 2]
    assert spool.drop_head(1, "lag") == 0
    spool.put(segments(4, 5))
    assert (spool.dropped, spool.memory_items) == ({"overflow": 1}, 3)
    assert spool.counters.get("spool_errors") == 1  # no retry so soon
    spool.release(1)
    clock.now += RETRY_S
    assert spool.next_deadline() == clock.now
    spool.tick()
    assert spool.counters.get("spool_errors") == 2
    accept(spool)
    clock.now += RETRY_S
    spool.tick()
    assert (spool.memory_items, spool.error) == (0, None)
    assert numbers(take(spool, 9)) == [4, 5]
    assert law(spool)
    second = opened(killed(spool, folder))
    assert numbers(second.reconcile(4, 1)) == [1, 2, 4]
    assert numbers(take(second, 9)) == [5]
    assert (second.submitted, second.dropped) == (6, {"overflow": 1})


def test_memory_that_was_released_is_never_written(opened: Opened, folder: Path) -> None:
    clock = Clock(0.0)
    spool = opened(monotonic=clock)
    spool.reconcile(0, 0)
    spool.put(segments(0))
    refuse(spool)
    spool.put(segments(1, 2, 3))
    take(spool, 3)
    spool.release(2)
    accept(spool)
    spool.close()
    second = opened(folder)
    assert (second.base_seq, len(second), second.submitted) == (2, 2, 4)
    assert numbers(second.reconcile(3, 2)) == [2]


def test_what_may_have_a_number_is_not_dropped_from_memory(opened: Opened) -> None:
    spool = opened(limits=SpoolLimits(1 << 30, memory_items=2))
    spool.reconcile(0, 0)
    refuse(spool)
    spool.put(segments(0, 1))
    take(spool, 2)
    spool.untake()
    spool.put(segments(2))
    assert spool.dropped == {"overflow": 1}
    assert numbers(spool.reconcile(1, 0)) == [0]
    assert numbers(take(spool, 9)) == [1]


def test_a_full_database_keeps_what_was_there(opened: Opened, folder: Path) -> None:
    spool = opened()
    spool.reconcile(0, 0)
    spool.put([segment(0, 100, 50)])
    pages = database(spool).execute("PRAGMA page_count").fetchone()[0]
    database(spool).execute(f"PRAGMA max_page_count={pages + 2}")
    spool.put([segment(n, 100, 50) for n in (1, 2)])
    assert "full" in (spool.error or "")
    assert numbers(take(spool, 9)) == [0, 1, 2]
    second = opened(killed(spool, folder))
    assert numbers(second.reconcile(1, 0)) == [0]


def test_a_start_with_a_disk_that_refuses_waits_for_it(opened: Opened, folder: Path) -> None:
    first = opened()
    first.put(segments(0, 1))
    second = opened(killed(first, folder))
    refuse(second)
    assert second.reconcile(1, 1) is None
    assert not second.reconciled
    assert take(second, 9) == []
    accept(second)
    assert second.reconcile(1, 1) == []
    assert numbers(take(second, 9)) == [1]
    assert second.error is None


def test_a_long_time_in_memory_is_written_in_parts(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.actor.io.spool.FLUSH_BYTES", 3 * SIZE)
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(*range(9)))
    left = [spool.memory_items]
    while left[-1]:
        assert spool.next_deadline() <= spool._monotonic()
        spool.tick()
        left.append(spool.memory_items)
    assert left == [5, 1, 0]
    assert numbers(take(spool, 20)) == list(range(9))


def test_a_kill_between_the_parts_leaves_what_was_written(opened: Opened, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.actor.io.spool.FLUSH_BYTES", 3 * SIZE)
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(*range(9)))
    take(spool, 6)
    second = opened(killed(spool, folder))
    assert (len(second), second.submitted, second.counters.get("spool_damaged_files")) == (4, 4, 0)
    assert numbers(second.reconcile(6, 3)) == [3, None, None]
    assert (second.submitted, law(second)) == (6, True)


def test_a_damaged_row_without_a_number_is_dropped(opened: Opened) -> None:
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(*range(4)))
    database(spool).execute("UPDATE rows SET record = substr(record, 1, 30) WHERE id IN (2, 3)")
    assert numbers(take(spool, 9)) == [0, 3]
    assert spool.dropped == {"spool_damaged": 2}
    assert law(spool)


def test_a_damaged_row_with_a_number_keeps_it(opened: Opened, folder: Path) -> None:
    first = opened()
    first.put(segments(*range(4)))
    database(first).execute("UPDATE rows SET record = zeroblob(100) WHERE id = 2")
    second = opened(killed(first, folder))
    assert numbers(second.reconcile(3, 0)) == [0, None, 2]
    assert numbers(take(second, 9)) == [3]
    assert second.counters.get("spool_damaged_rows") == 1


def test_a_damaged_row_that_cannot_be_dropped_takes_a_number(opened: Opened) -> None:
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(0, 1))
    database(spool).execute("UPDATE rows SET record = x'00' WHERE id = 1")
    refuse(spool)
    assert numbers(take(spool, 9)) == [None, 1]


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"x" * 8192),
        lambda path: path.write_bytes(path.read_bytes()[:-4096]),
        lambda path: _execute(path, "DELETE FROM rows WHERE id = 2"),
        lambda path: _execute(path, "UPDATE meta SET document = replace(document, '\"base_seq\":0', '\"base_seq\":1')"),
        lambda path: _execute(path, "DELETE FROM meta"),
        lambda path: _execute(path, "DROP TABLE rows"),
        lambda path: _execute(path, "UPDATE rows SET nbytes = 'many'"),
    ],
)
def test_a_damaged_file_is_moved_aside_and_another_stream_begins(
    opened: Opened, folder: Path, harm: Callable[[Path], object]
) -> None:
    first = opened()
    first.put([segment(n, 50, 20) for n in range(3)])
    first.close()
    harm(folder / "spool.db")
    second = opened()
    assert second.actor_id != first.actor_id
    assert second.origin != first.origin
    assert (len(second), second.submitted, second.counters.get("spool_damaged_files")) == (0, 0, 1)
    assert len(list(folder.glob("spool.db.damaged-*"))) == 1
    second.put(segments(7))
    second.reconcile(0, 0)
    assert numbers(take(second, 9)) == [7]


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_random_damage_never_raises_anything_else(opened: Opened, folder: Path, seed: int) -> None:
    first = opened()
    first.put([segment(n, 20, 20) for n in range(12)])
    first.close()
    good = (folder / "spool.db").read_bytes()
    rng = random.Random(seed)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.choice((1, 40))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (folder / "spool.db").write_bytes(data)
        try:
            spool = opened()
        except SpoolError:
            continue
        spool.reconcile(3, 1)
        for _ in range(15):
            assert all(n is None or 0 <= n < 12 for n in numbers(take(spool, 1)))
        spool.put(segments(1))
        spool.release(20)
        spool.tick()
        assert law(spool)
        spool.close()


def test_only_a_few_damaged_files_are_kept(opened: Opened, folder: Path) -> None:
    clock = Clock()
    for _ in range(6):
        clock.now += 1
        opened(clock=clock).close()
        (folder / "spool.db").write_bytes(b"x" * 100)
    opened(clock=clock)
    assert len(list(folder.glob("spool.db.damaged-*"))) == 3


def test_one_process_holds_it(opened: Opened, folder: Path) -> None:
    opened()
    with pytest.raises(SpoolError, match=rf"in use by process {os.getpid()}.*lock"):
        Spool(folder, "luna", ROOMY)
    code = (
        "import sys, pathlib; from rl4sys_zmq.actor.io.spool import *; Spool(pathlib.Path(sys.argv[1]), 'luna', SpoolLimits(9))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert "SpoolError" in done.stderr


def test_it_is_of_one_client_one_actor_and_one_format(opened: Opened, folder: Path) -> None:
    opened(actor_id="ann").close()
    with pytest.raises(SpoolError, match="client_id 'luna', not 'mars'"):
        Spool(folder, "mars", ROOMY)
    with pytest.raises(SpoolError, match="actor_id 'ann', not 'bob'"):
        Spool(folder, "luna", ROOMY, actor_id="bob")
    assert opened().actor_id == "ann"


def test_another_format_or_database_is_left_alone(opened: Opened, folder: Path) -> None:
    opened().close()
    _execute(folder / "spool.db", "PRAGMA user_version=9")
    with pytest.raises(SpoolError, match="format 9"):
        Spool(folder, "luna", ROOMY)
    _execute(folder / "spool.db", "PRAGMA application_id=5")
    with pytest.raises(SpoolError, match="another program"):
        Spool(folder, "luna", ROOMY)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="can't be used"):
        Spool(tmp_path / "file" / "spool", "luna", ROOMY)


def test_a_forked_child_keeps_neither_the_lock_nor_the_file(opened: Opened, folder: Path) -> None:
    spool = opened()
    spool.reconcile(0, 0)
    spool.put(segments(0))

    def work() -> None:
        spool.put(segments(9))
        spool.close()
        assert not spool._file.is_open and take(spool, 9) == []

    with forked_child(work):
        spool.put(segments(1))
        spool.close()
        second = opened()  # while the child still runs
        second.reconcile(0, 0)
        assert numbers(take(second, 9)) == [0, 1]


def test_a_segment_that_cannot_be_encoded_is_dropped_alone(opened: Opened) -> None:
    queue = Outbox(100, 1 << 20, drops=True)
    queue.spool = opened()
    for number in range(4):
        good = unpacked(number)
        queue.put(good if number % 2 else replace(good, rewards=np.zeros(5, np.float32)))
    assert queue.fill_spool() and not queue.fill_spool()
    queue.spool.reconcile(0, 0)
    assert numbers(take(queue, 10)) == [1, 3]
    assert (queue.submitted, queue.dropped, queue.in_hand) == (4, {"not_encodable": 2}, 0)


class Learner:
    """The journal of one stream: the numbers of the accepted segments. None is a refused item or a gap."""

    def __init__(self) -> None:
        self.accepted: list[int | None] = []
        self.durable = 0

    @property
    def received(self) -> int:
        return len(self.accepted)


class SpoolMachine(RuleBasedStateMachine):
    """An actor with a spool that may die at any step. The marks of its learners change at random."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "0"
        self.clock, self.monotonic = Clock(), Clock(0.0)
        self.starts = self.put_count = 0
        self.refusing = False
        self.excused: set[int] = set()
        """The numbers of segments that were lost with the memory of a process, and that no process counts."""
        self.released: set[int] = set()
        self.uncounted: set[int] = set()
        """The numbers of segments that were dropped from memory while the file did not have their drop."""
        self.counted: set[int] = set()
        """The numbers of segments that the spool has dropped and counted."""
        self.blanks: list[int | None] = []
        """The numbers of the segments in whose place the spool has added a placeholder, oldest first, removed ones too."""
        self.learner = Learner()
        self.window: dict[int, int | None] | None = None

    @initialize(items=st.integers(3, 12), age=st.sampled_from([None, 30.0]), memory=st.integers(1, 5))
    def begin(self, items: int, age: float | None, memory: int) -> None:
        self.limits = SpoolLimits(items * SIZE, age, memory)
        self.open()
        self.actor = self.spool.actor_id

    def open(self) -> None:
        self.spool = Spool(self.folder, "luna", self.limits, clock=self.clock, monotonic=self.monotonic)
        self.window = None
        self.refusing = False

    def teardown(self) -> None:
        self.spool._file.close()
        shutil.rmtree(self.root)

    def held(self, *, memory: bool = False) -> list[int]:
        """Return the numbers in the spool, or in its memory only. A placeholder has the number of its segment."""
        entries = [*self.spool._taken, *self.spool._untaken]
        if memory:
            entries = [e for e in entries if e.packed is not None]
        packed = self.spool._read(entries)
        assert packed is not None
        found = iter(numbers(p for p in packed if p is not None))
        blanks = iter(self.blanks[len(self.blanks) - packed.count(None) :])
        return [n for n in (next(blanks if p is None else found) for p in packed) if n is not None]

    @contextmanager
    def dropping(self, released: Iterable[int] = ()) -> Iterator[None]:
        """Count the segments that leave the spool inside the block as dropped, except those that are released."""
        before = set(self.held())
        yield
        gone = before.difference(self.held(), released)
        self.counted |= gone
        self.excused -= gone

    @rule(count=st.integers(1, 4))
    def put(self, count: int) -> None:
        before = self.spool.dropped.get("overflow", 0)
        held = {*self.held(memory=True), *range(self.put_count, self.put_count + count)}
        with self.dropping():
            self.spool.put(segments(*range(self.put_count, self.put_count + count)))
        self.put_count += count
        if self.spool.error is None:
            assert not self.spool.untaken_items or self.spool.nbytes <= self.limits.max_bytes
        if self.spool.dropped.get("overflow", 0) > before:
            self.uncounted |= held - set(self.held(memory=True))

    @rule(step=st.sampled_from([0.3, 1.1, 20.0]))
    def wait(self, step: float) -> None:
        self.clock.now += step
        self.monotonic.now += step
        with self.dropping():
            self.spool.tick()

    @precondition(lambda self: self.window is None)
    @rule()
    def welcome(self) -> None:
        first, learner = self.spool.base_seq, self.learner
        if learner.received < first:  # these numbers belong to another lineage
            learner.accepted += [None] * (first - learner.received)
            learner.durable = first
        added = self.spool.counters.get("spool_placeholders")
        packed = self.spool.reconcile(learner.received, learner.durable)
        if packed is None:
            assert self.refusing
            return
        added = self.spool.counters.get("spool_placeholders") - added
        self.blanks += learner.accepted[learner.received - added :]
        self.counted -= set(learner.accepted)  # the learner had received these, so their drop no longer counts
        self.window = dict(enumerate(numbers(packed), self.spool.base_seq))
        assert self.spool.base_seq + len(packed) == learner.received
        for seq, number in self.window.items():
            assert learner.accepted[seq] in (number, None) or (number is None and learner.accepted[seq] in self.excused)

    @rule(taken=st.integers(0, 6), delivered=st.integers(0, 8), share=st.sampled_from([0.0, 0.5, 1.0]), acked=st.booleans())
    def work(self, taken: int, delivered: int, share: float, acked: bool) -> None:
        """Run one turn with a learner: take, deliver, commit, ack."""
        if self.window is None:
            self.welcome()
        if self.window is None:
            return
        first = self.spool.base_seq + len(self.spool._taken)
        assert first == self.spool.base_seq + len(self.window)
        with self.dropping():  # a placeholder that no session has sent so far is dropped
            self.window.update(enumerate(numbers(take(self.spool, taken)), first))
        learner = self.learner
        for _ in range(delivered):
            if learner.received in self.window:
                learner.accepted.append(self.window[learner.received])
        learner.durable += round(share * (learner.received - learner.durable))
        if acked:
            released = {n for n in learner.accepted[: learner.durable] if n is not None}
            with self.dropping(released):
                self.spool.release(learner.durable)
            self.released |= released
            self.window = {seq: n for seq, n in self.window.items() if seq >= self.spool.base_seq}

    @rule()
    def drop_head(self) -> None:
        with self.dropping():
            assert self.spool.drop_head(1, "lag") in (0, 1)

    @precondition(lambda self: self.window is not None)
    @rule()
    def untake(self) -> None:
        self.spool.untake()
        self.window = None

    @rule(knows=st.booleans())
    def learner_dies(self, knows: bool) -> None:
        """Replace the learner by one that knows the durable segments."""
        if not knows:
            self.learner.durable = min(self.learner.durable, self.spool.base_seq)
            if self.window is not None:
                self.untake()
        keep = self.learner.durable
        gone = dict(enumerate(self.learner.accepted[keep:], keep))
        # Segments that it acked and then forgets are lost, also if the spool was killed before its disk recorded the ack.
        forgotten = {n for seq, n in gone.items() if seq < self.spool.base_seq or n in self.released}
        self.excused |= {n for n in forgotten if n is not None} - self.counted
        del self.learner.accepted[keep:]

    @rule(refusing=st.booleans())
    def disk(self, refusing: bool) -> None:
        (refuse if refusing else accept)(self.spool)
        self.refusing = refusing

    @rule()
    def closed(self) -> None:
        with self.dropping():
            accept(self.spool)
            self.spool.close()
            self.uncounted.clear()
            self.open()

    @rule()
    def killed(self) -> None:
        self.excused |= {*self.held(memory=True), *self.uncounted}
        self.counted -= self.uncounted
        self.uncounted.clear()
        self.starts += 1
        copy = killed(self.spool, self.folder)
        self.folder = copy.rename(self.root / str(self.starts))
        self.open()

    @invariant()
    def check(self) -> None:
        spool = self.spool
        assert (spool.actor_id, spool.counters.get("spool_damaged_files")) == (self.actor, 0)
        assert law(spool)
        assert spool.nbytes == sum(e.head.nbytes for e in (*spool._taken, *spool._untaken))
        assert spool.untaken_steps == sum(e.head.steps for e in spool._untaken)
        if spool.error is None:
            self.uncounted.clear()
        accepted = [n for n in self.learner.accepted if n is not None]
        held = self.held()
        assert all(a < b for a, b in pairwise(accepted)), accepted
        assert all(a < b for a, b in pairwise(held)), held
        missing = set(range(self.put_count)) - set(accepted) - set(held) - self.excused
        if self.window is None:
            assert len(missing) <= sum(spool.dropped.values()), missing
        else:
            assert len(missing) == sum(spool.dropped.values()), missing
            assert list(self.window) == list(range(spool.base_seq, spool.base_seq + len(spool._taken)))


TestSpoolModel = SpoolMachine.TestCase
TestSpoolModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_the_spool_needs_no_temporary_files(opened: Opened) -> None:
    assert database(opened()).execute("PRAGMA temp_store").fetchone() == (2,)
