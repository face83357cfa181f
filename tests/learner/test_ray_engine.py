"""Tests of the engine ``ray`` without Ray: options, resources, the packets of its driver, and the error if Ray is missing."""

import contextlib
import importlib
import importlib.util
import itertools
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from kit import until

from rl4sys_zmq.config import LearnerConfig, ResourcesConfig
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.engines.base import check_engines
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet, encode_packet
from rl4sys_zmq.remote import ray_connection
from rl4sys_zmq.remote.ray_connection import RayDriverThread, RayProcess
from rl4sys_zmq.remote.ray_process import ENDED, KILL, PLACE, PLACED, WAITING, placement_problem, ray_amounts

from .test_remote_workers import start

MODULE = "rl4sys_zmq.remote.ray_driver"
CLUSTER = "rl4sys_zmq.remote.ray_cluster"
NODES = [
    {"host": "10.0.0.1", "resources": {"CPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0, "object_store_memory": 1e8}},
    {"host": "10.0.0.2", "resources": {"CPU": 2.0, "GPU": 1.0, "edge": 4.0}},
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resources": {}}, "resources: the engine thread does not reserve resources"),
        ({"clients": {"a": {"resources": {}}, "b": {"engine": "ray"}}}, "clients.a.resources: the engine thread does not"),
        ({"ray_address": "auto"}, "ray_address: no client has the engine ray"),
    ],
)
def test_options_of_ray_without_the_engine_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_engines(LearnerConfig.from_mapping(options))
    check_engines(LearnerConfig.from_mapping({**options, "engine": "ray"}))


def test_amounts_have_rays_names_and_zeros_are_left_out() -> None:
    assert ray_amounts(ResourcesConfig()) == {"CPU": 1.0}
    resources = ResourcesConfig(cpus=0, gpus=0.5, memory=7, custom={"edge": 2})
    assert ray_amounts(resources) == {"GPU": 0.5, "memory": 7.0, "edge": 2.0}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"CPU": 8.0}, ""),
        ({"CPU": 2.0, "edge": 4.0}, ""),
        ({"CPU": 3.0, "edge": 1.0}, "no node of the Ray cluster has {CPU: 3, edge: 1}; there is 10.0.0.1 {CPU: 8"),
        ({"far": 1.0}, "no node of the Ray cluster has {far: 1}"),
    ],
)
def test_a_worker_must_fit_on_one_node(wanted: dict[str, float], problem: str) -> None:
    found = placement_problem(wanted, NODES)
    assert problem in found and bool(problem) == bool(found)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    config = LearnerConfig(bind="inproc://no-ray", run_dir=None, engine="ray")
    with pytest.raises(ConfigError, match=re.escape("pip install 'rl4sys-zmq[ray]'")), Learner(config):
        pytest.fail("it has started")


class Lost(Exception):
    """An exception of the fake Ray."""


class Unreachable(Lost):
    """The exception that Ray raises for an actor that it cannot reach."""


class Raised(Lost):
    """The exception that Ray raises for a method that has raised one."""

    cause = ValueError("of the method")


