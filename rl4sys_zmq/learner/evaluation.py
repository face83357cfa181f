"""The periodic evaluation of a client's policy, in a process of its own, and the record of the best version.

A `PolicyEvaluator` is a thread for one client. The gateway thread offers it each published version, which costs no more than a
comparison. The evaluator passes the newest version that is due to its process, which plays the episodes, and waits for the
result. Versions that become due meanwhile replace each other, and are counted as skipped.
"""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.child_process import end_text, module_path, start_error_text, start_with_socketpair
from rl4sys_zmq.config import EvaluationConfig, LearnerConfig
from rl4sys_zmq.errors import Closed, RL4SysError
from rl4sys_zmq.learner.run.stored_policies import BestPolicyFolder, EvaluationRecord
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.policies.folder import encode_policy
from rl4sys_zmq.private import write_folder
from rl4sys_zmq.resource import Resource, Worker

log = get_logger(__name__)

PROCESS = "rl4sys_zmq.ops.episodes"
"""The module that runs in the process. It is named, not imported: it needs Gymnasium, and the learner does not."""
LOOK_S = 0.1
END_S = 2.0
"""Time that the process has to end after its socket was closed. Then it is killed."""
MAX_FAILURES = 3
"""Failed evaluations in a row after which no further version is evaluated."""


