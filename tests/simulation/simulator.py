"""A simulation of one learner and a few actors over a faulty network, on a virtual clock, without sockets or threads.

`simulate(seed)` runs one random schedule of faults and raises `Violation` if a guarantee is broken. A seed always gives the
same run. The simulation runs production code: `ActorSession` for the actors, `LearnerCore` with all its parts for the
learner, and the order of the journal's operations, the marks of a learner thread and the codec. A test plants a bug through
`LearnerParts` or `ActorParts`, to check that the rules detect it.

A connection ends with the learner process that it was made to. As with TCP, the messages of a learner that died never arrive
after those of its successor. Within a connection a schedule may lose, repeat and damage messages, and some schedules
reorder them. TCP does none of this.
"""

import itertools
import random
from collections.abc import Callable

from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.wire.messages import Frame
from simulation.history import History
from simulation.schedule import CRASH_POINTS, Schedule
from simulation.sim_actor import ActorParts, SimActor
from simulation.sim_disk import SimDisk
from simulation.sim_learner import Answers, LearnerParts, SimLearner, planted
from simulation.sim_network import SimNetwork
from simulation.sim_rules import Lineage, Violation

TURN_S = 0.1
PROBES = 3
QUIET_S = 240.0
STALL_S = 8.0
DOOM_S = 3.0
SETTLE_TURNS = 400
JOIN_S = 10.0


class _Crash(Exception):
    """Raised at the point where the learner's process dies."""


