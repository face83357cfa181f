"""Stand-ins for learners, and the server of their page. A module that imports this is skipped without the extra ``web``."""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from email.message import Message
from typing import Any, NamedTuple

import pytest

from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.ops.requests import StatusAnswer

for needed in ("starlette", "uvicorn", "plotly", "prometheus_client"):
    pytest.importorskip(needed, reason=f"{needed} is not installed (extra web)")


class StandIn:
    """A learner that answers with `report` and the records from a number on, or is silent while `report` is None."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.report: Any = None
        self.records: list[dict[str, Any]] = []
        self.asked = threading.Condition()
        self.count = 0

    def answer(self, timeout_s: float, since: int) -> StatusAnswer:
        with self.asked:
            self.count += 1
            self.asked.notify_all()
        if self.report is None:
            raise LearnerUnavailable(self.address, "the reply to a status request", timeout_s, "start the learner")
        return StatusAnswer(self.report, self.records[max(since, 0) :], len(self.records))

    def looked_at(self, times: int = 2) -> None:
        """Wait until the watcher has asked, and has read the answer to the question before."""
        with self.asked:
            wanted = self.count + times
            assert self.asked.wait_for(lambda: self.count >= wanted, 30)


class StandInConnection:
    def __init__(self, learner: StandIn) -> None:
        self.learner = learner

    def read(self, timeout_s: float, since: int = -1) -> StatusAnswer:
        return self.learner.answer(timeout_s, since)

    def close(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def serving(addresses: Sequence[str], bind: str = "127.0.0.1:0", token: str | None = None) -> Iterator[str]:
    """Run the page of learners in a thread, and yield its URL."""
    from rl4sys_zmq.web.server import WebServer
    from rl4sys_zmq.web.watcher import Watcher

    done = threading.Event()
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(Watcher(address)) for address in addresses]
        server = WebServer(watchers, bind, token)
        for watcher in watchers:
            watcher.start()
        thread = threading.Thread(target=server.serve, args=[done.is_set], name="rl4sys-page")
        thread.start()
        stack.callback(thread.join)
        stack.callback(done.set)
        yield f"http://{server.address}"


class Answer(NamedTuple):
    status: int
    headers: Message
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def get(url: str, method: str = "GET", **headers: str) -> Answer:
    request = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return Answer(reply.status, reply.headers, reply.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read().decode())
