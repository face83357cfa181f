"""A simulation of actors of different speeds that share one learner thread, with the production cores on a virtual clock."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import simulation.sim_thread as sim_thread
from rl4sys_zmq.delivery.credit import CreditAllocator
from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.wire.messages import Verdict
from simulation.schedule import Schedule
from simulation.sim_actor import QUEUE_ITEMS, SimActor, packed_segment
from simulation.sim_learner import LearnerParts, SimLearner, planted
from simulation.sim_rules import Lineage
from simulation.sim_thread import SimThread
from simulation.simulator import Simulation

TURN_S = 2e-3
DELAY_S = 1e-3
SETTLE_S = 1.0
INBOX_MESSAGES = 64
TOGGLE_S = 0.01
GREEDY_STEPS = 10**6


@dataclass(frozen=True)
class Actor:
    """One actor of a mix.

    Attributes:
        hz: The number of steps per second that its host can collect.
        steps: The number of steps in a segment.
        segments: The number of segments that the host collects at the same time, one for each environment.
        waits: True if the host waits for credit before it begins segments, as with ``overflow: wait``. Otherwise it collects
            always, and a full queue drops its oldest segment.
        greedy: True if it always requests a million steps.
        useless: True if the learner thread quarantines all its segments.
        fickle: True if it never sends, and returns its credit and requests it again all the time.
    """

    hz: float = 1.0
    steps: int = 6
    segments: int = 1
    waits: bool = True
    greedy: bool = False
    useless: bool = False
    fickle: bool = False


@dataclass(frozen=True)
class Rates:
    """The result of a mix."""

    useful: tuple[float, ...]
    old: float


class Mix(Simulation):
    """Actors that share one learner thread."""

    def __init__(
        self,
        plans: Sequence[Actor],
        *,
        batch_steps: int = 240,
        training_s: float = 0.006,
        pool: type[CreditAllocator] = CreditAllocator,
    ) -> None:
        mix = self

        class Thread(_MixThread):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                self.mix = mix

        parts = LearnerParts(thread=Thread, pool=pool)
        super().__init__(1, schedule=Schedule(0, 0, math.inf, delay_s=DELAY_S, pace=1.0), parts=parts)
        self._batch_steps = batch_steps
        self.training_s, self.version, self.old_steps = training_s, 0, 0
        self.useful_steps: Counter[str] = Counter()
        self.hosts = {f"actor-{index}": _MixActor(self, index, plan) for index, plan in enumerate(plans)}
        self.actors = list(self.hosts.values())

    def rates(self, seconds: float = 2.0) -> Rates:
        """Run the mix, and return its rates without those of the first second."""
        before = sim_thread.BATCH_STEPS, sim_thread.INBOX_MESSAGES
        sim_thread.BATCH_STEPS, sim_thread.INBOX_MESSAGES = self._batch_steps, INBOX_MESSAGES
        try:
            with planted(self._parts):
                self._start_learner(Lineage())
                for host in self.hosts.values():
                    host.start()
                    host.look()
                self.play(SETTLE_S)
                self.useful_steps.clear()
                self.old_steps = 0
                self.play(SETTLE_S + seconds)
        finally:
            sim_thread.BATCH_STEPS, sim_thread.INBOX_MESSAGES = before
        useful = tuple(self.useful_steps[name] / seconds for name in self.hosts)
        return Rates(useful, self.old_steps / max(1, self.useful_steps.total()))

    def _turn(self, learner: SimLearner) -> None:
        self._guard(lambda: learner.turn(self.now))
        self.at(self.now + TURN_S, lambda: self._turn(learner))


class _MixActor(SimActor):
    """A host of a mix, with its queue and its session."""

    def __init__(self, mix: Mix, index: int, plan: Actor) -> None:
        super().__init__(mix, index, index)
        self.plan, self.begun = plan, dict[int, int]()
        self._mix, self._collects = mix, False

    @property
    def wanted_steps(self) -> int:
        """The credit to request. A host that waits requests two segments of each environment."""
        if self.plan.greedy or self.plan.fickle:
            return GREEDY_STEPS if int(self._mix.now / TOGGLE_S) % 2 or self.plan.greedy else 0
        ahead = 2 * self.plan.steps * self.plan.segments if self.plan.waits else 0
        return self.session.sent_steps + max(self._spool.waiting_steps, ahead)

    def look(self) -> None:
        """Begin segments if the host can. A fickle actor only changes its request."""
        plan, session, now = self.plan, self.session, self._mix.now
        if plan.fickle:
            self._do(session.want(now, self.wanted_steps))
            self._mix.at(now + TOGGLE_S, self.look)
        elif not self._collects and (
            not plan.waits
            or (session.state is SessionState.JOINED and session.sent_steps + self._spool.waiting_steps < session.credit_steps)
        ):
            self._collects = True
            version = self._mix.version
            self._mix.at(now + plan.steps * plan.segments / plan.hz, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        self._collects = False
        for _ in range(self.plan.segments):
            segment = next(self._serial)
            self.begun[segment] = version
            self._mix.history.submit(self.owner, segment)
            dropped = self._spool.put(segment, packed_segment(segment, self.plan.steps), QUEUE_ITEMS)
            if dropped is not None:
                self._mix.history.drop(dropped)
        self._work()

    def _work(self) -> None:
        super()._work()
        if not self.plan.fickle:
            self.look()


class _MixThread(SimThread):
    """A learner thread that trains for a while after each batch, and then publishes a version."""

    mix: Mix
    _trains_until = 0.0

    def work(self, *, flush: bool) -> None:
        """Read the messages, unless it trains."""
        if self._trains_until and self.mix.now >= self._trains_until:
            self._trains_until, self.mix.version = 0.0, self.mix.version + 1
        while self.inbox and not self._trains_until:
            self._follow(self.inbox.popleft())
        if self.is_ready:
            self._tell()

    @property
    def wants_steps(self) -> int:
        """The number of steps that are missing for a batch; 0 while the thread trains."""
        return 0 if self._trains_until else super().wants_steps

    def _train(self) -> None:
        super()._train()
        self._trains_until = self.mix.now + self.mix.training_s

    def _observe(self, key: Key, seq: int, segment: int, steps: int) -> None:
        self._history.observe(segment)
        host = self.mix.hosts[key[0]]
        if host.plan.useless:
            self._dispose(key, seq, segment, Verdict.QUARANTINED)
            return
        self.mix.useful_steps[key[0]] += steps
        self.mix.old_steps += steps * (host.begun[segment] < self.mix.version)
        self._batch.append((key, seq, segment))
        self._batch_steps += steps
