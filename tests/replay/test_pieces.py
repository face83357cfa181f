"""Tests of the state in pieces: new pieces are copied, known pieces are named, and any history is restored bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import random_segment

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import PriorityOptions, ReplayMemory, ReplayOptions, StatePiece
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment


def spaces(image: bool) -> tuple[BoxSpace, DiscreteSpace]:
    return BoxSpace((40, 30), "|u1", 0, 255) if image else BoxSpace((2,)), DiscreteSpace(2)


def make_replay(capacity: int, image: bool = False) -> ReplayMemory:
    options = ReplayOptions(capacity=capacity, gamma=0.9, n_step=3, priority=PriorityOptions())
    return ReplayMemory(*spaces(image), options)


def make_segment(steps: int, seed: int, image: bool = False, masked: bool = False) -> Segment:
    return random_segment(steps, seed, "cut", spaces(image), masked=masked)


class Shelf:
    """A fake store of checkpoints. It keeps the pieces of the last one, and adds their arrays to a state that names them."""

    def __init__(self) -> None:
        self.pieces: dict[str, Any] = {}
        self.written = 0

    def write(self, replay: ReplayMemory) -> dict[str, Any]:
        state = replay.state(self.pieces.keys())
        found = [part["piece"] for part in state["pieces"]]
        new = {piece.name: piece.arrays for piece in found if piece.arrays is not None}
        self.written = sum(array.nbytes for arrays in new.values() for array in arrays.values())
        self.pieces = {piece.name: new.get(piece.name) or self.pieces[piece.name] for piece in found}
        whole = [{**part, "piece": StatePiece(part["piece"].name, self.pieces[part["piece"].name])} for part in state["pieces"]]
        return {**state, "pieces": whole}


def assert_equal(one: ReplayMemory, other: ReplayMemory) -> None:
    assert len(one) == len(other)
    if not len(one):
        return
    rows = np.arange(len(one))
    mine, theirs = one.gather(rows), other.gather(rows)
    for name in ("observations", "actions", "returns", "discounts", "successors"):
        assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes()
    if mine.masks is not None:
        np.testing.assert_array_equal(mine.masks, theirs.masks if theirs.masks is not None else True)
    rows = one.draw(50, np.random.default_rng(1))
    np.testing.assert_array_equal(rows, other.draw(50, np.random.default_rng(1)))
    assert one.weights(rows, 0.5).tobytes() == other.weights(rows, 0.5).tobytes()


STEPS = st.tuples(st.just("add"), st.integers(1, 60))
OPERATIONS = st.lists(
    st.one_of(STEPS, st.tuples(st.sampled_from(["save", "discard", "masked", "again"]), st.integers(1, 9))), max_size=14
)


@given(operations=OPERATIONS, capacity=st.integers(1, 200), image=st.booleans())
def test_any_history_comes_back_from_what_was_written(operations: list[tuple[str, int]], capacity: int, image: bool) -> None:
    replay, shelf = make_replay(capacity, image), Shelf()
    for seed, (what, size) in enumerate([*operations, ("save", 1)]):
        if what in ("add", "masked"):
            replay.add(make_segment(size, seed, image, what == "masked"))
        elif what == "discard" and len(replay):
            replay.discard(np.array([size % len(replay)]))
        elif what in ("save", "again"):
            state = shelf.write(replay)
            twin = make_replay(capacity, image)
            twin.add(make_segment(5, 999, image))  # a history of its own, which `load` must remove
            twin.load(state)
            assert_equal(replay, twin)
            if what == "again":  # the resumed replay continues, and shares the pieces that it has read
                replay = twin
        if len(replay):
            rows = np.arange(len(replay))
            replay.update_priorities(rows, np.random.default_rng(seed).random(len(rows)))


def test_only_new_rows_are_written() -> None:
    replay, shelf = make_replay(6400), Shelf()
    for seed in range(100):
        replay.add(make_segment(64, seed))
    shelf.write(replay)
    whole = shelf.written
    shelf.write(replay)
    assert shelf.written == 0, "nothing is new, and all pieces are complete"
    replay.add(make_segment(64, 500))
    shelf.write(replay)
    assert 0 < shelf.written <= whole // 60
    twin = make_replay(6400)
    twin.load(shelf.write(replay))
    twin.state(shelf.pieces.keys())
    twin.add(make_segment(10, 501))
    state = twin.state(shelf.pieces.keys())
    assert sum(part["piece"].arrays is not None for part in state["pieces"]) == 1, "also after a return"
    replay.discard(np.array([3]))
    shelf.write(replay)
    assert 0 < shelf.written <= whole // 20, "only the pieces with removed rows"


def test_pieces_that_the_reader_lost_are_copied_again() -> None:
    replay = make_replay(64)
    replay.add(make_segment(64, 1))
    replay.state()
    replay.add(make_segment(10, 2))
    state = replay.state(())
    assert all(part["piece"].arrays is not None for part in state["pieces"])
    twin = make_replay(64)
    twin.load(state)
    assert_equal(replay, twin)


def test_images_are_in_a_piece_once() -> None:
    replay = make_replay(640, image=True)
    replay.add(make_segment(640, 1, image=True))
    bytes_per_transition = sum(a.nbytes for part in replay.state()["pieces"] for a in part["piece"].arrays.values()) / 640
    assert bytes_per_transition < 1.5 * 1200


@pytest.mark.parametrize("change", [{"end": 70}, {"begin": 3}, {"pieces": []}])
def test_a_state_whose_pieces_do_not_fit_is_refused(change: dict[str, Any]) -> None:
    replay = make_replay(64)
    replay.add(make_segment(30, 1))
    with pytest.raises(ConfigError, match="replay state"):
        make_replay(64).load({**replay.state(), **change})
    first = replay.state()["pieces"][0]
    state = replay.state()
    state["pieces"][0] = {**first, "rows": 2}
    with pytest.raises(ConfigError, match="replay state"):
        make_replay(64).load(state)
    assert replace(first["piece"], arrays=None).name == first["piece"].name
