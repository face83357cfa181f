"""The fleet: it keeps a number of actors alive, restarts those that fail, drains those that are too many, and sums their
metrics.

`Fleet.tick` does all the work, in one thread.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.fleet.engine import CONFIG_EXIT_CODE, REPORT_S, ActorEngine, ActorHandle, ActorReport
from rl4sys_zmq.fleet.sizing import FleetLoad, SizeLimits, SizingMemory, next_size
from rl4sys_zmq.resource import Resource

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
STABLE_S = 60.0
"""The lifetime in seconds after which the failure of an actor counts as the first one again."""
STARTING_S = 30.0
"""The time in seconds for which an actor without a report counts as starting, and delays the start of others."""
WINDOW_S = 15.0
"""The time over which the load is measured before the size changes, in seconds."""
RATE_WINDOW_S = 5.0


def restart_delay_s(failures: int) -> float:
    """Return the delay before a restart, after `failures` failures in a row: 0.5 s, doubled each time, at most 30 s."""
    return min(LONGEST_DELAY_S, math.ldexp(FIRST_DELAY_S, min(failures - 1, 16)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The configuration of a fleet."""

    actors: int  # the number of actors at the start
    # the bounds between which the number of actors follows the learner's credit. None: the number is fixed
    limits: SizeLimits | None
    grace_s: float  # the time that an actor has to drain, in seconds
    starting: int  # the largest number of actors that start at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """The metrics of a whole fleet."""

    size: int  # the number of actors that the fleet should have
    joined: int  # the number of actors that are joined to the learner now
    done: int  # the number of actors that have ended in order
    episodes: int  # of all actors, also of ended ones, as `steps`
    mean_return: float | None  # the mean over the last episodes (at most 100) of each actor. None before the first
    steps: int
    steps_per_s: float  # over the last seconds
    # the mean share of the time in which an actor waited for the learner in the last window. None if unknown
    waiting: float | None
    restarts: int  # the number of restarts after failures

    def line(self) -> str:
        """Return the metrics as one line of text."""
        mean = "-" if self.mean_return is None else f"{self.mean_return:.1f}"
        waiting = "" if self.waiting is None else f", waiting {self.waiting:.0%} of the time"
        done = f", {self.done:,} done" if self.done else ""
        return (
            f"{self.joined:,} of {self.size:,} actors joined{done}: {self.episodes:,} episodes, mean return {mean}, "
            f"{self.steps:,} steps, {self.steps_per_s:,.0f}/s{waiting}, restarts {self.restarts:,}"
        )


class _Place:
    """One of a fleet's numbered places for an actor: the actor that runs there now, if any, and its restarts."""

    def __init__(self, index: int) -> None:
        self.index = index
        # None before the first start, between an end and a restart, and after the last end
        self.handle: ActorHandle | None = None
        # the newest report of the last actor that sent one. Its counts are those of that actor alone
        self.report: ActorReport | None = None
        self.starts = 0
        self.failures = 0  # in a row
        self.started_at = self.start_at = float("-inf")
        self.done = False  # True if the actor has ended in order and is not started again
        self.leaving = False  # True if the actor is to end, because the fleet has shrunk

    def delay_next_start(self, now: float) -> float:
        """Count a failure, and return the delay in seconds before the next start."""
        self.failures += 1
        delay_s = restart_delay_s(self.failures)
        self.start_at = now + delay_s
        return delay_s

    @property
    def joined(self) -> ActorReport | None:
        """The newest report of the actor at this place; None unless the actor is alive and has a session."""
        report = self.handle.report if self.handle is not None and self.handle.alive else None
        return report if report is not None and report.state == "joined" and not report.done else None


