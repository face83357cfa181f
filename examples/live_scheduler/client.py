"""The daemon's users: a client, and a load generator.

Run the load generator in the folder ``examples``::

    python -m live_scheduler.client /tmp/batch --jobs 100 --seed 1 --speed 2000
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from job_scheduling.lublin import generate
from job_scheduling.trace import Jobs
from rl4sys_zmq.errors import ConfigError, RL4SysError

__all__ = ["Client", "DaemonUnavailable", "play"]

RETRY_S = 0.05


class DaemonUnavailable(RL4SysError):
    """No daemon answers in a folder."""

    def __init__(self, path: Path, patience_s: float, cause: OSError) -> None:
        super().__init__(
            f"no daemon answered at {path} for {patience_s:g} s ({cause.strerror or cause}); correct the folder, or start the "
            f"daemon in the folder examples: python -m live_scheduler.daemon {path.parent}"
        )


class Client:
    """A connection to a daemon. While the daemon is away, a request waits for the next one, and is sent again.

    That is safe: a job that is submitted twice with the same id is one job.
    """

    def __init__(self, folder: Path, patience_s: float = 30.0) -> None:
        """Prepare a client. The first request connects.

        Args:
            folder: The folder of the daemon.
            patience_s: The longest time for which a request waits for a daemon.
        """
        self._path = folder / "socket"
        self._patience_s = patience_s
        self._stream: socket.SocketIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. A later request opens another."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """Send a request. Return the reply.

        Raises:
            ConfigError: If the daemon refuses the request.
            DaemonUnavailable: If no daemon answers for `patience_s`.
        """
        line = json.dumps({"op": op, **arguments}).encode() + b"\n"
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                reply = self._exchange(line)
                break
            except OSError as exc:
                self.close()
                if time.monotonic() > give_up_at:
                    raise DaemonUnavailable(self._path, self._patience_s, exc) from exc
                time.sleep(RETRY_S)
        if not reply["ok"]:
            raise ConfigError(reply["error"])
        return reply

    def _exchange(self, line: bytes) -> dict[str, Any]:
        if self._stream is None:
            self._stream = self._connect()
        self._stream.write(line)
        answer = self._stream.readline()
        while not answer.endswith(b"\n"):
            part = self._stream.readline()
            if not part:
                raise ConnectionResetError("the daemon has closed the connection")
            answer += part
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _connect(self) -> socket.SocketIO:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._path))
            return connection.makefile("rwb", buffering=0)


def play(
    client: Client, jobs: Jobs, speed: float, name: str = "job", on_submitted: Callable[[int], None] | None = None
) -> list[str]:
    """Submit jobs at their submit times. Return their ids.

    The programs sleep for the run times, so that a small machine can have many slots. Each costs a few milliseconds of a
    processor, for the shell and the program.

    Args:
        client: The client.
        jobs: The jobs.
        speed: The seconds of the jobs in a real one. It must be that of the daemon.
        name: The beginning of their ids.
        on_submitted: Called with the number of jobs that have been submitted, after each one.
    """
    begun = time.monotonic() - float(jobs.submit_s[0]) / speed
    names = []
    for k in range(len(jobs)):
        time.sleep(max(begun + float(jobs.submit_s[k]) / speed - time.monotonic(), 0.0))
        names.append(f"{name}-{k}")
        command = ["sleep", f"{jobs.run_s[k] / speed:.4f}"]
        client.ask("submit", id=names[-1], command=command, slots=int(jobs.processors[k]), requested_s=float(jobs.requested_s[k]))
        if on_submitted is not None:
            on_submitted(len(names))
    return names


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A load generator for the batch daemon.")
    parser.add_argument("folder", type=Path, help="folder of the daemon")
    parser.add_argument("--jobs", type=int, default=100, help="number of jobs (default: 100)")
    parser.add_argument("--load", type=float, default=1.0, help="offered load, as a share of the slots (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the jobs (default: 1)")
    parser.add_argument("--speed", type=float, default=1.0, help="speed of the daemon (default: 1)")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    try:
        with Client(args.folder) as client:
            slots = client.ask("status")["slots"]
            jobs = generate(args.jobs, slots, args.seed, args.load).jobs
            names = play(client, jobs, args.speed, f"load-{args.seed}")
            client.ask("wait")
            ended = sum(job["id"] in set(names) and job["exit_code"] == 0 for job in client.ask("jobs")["jobs"])
            print(f"{ended} of {len(names)} jobs have ended with exit code 0")
            print(json.dumps(client.ask("status"), indent=1))
    except (RL4SysError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
