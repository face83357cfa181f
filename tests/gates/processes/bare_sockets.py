"""A bare ROUTER and XPUB, or many bare DEALERs and SUBs: the connections of actors without the rest of the library."""

import threading
import time
from typing import Any

import zmq
from harness.talk import obey, options, say

from rl4sys_zmq.learner.gateway.gateway import PUB_HWM
from rl4sys_zmq.transports import raise_descriptor_limit

HELLO = b"h" * 400
BEACON = b"b" * 60
TOPICS = (b"W" + b"t" * 8, b"B" + b"t" * 8)
HWM = 64

given = options()
context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
context.set(zmq.MAX_SOCKETS, 8192)
over = threading.Event()
counts = {"hellos": 0, "subscriptions": 0}


def serve(router: zmq.Socket[bytes], xpub: zmq.Socket[bytes]) -> None:
    """Answer each DEALER once, and publish once a second."""
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(xpub, zmq.POLLIN)
    beacon_at = 0.0
    while not over.is_set():
        for socket, _ in poller.poll(100):
            frames = socket.recv_multipart()
            if socket is router:
                counts["hellos"] += 1
                router.send_multipart([frames[0], HELLO])
            else:
                counts["subscriptions"] += 1
        if time.monotonic() >= beacon_at:
            beacon_at = time.monotonic() + 1.0
            xpub.send_multipart([TOPICS[1], BEACON])
    router.close(0)
    xpub.close(0)


def server() -> None:
    """Serve a learner's sockets, with the options that cost memory."""
    router, xpub = context.socket(zmq.ROUTER), context.socket(zmq.XPUB)
    router.set_hwm(HWM)
    xpub.set(zmq.SNDHWM, PUB_HWM)
    xpub.set(zmq.XPUB_VERBOSE, 1)
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (router, xpub)]
    thread = threading.Thread(target=serve, args=(router, xpub))
    thread.start()
    say([f"tcp://127.0.0.1:{port}" for port in ports])
    obey(counts=lambda: counts)
    over.set()
    thread.join()


def clients() -> None:
    """Open the sockets of actors. Each DEALER sends one message and receives one."""
    sockets: list[Any] = []

    def connect(count: int) -> int:
        fresh = []
        for _ in range(count):
            dealer, sub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
            dealer.connect(given["router"])
            sub.connect(given["xpub"])
            for topic in TOPICS:
                sub.subscribe(topic)
            dealer.send(HELLO)
            fresh.append(dealer)
            sockets.extend((dealer, sub))
        return sum(bool(dealer.poll(60_000) and dealer.recv()) for dealer in fresh)

    say("ready")
    obey(connect=connect)
    for socket in sockets:
        socket.close(0)


raise_descriptor_limit(4 * given["most"] + 256)
(clients if "router" in given else server)()
context.term()
