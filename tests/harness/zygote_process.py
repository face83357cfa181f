"""A process that has imported modules and forks the children of a test run: ``python zygote_process.py FD KIND COUNT FILLER``.

FD is one end of a socketpair to the process of the tests. Each request on it is a line of JSON with descriptors. A child is
forked as a sibling of this process, so that the tests' process is its parent, as if it had started the child itself. COUNT is
the number of entries of ``PYTHONPATH``. FILLER makes room for the command lines of the children.
"""

import ctypes
import faulthandler
import gc
import importlib.util
import io
import json
import os
import resource
import runpy
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODULES = {
    "light": (
        "gymnasium",
        "rl4sys_zmq.actor.agent",
        "rl4sys_zmq.learner.learner",
        "rl4sys_zmq.remote.worker",
        "rl4sys_zmq.ops.episodes",
        "rl4sys_zmq.policies.mlp",
        "rl4sys_zmq.testing.fakes",
        "rl4sys_zmq.cli.app",
        "rl4sys_zmq.cli.act",
        "rl4sys_zmq.cli.serve",
        "rl4sys_zmq.cli.serve",
    ),
    "torch": (
        "torch",
        "gymnasium",
        "rl4sys_zmq.actor.agent",
        "rl4sys_zmq.learner.learner",
        "rl4sys_zmq.learner.ranks.rank_member",
        "rl4sys_zmq.learner.training.building",
        "rl4sys_zmq.algorithms.onpolicy.ppo",
        "rl4sys_zmq.cli.serve",
    ),
}
"""The modules that this process imports, by its kind. They include no module of the tests, which could register algorithms."""

MAX_REQUEST = 1 << 22
MAX_DESCRIPTORS = 32
HIGH_FD = 400
PR_SET_PDEATHSIG = 1
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
SYS_CLONE = 56
TID_OFFSET = 0x2D0
"""The offset at which glibc keeps the id of a thread on x86-64, from the address that `pthread_self` returns."""


class _Sibling:
    """A fork of this process whose child has the same parent as this process."""

    def __init__(self) -> None:
        self._call = ctypes.PyDLL(None).syscall
        self._call.restype = ctypes.c_long
        own = ctypes.CDLL(None).pthread_self
        own.restype = ctypes.c_void_p
        self._tid = own() + TID_OFFSET
        if ctypes.c_int.from_address(self._tid).value != os.getpid():
            raise SystemExit("this libc keeps the id of a thread elsewhere")

    def fork(self) -> int:
        """Fork. Return 0 in the child, else its process id."""
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | signal.SIGCHLD
        null = ctypes.c_void_p(0)
        pid = int(self._call(SYS_CLONE, ctypes.c_long(flags), null, null, ctypes.c_void_p(self._tid), null))
        if pid == 0:
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
        return pid


def _receive(pair: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next request with its descriptors. End this process if there are no more."""
    data, descriptors, _, _ = socket.recv_fds(pair, MAX_REQUEST, MAX_DESCRIPTORS)
    while not data.endswith(b"\n"):
        more = pair.recv(MAX_REQUEST)
        if not more:
            os._exit(0)
        data += more
    return json.loads(data), descriptors


def serve(pair: socket.socket, base_path: list[str]) -> Callable[[], None]:
    """Fork a child for each request. Return, in a child alone, the function that runs its program."""
    sibling = _Sibling()
    while True:
        request, descriptors = _receive(pair)
        threads = len(os.listdir("/proc/self/task"))
        pid = sibling.fork() if threads == 1 else -threads
        if pid == 0:
            pair.detach()  # its descriptor is closed with all others
            _become(request, descriptors, base_path)
            return lambda: _run(request["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        pair.sendall(b"%d\n" % pid)


def _become(request: dict[str, Any], descriptors: list[int], base_path: list[str]) -> None:
    """Take the descriptors, the folder, the environment and the limits of the request."""
    numbers = request["numbers"]
    high = [os.dup2(descriptor, HIGH_FD + k, inheritable=False) for k, descriptor in enumerate(descriptors)]
    for number, descriptor in zip(numbers, high, strict=True):
        os.dup2(descriptor, number)
    last = 2
    for number in sorted(number for number in numbers if number > 2):
        os.closerange(last + 1, number)
        last = number
    os.closerange(last + 1, HIGH_FD + MAX_DESCRIPTORS)
    if request["session"]:
        os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    arguments = request["arguments"]
    _show(arguments)
    sys.orig_argv[:] = arguments
    rest = [word for word in arguments[1:] if word != "-P"]
    if rest[0] == "-m":
        first, sys.argv = os.getcwd(), rest[1:]
    else:
        first, sys.argv = str(Path(rest[0]).resolve().parent), rest
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*([] if arguments[1] == "-P" else [first]), *given, *base_path]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 as the interpreter does it
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = io.FileIO(number, "w", closefd=False)
        errors = "strict" if number == 1 else "backslashreplace"
        line_buffering = number == 2 or file.isatty()
        stream = io.TextIOWrapper(
            io.BufferedWriter(file), "utf-8", errors, line_buffering=line_buffering, write_through=unbuffered
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable(file=2)


def _show(arguments: list[str]) -> None:
    """Write the arguments over those of this process, where ``ps`` reads them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in arguments) + b"\0"
    ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def _run(arguments: list[str]) -> None:
    """Run the program of a child as the main module."""
    rest = [word for word in arguments[1:] if word != "-P"]
    if rest[0] == "-m":
        sys.modules.pop(rest[1], None)
        runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
        return
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=rest[0], __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(Path(rest[0]).read_bytes(), rest[0], "exec"), main.__dict__)


def main() -> Callable[[], None]:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pair = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(pair.fileno(), False)
    for name in MODULES[sys.argv[2]]:
        if name != "gymnasium" or importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return serve(pair, sys.path[int(sys.argv[3]) :])


if __name__ == "__main__":
    main()()