class Simulation(SimNetwork):
    """One learner, its actors and the network between them, on a virtual clock."""

    def __init__(
        self, seed: int, *, schedule: Schedule | None = None, parts: LearnerParts | None = None, actor: ActorParts | None = None
    ) -> None:
        super().__init__(seed, schedule, actor or ActorParts())
        self._parts = parts or LearnerParts()
        self._journals = itertools.count(1)
        self._disk = SimDisk(next(self._journals)) if self.schedule.durable else None
        self._backup: tuple[SimDisk, Lineage] | None = None
        self._learner: SimLearner | None = None
        self._doom = ""

    def run(self) -> History:
        """Run the schedule, wait until all segments have been delivered, and check the rules."""
        with planted(self._parts):
            self._run()
        return self.history

    def _run(self) -> None:
        plan = self.schedule
        self._start_learner(Lineage())
        for actor in self.actors:
            actor.start()
            self._sometime(plan.segments, actor.produce)
        self._sometime(plan.learner_restarts, self._kill_learner)
        self._sometime(plan.thread_restarts, self._restart_thread)
        self._sometime(plan.actor_restarts, lambda: self.rng.choice(self.actors).restart())
        self._sometime(plan.partitions, self.partition)
        self._sometime(plan.stalls, self._stall)
        self._sometime(plan.copies, self._back_up)
        self._sometime(plan.copies, self._put_copy_back)
        self._sometime(plan.wipes, self._wipe)
        self._sometime(plan.relics, self._leave_relic)
        self.play(plan.faults_s)
        self._end_faults()
        self._check_joined()
        deadline = self.now + QUIET_S
        while self.now < deadline and any(actor.held for actor in self.actors):
            self.play(min(deadline, self.now + 1.0))
        self._finish()

    def _sometime(self, times: int, event: Callable[[], None]) -> None:
        for _ in range(times):
            self.at(self.rng.uniform(0, self.schedule.faults_s), event)

    def _leave_relic(self) -> None:
        """Stop an actor's process, start another one under its name, and continue the first one after 0.1, 4 or 12 seconds."""
        relic = self.rng.choice(self.actors)
        relic.stop()
        self.at(self.now + self.rng.choice([0.1, 4.0, 12.0]), relic.wake)
        number = len(self.actors)
        successor = SimActor(self, relic.index, number)
        self.actors.append(successor)
        successor.start()
        for _ in range(self.schedule.segments // 2):
            self.at(self.rng.uniform(self.now, max(self.now, self.schedule.faults_s)), successor.produce)
        self.history.counts["relics"] += 1

    def _end_faults(self) -> None:
        """End the faults, and let each actor send a few more segments, which must arrive too."""
        self.calm()
        self._doom = ""
        for index in range(self.schedule.actors):
            rivals = [actor for actor in self.actors if actor.index == index]
            left = self.rng.choice(rivals)  # the last actor of a name to go on must join, whichever it is
            for actor in rivals:
                actor.wake() if actor is left else actor.end()
        self.actors = [actor for actor in self.actors if not actor.ended]
        if self._learner is None:
            self._start_learner()
        assert self._learner is not None
        self._learner.full = False
        for actor in self.actors:
            for _ in range(PROBES):
                self.at(self.now + self.rng.uniform(0, 5), actor.produce)
        self.play(self.now + 5.0)

    def _check_joined(self) -> None:
        """Check that each actor joins within `JOIN_S`, or within `JOIN_S` and a lease if a newer incarnation may be known.

        With a clock that steps back, a HELLO of an earlier process may have the higher incarnation. It may arrive late.
        """
        overtaken = self.schedule.relics or (self.schedule.clock != "right" and self.schedule.delay_s)
        deadline = self.now + JOIN_S + (self.schedule.lease_s if overtaken else 0.0)
        while self.now < deadline and any(actor.session.state is not SessionState.JOINED for actor in self.actors):
            self.play(self.now + 1.0)
        for actor in self.actors:
            state = actor.session.state
            if state is not SessionState.JOINED:
                raise Violation("wedged", f"{actor.stream} is {state.value} {JOIN_S:g} s after the last fault or lease")

    def _finish(self) -> None:
        for actor in self.actors:
            self.history.check_owner(actor.owner, actor.held, actor.accounted)
        learner = self._settle()
        self.play(self.now + 5.0)
        judged = learner.judged
        lossless = not (self.schedule.reorder or self.schedule.copies or self.schedule.wipes)
        for actor in self.actors:
            if lossless and actor.pure and actor.is_caught_up:  # an ack that overtakes its WELCOME may be counted twice
                self.history.check_verdicts(actor.stream, judged, actor.session.verdicts)
        if self._disk is not None:  # a new learner that starts from the disk must pass the checks too
            self._start_learner()
            self._settle()

    def _settle(self) -> SimLearner:
        """Run the learner until it has nothing left to do, and check its counters and the lineage."""
        learner = self._learner
        assert learner is not None
        for _ in range(SETTLE_TURNS):
            self.deliver(learner.turn(self.now, flush=True))
            if not learner.busy:
                break
        self.deliver(learner.turn(self.now, flush=True))
        learner.check_books()
        self.history.check_lineage(learner.judged, all_of_it=True)
        return learner

    def _start_learner(self, lineage: Lineage | None = None) -> None:
        """Start a learner process on the disk. Give `lineage` if the disk is not the one that the last process wrote."""
        self.life += 1
        self._doom = ""
        self.history.begin_life(lineage if self._disk is not None or lineage is not None else Lineage())
        if self._disk is not None and self.rng.random() < self.schedule.rot and self._disk.rot():
            self.history.counts["rotten"] += 1
        rng = random.Random(self.rng.random())
        learner = SimLearner(self.now, self._disk, self.schedule, self._parts, self.history, rng)
        learner.reach, learner.is_gone = self._reach, self.is_gone
        self._learner = learner
        self._turn(learner)
        self._second(learner)

    def _turn(self, learner: SimLearner) -> None:
        if learner is self._learner:
            self._guard(lambda: learner.turn(self.now))
            self.at(self.now + TURN_S, lambda: self._turn(learner))

    def _guard(self, act: Callable[[], Answers]) -> None:
        """Let the learner act, and send its messages. If it dies meanwhile, none of them is sent."""
        try:
            answers = act()
        except _Crash:
            self._die()
            return
        self.deliver(answers)

    def _second(self, learner: SimLearner) -> None:
        if learner is self._learner:
            self._guard(lambda: learner.each_second(self.now))
            self.at(self.now + 1.0, lambda: self._second(learner))

    def _reach(self, point: str) -> None:
        if point == self._doom:
            self.history.counts[f"died.{point}"] += 1
            raise _Crash

    def _kill_learner(self) -> None:
        learner = self._learner
        self._doom = self.rng.choice(CRASH_POINTS)
        if self._doom == "anywhere":
            self._die()
        elif learner is not None:
            self.at(self.now + DOOM_S, lambda: self._die() if learner is self._learner and self._doom else None)

    def _die(self) -> None:
        if self._learner is not None and not self.quiet:
            self._learner, self._doom = None, ""
            self.at(min(self.now + self.rng.choice([0.1, 1.0, 5.0]), self.schedule.faults_s), self._revive)

    def _revive(self) -> None:
        if self._learner is None:
            self._start_learner()

    def _restart_thread(self) -> None:
        learner = self._learner
        if learner is not None:
            self._guard(learner.restart_thread)

    def learner_hears(self, peer: bytes, frames: list[Frame]) -> None:
        learner = self._learner
        if learner is not None:
            self.deliver(learner.on_frames(self.now, peer, frames))

    def _stall(self) -> None:
        learner = self._learner
        if learner is not None:
            learner.full = True
            self.at(self.now + self.rng.uniform(0, STALL_S), lambda: setattr(learner, "full", False))

    def _back_up(self) -> None:
        """Copy the disk. The learner is between two turns."""
        if self._disk is not None:
            self._backup = self._disk.copy(), self.history.lineage.copy()

    def _put_copy_back(self) -> None:
        if self._backup is not None and self._disk is not None:
            self.history.counts["copied_back"] += 1
            disk, lineage = self._backup
            self._disk = disk.copy()
            self._start_learner(lineage.copy())

    def _wipe(self) -> None:
        if self._disk is not None:
            self.history.counts["wiped"] += 1
            self._disk, self._backup = SimDisk(next(self._journals)), None
            self._start_learner(Lineage())


def simulate(
    seed: int, *, schedule: Schedule | None = None, parts: LearnerParts | None = None, actor: ActorParts | None = None
) -> Simulation:
    simulation = Simulation(seed, schedule=schedule, parts=parts, actor=actor)
    try:
        simulation.run()
    except Violation as exc:
        exc.add_note(f"seed {seed}: {simulation.schedule}")
        raise
    return simulation
