"""Faster child processes for tests, forked from zygotes: processes that have already imported the package, or also torch.

A test run starts hundreds of Python processes. Each spends 0.7 seconds of CPU time on the imports of this package, and 2 more
on those of torch. `install` changes how `subprocess` starts some of them: the worker processes and ranks of a learner, the
commands, and the scripts of the gates. Such a child has its own process id and is a child of this process. Signals, exit codes,
pipes, the environment and the working directory are as usual. The only difference is that its modules are already imported.

All other programs are started as usual. This includes ``python -c``, with which tests check the imports of a program. All
programs are started as usual if RL4SYS_SOAK or RL4SYS_REAL_CHILDREN is set, under coverage, and on other systems than Linux on
x86-64.
"""

import inspect
import json
import os
import platform
import queue
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("zygote_process.py")
FILLER = "x" * 8000

COMMANDS = ("actor", "client", "fleet", "learner", "relay")
LIGHT_MODULES = {
    "rl4sys_zmq.learner.engines.worker",
    "rl4sys_zmq.ops.episodes",
    *(f"rl4sys_zmq.cli.{command}" for command in COMMANDS),
}
TORCH_MODULES = {"rl4sys_zmq.learner.ranks.rank_process"}
SCRIPT_FOLDERS = {TESTS / "gates" / "processes", TESTS / "serving" / "processes", TESTS / "harness", TESTS.parent / "examples"}
TORCH_SCRIPTS = {"async_learner_actor.py"}
REAL_SCRIPTS = {"ray_cluster.py", "slow_torch.py", "host.py", "zygote_process.py"}
TRAINS = {"serve", "demo"}
READ_AT_START = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONMALLOC")
"""Variables that a process reads before its first line of Python. A child with another value is started as usual."""

MANY = 400
"""The limit on descriptors that are passed to a forked child. Their numbers must be smaller."""

_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_execute)


def _kind(arguments: Sequence[str], environment: dict[str, str]) -> str | None:
    """Return the kind of the zygote that has the modules of a program, or None if the program must be started as usual."""
    if not arguments or arguments[0] != sys.executable:
        return None
    rest = list(arguments[1:])
    if rest[:1] == ["-P"]:
        rest = rest[1:]
    if any(environment.get(name) != os.environ.get(name) for name in READ_AT_START):
        return None
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if any(os.path.exists(f"{entry}/{name}") for entry in entries for name in ("torch.py", "gymnasium.py")):
        return None  # a test shows that a program does not import them
    if rest[:1] == ["-m"]:
        if rest[1] in TORCH_MODULES or (rest[1] == "rl4sys_zmq.cli.learner" and rest[2:3] and rest[2] in TRAINS):
            return "torch"
        return "light" if rest[1] in LIGHT_MODULES else None
    script = Path(rest[0]) if rest else Path()
    if script.parent in SCRIPT_FOLDERS and script.suffix == ".py" and script.name not in REAL_SCRIPTS:
        trains = script.name in TORCH_SCRIPTS or any('"torch": true' in word for word in rest[1:])
        return "torch" if trains else "light"
    return None


class _Zygote:
    """One process that forks children, and the connection to it."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair()
        given = [str(TESTS.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        path = list(dict.fromkeys(map(os.path.abspath, given)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            command = [sys.executable, "-P", str(PROGRAM), str(theirs.fileno()), kind, str(len(path)), FILLER]
            silent = subprocess.DEVNULL
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=silent, stdout=silent, env=environment)
        self._pair = ours
        self._answers = ours.makefile("rb")
        self._lock = threading.Lock()

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child, and return its process id, or a number that is not positive if this failed."""
        with self._lock:
            try:
                socket.send_fds(self._pair, [b" "], descriptors)
                self._pair.sendall(json.dumps(request).encode() + b"\n")
                return int(self._answers.readline() or -1)
            except OSError:
                return -1

    def close(self) -> None:
        self._answers.close()
        self._pair.close()
        self.process.wait()


class _StarterThread(threading.Thread):
    """The thread that starts zygotes. It runs as long as this process.

    A zygote requests from the kernel to be killed when its parent thread ends. This thread is the parent.
    """

    def __init__(self) -> None:
        super().__init__(name="zygotes", daemon=True)
        self.zygotes: dict[str, _Zygote] = {}
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Zygote | Exception] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Start a zygote for each request."""
        while kind := self._wanted.get():
            try:
                self._answers.put(_Zygote(kind))
            except Exception as exc:
                self._answers.put(exc)

    def zygote(self, kind: str) -> _Zygote:
        """Return the zygote of a kind. The first call starts it."""
        with self._lock:
            if kind not in self.zygotes:
                self._wanted.put(kind)
                started = self._answers.get()
                if isinstance(started, Exception):
                    raise started
                self.zygotes[kind] = started
            return self.zygotes[kind]

    def close(self) -> None:
        with self._lock:
            for zygote in self.zygotes.values():
                zygote.close()
            self.zygotes.clear()
        self._wanted.put("")
        self.join()


_starter: _StarterThread | None = None


def zygote_pids() -> set[int]:
    """Return the process ids of the zygotes, which run until the end of the tests."""
    return set() if _starter is None else {zygote.process.pid for zygote in _starter.zygotes.values()}


def _execute_child(self: subprocess.Popen[Any], *args: Any, **named: Any) -> None:
    asked = _parameters.bind(self, *args, **named).arguments
    starter, command, environment = _starter, asked["args"], asked["env"]
    environment = dict(os.environ if environment is None else environment)
    unusual = (
        starter is None or isinstance(command, (str, bytes, os.PathLike)) or asked["shell"] or asked["executable"] or
        asked["preexec_fn"] or not asked["close_fds"] or asked["umask"] >= 0
        or any(asked[name] is not None for name in ("gid", "gids", "uid")) or asked.get("process_group", -1) >= 0
    )  # fmt: skip
    words = [] if unusual else [os.fspath(word) for word in command]
    kind = None if unusual else _kind(words, environment)
    if kind is None or starter is None:
        return _execute(self, *args, **named)  # type: ignore[no-any-return]
    passed = sorted(asked["pass_fds"])
    try:
        folder = os.path.abspath(asked["cwd"] or os.getcwd())
    except FileNotFoundError:
        folder = ""  # it was removed
    if not folder or (passed and passed[-1] >= MANY):
        return _execute(self, *args, **named)  # type: ignore[no-any-return]
    streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
    request = {
        "arguments": words,
        "environment": environment,
        "cwd": folder,
        "session": bool(asked["start_new_session"]),
        "numbers": [0, 1, 2, *passed],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    pid = starter.zygote(kind).fork(request, [*(k if f == -1 else f for k, f in enumerate(streams)), *passed])
    if pid <= 0:
        return _execute(self, *args, **named)  # type: ignore[no-any-return]
    self.pid = pid
    self._child_created = True  # type: ignore[attr-defined]
    self._close_pipe_fds(*(asked[n] for n in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))  # type: ignore[attr-defined]
    return None


def install() -> None:
    """Fork children from now on, where this is possible and wanted. This function starts no process."""
    global _starter
    here = sys.platform == "linux" and platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
    wanted = not any(os.environ.get(name) for name in ("RL4SYS_SOAK", "RL4SYS_REAL_CHILDREN", "COVERAGE_PROCESS_START"))
    if here and wanted and "coverage" not in sys.modules and sys.version_info < (3, 12) and _starter is None:
        _starter = _StarterThread()
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def remove() -> None:
    """Start children as usual from now on, and end the zygotes."""
    global _starter
    subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]
    starter, _starter = _starter, None
    if starter is not None:
        starter.close()
