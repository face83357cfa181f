"""The decisions of a fleet, with an engine and a clock that the test controls."""

import dataclasses

import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.fleet import ActorEngine, ActorHandle, Fleet, FleetConfig, SizeLimits
from rl4sys_zmq.fleet.supervisor import LONGEST_DELAY_S, STABLE_S, STARTING_S, WINDOW_S, restart_delay_s

from .conftest import report_of

REPORT = report_of(steps=100, episodes=2, returns=2, mean_return=10.0, credit_wait_s=0.0)


class Handle(ActorHandle):
    def __init__(self, index: int, start: int) -> None:
        super().__init__()
        self.index, self.start = index, start
        self.stops: list[float] = []

    def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)

    def reports(self, **changes: object) -> None:
        self.report = dataclasses.replace(self.report or REPORT, **changes)  # type: ignore[arg-type]

    def ends(self, code: int, *, done: bool = False) -> None:
        if done:
            self.reports(done=True, state="closed")
        self.exit_code = code


class Engine(ActorEngine):
    def __init__(self) -> None:
        self.started: list[Handle] = []
        self.closed = 0
        self.broken = False

    def start(self, index: int, start: int) -> Handle:
        if self.broken:
            raise OSError("out of processes")
        self.started.append(Handle(index, start))
        return self.started[-1]

    def poll(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        self.closed += 1


class World:
    def __init__(self, actors: int, limits: SizeLimits | None = None, starting: int = 100) -> None:
        self.now = 1000.0
        self.engine = Engine()
        self.said: list[str] = []
        config = FleetConfig(actors=actors, limits=limits, grace_s=7.0, starting=starting)
        self.fleet = Fleet(config, self.engine, self.said.append, lambda: self.now)

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.fleet.tick(0.0)

    def begin(self) -> None:
        """Start the actors, and let each report that it has joined."""
        self.tick()
        self.all_report()

    @property
    def alive(self) -> dict[int, Handle]:
        return {handle.index: handle for handle in self.engine.started if handle.alive}

    def all_report(self, **changes: object) -> None:
        for handle in self.alive.values():
            handle.reports(**changes)


def test_all_actors_are_started_and_counted_together() -> None:
    world = World(3)
    world.tick()
    assert [(h.index, h.start) for h in world.engine.started] == [(0, 0), (1, 0), (2, 0)]
    world.all_report()
    world.alive[1].reports(mean_return=40.0, returns=4, episodes=4, state="joining")
    world.tick()
    status = world.fleet.status()
    assert (status.size, status.joined, status.episodes, status.steps) == (3, 2, 8, 300)
    assert status.mean_return == (2 * 10 + 2 * 10 + 4 * 40) / 8
    assert status.line().startswith("2 of 3 actors joined: 8 episodes, mean return 25.0, 300 steps")


def test_a_failed_actor_is_started_again_later_and_later_and_its_figures_stay() -> None:
    world = World(1)
    world.begin()
    delays = []
    for start in range(1, 9):
        world.alive[0].ends(-9)
        world.tick()
        delays.append(restart_delay_s(start))
        world.tick(delays[-1] - 0.01)
        assert not world.alive
        world.tick(0.02)
        assert world.alive[0].start == start
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_DELAY_S, LONGEST_DELAY_S]
    status = world.fleet.status()
    assert (status.restarts, status.steps, status.episodes, status.mean_return) == (8, 100, 2, 10.0)
    assert world.said[0] == "actor 0 ended with exit code -9; it starts again in 0.5 s"


def test_a_failure_after_a_long_life_counts_as_the_first() -> None:
    world = World(1)
    world.begin()
    for _ in range(2):
        world.alive[0].ends(1)
        world.tick()
        world.tick(1.0)
    world.now += STABLE_S
    world.alive[0].last_output = "rl4sys-actor: the learner is away"
    world.alive[0].ends(1)
    world.tick()
    assert world.said[-1] == "actor 0 ended with exit code 1; it starts again in 0.5 s: rl4sys-actor: the learner is away"


def test_an_actor_that_ends_in_order_is_not_started_again_and_the_fleet_ends_with_the_last() -> None:
    world = World(2)
    world.begin()
    world.alive[0].ends(0, done=True)
    world.tick(100.0)
    assert list(world.alive) == [1] and world.fleet.alive == 1
    world.alive[1].ends(0)  # an exit without a report that it is done, as after a signal
    world.tick()
    world.tick(1.0)
    assert world.alive[1].start == 1
    world.alive[1].ends(0, done=True)
    world.tick()
    assert world.fleet.done
    assert (world.fleet.status().done, world.fleet.status().restarts) == (2, 1)


