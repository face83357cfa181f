"""The state that an agent's I/O thread and host threads share, and the pauses in which the I/O thread frees the GIL."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from rl4sys_zmq.errors import LearnerUnavailable, RL4SysError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.wire.messages import Welcome


@immutable
class SessionParameters:
    """The learner's parameters for a session, from its message `Welcome`, which describes them, or from the policy cache."""

    generation: int
    algorithm_name: str
    algorithm_type: str
    rollout_length: int
    max_policy_lag: int
    on_lag: str
    max_message_bytes: int
    max_segment_steps: int
    inference: str
    no_masks: str = ""

    @classmethod
    def of(cls, welcome: Welcome) -> SessionParameters:
        """Return the session parameters in `welcome`. `max_segment_steps` becomes at least 1."""
        said = {name: getattr(welcome, name) for name in cls.__match_args__}
        return cls(**{**said, "max_segment_steps": max(1, welcome.max_segment_steps)})


@immutable
class SegmentStartConditions:
    """The conditions under which a host thread may start a segment with ``overflow: wait`` (the *credit gate*)."""

    limit_steps: int  # credit: a segment can start while the actor has finished fewer steps than this, counted since its start
    generation: int  # generation that the actor's policy must have
    min_version: int  # lowest version that the actor's policy must have
    error: RL4SysError | None  # error that ends the waits of all host threads, or None
    stage: str  # event that the I/O thread waits for, as text for error messages


class ActorSharedState:
    """The state that an I/O thread and host threads share: what the I/O thread has found, and what host threads request.

    Host threads set `want_steps`, and count themselves in `flushing` and `waiting` while they wait. The I/O thread sets all
    other attributes except `absence`. All are read without a lock, so immutable objects are replaced as a whole.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()  # notified after each change of the policy or of `credit_gate`
        self.opened = threading.Event()  # the spool and the policy cache are open, or `open_error` is set
        self.open_error: RL4SysError | None = None
        self.credit_gate = SegmentStartConditions(0, 0, 0, None, "the learner to answer")
        self.session_parameters: SessionParameters | None = None  # those that the learner last sent, or saved by an earlier start
        self.stage = self.credit_gate.stage
        self.error: RL4SysError | None = None
        self.joined = False
        # The error that says why this start has no session, from `connect_timeout_s` after the start to the first session.
        self.absence: LearnerUnavailable | None = None
        self.current_at = float("-inf")  # monotonic time of the learner's last message, or of the save of the cached policy
        self.starting_at = float("-inf")  # monotonic time at which the learner last answered that it starts the training
        self.want_steps = 0  # for which host threads ask credit, counted since the start
        self.flushing = self.waiting = 0

    @property
    def urgent(self) -> bool:
        """True while a host thread waits for credit or for acknowledgements."""
        return bool(self.waiting or self.flushing)

    def count_waiting(self, count: int) -> None:
        self.waiting += count

    def count_flushing(self, count: int) -> None:
        self.flushing += count

    def inherit(self, other: ActorSharedState) -> None:
        """Take the session parameters of `other`, the shared state of the parent process, in a forked child."""
        self.session_parameters, self.current_at = other.session_parameters, other.current_at

    def renew_lock(self) -> None:
        self.changed = threading.Condition()

    def notify(self) -> None:
        """Wake the waiting host threads, under a lock that requests for actions never take."""
        with self.changed:
            self.changed.notify_all()

    def on_joined(self) -> None:
        with self.changed:
            self.joined, self.absence = True, None

    def set_absence(self, error: LearnerUnavailable) -> None:
        """Set `absence`, the error of a start without a session, unless a session has begun. Any thread can call this."""
        with self.changed:
            if not self.joined:
                self.absence = error

    def open_gate(self, limit_steps: int, generation: int, min_version: int, stage: str) -> None:
        """Set the conditions under which host threads may start segments. If they have changed, wake the waiting threads."""
        credit_gate = SegmentStartConditions(limit_steps, generation, min_version, self.error, stage)
        if credit_gate != self.credit_gate or self.flushing:
            with self.changed:
                self.credit_gate = credit_gate
                self.changed.notify_all()

    def set_error(self, error: RL4SysError) -> None:
        """Close the credit gate, and end the waits of all host threads with an error."""
        self.error = error
        with self.changed:
            self.credit_gate = replace(self.credit_gate, limit_steps=0, min_version=0, error=error)
            self.changed.notify_all()

    def set_stage(self, stage: str) -> None:
        """Close the credit gate while the I/O thread waits for the event `stage`, a text for messages."""
        self.stage = stage
        self.credit_gate = replace(self.credit_gate, limit_steps=0, min_version=0, error=self.error, stage=stage)


MAX_COMPUTE_S, PAUSE_S = 0.0005, 0.000_001
"""The longest computation without a pause, and the length of a pause (about 0.05 ms with timer slack)."""
REST_S = 0.02
"""The length of one sleep of the busy I/O thread, which then handles at once all that has accumulated."""
BUSY_S = 0.05
"""The time between two segments below which the I/O thread counts as busy and sleeps."""


class IOThrottle:
    """The timing of an I/O thread's pauses, which leave processor time to host threads. Other threads read `resting` only."""

    def __init__(self) -> None:
        self.resting = False  # it sleeps to handle several segments at once: a host thread need not wake it
        self.busy = False  # true if segments arrive in quick succession, so that the thread sleeps before its next turn
        self._segments_at = float("-inf")
        self._paused_at = 0.0

    def turn(self, now: float, *, segments: bool) -> None:
        """Record the start of a pass through the thread's loop. `segments` is True if new segments have come."""
        self._paused_at = now
        self.busy = segments and now - self._segments_at < BUSY_S
        if segments:
            self._segments_at = now

    def yield_to_host(self) -> None:
        """Let host threads run, if the last pause is more than `MAX_COMPUTE_S` ago."""
        if time.monotonic() - self._paused_at > MAX_COMPUTE_S:
            self.yield_now()

    def yield_now(self) -> None:
        time.sleep(PAUSE_S)
        self._paused_at = time.monotonic()
