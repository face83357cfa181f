"""The record of a simulation, and the checks of its rules.

The record knows more than the learner and the actors: which segment a sequence number stands for, and what the disk has.
A contradiction in the record, or a failed check at the end, raises a `Violation` with the name of the rule.

A *lineage* is what a journal has written. A lineage in memory ends with the process. If an older copy of the disk replaces
the disk, the lineage returns to its state at that copy. An empty disk begins a new one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice

from rl4sys_zmq.delivery.stream import Key
from simulation.sim_rules import JUDGED, Books, Lineage, Violation


class History:
    """The record of one simulation. A segment is identified by its episode id, which is unique in a simulation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lineage = Lineage()
        self.assigned: dict[tuple[Key, int], int] = {}
        self._place: dict[int, tuple[Key, int]] = {}
        self._submitted: dict[str, set[int]] = {}
        self._dropped: set[int] = set()
        self._doubted: set[int] = set()
        self._released: set[tuple[Key, int]] = set()
        self._ever: tuple[set[int], set[int]] = (set(), set())
        self._next: dict[Key, int] = {}
        self._fresh: dict[tuple[Key, int], tuple[int, bool]] = {}
        self._gaps: deque[tuple[Key, int, int, int]] = deque()
        self._untouched: Counter[Key] = Counter()
        self._announced: set[tuple[Key, int]] = set()
        self._estranged: set[Key] = set()
        self._replaced: set[Key] = set()
        self._abandoned: set[Key] = set()
        self._observed: set[int] = set()
        self._last: dict[Key, int] = {}
        self._rolled_back: set[int] = set()

    def submit(self, owner: str, segment: int) -> None:
        """Record that a host gave a segment to an actor's process or to its spool."""
        self._submitted.setdefault(owner, set()).add(segment)
        self.counts["submitted"] += 1

    def drop(self, segment: int) -> None:
        """Record that an actor discarded a segment because its queue was full."""
        self._dropped.add(segment)
        self.counts["dropped_at_source"] += 1

    def doubt(self, segments: Iterable[int]) -> None:
        """Record that an actor gave up segments that are in doubt."""
        for segment in segments:
            self._doubted.add(segment)
            self.counts["in_doubt"] += 1

    def abandon(self, stream: Key) -> None:
        """Record that the actor of a stream ended with its numbers. No process can report its released segments any more."""
        self._abandoned.add(stream)

    def assign(self, stream: Key, seq: int, segment: int) -> None:
        """Record that an actor took a segment from its queue and gave it a sequence number."""
        known, place = self.assigned.setdefault((stream, seq), segment), self._place.setdefault(segment, (stream, seq))
        if known != segment or place != (stream, seq):
            raise Violation("identity", f"{stream} sent {segment} as {seq}, which is {known}; {segment} is {place}")

    def release(self, stream: Key, seq: int) -> None:
        """Record that an actor forgot a segment. The journal must have it."""
        if seq >= self.lineage.marks.get(stream, 0) and (stream, seq) not in self._released:
            raise Violation("released", f"{stream} forgot {seq}")
        self._released.add((stream, seq))

    def begin_life(self, lineage: Lineage | None) -> None:
        """Record that a learner starts. Give `lineage` if its journal is not the one that was written last."""
        self.counts["lives"] += 1
        self._fresh.clear()
        self._gaps.clear()
        if lineage is not None:
            self._estranged.update(self._next)
            self._replaced.update(self._next)
            self._rolled_back.clear()
            self.lineage = lineage
        self._next = dict(self.lineage.marks)

    def begin_thread(self, judged: Iterable[int], *, rolls_back: bool = False) -> None:
        """Record that a learner thread starts from a state that includes these segments."""
        self._observed = set(judged)
        if rolls_back:
            self._rolled_back |= self.lineage.accepted - self._observed
            self._observed |= self._rolled_back
        self._last = {}
        for stream, seq in map(self._place.__getitem__, self._observed):
            self._last[stream] = max(seq, self._last.get(stream, -1))

    def begin_stream(self, stream: Key, first_seq: int, gap: int) -> None:
        expected = self._next.get(stream, 0)
        if gap != max(0, first_seq - expected):
            raise Violation("gap", f"{gap} announced of {stream}; {expected} was next, the actor has {first_seq}")
        lost = {(stream, seq) for seq in range(expected, first_seq)}
        if lost - self._released:
            raise Violation("gap", f"{stream} had not forgotten {sorted(lost - self._released)[:5]}")
        if gap:
            self._gaps.append((stream, expected, first_seq, self._untouched[stream]))
            self._announced |= lost
            self.counts["gap"] += gap
        self._estranged.discard(stream)
        self._next[stream] = max(first_seq, expected)

    def forget_stream(self, stream: Key, silent_s: float, lease_s: float, *, current: bool) -> None:
        """Record that the learner forgot a stream."""
        if current and silent_s <= lease_s:
            raise Violation("expired", f"{stream} was forgotten after {silent_s:.1f} s")
        self.lineage.forgotten.add(stream)
        self.counts["forgotten"] += 1
        if stream not in self.lineage.touched:
            self._untouched[stream] += 1  # its actor may have received no message from this learner, and then sends all again
            self._next.pop(stream, None)

    def drop_stream(self, stream: Key) -> None:
        if stream not in self.lineage.touched:
            self.lineage.marks.pop(stream, None)
            self.lineage.streams.discard(stream)

    def expire(self, stream: Key) -> None:
        """Record that the learner refused an actor because its stream is forgotten."""
        forgotten = stream in self.lineage.forgotten
        if not forgotten and stream in self.lineage.streams:
            raise Violation("expired", f"{stream} was refused")
        self.counts["expired" if forgotten else "expired.unwritten"] += 1
        if stream in self._estranged:  # the disk was replaced, perhaps by an older one that does not have the stream
            self.counts["lost.unannounced"] += sum(key == stream for key, _ in self._released)

    def take(self, stream: Key, seq: int, segment: int, *, refused: bool) -> None:
        """Record that the learner accepted or refused the next segment of a stream."""
        if self.assigned.get((stream, seq)) != segment:
            raise Violation("identity", f"the learner took {segment} as {seq} of {stream}")
        if seq != self._next.get(stream, 0):
            raise Violation("order", f"{seq} of {stream} was taken, {self._next.get(stream, 0)} was next")
        self._next[stream] = seq + 1
        self._fresh[stream, seq] = segment, refused
        self._ever[refused].add(segment)
        self.counts["refused" if refused else "accepted"] += 1

    def write_stream(self, stream: Key, received: int) -> None:
        self._check_jump(stream, received)
        self.lineage.streams.add(stream)
        self.lineage.marks[stream] = max(received, self.lineage.marks.get(stream, 0))

    def _check_jump(self, stream: Key, first: int) -> None:
        """Check that the journal has counted, as a gap, all segments before `first` that it does not have."""
        written = self.lineage.marks.get(stream, 0)
        if first > written:
            missing = {(stream, seq) for seq in range(written, first)} - {(key, seq) for key, seq, _ in self.lineage.gaps}
            if missing:
                raise Violation("gap", f"the journal has no segments {sorted(seq for _, seq in missing)[:5]} of {stream}")

    def write_gap(self) -> None:
        """Record that the journal counted the oldest of the announced gaps."""
        if not self._gaps:
            raise Violation("gap", "the journal has counted a gap that nobody was told of")
        self.lineage.gaps |= _each(self._gaps.popleft())

    def write(self, stream: Key, first: int, end: int) -> None:
        self._check_jump(stream, first)
        for seq in range(first, end):
            found = self._fresh.pop((stream, seq), None)
            if found is not None:
                (self.lineage.refused if found[1] else self.lineage.accepted).add(found[0])
        self.lineage.touched.add(stream)
        self.lineage.marks[stream] = max(end, self.lineage.marks.get(stream, 0))
        self.lineage.streams.add(stream)

    def say(self, stream: Key, received: int, durable: int) -> None:
        written = self.lineage.marks.get(stream, 0)
        if received < written:
            raise Violation("promised", f"{stream} was told that {received} is next; {written} are written")
        if any((stream, seq) in self._fresh for seq in islice(range(written, durable), 3)):
            raise Violation("promised", f"{stream} was told that {durable} are durable, of which {written} are written")

    def observe(self, segment: int) -> None:
        if segment in self._observed:
            raise Violation("once", f"segment {segment} reached the algorithm again")
        if segment not in self.lineage.accepted:
            raise Violation("ahead", f"segment {segment} reached the algorithm")
        stream, seq = self._place[segment]
        if seq <= self._last.get(stream, -1):
            raise Violation("order", f"{seq} of {stream} reached the algorithm after {self._last[stream]}")
        self._last[stream] = seq
        self._observed.add(segment)

    def check_owner(self, owner: str, held: int, said: int) -> None:
        """Check that an actor holds nothing any more, and that each of its segments was counted exactly once."""
        if held:
            raise Violation("wedged", f"{held} segments are still in {owner}")
        submitted, (accepted, refused) = self._submitted.get(owner, set()), self._ever
        homeless = submitted - self._dropped - self._doubted - accepted - refused
        doubled = submitted & ((self._dropped & (accepted | refused)) | (accepted & refused))
        if homeless or doubled:
            raise Violation("conserved", f"of {owner} no place for {sorted(homeless)[:5]}, two for {sorted(doubled)[:5]}")
        if said != len(submitted - self._dropped - self._doubted):
            raise Violation("conserved", f"{owner} speaks of {said} segments of {len(submitted)} it was given")

    def check_lineage(self, judged: Iterable[tuple[int, str]], *, all_of_it: bool) -> None:
        """Check that the state of the learner thread has no segment twice, and has every segment that it must have."""
        times = Counter(segment for segment, _ in judged)
        twice = [segment for segment, count in times.items() if count > 1]
        if twice:
            raise Violation("once", f"{len(twice)} segments are twice in the state, such as {min(twice)}")
        owed = self.lineage.accepted - times.keys() - self._rolled_back
        if owed and all_of_it:
            raise Violation("disposed", f"{len(owed)} segments in the journal met no verdict, such as {min(owed)}")
        for stream, seq in self._released:
            gone = self.assigned[stream, seq] not in self.lineage.accepted | self.lineage.refused
            untold = self._estranged | (self._replaced & self._abandoned)
            if gone and (stream, seq) not in self._announced and stream not in untold:
                raise Violation("lost", f"{seq} of {stream}")

    def check_books(self, books: Books) -> None:
        fresh = sum(not refused for _, refused in self._fresh.values())
        gap = len(self.lineage.gaps.union(*map(_each, self._gaps)))
        if books.gap != gap:
            raise Violation("gap", f"{books.gap} are counted, {gap} are gone")
        refused = len(self.lineage.refused) + len(self._fresh) - fresh
        if books.refused != refused and not self._fresh:  # a restarted thread counts only what the journal replays to it
            raise Violation("verdicts", f"{books.refused} are counted as refused, {refused} were")
        accepted, undone = len(self.lineage.accepted) + fresh + gap, gap + len(self._rolled_back)
        right = (accepted, undone, accepted)
        if right != (books.accepted, books.rolled_back, books.judged + books.pending + books.rolled_back):
            raise Violation("conserved", f"{accepted} were accepted, {undone} of them rolled back; {books}")

    def check_verdicts(self, stream: Key, judged: Iterable[tuple[int, str]], counted: Mapping[str, int]) -> None:
        given = Counter(verdict for segment, verdict in judged if self._place[segment][0] == stream)
        said = {verdict: counted[verdict] for verdict in JUDGED}
        if said != {verdict: given[verdict] for verdict in JUDGED}:
            raise Violation("verdicts", f"{stream} counts {said}, there were {dict(given)}")


def _each(gap: tuple[Key, int, int, int]) -> set[tuple[Key, int, int]]:
    stream, first, end, untouched = gap
    return {(stream, seq, untouched) for seq in range(first, end)}