class FakeRay:
    """The part of the module ``ray`` that the driver uses. Actors are numbers. The test sets the results of their methods."""

    def __init__(self) -> None:
        self.alive = {"head": {"CPU": 1.0}, "a": {"CPU": 1.0, "edge": 1.0}, "b": {"CPU": 1.0, "edge": 1.0}}
        self.options_of: list[dict[str, Any]] = []
        self.killed: list[int] = []
        self.results: dict[str, Any] = {}
        self.calls: list[str] = []
        self.exceptions = self.util = self.scheduling_strategies = self
        self.ActorUnavailableError, self.RayActorError, self.RayError, self.RayTaskError = Unreachable, Lost, Lost, Raised

    def NodeAffinitySchedulingStrategy(self, node: str, *, soft: bool) -> str:
        assert soft
        return f"on {node}"

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerAddress": f"host-{name}", "Resources": resources, "Alive": True}
            for name, resources in self.alive.items()
        ]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def remote(self, kind: type) -> Self:
        assert kind.__name__ == "RayWorker"
        return self

    def options(self, **options: Any) -> Any:
        self.options_of.append(options)
        number = len(self.options_of)

        def method(name: str) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self._call(f"{name}-{number}"))

        actor = SimpleNamespace(number=number, describe=method("describe"), run=method("run"))
        return SimpleNamespace(remote=lambda: actor)

    def _call(self, name: str) -> str:
        self.calls.append(name)
        return name

    def wait(self, calls: list[str], *, num_returns: int = 1, timeout: float = 0.0) -> tuple[list[str], list[str]]:
        done = [call for call in calls if call in self.results][:num_returns]
        return done, [call for call in calls if call not in done]

    def get(self, call: str) -> Any:
        result = self.results[call]
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.number)


