from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.chaos_frames import ChaosFrames

MESSAGES = [[b"head", str(number).encode(), b""] for number in range(2_000)]


def through(chaos: Any) -> Any:
    out = [message for sent in MESSAGES for message in chaos(sent)]
    return out + chaos.flush()


def test_without_faults_everything_passes_at_once() -> None:
    chaos = ChaosFrames(1)
    assert [chaos(m) for m in MESSAGES] == [[m] for m in MESSAGES]
    assert chaos.flush() == [] and chaos.counters.get("passed") == len(MESSAGES)


def test_the_same_seed_gives_the_same_chaos() -> None:
    faults: dict[str, Any] = {"drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.1}
    one, two, three = (through(ChaosFrames(seed, **faults)) for seed in (7, 7, 8))
    assert one == two != three


@pytest.mark.parametrize(("drop", "duplicate"), [(0.2, 0.0), (0.0, 0.2), (0.3, 0.3)])
def test_drops_and_duplicates_are_counted(drop: float, duplicate: float) -> None:
    chaos = ChaosFrames(2, drop=drop, duplicate=duplicate, reorder=0.3)
    seen = Counter(bytes(m[1]) for m in through(chaos))
    count = chaos.counters.get
    assert len(MESSAGES) - count("dropped") == len(seen)
    assert sum(n == 2 for n in seen.values()) == count("duplicated")
    assert max(seen.values()) <= 2
    assert sum(seen.values()) == count("passed")
    assert bool(count("dropped")) == bool(drop) and bool(count("duplicated")) == bool(duplicate)


def test_reordering_is_bounded() -> None:
    numbers = [int(m[1]) for m in through(ChaosFrames(3, reorder=0.5, max_delay=3))]
    assert sorted(numbers) == list(range(len(MESSAGES))) != numbers
    place = {number: index for index, number in enumerate(numbers)}
    late = [sum(place[later] < place[number] for later in range(number + 1, min(number + 10, 2_000))) for number in range(1_990)]
    assert 1 <= max(late) <= 3 + 1


def test_corruption_flips_one_bit_of_a_copy() -> None:
    chaos = ChaosFrames(4, corrupt=1.0)
    for message in MESSAGES:
        before = [bytes(f) for f in message]
        ((got),) = chaos(message)
        assert message == before
        flips = sum((a ^ b).bit_count() for f, g in zip(message, got, strict=True) for a, b in zip(f, g, strict=True))
        assert flips == 1
    assert chaos([b"", b""]) == [[b"", b""]]
