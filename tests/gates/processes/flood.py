"""A process that floods a learner from many sockets, or is just as busy and sends nothing."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zmq
from harness.talk import obey, options, say
from kit import segment_with

from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import FetchWeights, Heartbeat, Hello, StatusRequest, Welcome

GIANT = (1 << 63) - 1
given = options()
over = threading.Event()
kind = ""
counts = {"sent": 0, "heard": 0}


def hello(client_id: str, actor_id: str, incarnation: int) -> list[Any]:
    spaces: dict[str, Any] = {"observation_space": space_to_json(BoxSpace((4,))), "action_space": space_to_json(DiscreteSpace(2))}
    return encode(Hello(client_id, actor_id, incarnation, 0, 0, 0, algorithm_name="FAKE", **spaces))


def segments(count: int) -> Any:
    steps, zeros = 50, np.zeros(50, np.float32)
    one = segment_with(steps, rewards=zeros, log_probs=zeros, generation=0, episode_return=0.0, episode_length=steps)
    return [pack_segment(one)] * count


def words(name: str, number: int) -> Iterator[list[Any]]:
    match name:
        case "garbage":
            while True:
                yield [b"GET / HTTP/1.1\r\n\r\n" * 4]
        case "hello":
            for turn in range(1 << 30):
                yield hello("lab", f"{number}-{turn}", 5)
        case "status":
            while True:
                yield encode(StatusRequest())
        case "heartbeat":
            while True:
                yield encode(Heartbeat(1))
        case "fetch":
            yield hello("lab", f"fetch-{number}", time.time_ns())
            while True:
                yield encode(FetchWeights(0, 0))
        case "wants":
            yield hello("lab", f"wants-{number}", time.time_ns())
            while True:
                yield encode(Heartbeat(GIANT))
        case "submit":
            yield hello("other", f"submit-{number}", time.time_ns())
            body, seq = segments(4), 0
            while True:
                yield encode(join_submit(seq, GIANT, body))
                seq += len(body)
        case _:
            raise SystemExit(f"no flood {name!r}")


def flood() -> None:
    context = zmq.Context()
    sockets: list[Any] = []
    kind_now = ""
    while not over.is_set():
        if kind != kind_now:
            for socket, _ in sockets:
                socket.close()
            kind_now = kind
            counts.update(sent=0, heard=0)
            sockets = []
            for number in range(given["sockets"] if kind_now not in ("", "busy") else 0):
                socket = context.socket(zmq.DEALER)
                socket.linger = 0
                socket.connect(given["address"])
                sockets.append((socket, words(kind_now, number)))
                if kind_now in ("submit", "wants", "fetch"):
                    socket.send_multipart(next(sockets[-1][1]))
            waiting = [socket for socket, _ in sockets] if kind_now in ("submit", "wants", "fetch") else []
            deadline = time.monotonic() + 20.0
            for socket in waiting:
                while time.monotonic() < deadline and socket.poll(200):
                    try:
                        if isinstance(decode(socket.recv_multipart()), Welcome):
                            break
                    except Exception as exc:
                        print(repr(exc), file=sys.stderr)
            pending = [next(says) for _, says in sockets]
        if not kind_now:
            over.wait(0.02)
            continue
        for index, (socket, says) in enumerate(sockets):
            try:
                for _ in range(8):
                    socket.send_multipart(pending[index], zmq.DONTWAIT)
                    counts["sent"] += 1
                    pending[index] = next(says)
            except zmq.Again:
                pass
            try:
                for _ in range(8):
                    socket.recv_multipart(zmq.DONTWAIT, copy=False)
                    counts["heard"] += 1
            except zmq.Again:
                pass
    for socket, _ in sockets:
        socket.close()
    context.term()


def change(name: str) -> dict[str, int]:
    """Start another kind of flood, and return the counts of the last one."""
    global kind
    done = dict(counts)
    kind = name
    return done


thread = threading.Thread(target=flood)
thread.start()
say("ready")
commands: dict[str, Callable[..., Any]] = {"change": change}
obey(**commands)
over.set()
thread.join()
