"""The fleet's connection to Ray, with drivers that the test scripts, and the object in a Ray actor, without Ray."""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.fleet import ray_engine
from rl4sys_zmq.fleet.engine import ActorHandle
from rl4sys_zmq.fleet.ray_engine import RayActorEngine
from rl4sys_zmq.fleet.ray_worker import RayFleetActor
from rl4sys_zmq.version import package_version

from .test_process import REPORT, REPORTS, SLEEP, WAIT_FOR_DRAIN

DRIVER = f"""
import os, signal, socket, sys
from rl4sys_zmq.learner.engines.packets import decode_packet, encode_packet
pair = socket.socket(fileno=int(sys.argv[2]))
say = lambda kind, **fields: pair.send(encode_packet(kind, **fields))
nodes = [{{"host": "h", "node": "n", "resources": {{"CPU": CPUS}}}}]
say("connected", address="h:1", host="h", node="n", nodes=nodes, version="2")
while data := pair.recv(1 << 17):
    kind, fields = decode_packet(data)
    number = fields["number"]
    if kind == "stop":
        say("ended", number=number, exit_code=0, text="stopped with %g" % fields["grace_s"])
    elif fields["arguments"] == ["deadly"]:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        say("waiting", text="one waits")
        say("news", number=number, report={REPORT!r}, lines=["oops"])
"""


class Lab:
    def __init__(self) -> None:
        self.arguments = ["good"]
        self.said: list[str] = []
        self.output: list[tuple[int, str]] = []
        self.engine = RayActorEngine(
            lambda index, start: self.arguments, "auto", lambda *line: self.output.append(line), self.said.append
        )

    def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.engine.poll(0.05)


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace() if name == "ray" else find(name))
    monkeypatch.setattr(ray_engine, "_PROGRAM", DRIVER.replace("CPUS", "2"))


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.engine.close()


def test_reports_output_and_ends_arrive(lab: Lab) -> None:
    actor = lab.engine.start(3, 0)
    lab.until(lambda: actor.report)
    assert lab.said == ["connected to the Ray cluster at auto; nodes: h {CPU: 2}", "one waits"]
    assert lab.output == [(3, "oops")] and actor.last_output == "oops" and actor.alive
    actor.stop(7.0)
    lab.until(lambda: not actor.alive)
    assert (actor.exit_code, actor.last_output) == (0, "stopped with 7")


def test_actors_of_a_lost_driver_have_failed_and_the_next_start_starts_another(lab: Lab) -> None:
    actor = lab.engine.start(0, 0)
    lab.until(lambda: actor.report)
    lab.arguments = ["deadly"]
    other = lab.engine.start(1, 0)
    lab.until(lambda: not actor.alive and not other.alive)
    assert actor.exit_code == 1 and "SIGKILL" in actor.last_output and "all actors start again" in lab.said[-1]
    lab.arguments = ["good"]
    third, unsent = lab.engine.start(0, 1), lab.engine.start(1, 1)
    unsent.stop(5.0)
    assert unsent.exit_code == -signal.SIGTERM
    lab.until(lambda: third.report)


def test_close_ends_the_driver_and_twice_does_nothing(lab: Lab) -> None:
    actor = lab.engine.start(0, 0)
    lab.engine.close()
    lab.engine.close()
    assert not actor.alive


def test_a_cluster_without_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_PROGRAM", DRIVER.replace("CPUS", "0"))
    with pytest.raises(ConfigError, match=r"no node of the Ray cluster has \{CPU: 1\}; there is h \{CPU: 0\}; each actor needs"):
        Lab()


def test_a_driver_that_ends_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_PROGRAM", "import sys; sys.exit(3)")
    with pytest.raises(
        TransportError, match="the Ray cluster at auto cannot be used: the driver process ended with exit status 3"
    ):
        Lab()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install 'rl4sys-zmq"):
        Lab()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayFleetActor]:
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
    context = SimpleNamespace(get_node_id=lambda: "abc")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(util=util, get_runtime_context=lambda: context))
    monkeypatch.chdir(os.getcwd())
    yield (worker := RayFleetActor())
    found: ActorHandle | None = worker._process
    if found is not None and found.alive:
        worker.follow(0.0)
        while worker.follow(None)["exit_code"] is None:
            pass


def test_a_ray_actor_runs_drains_and_reports(worker: RayFleetActor) -> None:
    found = worker.start(["-c", REPORTS + WAIT_FOR_DRAIN], "/does/not/exist", package_version())
    assert found == {"node": "abc", "host": "10.0.0.7", "error": ""}
    news = worker.follow(None)
    while not news["report"]:
        news = worker.follow(None)
    assert news == {"report": REPORT, "lines": [], "exit_code": None}
    news = worker.follow(30.0)
    lines = news["lines"]
    while news["exit_code"] is None:
        news = worker.follow(None)
        lines += news["lines"]
    assert lines == [r"got 'drain\n'"] and news["exit_code"] == 0


def test_a_ray_actor_kills_what_does_not_end(worker: RayFleetActor) -> None:
    worker.start(["-c", REPORTS + SLEEP], os.getcwd(), package_version())
    while not worker.follow(None)["report"]:
        pass
    news = worker.follow(0.0)
    while news["exit_code"] is None:
        news = worker.follow(None)
    assert news["exit_code"] == -signal.SIGTERM


def test_another_version_is_refused(worker: RayFleetActor) -> None:
    assert "and the fleet has 0.0.0; install the same version" in worker.start(["-c", ""], ".", "0.0.0")["error"]
