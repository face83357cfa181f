"""The benchmark of remote inference: round trips and calls per second, compared with a REQ/REP server.

The server runs in one process and each caller in another, over tcp on this machine. A request has an observation of 256 float32
(1 KB), and the reply has four numbers. The server computes a perceptron with numpy, and each caller checks its replies. The
baseline server computes the same perceptron behind a REP socket of pyzmq, which answers one request after the other and sends raw
bytes.

This library joins requests of several callers to one batch. Batches help if one forward pass for several observations costs less
than several passes. This holds for large perceptrons on CPUs, which wait for memory, and nearly always on accelerators. The
policies in `DEVICES` sleep to simulate an accelerator.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.pairs import PairedFigures, measure_pairs
from rl4sys_zmq.capacity.harness import PATIENCE_S, child
from rl4sys_zmq.serving import BatchLimits, InferenceClient, InferenceServer

__all__ = ["CALLERS", "DEVICES", "PERCEPTRONS", "BenchPolicy", "measure_calls", "measure_round_trip"]

INPUTS, OUTPUTS = 256, 4
CALLERS = 8
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SOME = 8
"""Number of different observations that a caller sends in turn."""

Forward = Callable[[NDArray[np.float32]], NDArray[np.float32]]
ChildMain = Callable[..., None]
"""Type of the main function of a child process, which is a server or a caller."""


@dataclass(frozen=True, slots=True)
class BenchPolicy:
    """The description of the policy that a benchmark server computes.

    Attributes:
        hidden: Widths of the hidden layers of the perceptron.
        device_s: Additional sleep in each forward pass, in seconds, to simulate an accelerator. It does not depend on the batch
            size.
    """

    hidden: tuple[int, ...]
    device_s: float = 0.0

    def __str__(self) -> str:
        """Return a short label for the output, such as ``64-64``."""
        return f"{self.device_s * 1e3:g} ms a pass" if self.device_s else "-".join(map(str, self.hidden))


PERCEPTRONS = (BenchPolicy((64, 64)), BenchPolicy((512, 512)), BenchPolicy((2048, 2048)))
DEVICES = (BenchPolicy((64, 64), 0.001), BenchPolicy((64, 64), 0.005))


def forward(policy: BenchPolicy) -> Forward:
    """Return a function that computes a tanh perceptron, from ``[N, 256]`` to ``[N, 4]`` or from ``[256]`` to ``[4]``."""
    rng = np.random.default_rng(0)
    sizes = [INPUTS, *policy.hidden, OUTPUTS]
    weights = [rng.normal(0.0, n**-0.5, (n, m)).astype(np.float32) for n, m in itertools.pairwise(sizes)]

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        if policy.device_s:
            time.sleep(policy.device_s)
        for weight in weights[:-1]:
            x = np.tanh(x @ weight)
        out: NDArray[np.float32] = x @ weights[-1]
        return out

    return run


def measure_round_trip(policy: BenchPolicy, pairs: int, seconds: float, pause_s: float = 0.0) -> PairedFigures:
    """Measure the median round-trip time of remote inference with one caller, in microseconds.

    With `pause_s`, the caller pauses between calls like a control loop. The time then includes waking idle CPUs at the caller
    and at the server.
    """
    load = policy, seconds, pause_s
    ours = functools.partial(_median_us, _serve, _call, *load)
    return measure_pairs(ours, functools.partial(_median_us, _serve_bare, _call_bare, *load), pairs, warm=False)


def measure_calls(policy: BenchPolicy, pairs: int, seconds: float, callers: int = CALLERS) -> PairedFigures:
    """Measure the remote inference calls per second of all callers together, as counted by the callers."""
    ours = functools.partial(_rate, _serve, _call, policy, seconds, callers)
    return measure_pairs(ours, functools.partial(_rate, _serve_bare, _call_bare, policy, seconds, callers), pairs, warm=False)


def _median_us(server: ChildMain, caller: ChildMain, policy: BenchPolicy, seconds: float, pause_s: float) -> float:
    (times,) = _run(server, caller, policy, seconds, 1, pause_s)
    return 1e6 * float(np.median(times))


def _rate(server: ChildMain, caller: ChildMain, policy: BenchPolicy, seconds: float, callers: int) -> float:
    return sum(len(times) for times in _run(server, caller, policy, seconds, callers)) / seconds


def _run(
    server: ChildMain, caller: ChildMain, policy: BenchPolicy, seconds: float, callers: int, pause_s: float = 0.0
) -> list[list[float]]:
    """Run a server and callers. Return, for each caller, a list of the time of each call, in seconds.

    The measurement begins after all callers are connected.
    """
    with contextlib.ExitStack() as stack:
        with _one_thread():
            serving = stack.enter_context(child(server, policy))
            port = _recv(serving)
            calling = [stack.enter_context(child(caller, port, policy, seconds, pause_s)) for _ in range(callers)]
        for pipe in calling:
            assert _recv(pipe) == "ready"
        for pipe in calling:
            pipe.send("go")
        times = [_recv(pipe) for pipe in calling]
        serving.send("stop")
        return times


def _serve(pipe: Connection, policy: BenchPolicy) -> None:
    run = forward(policy)
    with InferenceServer(0) as server:
        server.register_interface("policy", lambda payload: {"act": run(payload["obs"])}, BatchLimits(max_size=32))
        server.start(threaded=True)
        pipe.send(int(server.address.rpartition(":")[2]))
        pipe.recv()


def _call(pipe: Connection, port: int, policy: BenchPolicy, seconds: float, pause_s: float) -> None:
    with InferenceClient("127.0.0.1", port) as client:
        _loop(pipe, policy, seconds, pause_s, lambda observation: client.call("policy", {"obs": observation})["act"])


def _serve_bare(pipe: Connection, policy: BenchPolicy) -> None:
    run = forward(policy)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    rep = context.socket(zmq.REP)
    pipe.send(rep.bind_to_random_port("tcp://127.0.0.1"))
    poller = zmq.Poller()
    poller.register(pipe.fileno(), zmq.POLLIN)
    while True:
        try:
            rep.rcvtimeo = 200
            rep.send(run(np.frombuffer(rep.recv(), np.float32)).tobytes())
        except zmq.Again:
            if poller.poll(0):
                break
    rep.close(linger=0)
    context.term()


def _call_bare(pipe: Connection, port: int, policy: BenchPolicy, seconds: float, pause_s: float) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    req = context.socket(zmq.REQ)
    req.connect(f"tcp://127.0.0.1:{port}")

    def ask(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        req.send(observation.tobytes())
        return np.frombuffer(req.recv(), np.float32)

    _loop(pipe, policy, seconds, pause_s, ask)
    req.close(linger=0)
    context.term()


def _loop(pipe: Connection, policy: BenchPolicy, seconds: float, pause_s: float, ask: Forward) -> None:
    """Make calls one after the other for `seconds`, and send the list of their times, in seconds, through the pipe."""
    run = forward(policy)
    observations = np.random.default_rng().normal(size=(SOME, INPUTS)).astype(np.float32)
    answers = [run(o) for o in observations]
    for observation, answer in zip(observations, answers, strict=True):
        np.testing.assert_allclose(ask(observation), answer, rtol=1e-3, atol=1e-3)
    pipe.send("ready")
    pipe.recv()
    times: list[float] = []
    before = time.perf_counter()
    end = before + seconds
    while before < end:
        answer = ask(observations[len(times) % SOME])
        times.append(time.perf_counter() - before)
        if pause_s:
            time.sleep(pause_s)
        before = time.perf_counter()
    np.testing.assert_allclose(answer, answers[(len(times) - 1) % SOME], rtol=1e-3, atol=1e-3)
    pipe.send(times)


def _recv(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError(f"a process of the measurement did not respond for {PATIENCE_S:g} s")
    return pipe.recv()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes that the ``with`` block starts to one numpy thread each, so that they do not slow each other down."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