def test_a_fleet_whose_first_actor_cannot_begin_ends_with_its_words() -> None:
    world = World(2)
    world.tick()
    world.alive[0].last_output = "rl4sys-actor: environment 'X' does not exist"
    world.alive[0].ends(2)
    with pytest.raises(ConfigError, match="actor 0 cannot begin: rl4sys-actor: environment 'X' does not exist"):
        world.tick()


def test_an_actor_that_cannot_begin_beside_others_that_did_is_tried_again() -> None:
    world = World(2)
    world.tick()
    world.alive[1].reports()
    world.tick()
    world.alive[0].ends(2)
    world.tick()
    world.tick(1.0)
    assert world.alive[0].start == 1


def test_few_actors_start_at_the_same_time_but_none_holds_up_the_others_for_long() -> None:
    world = World(5, starting=2)
    world.tick()
    assert sorted(world.alive) == [0, 1]
    world.alive[0].reports()
    world.tick()
    assert sorted(world.alive) == [0, 1, 2]
    world.tick(STARTING_S)
    assert sorted(world.alive) == [0, 1, 2, 3, 4]


def test_a_start_that_the_system_refuses_is_tried_again() -> None:
    world = World(1)
    world.engine.broken = True
    world.tick()
    assert world.said == ["actor 0 cannot be started (out of processes); the next attempt is in 0.5 s"]
    world.engine.broken = False
    world.tick(0.5)
    assert world.alive[0].start == 0


def test_on_shrink_the_last_actors_drain_and_on_growth_they_come_back_with_a_new_start() -> None:
    world = World(4)
    world.begin()
    world.fleet.resize(2)
    world.tick()
    assert [h.stops for h in world.engine.started] == [[], [], [7.0], [7.0]]
    world.fleet.resize(3)
    world.tick()
    assert len(world.engine.started) == 4, "its place is taken until it has ended"
    world.alive[2].ends(0, done=True)
    world.alive[3].ends(-9)
    world.tick()
    world.tick()
    assert sorted(world.alive) == [0, 1, 2] and not world.alive[2].stops
    assert world.alive[2].start == 1, "its seed differs from that of the actor before"
    assert (world.fleet.status().restarts, world.fleet.status().done, world.fleet.status().steps) == (0, 0, 400)


def test_drain_stops_all_and_starts_none() -> None:
    world = World(2)
    world.tick()
    world.fleet.drain()
    assert [h.stops for h in world.engine.started] == [[7.0], [7.0]]
    world.alive[0].ends(0)
    world.alive[1].ends(-9)
    world.tick(100.0)
    assert (world.fleet.alive, world.fleet.status().restarts, len(world.engine.started)) == (0, 0, 2)


def passes(world: World, waiting: float, steps_per_s: float) -> None:
    """Simulate a window of time in which each actor waits for a share of it."""
    world.tick()
    for handle in world.alive.values():
        assert handle.report is not None
        handle.reports(
            uptime_s=handle.report.uptime_s + WINDOW_S,
            credit_wait_s=handle.report.credit_wait_s + waiting * WINDOW_S,
            steps=handle.report.steps + round(steps_per_s * WINDOW_S),
        )
    world.tick(WINDOW_S)


def test_a_fleet_follows_the_waiting_time_of_its_actors() -> None:
    world = World(4, SizeLimits(2, 5))
    world.begin()
    passes(world, 0.02, 100)
    assert world.fleet.size == 5
    assert world.said == ["4 actors waited 2% of the time; the fleet changes to 5"]
    world.tick()
    world.alive[4].reports()
    passes(world, 0.3, 100)
    assert world.fleet.size == 5 and world.fleet.status().waiting == pytest.approx(0.3)
    passes(world, 0.9, 100)
    assert world.fleet.size == 2
    assert [handle.stops for handle in world.engine.started] == [[], [], [7.0], [7.0], [7.0]]


def test_a_fleet_does_not_resize_while_an_actor_is_not_joined_or_still_leaves() -> None:
    world = World(3, SizeLimits(1, 8))
    world.begin()
    world.alive[1].reports(state="joining")
    passes(world, 0.9, 100)
    assert world.fleet.size == 3
    world.all_report(state="joined")
    passes(world, 0.9, 100)
    assert world.fleet.size == 1
    passes(world, 0.0, 100)
    assert world.fleet.size == 1


def test_close_closes_the_engine() -> None:
    world = World(1)
    with world.fleet:
        world.tick()
    assert world.engine.closed == 1