class Fleet(Resource):
    """A number of actors that are kept alive.

    An actor that fails is started again after a delay that doubles with each failure in a row, and is counted. An actor that ends
    in order is not started again. The fleet owns its engine, and closes it.

    Attributes:
        size: The number of actors that the fleet should have. `resize` changes it.
    """

    def __init__(
        self,
        config: FleetConfig,
        engine: ActorEngine,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a fleet. `tick` starts the actors.

        Args:
            config: The configuration.
            engine: The engine, without actors.
            say: Called with one line of text for each event, such as a restart.
            clock: Returns the time in seconds.
        """
        self._config, self._engine, self._say, self._clock = config, engine, say, clock
        self.size = config.actors
        self._places: dict[int, _Place] = {}
        self._draining = False
        self._restarts = 0
        self._ended_steps = self._ended_episodes = 0
        self._rate: deque[tuple[float, int]] = deque()
        self._window: tuple[float, dict[int, ActorReport]] | None = None
        self._memory = SizingMemory()
        self._waiting: float | None = None

    @property
    def alive(self) -> int:
        """The number of actors that are alive, including those that are to end."""
        return sum(place.handle is not None for place in self._places.values())

    @property
    def done(self) -> bool:
        """True if all actors have ended in order."""
        return not self.alive and all(i in self._places and self._places[i].done for i in range(self.size))

    def tick(self, timeout_s: float) -> None:
        """Wait for news of the actors, at most `timeout_s` seconds, then start, restart, drain and resize as needed.

        Raises:
            ConfigError: If an actor cannot begin, and no actor of this fleet ever did. Its last line of output is in the message.
        """
        self._engine.poll(timeout_s)
        now = self._clock()
        for place in list(self._places.values()):
            self._update_place(place, now)
        if not self._draining:
            self._start_due(now)
            self._measure(now)

    def resize(self, size: int) -> None:
        """Set the number of actors. Actors beyond it are drained, the newest places first; new ones are started by `tick`."""
        self.size, self._window = size, None
        for place in self._places.values():
            if place.index >= size and place.handle is not None:
                place.leaving = True
                place.handle.stop(self._config.grace_s)

    def drain(self) -> None:
        """Begin to end all actors. Call `tick` until `alive` is 0."""
        self._draining = True
        for place in self._places.values():
            if place.handle is not None:
                place.handle.stop(self._config.grace_s)

    def close(self) -> None:
        """End all actors without a grace period: they are terminated, and killed if they do not end."""
        self._engine.close()

    def status(self) -> FleetStatus:
        """Return the metrics of the fleet."""
        reports = [place.report for place in self._places.values() if place.report is not None]
        returns = sum(report.returns for report in reports)
        total = sum(report.returns * report.mean_return for report in reports if report.mean_return is not None)
        steps = self._ended_steps + sum(report.steps for report in self._current())
        return FleetStatus(
            size=self.size,
            joined=sum(place.joined is not None for place in self._places.values()),
            done=sum(place.done for place in self._places.values()),
            episodes=self._ended_episodes + sum(report.episodes for report in self._current()),
            mean_return=total / returns if returns else None,
            steps=steps,
            steps_per_s=self._steps_per_s(steps),
            waiting=self._waiting,
            restarts=self._restarts,
        )

    def _current(self) -> Iterator[ActorReport]:
        for place in self._places.values():
            if place.handle is not None and place.handle.report is not None:
                yield place.handle.report

    def _steps_per_s(self, steps: int) -> float:
        now = self._clock()
        if not self._rate or now - self._rate[-1][0] >= 0.5:
            self._rate.append((now, steps))
        while len(self._rate) > 2 and now - self._rate[1][0] >= RATE_WINDOW_S:
            self._rate.popleft()
        began, before = self._rate[0]
        return (steps - before) / (now - began) if now - began > REPORT_S else 0.0

    def _update_place(self, place: _Place, now: float) -> None:
        handle = place.handle
        if handle is None:
            return
        place.report = handle.report or place.report
        if handle.alive:
            return
        place.handle = None
        if handle.report is not None:
            self._ended_steps += handle.report.steps
            self._ended_episodes += handle.report.episodes
        if place.leaving:  # the place keeps the number of its starts, which its next actor's seed depends on
            place.leaving, place.report, place.failures = False, None, 0
        elif self._draining:
            return
        elif handle.exit_code == 0 and handle.report is not None and handle.report.done:
            place.done = True
        else:
            self._failed(place, handle, now)

    def _failed(self, place: _Place, handle: ActorHandle, now: float) -> None:
        last = f": {handle.last_output}" if handle.last_output else ""
        if handle.exit_code == CONFIG_EXIT_CODE and all(p.report is None for p in self._places.values()):
            raise ConfigError(f"actor {place.index} cannot begin{last or '; it printed nothing'}")
        if now - place.started_at >= STABLE_S:
            place.failures = 0
        delay_s = place.delay_next_start(now)
        self._restarts += 1
        self._say(f"actor {place.index} ended with exit code {handle.exit_code}; it starts again in {delay_s:g} s{last}")

    def _start_due(self, now: float) -> None:
        places = [self._places.setdefault(index, _Place(index)) for index in range(self.size)]
        fresh = [p for p in places if p.handle is not None and p.handle.report is None and now - p.started_at < STARTING_S]
        room = self._config.starting - len(fresh)
        for place in places:
            if room > 0 and place.handle is None and not place.done and now >= place.start_at:
                room -= 1
                self._start(place, now)

    def _start(self, place: _Place, now: float) -> None:
        place.started_at = now
        try:
            place.handle = self._engine.start(place.index, place.starts)
            place.starts += 1
        except (OSError, subprocess.SubprocessError) as exc:
            delay_s = place.delay_next_start(now)
            self._say(f"actor {place.index} cannot be started ({exc}); the next attempt is in {delay_s:g} s")

    def _measure(self, now: float) -> None:
        """Measure the waiting time while all actors are joined. After each window, let the rule choose the size."""
        places = [self._places[index] for index in range(self.size)]
        reports = {place.index: report for place in places if (report := place.joined) is not None}
        if len(reports) < self.size or self.alive > self.size:
            self._window = None
            return
        if self._window is None:
            self._window = now, reports
            return
        began, first = self._window
        if now - began < WINDOW_S:
            return
        self._window = now, reports
        load = _load(first, reports)
        self._waiting = load.waiting
        if self._config.limits is not None:
            size, self._memory = next_size(load, self._memory, self._config.limits)
            if size != self.size:
                self._say(f"{self.size:,} actors waited {load.waiting:.0%} of the time; the fleet changes to {size:,}")
                self.resize(size)


def _load(first: dict[int, ActorReport], last: dict[int, ActorReport]) -> FleetLoad:
    """Return the fleet's load between two reports of each actor, given by place: `first`, then `last`."""
    shares, steps_per_s = [], 0.0
    for index, report in last.items():
        began = first[index]
        passed_s = report.uptime_s - began.uptime_s
        if passed_s > 0:
            shares.append(min(1.0, (report.credit_wait_s - began.credit_wait_s) / passed_s))
            steps_per_s += (report.steps - began.steps) / passed_s
    return FleetLoad(len(last), sum(shares) / len(shares) if shares else 0.0, steps_per_s)