class Driver:
    """A `RayDriver` over a fake Ray, and the learner's end of its socketpair."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ray = FakeRay()
        for name in ("ray", "ray.exceptions", "ray.util", "ray.util.scheduling_strategies"):
            monkeypatch.setitem(sys.modules, name, self.ray)
        for name in (MODULE, CLUSTER):
            monkeypatch.delitem(sys.modules, name, raising=False)
        self.module = importlib.import_module(MODULE)
        monkeypatch.setattr(sys.modules[CLUSTER], "LOOK_EVERY_S", 0.0)
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.driver = self.module.RayDriver(theirs)
        self.driver._node = "head"
        self.theirs, self.numbers = theirs, itertools.count(1)

    def place(self, *, waits: bool = False, **wanted: float) -> int:
        """Order a worker, and return its number."""
        number = next(self.numbers)
        fields = {"client_id": "lab", "wanted": {"CPU": 1.0, **wanted}, "waits": waits, "path": [], "start": "secrets"}
        self.ours.send(encode_packet(PLACE, number=number, **fields))
        return number

    def turn(self) -> list[tuple[str, dict[str, Any]]]:
        """Run one turn of the driver, and return the packets that it has sent."""
        turns = iter([True, False])
        read = self.driver._read
        self.driver._read = lambda *, wait: read(wait=wait) and next(turns)
        self.driver.run()
        self.driver._read = read
        said = []
        self.ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                said.append(decode_packet(self.ours.recv(MAX_PACKET_BYTES)))
        return said

    def described(self, number: int, node: str, error: str = "") -> None:
        """Let an actor report the node that it runs on."""
        self.ray.results[f"describe-{number}"] = {"node": node, "host": f"host-{node}", "pid": 7, "error": error}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver(monkeypatch)
    yield driver
    driver.ours.close()
    driver.theirs.close()
    for name in (MODULE, CLUSTER):
        sys.modules.pop(name, None)


def test_a_worker_is_placed_runs_and_ends(driver: Driver) -> None:
    number = driver.place(edge=1.0)
    assert driver.turn() == []
    (options,) = driver.ray.options_of
    assert (options["resources"], options["num_cpus"], options["max_restarts"]) == ({"edge": 1.0}, 1.0, 0)
    assert options["scheduling_strategy"] == "SPREAD"
    driver.described(1, "a")
    assert driver.turn() == [(PLACED, {"number": number, "node": "a", "host": "host-a", "pid": 7})]
    assert driver.ray.calls == ["describe-1", "run-1"] and driver.turn() == []
    driver.ray.results["run-1"] = ""
    assert driver.turn() == [(ENDED, {"number": number, "end": "", "error": ""})]
    assert driver.ray.killed == [1] and driver.turn() == []


@pytest.mark.parametrize(
    ("result", "key", "text"),
    [
        ({"node": "a", "host": "h", "pid": 7, "error": "version 0.0.1"}, "error", "node a (h): version 0.0.1"),
        (Lost("ModuleNotFoundError: No module named 'rl4sys_zmq'"), "error", "lacks rl4sys_zmq"),
        (Lost("its process was killed"), "end", "Lost: its process was killed"),
        (Raised("..."), "end", "it raised ValueError: of the method"),
    ],
)
def test_what_keeps_a_worker_from_starting_is_told_apart(driver: Driver, result: Any, key: str, text: str) -> None:
    """An ``error`` fails the client. After an ``end``, another worker is tried."""
    driver.place()
    driver.turn()
    driver.ray.results["describe-1"] = result
    ((kind, fields),) = driver.turn()
    assert kind == ENDED and text in fields[key] and not fields[{"end": "error", "error": "end"}[key]]
    assert driver.ray.killed == [1]


def test_resources_that_no_node_has_are_refused_or_waited_for(driver: Driver) -> None:
    driver.place(far=1.0)
    ((kind, fields),) = driver.turn()
    assert kind == ENDED and "no node of the Ray cluster has {CPU: 1, far: 1}; there is host-head {CPU: 1}" in fields["error"]
    number = driver.place(waits=True, far=1.0)
    ((kind, fields),) = driver.turn()
    assert kind == WAITING and fields["number"] == number and driver.turn() == []  # the driver reports it once
    driver.ray.alive["c"] = {"CPU": 1.0, "far": 1.0}
    assert driver.turn() == [] and driver.ray.calls == ["describe-1"]
    driver.ours.send(encode_packet(KILL, number=number))
    assert driver.turn() == [(ENDED, {"number": number, "end": "", "error": ""})]


def test_resources_that_others_use_are_named(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.module, "PENDING_S", 0.0)
    driver.place(edge=1.0)
    ((kind, fields),) = [*driver.turn(), *driver.turn()]
    assert (
        kind == WAITING
        and "it needs {CPU: 1, edge: 1} on one node, and the cluster has {CPU: 0.5, edge: 0} free" in fields["text"]
    )


def test_no_worker_is_placed_on_a_node_that_could_be_lost(driver: Driver) -> None:
    driver.place(edge=1.0)
    driver.turn()
    driver.described(1, "a")
    driver.turn()
    driver.ray.results["run-1"] = Unreachable("socket closed")
    ((kind, fields),) = driver.turn()
    assert kind == ENDED and fields["end"] == "Unreachable: socket closed"
    driver.place(edge=1.0)
    driver.turn()
    assert driver.ray.options_of[1]["scheduling_strategy"] == "on b"
    del driver.ray.alive["b"]  # without this node, Ray decides
    driver.place(edge=1.0)
    driver.turn()
    assert driver.ray.options_of[2]["scheduling_strategy"] == "SPREAD"


def test_a_driver_without_its_node_ends(driver: Driver) -> None:
    del driver.ray.alive["head"]
    with pytest.raises(RuntimeError, match="the node of this machine has left the Ray cluster"):
        driver.turn()


def test_a_learner_that_has_ended_takes_its_workers_along(driver: Driver) -> None:
    driver.place()
    driver.turn()
    driver.ours.close()
    driver.driver.run()
    driver.driver.close()
    assert driver.ray.killed == [1]


START = start(engine="ray", down="tcp://0.0.0.0:1", up="tcp://0.0.0.0:2", plugins=())
DRIVER = """
import json, os, signal, socket, sys
from rl4sys_zmq.remote import ray_connection
from rl4sys_zmq.learner.engines.packets import decode_packet, encode_packet
pair = socket.socket(fileno=int(sys.argv[2]))
say = lambda kind, **fields: pair.send(encode_packet(kind, **fields))
say("connected", address="h:1", host="10.0.0.9", node="n0", nodes=[], version="2")
while data := pair.recv(1 << 17):
    kind, fields = decode_packet(data)
    if kind == "kill":
        say("ended", number=fields["number"], end="", error="")
    elif fields["client_id"] == "garbled":
        pair.send(b"no packet")
    elif fields["client_id"] == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fields["client_id"] == "bad":
        say("ended", number=fields["number"], end="", error="no such node")
    else:
        start = json.loads(fields["start"])
        say("waiting", number=fields["number"], text=start["down"] + " " + start["up"])
        say("placed", number=fields["number"], node="n1", host="h", pid=5) if fields["client_id"] == "good" else None
