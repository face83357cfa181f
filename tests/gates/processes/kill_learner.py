"""A learner that a test kills: ``python kill_learner.py '{"bind": ..., "run_dir": ..., "trace": ..., "config": {...}}'``.

Its algorithms RECORD_ON and RECORD_OFF keep the name of each segment that they trained on in their *state*. The state
therefore shows what the surviving lineage has learned. RL4SYS_DIE_AT=POINT:N makes the process kill itself when it reaches a
point (see `POINTS`) for the N-th time. The command ``die POINT:N`` sets a point later. Lines on standard input are commands:
``save``, ``drain``, ``end``. The process answers in its trace. The trace also records when the first actor of each client was
live again (``returned``), when the client had accepted and judged new segments after that (``going_on``, with the longest
time without progress), the digest of each version, and the alarms.
"""

import contextlib
import functools
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.children import SPARE, TRY_AGAIN
from harness.recorders import OffPolicyRecorder, Recorder, name_of
from harness.stepped_clock import step_clock
from harness.trace import TraceWriter

import rl4sys_zmq.learner.run.checkpoints as checkpoints
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import JournalEntry
from rl4sys_zmq.delivery.journal_marks import JournalMarksFileWriter
from rl4sys_zmq.delivery.journal_rows import JournalFile, JournalTables
from rl4sys_zmq.errors import AddressInUse, RL4SysError
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.gateway.actor_sessions import ActorSessionHandler
from rl4sys_zmq.learner.gateway.client import ClientState
from rl4sys_zmq.learner.gateway.dispatcher import SegmentDispatcher
from rl4sys_zmq.learner.gateway.gateway import Gateway
from rl4sys_zmq.learner.training import train_loop
from rl4sys_zmq.learner.training.building import build_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.private import write_folder
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeParameters

SAMPLE_S = 0.05
JUDGED = ("trained", "stale", "quarantined", "evaluated")
FAULTS = ("stalled", "credit_corrected")
"""Alarms that no gate allows: the library has lost count, or makes no progress."""
LAST_WORDS_S = 0.1


