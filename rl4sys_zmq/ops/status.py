"""A learner's status: asked for over the network, and as rows for people."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.errors import LearnerUnavailable, ProtocolError, Refusal
from rl4sys_zmq.transports import Address, Poller, Socket
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Refused, Status, StatusRequest

__all__ = ["HEADINGS", "ClientRow", "client_rows", "request_status", "text_table"]

MAX_MESSAGE_FRAMES = 256


def request_status(address: str, timeout_s: float) -> dict[str, Any]:
    """Asks the learner at `address` (host:port or a URI) for its status.

    Raises:
        LearnerUnavailable: when no answer comes within `timeout_s` seconds.
        ProtocolError: when what answers is no learner of this protocol.
        ConfigError: for text that is no address.
    """
    uri = AgentConfig(client_id="status", train_server_address=address).address
    deadline = time.monotonic() + timeout_s
    with Poller() as poller, Socket.dealer(Address.parse(uri)) as dealer:
        poller.register(dealer)
        dealer.send(encode(StatusRequest()))
        while (left_s := deadline - time.monotonic()) > 0:
            poller.poll(left_s)
            while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                message = decode(frames)
                if isinstance(message, Status):
                    return message.report
                if isinstance(message, Refused):
                    code = Refusal(message.code) if message.code in set(Refusal) else Refusal.MALFORMED
                    raise ProtocolError(code, message.reason)
    raise LearnerUnavailable(uri, "the answer to a status request", timeout_s, "is it running, and is this its address?")


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
        sum(actor["live"] for actor in client["actors"].values()),
        verdicts["refused"] + verdicts["quarantined"],
        verdicts["stale"],
        client["error"],
    )