"""
PATIENCE_S = 30.0


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[RayDriverThread]:
    monkeypatch.setattr(ray_connection, "_PROGRAM", getattr(request, "param", DRIVER))
    thread = RayDriverThread("h:1")
    thread.start()
    yield thread
    thread.stop()
    assert thread.join(PATIENCE_S)


def worker(number: int, client_id: str) -> RayProcess:
    return RayProcess(number, client_id, {"CPU": 1.0}, replace(START, client_id=client_id), waits=True)


def test_workers_are_placed_and_told_the_learners_address_in_the_cluster(connection: RayDriverThread) -> None:
    connection.wait_connected()
    good, slow, bad = worker(1, "good"), worker(2, "slow"), worker(3, "bad")
    for each in (good, slow, bad):
        connection.add(each)
    until(lambda: good.node == "n1" and bool(slow.waiting))
    assert good.describe() == {"node": "n1", "waiting": ""} and good.wait(0.0) is None
    assert slow.describe() == {"node": "", "waiting": "tcp://10.0.0.9:1 tcp://10.0.0.9:2"}
    with pytest.raises(ConfigError, match="no such node"):
        bad.wait(PATIENCE_S)
    good.kill()
    assert good.wait(PATIENCE_S) == "" and slow.wait(0.0) is None


def test_all_workers_of_a_driver_end_with_it_and_others_get_another_driver(connection: RayDriverThread) -> None:
    good, deadly = worker(1, "good"), worker(2, "deadly")
    connection.add(good)
    until(lambda: good.node == "n1")
    connection.add(deadly)
    for each in (good, deadly):
        assert each.wait(PATIENCE_S) == "the driver process ended with signal 9 (SIGKILL)"
    later = worker(3, "good")
    connection.add(later)
    until(lambda: later.node == "n1")


@pytest.mark.parametrize("connection", ["raise SystemExit(3)"], indirect=True)
def test_a_first_driver_that_cannot_connect_is_the_last(connection: RayDriverThread) -> None:
    early = worker(1, "good")
    connection.add(early)
    with pytest.raises(
        TransportError, match="the Ray cluster at h:1 cannot be used: the driver process ended with exit status 3"
    ):
        connection.wait_connected()
    assert early.wait(PATIENCE_S) == "the driver process ended with exit status 3"
    until(lambda: not connection.alive)
    late = worker(2, "good")
    connection.add(late)
    assert late.wait(0.0) == "the driver process ended with exit status 3"


def test_a_packet_that_cannot_be_read_costs_the_driver_and_not_the_connection(connection: RayDriverThread) -> None:
    garbled = worker(1, "garbled")
    connection.add(garbled)
    end = garbled.wait(PATIENCE_S)
    assert end is not None and end.startswith("an error in the learner: JSONDecodeError")
    later = worker(2, "good")
    connection.add(later)
    until(lambda: later.node == "n1")


def test_a_worker_whose_start_data_are_too_long_is_refused_and_the_others_run(connection: RayDriverThread) -> None:
    long = worker(1, "good")
    long.start = replace(START, plugins=("x" * MAX_PACKET_BYTES,))
    good = worker(2, "good")
    connection.add(long)
    connection.add(good)
    with pytest.raises(ConfigError, match=r"the start data of a worker have 13\d{4} bytes.*shorten sys\.path"):
        long.wait(PATIENCE_S)
    until(lambda: good.node == "n1")