class Records:
    """A factory that creates recorders and keeps the last one."""

    def __init__(self, kind: type[Recorder], **parameters: Any) -> None:
        self._kind, self._parameters = kind, parameters
        self.last: Recorder | None = None

    def __call__(self, observation_space: Any, action_space: Any, parameters: Mapping[str, Any], seed: int) -> Recorder:
        spec = mlp_spec(observation_space, action_space, "categorical", (8,))
        self.last = self._kind(spec, FakeParameters(**{**self._parameters, **parameters}), seed)
        return self.last


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """A counter that kills the process at its n-th call."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, times: int = 1) -> None:
        before, self._left = self._left, self._left - times
        if before > 0 >= self._left:
            threading.Event().wait(LAST_WORDS_S)  # other threads continue: an ack that is sent too early still leaves
            die()


def before(owner: Any, function: Callable[..., Any]) -> Callable[[Fuse], None]:
    """Return a point before a function, which is an attribute of `owner`. It is given itself, so that it follows a rename."""
    return functools.partial(_wrap, owner, function.__name__, True)


def after(owner: Any, function: Callable[..., Any]) -> Callable[[Fuse], None]:
    return functools.partial(_wrap, owner, function.__name__, False)


def before_segments(fuse: Fuse) -> None:
    """Call a fuse with the number of segments of each entry, before the entry is replayed."""
    call = SegmentDispatcher.send_again

    def wrapped(dispatcher: SegmentDispatcher, client: ClientState, entry: JournalEntry) -> None:
        fuse(entry.accepted)
        call(dispatcher, client, entry)

    setattr(SegmentDispatcher, "send_again", wrapped)  # noqa: B010 a method cannot be assigned to


def _wrap(owner: Any, name: str, early: bool, fuse: Fuse) -> None:
    call = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if early:
            fuse()
        result = call(*args, **kwargs)
        if not early:
            fuse()
        return result

    setattr(owner, name, wrapped)


POINTS: dict[str, Callable[[Fuse], None]] = {
    "checkpoint.begin": before(checkpoints, write_folder),
    "checkpoint.fsync": before(os, os.fsync),
    "checkpoint.rename": before(os, os.rename),
    "checkpoint.renamed": after(os, os.rename),
    "checkpoint.pruning": before(shutil, shutil.rmtree),
    "checkpoint.untold": after(checkpoints.CheckpointStore, checkpoints.CheckpointStore.write),
    "commit.applied": after(JournalTables, JournalTables.apply),
    "commit.done": after(JournalFile, JournalFile.write),
    "marks.note": after(JournalMarksFileWriter, JournalMarksFileWriter.note),
    "marks.renew": before(JournalMarksFileWriter, JournalMarksFileWriter.renew),
    "trim": after(JournalTables, JournalTables._trim),
    "page": after(JournalTables, JournalTables.page),
    "start.open": after(DiskJournal, DiskJournal.open),
    "start.bound": after(Gateway, Gateway._bind),
    "start.build": before(train_loop, build_algorithm),
    "start.loaded": after(train_loop.TrainLoop, train_loop.TrainLoop._resume),
    "start.rewind": after(ClientState, ClientState.rewind),
    "replay": before_segments,
    "replayed": before(ClientState, ClientState.caught_up),
    "join": before(ActorSessionHandler, ActorSessionHandler._welcome),
    "joined": after(ActorSessionHandler, ActorSessionHandler._welcome),
    "submit": after(ActorSessionHandler, ActorSessionHandler._on_submit),
}


def light(point: str) -> None:
    """Set the point POINT:N at which this process kills itself."""
    name, _, count = point.partition(":")
    POINTS[name](Fuse(int(count or 1)))


class Progress:
    """The progress of a client since its first actor returned: how many segments it has accepted and judged."""

    def __init__(self, moved: tuple[int, int], at_ns: int) -> None:
        self._first = self._last = moved
        self._at_ns = at_ns
        self._goes_on = False
        self.still_s = 0.0

    def goes_on_at(self, moved: tuple[int, int], at_ns: int) -> bool:
        """Return True the first time that both numbers have grown since the return. `moved` are the numbers at `at_ns`."""
        if self._goes_on:
            return False
        self.still_s = max(self.still_s, (at_ns - self._at_ns) / 1e9)
        if moved != self._last:
            self._last, self._at_ns = moved, at_ns
        self._goes_on = all(now > then for now, then in zip(moved, self._first, strict=True))
        return self._goes_on


class Served:
    def __init__(self, options: dict[str, Any], learner: Learner, trace: TraceWriter, records: dict[str, Records]) -> None:
        self._learner, self._trace, self._records = learner, trace, records
        self._clients = {"on": "RECORD_ON", "off": "RECORD_OFF"}
        self._ready = False
        self._returned: dict[str, Progress] = {}
        self._published: dict[str, int] = {}
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def law(self) -> dict[str, Any]:
        at_ns = time.monotonic_ns()
        status = self._learner.status()
        for name, client in status["clients"].items():
            if client["state"] == "running":
                self._trace.law("learner", client, at_ns=at_ns, client=name)
                self._note_progress(name, client, at_ns)
                self._note_versions(name, client["version"])
                if not self._ready:
                    self._ready = True
                    self._trace.note("ready", resuming=client["resuming"], pending=client["pending"])
        return status

    def _note_versions(self, name: str, newest: int) -> None:
        """Record the digest of each version that was published since the last call."""
        for version in range(self._published.get(name, newest - 1) + 1, newest + 1):
            with contextlib.suppress(KeyError):  # there is none before the first
                self._trace.note("version", client=name, version=version, digest=self._learner.digest(name, version))
        self._published[name] = newest

    def _note_progress(self, name: str, client: dict[str, Any], at_ns: int) -> None:
        """Record the return of the client's first actor, the client's progress after that, and alarms."""
        for alarm in FAULTS:
            if alarm in client["alarms"]:
                self._trace.note("fault", alarm=alarm, client=name, text=client["alarms"][alarm]["text"])
        judged = sum(client["verdicts"][verdict] for verdict in JUDGED)
        moved = client["accepted"], judged
        if name not in self._returned:
            if any(actor["live"] for actor in client["actors"].values()):
                self._returned[name] = Progress(moved, at_ns)
                self._trace.note("returned", client=name)
        elif self._returned[name].goes_on_at(moved, at_ns):
            self._trace.note("going_on", client=name, still_s=self._returned[name].still_s)

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            try:
                self.law()
            except RL4SysError as exc:
                if not self._over.is_set():
                    print(f"the learner does not answer: {exc!r}", flush=True)
                    os._exit(4)

    def do(self, command: str) -> bool:
        """Execute one command. Return False after the last one."""
        try:
            self._do(command)
        except RL4SysError as exc:
            self._trace.note("answer", command=command, error=f"{type(exc).__name__}: {exc}")
        return command != "end"

    def _do(self, command: str) -> None:
        words = command.split()
        match words[0]:
            case "digest":
                digest = self._learner.digest(words[1], int(words[2]))
                self._trace.note("answer", command=command, status={"digest": digest})
            case "die":
                light(words[1])
            case "status":
                self._trace.note("answer", command=command, status=self.law())
            case "save":
                self._learner.save(timeout_s=20.0)
                self._trace.note("answer", command=command, status=self.law())
            case "drain":
                self._learner.drain(timeout_s=30.0)
                for client, algorithm in self._recorded().items():
                    keys = self._keys(client, algorithm)
                    if keys is not None:
                        self._trace.applied([name_of(*key) for key in keys], client=client)
                self._trace.note("answer", command=command, status=self.law())
            case "end":
                self._over.set()
                self._sampler.join()
                self._learner.raise_if_dead()
                self._learner.close()

    def _recorded(self) -> dict[str, str]:
        """Return the algorithm of each client that reports the segments that it has trained on."""
        if self._learner.config.engine == "thread":
            return self._clients
        return dict.fromkeys(self._learner.status()["clients"], "")

    def _keys(self, client: str, algorithm: str) -> list[tuple[int, int]] | None:
        """Return the segments that a client has trained on, from the algorithm in this process or from the checkpoint."""
        if self._learner.config.engine == "thread":
            made = self._records[algorithm].last
            return None if made is None else made.keys
        assert self._learner.config.run_dir is not None
        found = checkpoints.CheckpointStore(self._learner.config.run_dir / "checkpoints" / client).load()
        return None if found is None else [(int(episode), int(index)) for episode, index in found[1]["keys"]]


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(levelname)s %(message)s")
    options = json.loads(sys.argv[1])
    if options.get("torch"):
        import torch  # noqa: F401 - a life that is prepared ahead of its time has it then
    if SPARE in os.environ and not sys.stdin.readline():
        return 0
    step_clock(options.get("clock_s", 0.0))
    parameters = options.get("parameters", {})
    records = {"RECORD_ON": Records(Recorder, **parameters), "RECORD_OFF": Records(OffPolicyRecorder, **parameters)}
    for name, factory in records.items():
        register_algorithm(name, factory)
    register_algorithm("RECORD_NOTHING", FakeAlgorithm.factory(steps_per_update=1))
    if point := os.environ.get("RL4SYS_DIE_AT"):
        light(point)
    trace = TraceWriter(options["trace"])
    # On a busy machine, several threads of torch make each update tens of times slower.
    config = LearnerConfig(**{"bind": options["bind"], "run_dir": options["run_dir"], "torch_threads": 1, **options["config"]})
    try:
        learner = Learner(config).start()
    except AddressInUse as exc:
        print(exc)
        return TRY_AGAIN
    trace.note("serving", address=learner.address)
    served = Served(options, learner, trace, records)
    for line in sys.stdin:
        if not served.do(line.strip()):
            return 0
    return 3  # the parent process is gone


if __name__ == "__main__":
    sys.exit(main())
