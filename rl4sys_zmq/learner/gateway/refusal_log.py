"""The log of refused HELLOs: one line per actor and reason, at a limited rate."""

from __future__ import annotations

from collections import deque

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.logs import get_logger, printable
from rl4sys_zmq.wire.messages import Hello

log = get_logger(__name__)

MAX_KNOWN = 1024
"""The number of refusals that are remembered, so that a repeated one is not logged again."""
MAX_LINES, WINDOW_S = 20, 60.0
MAX_NAME_CHARS, MAX_REASON_CHARS = 80, 500

NOT_LOGGED = frozenset(
    {RefusalReason.FAILED, RefusalReason.STARTING, RefusalReason.NO_SESSION, RefusalReason.CLOSING}
    | {RefusalReason.CONFLICT, RefusalReason.EXPIRED}
)
"""Codes of refusals that are no fault of the actor, or that end without a person. The learner logs a failed client itself."""


class RefusalLog:
    """The record of refused HELLOs. Use it in one thread.

    An actor repeats a refused HELLO every few seconds, and a peer can invent any number of names. So the size and the rate of
    lines are limited.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._known: dict[tuple[str, str, str], None] = {}
        self._lines: deque[float] = deque()
        self._omitted = 0

    def note(self, hello: Hello, code: RefusalReason, reason: str, field: str, now: float) -> None:
        """Log the refusal of a HELLO, unless it is known."""
        if code in NOT_LOGGED:
            return
        client_id, actor_id = hello.client_id[:MAX_NAME_CHARS], hello.actor_id[:MAX_NAME_CHARS]
        reason = printable(reason[:MAX_REASON_CHARS])
        key = client_id, actor_id, reason
        if key in self._known:
            return
        while self._lines and now - self._lines[0] >= WINDOW_S:
            self._lines.popleft()
        if len(self._lines) >= MAX_LINES:  # it is not remembered, so a later repetition can be logged
            self._omitted += 1
            return
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = None
        self._lines.append(now)
        omitted, self._omitted = self._omitted, 0
        more = f" ({omitted} further refusals were not logged)" if omitted else ""
        log.warning("client %r: actor %r is refused (%s): %s%s", client_id, actor_id, code.value, reason, more)
        fields = {"client_id": client_id, "actor_id": actor_id, "code": code.value, "field": field, "reason": reason}
        self._sink.event("hello_refused", **fields)
