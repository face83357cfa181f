"""Video in both directions between a robot and a viewer, as JPEG or raw, with the cost of each.

Use two terminals or two machines. Give both sides the same --quality, or --raw to both::

    python examples/action_streamer.py --server
    python examples/action_streamer.py --client --ip localhost

Without a role, both sides run in this process, once with JPEG and once raw, for comparison::

    python examples/action_streamer.py --frames 100

Three ways are measured: *obs* (the client requests each frame), *act* (the client sends each frame, and the server answers) and
*stream* (the server publishes, and the newest frame wins). The latency of the first two is a round trip. The latency of the
third is the difference of two clocks, so it is valid on one machine only. Frames are a moving pattern, or with --source a video
file or the number of a camera; this needs OpenCV. JPEG needs rl4sys-zmq[images].
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.images import ImageFormat, encode_images, image_size
from rl4sys_zmq.serving import ActionClient, ActionConfig, ActionServer

PATTERNS = 30


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream video frames in both directions and print the cost.")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--server", action="store_true", help="run the robot's side, until Ctrl-C or for --seconds")
    role.add_argument("--client", action="store_true", help="run the viewer's side")
    parser.add_argument("--ip", default="localhost", help="address of the server, for --client (default: localhost)")
    parser.add_argument("--port", type=int, default=5556, help="port for calls; observations use the next port (default: 5556)")
    parser.add_argument("--quality", type=int, default=80, help="JPEG quality, 1 to 100 (default: 80)")
    parser.add_argument("--raw", action="store_true", help="send raw frames, without JPEG")
    parser.add_argument("--frames", type=int, default=100, help="frames for each way (default: 100)")
    parser.add_argument("--seconds", type=float, help="stop each way after this time")
    parser.add_argument("--fps", type=float, default=30.0, help="frames/s that the server publishes (default: 30)")
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--source", help="a video file or the number of a camera, instead of the pattern; needs OpenCV")
    return parser.parse_args()


def frames_of(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yield frames without end, uint8 [height, width, 3]."""
    if args.source is not None:
        import cv2  # type: ignore[import-not-found]

        video = cv2.VideoCapture(int(args.source) if args.source.isdigit() else args.source)
        while True:
            found, frame = video.read()
            if found:
                yield np.ascontiguousarray(cv2.resize(frame, (args.width, args.height))[..., ::-1])
            elif not video.set(cv2.CAP_PROP_POS_FRAMES, 0) or not video.read()[0]:
                raise SystemExit(f"{args.source} gives no frames")
    y, x = np.mgrid[: args.height, : args.width] / min(args.width, args.height)
    noise = np.random.default_rng(0).normal(0, 4, (args.height, args.width, 1))
    made = []
    for index in range(PATTERNS):
        t = 2 * np.pi * index / PATTERNS
        waves = np.stack([np.sin(9 * x + t), np.sin(7 * y - t), np.sin(5 * (x + y) + 2 * t)], axis=-1)
        disc = ((x - 0.6 - 0.3 * np.cos(t)) ** 2 + (y - 0.5 - 0.3 * np.sin(t)) ** 2 < 0.02)[..., None]
        made.append(np.clip(np.where(disc, 230, 128 + 90 * waves) + noise, 0, 255).astype(np.uint8))
    for index in count():
        yield made[index % PATTERNS]


def configuration(args: argparse.Namespace, *, raw: bool, port: int, broadcast: int) -> ActionConfig:
    codecs = {} if raw else {"image": f"jpeg:{args.quality}"}
    return ActionConfig(port, ["show"], ["image"], broadcast, image_codecs=codecs)


class Robot:
    """The robot's side: returns the next frame, reads the frames that it gets, and publishes `fps` frames a second."""

    def __init__(self, args: argparse.Namespace, config: ActionConfig) -> None:
        self._frames, self._lock = frames_of(args), threading.Lock()
        self._period_s, self._ended = 1.0 / args.fps, threading.Event()
        self.server = ActionServer(config, self._obs, self._act)
        self._publishing = threading.Thread(target=self._publish, name="publishing")

    def __enter__(self) -> Robot:
        self.server.start(threaded=True)
        self._publishing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._publishing.join()
        self.server.stop()

    def _next(self) -> np.ndarray:
        with self._lock:
            return next(self._frames)

    def _obs(self, keys: set[str]) -> dict[str, Any]:
        return {"image": self._next()}

    def _act(self, key: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"brightness": float(payload["image"].mean())}

    def _publish(self) -> None:
        while not self._ended.wait(self._period_s):
            self.server.publish_obs({"image": self._next(), "sent_s": time.time()})


