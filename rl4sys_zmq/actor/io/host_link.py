"""The state that an I/O thread and the host threads of its agent share, without sockets."""

from __future__ import annotations

import threading
from dataclasses import replace

from rl4sys_zmq.actor.io.session_parameters import SegmentStartConditions
from rl4sys_zmq.errors import LearnerUnavailable, RL4SysError


class HostLink:
    """The results of the I/O thread for host threads, and the requests of host threads to it.

    Host threads count themselves in `flushing` and `waiting` and raise `want_steps`. The I/O thread sets everything else, except
    for `absence`. All attributes are read without a lock, so immutable objects are replaced as a whole.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()  # notified after each change of the policy or of `credit_gate`
        self.opened = threading.Event()  # the spool and the policy cache are open, or `open_error` is set
        self.open_error: RL4SysError | None = None
        self.credit_gate = SegmentStartConditions(0, 0, 0, None, "the learner to answer")
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

    def renew_lock(self) -> None:
        self.changed = threading.Condition()

    def notify(self) -> None:
        """Wake the host threads that wait. Requests for actions never take the lock."""
        with self.changed:
            self.changed.notify_all()

    def on_opened(self) -> None:
        self.opened.set()
        self.notify()

    def on_joined(self) -> None:
        with self.changed:
            self.joined, self.absence = True, None

    def set_absence(self, error: LearnerUnavailable) -> None:
        """Set `absence`, unless a session has begun meanwhile. Any thread can call this method."""
        with self.changed:
            if not self.joined:
                self.absence = error

    def open_gate(self, limit_steps: int, generation: int, min_version: int, stage: str) -> None:
        """Let host threads start segments under new conditions. Waiting threads wake if these differ from the present ones."""
        credit_gate = SegmentStartConditions(limit_steps, generation, min_version, self.error, stage)
        if credit_gate != self.credit_gate or self.flushing:
            with self.changed:
                self.credit_gate = credit_gate
                self.changed.notify_all()

    def set_error(self, error: RL4SysError) -> None:
        """Close the gate, and end the waits of all host threads with an error."""
        self.error = error
        with self.changed:
            self.credit_gate = replace(self.credit_gate, limit_steps=0, min_version=0, error=error)
            self.changed.notify_all()

    def set_stage(self, stage: str) -> None:
        """Close the gate while the I/O thread waits for `stage`."""
        self.stage = stage
        self.credit_gate = replace(self.credit_gate, limit_steps=0, min_version=0, error=self.error, stage=stage)
