"""The execution of calls at a server: run the callback for one call or a batch, and encode its results as replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusalReason
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.rpc.call_queue import CallbackRun, CallRefusedByCallback, Handler, QueuedCall
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import ANSWERED, FAILED, Call, Reply, check_size, encode_reply

log = get_logger(__name__)

MAX_DETAIL = 4000
"""The largest length of the error text in a reply, in characters. Longer texts are cut."""


class CallExecutor:
    """An object that runs the callbacks of one server. Any thread of the server can use it."""

    def __init__(self, name: str, server: int, counters: Counters, max_frame_bytes: int) -> None:
        self._name, self._server, self._counters, self._max_frame_bytes = name, server, counters, max_frame_bytes

    def run(self, job: CallbackRun) -> list[list[Frame]]:
        """Run a callback for its calls, and return the frames of each reply. Calls whose timeout has passed get a refusal."""
        requests, now = job.requests, time.monotonic()
        try:
            late = {request for request in requests if (now - request.arrived_s) * 1000 > request.call.timeout_ms}
            results = iter(_results(job.method.run, [r for r in requests if r not in late] if late else requests))
            return [self._too_late(r.call) if r in late else self._answer(r.call, next(results)) for r in requests]
        except BaseException as exc:  # noqa: BLE001 (an unforeseen error in the user's objects must not end a thread)
            return [self._failed(request.call, exc) for request in requests]

    def alone(self, call: Call, run: Callable[[], Tree]) -> list[Frame]:
        """Run a function for a call that does not go through the queue, and return the frames of the reply."""
        try:
            return self._answer(call, run())
        except BaseException as exc:  # noqa: BLE001 (as above)
            return self._answer(call, exc)

    def refusal(self, call: Call, code: str, detail: str) -> list[Frame]:
        text = detail[:MAX_DETAIL].encode(errors="replace").decode()
        return encode_reply(Reply(call.number, call.session, self._server, code, text, None))

    def _too_late(self, call: Call) -> list[Frame]:
        self._counters.add(f"refused.{CallRefusalReason.EXPIRED}")
        return self.refusal(call, CallRefusalReason.EXPIRED, "the caller's timeout passed before the call could run")

    def _answer(self, call: Call, result: Tree | BaseException) -> list[Frame]:
        if not isinstance(result, BaseException):
            try:
                frames = encode_reply(Reply(call.number, call.session, self._server, ANSWERED, "", result))
                check_size(frames, self._max_frame_bytes)
                return frames
            except BaseException as exc:  # noqa: BLE001 (a result that cannot be encoded counts as a failure of the callback)
                result = exc
        if isinstance(result, CallRefusedByCallback):
            self._counters.add(f"refused.{result.code}")
            return self.refusal(call, result.code, result.detail)
        return self._failed(call, result)

    def _failed(self, call: Call, error: BaseException) -> list[Frame]:
        self._counters.add("failed")
        log.warning("%s: a callback of %s failed", self._name, call.method, exc_info=error)
        return self.refusal(call, FAILED, f"{type(error).__name__}\n{_text(error)}")


def per_call(run: Callable[[Tree], Tree]) -> Handler:
    def handler(payloads: Sequence[Tree]) -> list[Tree]:
        return [run(payload) for payload in payloads]

    return handler


def _results(run: Handler, requests: list[QueuedCall]) -> list[Tree | BaseException]:
    """Run a callback for several calls, and return a result or an exception for each.

    If it raises for a batch, it runs again for each call alone, except for calls that must run at most once.
    """
    results = _call(run, [request.call.payload for request in requests]) if requests else []
    if not isinstance(results, BaseException):
        return results
    if len(requests) == 1:
        return [results]
    alone = [results if request.call.once else _call(run, [request.call.payload]) for request in requests]
    return [one if isinstance(one, BaseException) else one[0] for one in alone]


def _call(run: Handler, payloads: list[Tree]) -> list[Tree] | BaseException:
    """Run a callback. Return its results, or the exception that it raised, which must not end a thread of the server."""
    try:
        answers = list(run(payloads))
        if len(answers) != len(payloads):
            raise ValueError(f"the callback returned {len(answers)} results for {len(payloads)} calls")
        return answers
    except BaseException as exc:  # noqa: BLE001 (see above)
        return exc


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as exc:  # noqa: BLE001 (the user's class can raise anything)
        return f"(its __str__ raises {type(exc).__name__})"
