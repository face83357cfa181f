"""Requests to a running learner for its status and for operator commands, and a table of its clients as text."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.options import CALL_TIMEOUT_S, check_value
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, RefusalReason
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.security import UserKeys, curve_client
from rl4sys_zmq.transports import Address, MonitorEvent, Poller, Socket, explain
from rl4sys_zmq.transports.greeting import LearnerUnreachable, explain_silence, look_up
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Message, OperatorCommand, OperatorCommandDone, Refused, StatusReply, StatusRequest

LOOK_S = 0.1


def request_status(address: str, timeout_s: float, keys: UserKeys | None = None) -> dict[str, Any]:
    answer = _request(address, StatusRequest(), timeout_s, keys)
    if not isinstance(answer, StatusReply):
        raise ProtocolError(RefusalReason.DIRECTION, f"the reply to a status request was a {type(answer).__name__}")
    if limited := answer.report.get("limited"):
        raise ProtocolError(RefusalReason.FORBIDDEN, str(limited))
    return answer.report


def request_command(
    address: str, command: OperatorCommand, timeout_s: float, keys: UserKeys | None = None
) -> OperatorCommandDone:
    answer = _request(address, command, timeout_s, keys)
    if not isinstance(answer, OperatorCommandDone):
        raise ProtocolError(RefusalReason.DIRECTION, f"the reply to a command was a {type(answer).__name__}")
    return answer


def _request(address: str, message: StatusRequest | OperatorCommand, timeout_s: float, keys: UserKeys | None) -> Message:
    """Send a message on a new connection, and return the reply. Raise an exception for a refusal."""
    timeout_s = check_value("timeout_s", timeout_s, CALL_TIMEOUT_S)
    what = "a status request" if isinstance(message, StatusRequest) else f"{message.command}, which continues if it was received"
    uri = AgentConfig(client_id="status", train_server_address=address).address
    parsed = Address.parse(uri)
    if parsed.scheme == "tcp":
        try:
            look_up(parsed, timeout_s)  # a name without an address does not get one by waiting
        except LearnerUnreachable as exc:
            raise LearnerUnavailable(uri, f"the reply to {what}", timeout_s, str(exc)) from exc
    deadline = time.monotonic() + timeout_s
    secure = curve_client(keys) if keys is not None else None
    hint = ""
    with Poller() as poller, Socket.dealer(parsed, secure=secure, watch=True) as dealer:
        poller.register(dealer)
        dealer.send(encode(message))
        while (left_s := deadline - time.monotonic()) > 0:
            poller.poll(min(left_s, LOOK_S))
            while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                answer = decode(frames)
                if not isinstance(answer, Refused):
                    return answer
                if answer.code == RefusalReason.CONFIG:
                    raise ConfigError(answer.reason, key=answer.field)
                code = RefusalReason(answer.code) if answer.code in set(RefusalReason) else RefusalReason.MALFORMED
                raise ProtocolError(code, answer.reason)
            for event in dealer.events():
                if event.is_failure:
                    hint = handshake_error(event, keys is not None)
                    if event.is_final:
                        raise ProtocolError(RefusalReason.FORBIDDEN, f"{uri}: {hint}")
    hint = hint or explain_silence(uri, has_keys=keys is not None) or "check that it runs and that the address is correct"
    raise LearnerUnavailable(uri, f"the reply to {what}", timeout_s, hint)


def handshake_error(event: MonitorEvent, have_keys: bool) -> str:
    """Return the cause of a failed handshake on the connecting side, and a remedy, as text ``cause; remedy``."""
    if event.is_final and event.name == "handshake_failed.protocol":
        if have_keys:
            return "keys were given, but the learner has none; omit the keys, or start the learner with --keys DIR"
        return "the learner requires keys, but none were given; give --keys NAME.keys"
    if event.name == "handshake_failed.no_detail" and event.detail != errno.EAGAIN:
        if not have_keys:
            return "it closed the connection, as a learner with keys does; give --keys NAME.keys, or correct the port"
        return "it closed the connection, probably for a wrong learner key in NAME.keys; copy the file again or correct the port"
    return explain(event, "actor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatusRow:
    """The main figures of one client in a status report.

    Attributes:
        mean_return: Over the last 100 episodes. None before the first has ended.
        mean_reward: Per step, over the last 10,000 steps. None before the first data, and if the learner does not report it.
        actors: The number of actors that are connected now.
        pending: In segments, as `unfit` and `stale`.
        unfit: Refused or quarantined.
    """

    client_id: str
    state: str
    algorithm: str
    episodes: int
    mean_return: float | None
    mean_reward: float | None
    steps: int
    steps_per_s: float
    version: int
    updates: int
    policy_lag: float
    pending: int
    actors: int
    unfit: int
    stale: int
    error: str

    def cells(self) -> tuple[str, ...]:
        """Return the figures as texts, one for each column in `HEADINGS`. Those from a checkpoint are unknown at the start."""
        trained = (
            f"{self.episodes:,}",
            "-" if self.mean_return is None else f"{self.mean_return:.1f}",
            "-" if self.mean_reward is None else f"{self.mean_reward:.3g}",
            f"{self.steps:,}",
            f"{self.steps_per_s:,.0f}",
            f"{self.version:,}" if self.version >= 0 else "-",
            f"{self.policy_lag:.2f}",
        )
        return (
            self.client_id,
            self.state,
            self.algorithm,
            *(("-",) * len(trained) if self.state.startswith("starting") else trained),
            f"{self.pending:,}",
            f"{self.actors:,}",
            f"{self.unfit:,}/{self.stale:,}",
        )

    def lines(self) -> list[str]:
        """Return the figures as short lines, for a narrow terminal."""
        named = [f"{name} {cell}" for name, cell in zip(HEADINGS, self.cells(), strict=True)]
        figures = ["  " + "   ".join(named[first:end]) for first, end in ((3, 6), (6, 10), (10, 13))]
        return [f"{self.client_id}: {self.state}, {self.algorithm}", *figures]

    def line(self) -> str:
        """Return the most important figures, a state other than ``running``, and the error as one line."""
        cells = dict(zip(HEADINGS, self.cells(), strict=True))
        state = f"state {self.state}, " if self.state != "running" else ""
        unused = f", unfit/stale {cells['unfit/stale']}" if self.unfit or self.stale else ""
        pace = f"{cells['steps']} steps, {cells['steps/s']}/s, version {cells['version']}"
        means = f"return {cells['return']}, reward/step {cells['reward/step']}"
        return f"{self.client_id}: {state}{means}, {pace}{unused}{self._error}"

    @property
    def _error(self) -> str:
        return f"; {self.error}" if self.error else ""


HEADINGS = (
    "client",
    "state",
    "algorithm",
    "episodes",
    "return",
    "reward/step",
    "steps",
    "steps/s",
    "version",
    "lag",
    "queue",
    "actors",
    "unfit/stale",
)
"""The headings of the table of clients, in the order of `ClientStatusRow.cells`."""


def client_rows(report: Mapping[str, Any]) -> list[ClientStatusRow]:
    return [_row(name, client) for name, client in sorted(report["clients"].items())]


def text_table(rows: Sequence[ClientStatusRow]) -> list[str]:
    """Return the table of clients as lines of aligned text, then a line for each error."""
    table = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(HEADINGS))]
    left = 3  # names are aligned to the left, numbers to the right
    lines = [
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]
    return [*lines, *(f"{row.client_id}: {row.error}" for row in rows if row.error)]


def _row(name: str, client: Mapping[str, Any]) -> ClientStatusRow:
    verdicts, state, scalars = client["verdicts"], client["state"], client.get("scalars", {})
    if state == "starting" and "clone/progress" in scalars:
        state = f"starting (clones {scalars['clone/progress']:.0%}, loss {scalars['clone/loss']:.3g})"
    return ClientStatusRow(
        client_id=name,
        state=state,
        algorithm=client["algorithm"],
        episodes=client["episodes"],
        mean_return=client["mean_return"],
        mean_reward=client.get("mean_reward"),
        steps=client["steps"],
        steps_per_s=client["steps_per_s"],
        version=client["version"],
        updates=client["updates"],
        policy_lag=client["policy_lag"],
        pending=client["pending"],
        actors=client["actors_live"],
        unfit=verdicts["refused"] + verdicts["quarantined"],
        stale=verdicts["stale"],
        error=client["error"],
    )
