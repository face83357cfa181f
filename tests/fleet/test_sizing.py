"""The rule that resizes a fleet, with models of a learner: it finds a size, keeps it, and stays within its bounds."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.fleet.sizing import (
    CEILING_WINDOWS,
    GROW_BELOW,
    SHRINK_ABOVE,
    TARGET,
    FleetLoad,
    SizeLimits,
    SizingMemory,
    next_size,
)

Model = Callable[[int], FleetLoad]


def learner_of(steps_per_s: float, actor_steps_per_s: float = 100.0) -> Model:
    """Return a model of a learner that takes a limited number of steps per second from independent actors."""

    def load(actors: int) -> FleetLoad:
        able = actors * actor_steps_per_s
        taken = min(able, steps_per_s)
        return FleetLoad(actors, 1.0 - taken / able, taken)

    return load


def synchronous(update_s: float, batch: float = 1000.0, actor_steps_per_s: float = 100.0) -> Model:
    """Return a model of a learner for whose updates all actors wait."""

    def load(actors: int) -> FleetLoad:
        collect_s = batch / (actors * actor_steps_per_s)
        return FleetLoad(actors, update_s / (update_s + collect_s), batch / (update_s + collect_s))

    return load


def machine_of(cores: int, actor_steps_per_s: float = 100.0) -> Model:
    """Return a model of a learner that takes everything, on a machine with a limited number of cores."""
    return lambda actors: FleetLoad(actors, 0.0, min(actors, cores) * actor_steps_per_s)


def sizes(model: Model, start: int, limits: SizeLimits, windows: int = 60) -> list[int]:
    memory, size, seen = SizingMemory(), start, []
    for _ in range(windows):
        size, memory = next_size(model(size), memory, limits)
        seen.append(size)
    return seen


WIDE = SizeLimits(1, 1000)


@pytest.mark.parametrize("start", [1, 2, 10, 64, 1000])
@pytest.mark.parametrize("steps_per_s", [80.0, 350.0, 5000.0])
def test_a_fleet_finds_the_size_for_a_learner_and_keeps_it(start: int, steps_per_s: float) -> None:
    found = sizes(learner_of(steps_per_s), start, WIDE)
    assert len(set(found[-30:])) == 1, found
    waiting = learner_of(steps_per_s)(found[-1]).waiting
    assert waiting >= GROW_BELOW or found[-1] == 1
    assert waiting <= SHRINK_ABOVE or learner_of(steps_per_s)(found[-1] - 1).waiting < TARGET or found[-1] == 1


@pytest.mark.parametrize("start", [1, 10, 200])
@pytest.mark.parametrize("update_s", [0.1, 1.0, 10.0])
def test_a_fleet_that_waits_for_each_update_finds_a_size_and_keeps_it(start: int, update_s: float) -> None:
    found = sizes(synchronous(update_s), start, WIDE)
    assert len(set(found[-30:])) == 1, found


def test_growth_that_a_full_machine_does_not_reward_is_taken_back_and_not_repeated_soon() -> None:
    found = sizes(machine_of(8), 8, WIDE, CEILING_WINDOWS)
    assert found[:2] == [10, 8]
    assert set(found[1:]) == {8}
    later = sizes(machine_of(8), 8, WIDE, 3 * CEILING_WINDOWS)
    assert later.count(10) == 3  # tried again now and then, because other load on the machine may have ended


def test_growth_continues_while_it_pays() -> None:
    assert sizes(machine_of(10_000), 4, WIDE, 4) == [5, 6, 7, 8]


def test_a_fleet_shrinks_by_half_at_most_in_one_window() -> None:
    assert sizes(learner_of(1.0), 100, WIDE, 3) == [50, 25, 12]


def test_nothing_changes_between_the_thresholds() -> None:
    for waiting in (GROW_BELOW, 0.3, SHRINK_ABOVE):
        assert next_size(FleetLoad(8, waiting, 1.0), SizingMemory(), WIDE)[0] == 8


@given(
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0, 1e6),
    st.integers(1, 100),
    st.integers(0, 100),
    st.one_of(st.none(), st.builds(FleetLoad, st.integers(1, 300), st.floats(0, 1), st.floats(0, 1e6))),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_the_size_is_always_within_the_bounds(
    actors: int, waiting: float, rate: float, low: int, span: int, before: FleetLoad | None, ceiling: int | None
) -> None:
    memory = SizingMemory(before, ceiling or 0, 5 if ceiling is not None else 0)
    size, _ = next_size(FleetLoad(actors, waiting, rate), memory, SizeLimits(low, low + span))
    assert low <= size <= low + span
