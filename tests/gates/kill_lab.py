"""One learner process, its actors and their traces, for the tests that kill them."""

import json
import random
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness.children import PYTHONPATH, Child
from harness.kills import KillLoop
from harness.trace import TraceTail, read_trace
from harness.trace_check import TraceOutcome, check_trace

from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.resource import Resource

from .conftest import PROCESSES

ENV = {"PYTHONPATH": PYTHONPATH, "PYTHONFAULTHANDLER": "1"}
FIRST_PORT, LAST_PORT = 12_000, 32_000


def free_port(rng: random.Random, *hosts: str) -> int:
    """Return a port that is free on these hosts, below the ports that the system gives to connecting sockets.

    A learner that is killed must find its port free again. A port of the system's range could be taken meanwhile by any
    connection, even by an actor's own attempts to connect to it: TCP lets a socket connect to itself.
    """
    while True:
        port = rng.randint(FIRST_PORT, LAST_PORT)
        try:
            for host in hosts:
                with socket.socket() as probe:
                    probe.bind((host, port))
        except OSError:
            continue
        return port


class Lab(Resource):
    """A learner at a fixed address, with a run directory, and actors that join it as client ``on`` or ``off``.

    The actors are C++ programs if there is a `program` (native/tests/gate_actor.cpp).
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        scheme: str = "tcp",
        parameters: Mapping[str, Any] | None = None,
        torch: bool = False,
        program: Path | None = None,
        **config: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.seed, self.torch, self.program = folder, seed, torch, program
        self._rng = random.Random(seed)
        self.loop = KillLoop(seed=seed, folder=folder)
        self.run_dir = folder / "run"
        self.address = f"tcp://127.0.0.1:{free_port(self._rng, '127.0.0.1')}" if scheme == "tcp" else f"ipc://{folder}/l"
        self.config = {"checkpoint_every_s": 0.2, **config}
        self.parameters = {"steps_per_update": 24, **(parameters or {})}
        self.traces: dict[str, TraceTail] = {}
        self.learner = self._learner_child("learner")

    def _learner_child(self, name: str) -> Child:
        options = {
            "bind": self.address,
            "run_dir": str(self.run_dir),
            "trace": self._trace(name),
            "config": self.config,
            "parameters": self.parameters,
            "torch": self.torch,
        }
        return self.loop.child(name, [sys.executable, str(PROCESSES / "kill_learner.py"), json.dumps(options)], env=ENV)

    def reconfigure(self, **config: Any) -> None:
        """Give the next start of the learner another configuration. The learner must not run."""
        self.config = {**self.config, **config}
        options = json.loads(self.learner.command[-1])
        self.learner.command[-1] = json.dumps({**options, "config": self.config})

    def actor(
        self,
        name: str,
        client: str,
        *,
        rate: float,
        address: str | None = None,
        algorithm: Mapping[str, Any] | None = None,
        max_queued: int = 1_000_000,
        python: bool = False,
        **config: Any,
    ) -> Child:
        """Return an actor process that is not started yet. `python` makes it one in Python in any lab.

        It plays `rate` episodes per second, and none while it holds `max_queued` segments. `algorithm` has the ``algorithm`` and
        ``parameters`` of a client that records nothing.
        """
        options = {
            "address": address or self.address,
            "client": client,
            "actor_id": f"actor-{name}",
            "trace": self._trace(name),
            "seed": self._rng.randrange(1 << 31),
            "rate": rate,
            "max_queued": max_queued,
            "config": {"queue_items": 1_000_000, "linger_ms": 5, **config},
            **(algorithm or {}),
        }
        script = [sys.executable, str(PROCESSES / "kill_actor.py")] if python or self.program is None else [str(self.program)]
        return self.loop.child(name, [*script, json.dumps(options)], env=ENV)

    def _trace(self, name: str) -> str:
        path = self.folder / f"{name}.jsonl"
        self.traces[name] = TraceTail(path)
        return str(path)

    def acked(self) -> int:
        return sum(tail.ids("acked") for tail in self.traces.values())

    def serving(self, timeout_s: float = 20.0) -> None:
        tail = self.traces["learner"]
        if not self.learner.running:
            self.learner.start()
        self.loop.until(
            lambda: tail.last("serving").get("at_ns", 0) > self.learner.started_ns,
            timeout_s,
            "a learner that serves",
        )

    def ask(self, command: str, timeout_s: float = 40.0) -> dict[str, Any]:
        tail = self.traces["learner"]
        count = tail.count("answer")
        self.learner.tell(command)
        self.loop.until(lambda: tail.count("answer") > count, timeout_s, f"the learner's answer to {command!r}")
        answer = tail.last("answer")
        assert "error" not in answer, answer
        return dict(answer["status"])

    def status(self, client: str) -> dict[str, Any]:
        return dict(request_status(self.address, 10.0)["clients"].get(client, {}))

    def stop(self, *actors: Child, timeout_s: float = 60.0) -> None:
        for actor in actors:
            actor.expect(0)
            actor.tell("stop")
        self.loop.until(lambda: not any(actor.running for actor in actors), timeout_s, "the actors' end")
        for actor in actors:
            actor.wait(1.0)

    def finish(self, *actors: Child, timeout_s: float = 60.0) -> dict[str, Any]:
        """Let the actors deliver all segments, let the learner train on them, end all processes, and return the last status."""
        self.stop(*actors, timeout_s=timeout_s)
        status = self.ask("drain")
        self.learner.tell("end")
        self.learner.wait(15.0)
        self.loop.check()
        return status

    def outcome(self, *, one_lineage: bool = True, unrecorded: Collection[str] = ()) -> TraceOutcome:
        """Return the outcome of the traces. The newest checkpoint on disk must be the state that the learner reported."""
        events = read_trace(*(self.folder / f"{name}.jsonl" for name in self.traces))
        faults = [event for event in events if event.kind == "fault"]
        assert not faults, f"{len(faults)} alarms that no gate allows, such as {faults[0].fields}"
        breaches = check_trace(events, one_lineage=one_lineage).breaches
        assert not breaches, f"{len(breaches)} laws were broken, such as {breaches[0]}"
        named = ("submitted", "acked", "kept")
        events = [event for event in events if event.kind not in named or event.client not in unrecorded]
        spoken = {event.client: event.ids for event in events if event.kind == "applied"}
        for client, ids in spoken.items():
            stored = self.stored(client)
            missing, more = sorted(set(ids) - set(stored)), sorted(set(stored) - set(ids))
            assert stored == list(ids), (
                f"the newest checkpoint of {client} has {len(stored)} segments, the learner spoke of {len(ids)}: "
                f"it lacks {missing[:5]}, has also {more[:5]}, or their order differs"
            )
        return check_trace(events, one_lineage=one_lineage)

    def stored(self, client: str) -> list[str]:
        found = CheckpointStore(self.run_dir / "checkpoints" / client).load()
        assert found is not None
        return [f"{int(episode):x}.{int(index)}" for episode, index in found[1]["keys"]]

    def close(self) -> None:
        self.loop.close()
