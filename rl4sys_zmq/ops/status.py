"""A learner's status: asked for over the network, and as rows for people."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, Refusal
from rl4sys_zmq.security import UserKeys, curve_client
from rl4sys_zmq.transports import Address, MonitorEvent, Poller, Socket, explain
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Command, CommandDone, Message, Refused, Status, StatusRequest

__all__ = ["HEADINGS", "ClientRow", "client_rows", "handshake_words", "request_command", "request_status", "text_table"]

MAX_MESSAGE_FRAMES = 256
LOOK_S = 0.1


def request_status(address: str, timeout_s: float, keys: UserKeys | None = None) -> dict[str, Any]:
    """Asks the learner at `address` (host:port or a URI) for its status.

    Args:
        address: of the learner.
        timeout_s: how long to wait.
        keys: ours, with the role ``admin``, for a learner with keys.

    Raises:
        LearnerUnavailable: when no answer comes within `timeout_s` seconds; with the reason, if libzmq knows it.
        ProtocolError: when it refuses us or our keys, or what answers is no learner of this protocol.
        ConfigError: for text that is no address.
    """
    answer = _request(address, StatusRequest(), timeout_s, keys)
    if not isinstance(answer, Status):
        raise ProtocolError(Refusal.DIRECTION, f"{type(answer).__name__} came for a status request")
    return answer.report


def request_command(address: str, command: Command, timeout_s: float, keys: UserKeys | None = None) -> CommandDone:
    """Has the learner at `address` (host:port or a URI) carry out a command.

    Args:
        address: of the learner.
        command: what to do.
        timeout_s: how long to wait. What has been begun goes on after that.
        keys: ours, with the role ``admin``, for a learner with keys.

    Raises:
        ConfigError: when there is no such client or actor, or for text that is no address.
        LearnerUnavailable, ProtocolError: as `request_status` does; also when the client fails again.
    """
    answer = _request(address, command, timeout_s, keys)
    if not isinstance(answer, CommandDone):
        raise ProtocolError(Refusal.DIRECTION, f"{type(answer).__name__} came for a command")
    return answer


def _request(address: str, message: StatusRequest | Command, timeout_s: float, keys: UserKeys | None) -> Message:
    """The answer to a message that needs no session."""
    what = "a status request" if isinstance(message, StatusRequest) else f"{message.command}, which goes on if it has come"
    uri = AgentConfig(client_id="status", train_server_address=address).address
    deadline = time.monotonic() + timeout_s
    secure = curve_client(keys) if keys is not None else None
    hint = "is it running, and is this its address?"
    with Poller() as poller, Socket.dealer(Address.parse(uri), secure=secure, watch=True) as dealer:
        poller.register(dealer)
        dealer.send(encode(message))
        while (left_s := deadline - time.monotonic()) > 0:
            poller.poll(min(left_s, LOOK_S))
            while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                answer = decode(frames)
                if not isinstance(answer, Refused):
                    return answer
                if answer.code == Refusal.CONFIG:
                    raise ConfigError(answer.reason, key=answer.field)
                code = Refusal(answer.code) if answer.code in set(Refusal) else Refusal.MALFORMED
                raise ProtocolError(code, answer.reason)
            for event in dealer.events():
                if event.is_failure:
                    hint = handshake_words(event, keys is not None)
                    if event.is_final:
                        raise ProtocolError(Refusal.FORBIDDEN, f"{uri}: {hint}")
    raise LearnerUnavailable(uri, f"the answer to {what}", timeout_s, hint)


def handshake_words(event: MonitorEvent, have_keys: bool) -> str:
    """Why a handshake failed: cause and remedy, from the side that dials."""
    if event.is_final and event.name == "handshake_failed.protocol":
        if have_keys:
            return "we have keys, and the learner has none; leave the keys away, or start it with --keys DIR"
        return "the learner asks for keys, and we have none; give --keys NAME.keys"
    if have_keys and event.name == "handshake_failed.no_detail" and event.detail != errno.EAGAIN:
        return "it hangs up: most likely its key is not the learner's key in our NAME.keys; copy it again, or correct the port"
    return explain(event, "actor")


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client of a status report, as far as a person wants to see it.

    Attributes:
        mean_return: of the last hundred episodes; None before the first has ended.
        policy_lag: mean versions behind of the data trained last.
        actors: those that have a session now.
        pending: segments accepted and not yet used.
        refused: segments refused or quarantined.
        stale: segments dropped because they were too old.
    """

    client_id: str
    state: str
    algorithm: str
    episodes: int
    mean_return: float | None
    steps: int
    steps_per_s: float
    version: int
    updates: int
    policy_lag: float
    pending: int
    actors: int
    refused: int
    stale: int
    error: str

    def cells(self) -> tuple[str, ...]:
        """The text under `HEADINGS`."""
        mean = "-" if self.mean_return is None else f"{self.mean_return:.1f}"
        return (
            self.client_id,
            self.state,
            self.algorithm,
            f"{self.episodes:,}",
            mean,
            f"{self.steps:,}",
            f"{self.steps_per_s:,.0f}",
            f"{self.version:,}",
            f"{self.policy_lag:.2f}",
            f"{self.pending:,}",
            f"{self.actors:,}",
            f"{self.refused:,}/{self.stale:,}",
        )

    def lines(self) -> list[str]:
        """The same for a narrow terminal: a few short lines."""
        named = [f"{name} {cell}" for name, cell in zip(HEADINGS, self.cells(), strict=True)]
        return [
            f"{self.client_id}: {self.state}, {self.algorithm}",
            "  " + "   ".join(named[3:7]),
            "  " + "   ".join(named[7:]),
        ]

    def line(self) -> str:
        """One line with the same."""
        named = zip(HEADINGS[1:], self.cells()[1:], strict=True)
        return f"{self.client_id}: " + ", ".join(f"{name} {cell}" for name, cell in named) + self._error

    @property
    def _error(self) -> str:
        return f"; {self.error}" if self.error else ""


HEADINGS = (
    "client",
    "state",
    "algorithm",
    "episodes",
    "return",
    "steps",
    "steps/s",
    "version",
    "lag",
    "queue",
    "actors",
    "refused/stale",
)
"""Of `ClientRow.cells`."""


def client_rows(report: Mapping[str, Any]) -> list[ClientRow]:
    """The clients of a status report."""
    return [_row(name, client) for name, client in sorted(report["clients"].items())]


def text_table(rows: Sequence[ClientRow]) -> list[str]:
    """An aligned table in plain text, a line each; failures follow below it."""
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


def _row(name: str, client: Mapping[str, Any]) -> ClientRow:
    verdicts = client["verdicts"]
    return ClientRow(
        name,
        client["state"],
        client["algorithm"],
        client["episodes"],
        client["mean_return"],
        client["steps"],
        client["steps_per_s"],
        client["version"],
        client["updates"],
        client["policy_lag"],
        client["pending"],
        client["actors_live"],
        verdicts["refused"] + verdicts["quarantined"],
        verdicts["stale"],
        client["error"],
    )
