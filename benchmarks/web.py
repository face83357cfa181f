"""A learner with its page open and a scrape each second, beside a learner without, in turn.

    python benchmarks/web.py --pairs 20 --json benchmarks/results/web.json

The page is a process of ``rl4sys-learner web``. One more process makes the requests of a browser that shows a client, and a
scrape, each second. For each side: the steps per second that the learner receives when a process sends as fast as it can (P1 of
``bench.ingress``); and, before that, the time from a message with a short segment to its acknowledgement. The goals are an
ingress of at least 0.97 of that without the page, a median time within 5 %, and less than 120 MB of memory for the page's
process.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np

from bench.environment import environment
from bench.pairs import PairedFigures, measure_pairs, spread
from rl4sys_zmq.capacity.harness import P1, START_S, UNLIMITED, UntrainedAlgorithm, child, make_segment, send, senders
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.measure_paths import measure as measure_rate
from rl4sys_zmq.capacity.measure_paths import wait_for
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.memory_watch import keep_freed_memory
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.transports import Address, Poller, Socket
from rl4sys_zmq.values import ObservationSpace, Space, space_to_json
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Hello, Welcome

FLOOD, PROBE = "lab", "probe"
"""The clients: one that receives as much as it can, and one whose acknowledgements are timed."""
BATCH = 64
PAUSE_S = 0.004
SMALL_P1 = dataclasses.replace(P1, steps=8)
EVERY_S = 1.0
REQUESTS = ("api/status", "api/client?{which}", "api/actors?{which}&page=0&sort=silent_s", "api/history?{which}&since={since}")
INGRESS, ACK_P50, ACK_P99, MEMORY = "ingress, M steps/s", "ack, median, ms", "ack, p99, ms", "page, resident, MB"
LEAST_INGRESS, GREATEST_ACK, GREATEST_MB = 0.97, 1.05, 120.0

Figures = dict[str, float]
T = TypeVar("T")


def probe(pipe: Connection, address: str) -> None:
    """Send short segments one after the other, until the pipe has a message. Answer with the times to their `Ack`s, in ms.

    A first message begins the measurement. An agent would read its acknowledgements at its own pace.
    """
    times: list[float] = []
    with Socket.dealer(Address.parse(address)) as dealer, Poller() as poller:
        poller.register(dealer)

        def answer(kind: type[T], ready: Callable[[T], bool]) -> T:
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline:
                poller.poll(0.1)
                while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                    message = decode(frames)
                    if isinstance(message, kind) and ready(message):
                        return message
            raise TimeoutError(f"no {kind.__name__} within {START_S:g} s")

        dealer.send(encode(Hello(PROBE, PROBE, 1, 0, 0, 0)))
        segment = pack_segment(make_segment(SMALL_P1, answer(Welcome, lambda _: True).generation))
        whole, seq, began = join_submit(0, UNLIMITED, [segment]), 0, False
        while True:
            if pipe.poll():
                if began:
                    break
                began, times = bool(pipe.recv()), []
            sent = time.monotonic()
            dealer.send(encode(dataclasses.replace(whole, first_seq=seq)))
            seq += 1
            answer(Ack, lambda ack: ack.durable >= seq)  # noqa: B023 - called at once
            times.append((time.monotonic() - sent) * 1000)
            time.sleep(PAUSE_S)
    pipe.send(times)


def browse(pipe: Connection, page: str, address: str) -> None:
    """Make the requests of an open page, and a scrape, each second, until the pipe has a message. Send one after the first."""
    which, since, rounds = urlencode({"learner": address, "client": PROBE}), 0, 0
    while not pipe.poll(EVERY_S if rounds else 0.0):
        for path in REQUESTS:
            answer = _get(f"{page}/{path.format(which=which, since=since)}")
        since = json.loads(answer)["next"]
        _get(f"{page}/metrics")
        rounds += 1
        if rounds == 1:
            pipe.send(True)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=START_S) as reply:
        return bytes(reply.read())


@contextlib.contextmanager
def open_page(address: str) -> Iterator[Callable[[], float]]:
    """Run the page of a learner, with a browser. Yield a function that returns the resident memory of the page, in MB."""
    command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "web", address, "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            page = process.stdout.readline().removeprefix("page at ").partition(";")[0].strip()
            with child(browse, page, address) as browser:
                assert browser.recv()
                yield lambda: _resident_mb(process.pid)
                browser.send(False)
        finally:
            process.terminate()


def _resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def measure(seconds: float, *, page: bool) -> Figures:
    """Measure a learner with or without its page."""
    keep_freed_memory()
    made: list[UntrainedAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> UntrainedAlgorithm:
        made.append(UntrainedAlgorithm(mlp_spec(observations, actions, "categorical", (8,))))
        return made[-1]

    register_algorithm("COUNTS", build)
    entry = {
        "algorithm_name": "COUNTS",
        "observation_space": space_to_json(P1.observation_space),
        "action_space": space_to_json(P1.action_space),
    }
    figures: Figures = {}
    with contextlib.ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        config = {"bind": "tcp://127.0.0.1:0", "run_dir": str(run), "journal": "memory", "shutdown_timeout_s": START_S}
        learner = stack.enter_context(Learner(LearnerConfig.from_mapping({**config, "clients": {FLOOD: entry, PROBE: entry}})))
        with child(probe, learner.address) as probing:
            wait_for(lambda: made and made[-1].steps)
            memory_mb = stack.enter_context(open_page(learner.address)) if page else None
            probing.send(True)
            time.sleep(seconds)
            probing.send(False)
            times = probing.recv()
        figures |= {ACK_P50: float(np.median(times)), ACK_P99: float(np.percentile(times, 99))}
        counted = len(made)
        with senders([(send, (learner.address, P1, BATCH, 1, "a"))], seconds):
            wait_for(lambda: len(made) > counted and made[-1].steps)
            flood = made[-1]
            figures[INGRESS] = measure_rate(lambda: flood.steps, seconds)[0] / 1e6
        if memory_mb is not None:
            figures[MEMORY] = memory_mb()
    return figures


def main() -> None:
    """Measure pairs, and print the figures of both sides, their ratios, and whether the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="number of pairs of runs")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each of the two measurements of a run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    record: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), **machine_record(), "seconds": given.seconds}
    runs: dict[bool, list[Figures]] = {True: [], False: []}

    def side(page: bool) -> float:
        runs[page].append(measure(given.seconds, page=page))
        print("with the page" if page else "without it   ", {k: round(v, 3) for k, v in runs[page][-1].items()}, flush=True)
        return 0.0

    measure_pairs(lambda: side(True), lambda: side(False), given.pairs)
    results = record["results"] = {}
    print(f"\n{'':24} {'with':>10} {'without':>10}   ratio [lowest, highest]")
    for name in (INGRESS, ACK_P50, ACK_P99):
        ours, baseline = (tuple(run[name] for run in runs[page][1:]) for page in (True, False))
        pairs = PairedFigures(ours, baseline)
        results[name] = {**pairs.record(), "better": "higher" if name == INGRESS else "lower"}
        print(f"{name:24} {spread(ours).median:10.3f} {spread(baseline).median:10.3f}   {spread(pairs.ratios).text(3)}")
    memory = spread([run[MEMORY] for run in runs[True][1:]])
    results[MEMORY] = {"median": memory.median, "greatest": memory.greatest}
    print(f"{MEMORY:24} {memory.text(1)}")
    goals = {
        f"ingress at least {LEAST_INGRESS}": results[INGRESS]["ratio"] >= LEAST_INGRESS,
        "median ack within 5 %": results[ACK_P50]["ratio"] <= GREATEST_ACK,
        f"page below {GREATEST_MB:g} MB": memory.greatest < GREATEST_MB,
    }
    for goal, reached in goals.items():
        print(f"{goal}: {'reached' if reached else 'NOT reached'}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