def measure(args: argparse.Namespace, ask: Callable[[], object]) -> tuple[list[float], float]:
    """Return the latencies of calls one after another, and the total time, in seconds."""
    latencies: list[float] = []
    began = time.perf_counter()
    while len(latencies) < args.frames and (args.seconds is None or time.perf_counter() - began < args.seconds):
        asked = time.perf_counter()
        ask()
        latencies.append(time.perf_counter() - asked)
    return latencies, time.perf_counter() - began


def listen(args: argparse.Namespace, client: ActionClient) -> tuple[list[float], float]:
    """Return the same as `measure`, for the frames that the server publishes."""
    latencies: list[float] = []
    enough = threading.Event()

    def hear(obs: dict[str, Any]) -> None:
        if not enough.is_set():
            latencies.append(time.time() - obs["sent_s"])
            if len(latencies) >= args.frames:
                enough.set()

    began = time.perf_counter()
    client.register_obs_callback(hear)
    enough.wait(args.seconds if args.seconds is not None else 10.0 + 4 * args.frames / args.fps)
    took = time.perf_counter() - began
    enough.set()
    return latencies, took


def report(way: str, clock: str, latencies: list[float], took_s: float, frame_bytes: float, coding: str) -> None:
    if not latencies:
        print(f"{way:7s} {coding:9s} no frames")
        return
    rate = len(latencies) / took_s
    median, p95 = np.percentile(latencies, [50, 95]) * 1000
    print(
        f"{way:7s} {coding:9s} {len(latencies):6d} {rate:9.1f} {median:10.2f} {p95:10.2f}  {clock:15s} {frame_bytes:11,.0f}"
        f" {rate * frame_bytes * 8 / 1e6:8.1f}",
        flush=True,
    )


def watch(args: argparse.Namespace, server: str, config: ActionConfig) -> None:
    """Measure the three ways against a server."""
    frames = frames_of(args)
    with ActionClient(server, config, wait_for_server=True) as client:
        codec = config.codecs.get("image")
        coding = f"jpeg:{codec.quality}" if codec else "raw"
        client.obs()
        for way, ask in (("obs", client.obs), ("act", lambda: client.act("show", {"image": next(frames)}))):
            latencies, took = measure(args, ask)
            report(way, "round trip", latencies, took, bytes_of(frames, codec), coding)
        latencies, took = listen(args, client)
        report("stream", "clock to clock", latencies, took, bytes_of(frames, codec), coding)


def bytes_of(frames: Iterator[np.ndarray], codec: ImageFormat | None) -> float:
    """Return the mean size of a few frames of this side on the wire, without about a hundred bytes of headers."""
    some = [next(frames) for _ in range(8)]
    sizes = [f.nbytes if codec is None else len(encode_images(f, image_size(f.shape) or (0, 0, 0), codec)) for f in some]
    return float(np.mean(sizes))


def main() -> int:
    args = parse_arguments()
    own = configuration(args, raw=args.raw, port=args.port, broadcast=args.port + 1)
    if args.server:
        with Robot(args, own) as robot:
            print(f"streaming at {robot.server.address}; Ctrl-C ends it", flush=True)
            threading.Event().wait(args.seconds)
        return 0
    print(f"{args.width} x {args.height} x 3")
    print("way     coding    frames  frames/s  median ms     p95 ms  latency is      bytes/frame   Mbit/s", flush=True)
    if args.client:
        watch(args, args.ip, own)
        return 0
    for raw in (True,) if args.raw else (False, True):
        config = configuration(args, raw=raw, port=0, broadcast=0)
        with Robot(args, config) as robot:
            watch(args, robot.server.address, config)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except RL4SysError as exc:
        sys.exit(f"action_streamer: {exc}")