class EvaluationProcess(Resource):
    """The process that plays the episodes of one client. One thread starts, uses and closes the process."""

    def __init__(self, plugins: Sequence[str], stopping: threading.Event) -> None:
        self._stopping = stopping
        self._end, self._process = start_with_socketpair(
            "-m", PROCESS, stdout=subprocess.DEVNULL, environment={"OMP_NUM_THREADS": "1"}
        )
        try:
            self._send({"path": module_path(), "plugins": list(plugins)})
        except BaseException:
            self._end.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            self._send(request)
            line = self._read_line(time.monotonic() + timeout_s)
        except TimeoutError as exc:
            self._process.kill_group()
            raise ConnectionError(
                f"{request['episodes']} episodes took more than {timeout_s:g} s, and its process was killed; "
                "repair the environment, or give fewer episodes or a larger timeout_s"
            ) from exc
        except ConnectionError as exc:
            raise ConnectionError(f"its process has ended ({end_text(self._process.end(END_S))})") from exc
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _read_line(self, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            if self._stopping.is_set():
                raise Closed("the evaluation was stopped")
            if time.monotonic() >= deadline:
                raise TimeoutError
            if poll.poll(LOOK_S * 1000):
                data = self._end.recv(1 << 16)
                if not data:
                    raise ConnectionResetError("the socket was closed")
                line += data
        return line

    def _send(self, document: dict[str, Any]) -> None:
        self._end.sendall(json.dumps(document).encode("ascii") + b"\n")

    def close(self) -> None:
        """Close the socket, and wait for the end of the process. If it plays an episode, it is killed."""
        self._end.close()
        self._process.end(0.0 if self._stopping.is_set() else END_S)


class PolicyEvaluator(Worker):
    """A thread that evaluates versions of a client's policy without exploration, and keeps the best one."""

    def __init__(
        self,
        client_id: str,
        options: EvaluationConfig,
        config: LearnerConfig,
        on_result: Callable[[str, EvaluationRecord, bool], None],
        on_failure: Callable[[str, str], None],
    ) -> None:
        super().__init__(f"rl4sys-evaluation-{client_id}")
        self.best: BestPolicyFolder | None = None  # without a run directory, and before the thread has opened it
        self._client_id, self._options, self._config = client_id, options, config
        self._on_result, self._on_failure = on_result, on_failure
        self._condition = threading.Condition()
        self._process: EvaluationProcess | None = None
        self._waiting: StoredPolicy | None = None
        self._period: int | None = None
        self._skipped = self._evaluations = self._failures = 0
        self._error, self._abandons = "", False
        self._last: EvaluationRecord | None = None
        self._busy_since: float | None = None

    def offer(self, policy: StoredPolicy) -> None:
        """Take a new version for evaluation if it is the first one of its period. The thread evaluates one version at a time.

        A version that still waits for its evaluation is replaced, and counts as skipped.
        """
        period = self._options.period(policy.snapshot.version, policy.origin.steps)
        if period == self._period or self._failures >= MAX_FAILURES or not self.alive:
            return
        self._period = period
        with self._condition:
            self._skipped += self._waiting is not None
            self._waiting = policy
            self._condition.notify()

    def forget(self) -> None:
        """Stop, because the client was removed. A later client of this name begins without a best policy."""
        self._abandons = True
        self.stop()

    def stop(self) -> None:
        """Ask the thread to end, also in the middle of an evaluation, whose process is then killed."""
        super().stop()
        with self._condition:
            self._condition.notify()

    def report(self) -> dict[str, Any]:
        last, best, since = self._last, self.best.record if self.best is not None else None, self._busy_since
        return {
            "evaluations": self._evaluations,
            "skipped": self._skipped,
            "busy_s": round(time.monotonic() - since, 3) if since is not None else 0.0,
            "version": last.version if last is not None else None,
            "mean_return": last.mean_return if last is not None else None,
            "best_version": best.version if best is not None else None,
            "best_return": best.mean_return if best is not None else None,
            "best": str(self.best.policy) if self.best is not None and best is not None else None,
            "error": self._error,
        }

    def run(self) -> None:
        try:
            self._try(self._open_best)
            while (policy := self._next()) is not None:
                self._try(lambda: self._evaluate(policy))
        finally:
            self._close_process()
            if self._abandons and self.best is not None:
                self._try(self.best.abandon)

    def _try(self, action: Callable[[], None]) -> None:
        """Call `action`. If it raises an exception, raise an alarm of the client."""
        try:
            action()
        except Closed:
            pass  # `_next` ends the thread
        except ConnectionError as exc:
            self._close_process()
            self._fail(str(exc))
        except RL4SysError as exc:
            self._fail(str(exc))
        except Exception as exc:
            log.exception("the evaluation of client %s has failed", self._client_id)
            self._fail(f"{type(exc).__name__}: {start_error_text(exc)}")

    def _open_best(self) -> None:
        if self._config.run_dir is not None and self.best is None:
            self.best = BestPolicyFolder(self._config.run_dir, self._client_id)

    def _close_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _next(self) -> StoredPolicy | None:
        """Wait for the next version to evaluate; None when the thread must end."""
        with self._condition:
            self._busy_since = None
            self._condition.wait_for(lambda: self._waiting is not None or self._stop_asked.is_set())
            policy, self._waiting = self._waiting, None
            self._busy_since = time.monotonic()
            return None if self._stop_asked.is_set() else policy

    def _evaluate(self, policy: StoredPolicy) -> None:
        options = self._options
        self._open_best()
        if self._process is None:
            self._process = EvaluationProcess(self._config.plugins, self._stop_asked)
        with tempfile.TemporaryDirectory(prefix=".evaluation-", dir=self._config.run_dir, ignore_cleanup_errors=True) as name:
            folder = Path(name) / "policy"
            write_folder(folder, encode_policy(policy))
            request = {"policy": str(folder), "env": options.make_arguments, "episodes": options.episodes, "seed": options.seed}
            reply = self._process.ask(request, options.timeout_s)
        if "error" in reply:
            self._fail(reply["error"])
            return
        returns, lengths = np.array(reply["returns"], np.float64), np.array(reply["lengths"], np.float64)
        if reply["not_finite"] or not np.isfinite(returns).all():
            self._fail(f"version {policy.snapshot.version}: {reply['not_finite']} actions or returns were not finite")
            return
        record = EvaluationRecord(
            generation=policy.snapshot.generation,
            version=policy.snapshot.version,
            steps=policy.origin.steps,
            updates=policy.origin.updates,
            env=options.make_arguments,
            seed=options.seed,
            episodes=options.episodes,
            mean_return=float(returns.mean()),
            min_return=float(returns.min()),
            max_return=float(returns.max()),
            mean_length=float(lengths.mean()),
            evaluated_unix_s=time.time(),
        )
        kept = self.best is not None and self.best.offer(policy, record)
        self._last, self._error, self._failures = record, "", 0
        self._evaluations += 1
        self._on_result(self._client_id, record, kept)

    def _fail(self, text: str) -> None:
        self._failures += 1
        end = "; no further version is evaluated" if self._failures >= MAX_FAILURES else ""
        self._error = f"{text}{end}"
        self._on_failure(self._client_id, self._error)
