"""A batch daemon for one machine: it runs submitted jobs as processes, in the order that a scheduler decides.

Run it in the folder ``examples``::

    python -m live_scheduler.daemon /tmp/batch --slots 4 --scheduler SJF
    python -m live_scheduler.daemon /tmp/batch --slots 4 --scheduler policy --learner localhost:50051

Users talk to it through the Unix socket in its folder: a line of JSON for each request, and one for each reply (see `client`).
SIGTERM or SIGKILL ends the daemon and no job. A daemon that is started again in the same folder goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from live_scheduler.jobs import ClusterView, Job, read_job, read_request
from live_scheduler.journal import Journal
from live_scheduler.processes import Processes, State
from live_scheduler.schedulers import SCHEDULERS, Scheduler, SlowdownMeter, make_scheduler
from rl4sys_zmq.errors import ConfigError, RL4SysError

MAX_LINE_BYTES = 1 << 16
MAX_WAITING = 10_000
MAX_TIMES = 100_000
"""The number of decisions whose times are kept."""
POLL_S = 0.05
"""The time between two looks at a job that an earlier daemon has started."""


class Daemon:
    """The daemon. One thread does everything, so a decision sees one state of the machine."""

    def __init__(self, folder: Path, journal: Journal, scheduler: Scheduler, slots: int) -> None:
        """Take over the jobs of the journal.

        Args:
            folder: The folder for the socket and the files of the jobs.
            journal: The journal.
            scheduler: The scheduler.
            slots: The number of slots of the machine.

        Raises:
            ConfigError: If a job of the journal needs more slots, or the path of the socket is too long.
        """
        if slots < 1:
            raise ConfigError(f"a machine has at least one slot, not {slots}", key="slots")
        for job in journal.jobs.values():
            if job.end_s is None and job.slots > slots:
                raise ConfigError(
                    f"job {job.id} of the journal needs {job.slots} slots, and this machine has {slots}", key="slots"
                )
        self._socket = folder / "socket"
        if len(os.fsencode(self._socket)) > 107:
            raise ConfigError(f"the path {self._socket} is too long for a socket (107 bytes); choose another folder")
        self._journal, self._scheduler, self._slots = journal, scheduler, slots
        self._processes = Processes(folder / "jobs")
        self._waiting: list[Job] = []
        self._running: dict[str, Job] = {}
        self._chosen: Job | None = None
        self._meter = SlowdownMeter()
        self._decision_us: deque[float] = deque(maxlen=MAX_TIMES)
        self._idle = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            OSError: If the journal cannot be written. All jobs that were submitted are in it.
        """

        def fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            self._error = context.get("exception") or RuntimeError(context["message"])
            stop.set()

        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(fail)
        self._socket.unlink(missing_ok=True)  # of a daemon that was killed: the journal's lock shows that none is there
        server = await asyncio.start_unix_server(self._converse, self._socket, limit=MAX_LINE_BYTES)
        try:
            self._take_over()
            print(f"ready: {self._socket}, {len(self._waiting)} jobs wait, {len(self._running)} run", flush=True)
            await stop.wait()
        finally:
            server.close()
            self._socket.unlink(missing_ok=True)
        if self._error is not None:
            raise self._error

    # ---- requests

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while line := await reader.readline():
                try:
                    reply = {"ok": True, **await self._answer(read_request(line))}
                except ConfigError as error:
                    reply = {"ok": False, "error": str(error)}
                await _reply(writer, reply)
        except ConnectionError:
            pass  # the user has gone, with or without a reply
        except ValueError:  # of `readline`
            await _reply(writer, {"ok": False, "error": f"a request has at most {MAX_LINE_BYTES} bytes"})
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "submit":
                return self._submit(request)
            case "status":
                return self._status()
            case "jobs":
                return {"jobs": [self._describe(job) for job in self._journal.jobs.values()]}
            case "wait":
                await self._idle.wait()
                return {}
        raise ConfigError(f"unknown op {request['op']!r}; known are submit, status, jobs and wait")

    def _submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Accept a job. A user who has not seen the reply can submit it again: it is the same job."""
        job = read_job(request, self._slots, self._journal.now_s())
        known = self._journal.jobs.get(job.id)
        if known is not None:
            if (known.command, known.slots, known.requested_s) != (job.command, job.slots, job.requested_s):
                raise ConfigError(f"another job has the id {job.id}", key="id")
            return {"id": job.id}
        if len(self._waiting) >= MAX_WAITING:
            raise ConfigError(f"{MAX_WAITING} jobs wait; submit this one later")
        try:
            self._journal.submitted(job)
        except OSError as error:
            raise ConfigError(f"the journal cannot be written ({error}); make room on the disk") from error
        self._waiting.append(self._journal.jobs[job.id])
        self._idle.clear()
        self._loop.call_soon(self._schedule)
        return {"id": job.id}

    def _status(self) -> dict[str, Any]:
        times = np.array(self._decision_us or [0.0])
        return {
            "slots": self._slots,
            "free": self._free(),
            "waiting": len(self._waiting),
            "running": len(self._running),
            "ended": len(self._journal.jobs) - len(self._waiting) - len(self._running),
            "decisions": len(self._decision_us),
            "decision_us": {"p50": round(np.percentile(times, 50), 1), "p99": round(np.percentile(times, 99), 1)},
            "scheduler": self._scheduler.status(),
        }

    @staticmethod
    def _describe(job: Job) -> dict[str, Any]:
        keys = ("id", "slots", "requested_s", "submit_s", "start_s", "end_s", "exit_code", "error")
        return {key: getattr(job, key) for key in keys}

    # ---- scheduling

    def _schedule(self) -> None:
        """Start jobs until the next one does not fit."""
        while self._waiting:
            if self._chosen is None:
                self._chosen = self._decide()
            if self._chosen.slots > self._free():
                break
            job, self._chosen = self._chosen, None
            self._waiting.remove(job)
            self._meter.started(job, self._journal.now_s())
            self._start(job)
        if not self._waiting:
            self._scheduler.rest(self._meter.growth([], self._journal.now_s()))
            if not self._running:
                self._idle.set()

    def _decide(self) -> Job:
        """Return the job that is next. With one job there is nothing to decide."""
        if len(self._waiting) == 1:
            return self._waiting[0]
        now_s = self._journal.now_s()
        slowdown = self._meter.growth(self._waiting, now_s)
        begun = time.perf_counter()
        view = ClusterView.of(self._waiting, list(self._running.values()), self._slots, now_s)
        job = self._waiting[self._scheduler.choose(view, slowdown)]
        self._decision_us.append(1e6 * (time.perf_counter() - begun))
        return job

    def _free(self) -> int:
        return self._slots - sum(job.slots for job in self._running.values())

    # ---- processes

    def _start(self, job: Job) -> None:
        self._journal.started(job)
        try:
            process = self._processes.start(job)
        except OSError as error:
            self._journal.ended(job, self._journal.now_s(), None, f"no process could be started: {error}")
            return
        self._running[job.id] = job
        descriptor = os.pidfd_open(process.pid)  # readable when the process has ended
        self._loop.add_reader(descriptor, self._reap, job, process, descriptor)

    def _reap(self, job: Job, process: subprocess.Popen[bytes], descriptor: int) -> None:
        """Take the end of a shell of this daemon."""
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        process.wait()
        self._settle(job)

    def _take_over(self) -> None:
        """Find out what became of the jobs while no daemon ran, and go on."""
        left = [job for job in self._journal.jobs.values() if job.end_s is None]
        for job in left:  # all of them first: what runs has its slots before another job starts
            if self._processes.status(job).state is State.NEW:
                self._waiting.append(job)
            else:
                self._running[job.id] = job
        for job in [job for job in left if job.id in self._running]:
            self._settle(job)
        self._schedule()

    def _settle(self, job: Job) -> None:
        """Note the end of a job, or look again later."""
        status = self._processes.status(job)
        if status.state is State.RUNNING:
            self._loop.call_later(POLL_S, self._settle, job)
            return
        del self._running[job.id]
        error = None if status.state is State.ENDED else "the shell of the job was killed, so its exit code is unknown"
        self._journal.ended(job, self._journal.at_s(status.changed_at), status.exit_code, error)
        self._schedule()


async def _reply(writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
    writer.write(json.dumps(reply).encode() + b"\n")
    await writer.drain()


async def serve(folder: Path, journal: Journal, scheduler: Scheduler, slots: int) -> None:
    """Run a daemon until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: As `Daemon`.
        OSError: As `Daemon.run`.
    """
    daemon, stop = Daemon(folder, journal, scheduler, slots), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await daemon.run(stop)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A batch daemon for one machine.")
    parser.add_argument("folder", type=Path, help="folder for the socket, the journal and the files of the jobs")
    parser.add_argument("--slots", type=int, default=os.cpu_count(), help="slots of the machine (default: its processors)")
    parser.add_argument("--scheduler", default="FCFS", choices=SCHEDULERS, help="(default: FCFS)")
    parser.add_argument("--learner", help="address of the learner, for the scheduler policy")
    parser.add_argument("--learn", action="store_true", help="explore, and train on these jobs")
    parser.add_argument("--learner-timeout-s", type=float, default=1.0, help="longest wait for it at the start (default: 1)")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the daemon in a real one (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of random choices (default: 1)")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    os.umask(0o077)  # who can write to the socket can run programs as this user
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        with Journal(args.folder / "journal.jsonl", args.speed) as journal:
            options = {"learner": args.learner, "learn": args.learn, "timeout_s": args.learner_timeout_s, "seed": args.seed}
            scheduler = make_scheduler(args.scheduler, args.folder, **options)
            try:
                asyncio.run(serve(args.folder, journal, scheduler, args.slots))
            finally:
                scheduler.close()
    except (RL4SysError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
