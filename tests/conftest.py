"""Fixtures for every test: a leak check, a printed seed, and Hypothesis without deadlines."""

import multiprocessing
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import zmq
from harness import zygote
from kit import forms

from rl4sys_zmq import native, plugins

pytest_plugins = ["rl4sys_zmq.testing.plugin"]

# A busy machine may be slow. That is not a fault of a test.
TOO_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("rl4sys", deadline=None, derandomize=False, print_blob=True, suppress_health_check=TOO_SLOW)
hypothesis.settings.load_profile("rl4sys")

LEAK_WAIT_S = 2.0
"""The longest time for which threads, processes and sockets may remain after a test."""

_sockets: weakref.WeakSet[zmq.Socket[Any]] = weakref.WeakSet()
_make_socket = zmq.Socket.__init__


def _make_and_note_socket(self: zmq.Socket[Any], *args: Any, **kwargs: Any) -> None:
    _make_socket(self, *args, **kwargs)
    _sockets.add(self)


def pytest_configure() -> None:
    """Record every zmq socket of every context from now on."""
    zmq.Socket.__init__ = _make_and_note_socket  # type: ignore[method-assign]
    zygote.install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job, children too would ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    zmq.Socket.__init__ = _make_socket  # type: ignore[method-assign]
    zygote.remove()


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("rl4sys")}


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def _children(known: set[int]) -> list[str]:
    """Describe every child process without a known id, zombies too, except multiprocessing's own helper and the zygotes.

    Only new processes are read, because reading the state of each process of the machine takes milliseconds.
    """
    multiprocessing.active_children()  # collects its own children that have ended
    found = []
    helpers = {getattr(resource_tracker._resource_tracker, "_pid", None), *zygote.zygote_pids()}
    for pid in _processes() - known:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it ended between the listing and the reading
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and pid not in helpers:
            found.append(f"{name} (pid {pid}, state {state})")
    return found


def _open_sockets() -> set[zmq.Socket[Any]]:
    return {s for s in list(_sockets) if not s.closed}


class _Alive:
    """The threads, processes and sockets that exist at one moment."""

    def __init__(self) -> None:
        self.threads, self.processes, self.sockets = _threads(), _processes(), _open_sockets()

    def more_now(self) -> list[str]:
        """Describe the threads, processes and sockets that exist now and did not exist then."""
        return [
            *(f"thread {t.name}" for t in _threads() - self.threads),
            *(f"process {name}" for name in _children(self.processes)),
            *(f"zmq socket {s!r}" for s in _open_sockets() - self.sockets),
        ]


@pytest.fixture(autouse=True, scope="module")
def own_plugins() -> Iterator[None]:
    """Forget the plug-ins that a module's tests imported. Otherwise workers of later learners would import them."""
    before = dict(plugins._imported)
    yield
    plugins._imported.clear()
    plugins._imported.update(before)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread of this package, a child process or an open zmq socket behind."""
    before = _Alive()
    yield
    deadline = time.monotonic() + LEAK_WAIT_S
    for thread in _threads() - before.threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    pause = threading.Event()
    while (leaked := before.more_now()) and time.monotonic() < deadline:
        pause.wait(0.01)
    if leaked:
        pytest.fail("left behind: " + ", ".join(leaked), pytrace=False)


def _note_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Add a skipped test, or a skipped file, to the file RL4SYS_SKIPPED_TESTS, which `make test-skipped` runs again."""
    path = os.environ.get("RL4SYS_SKIPPED_TESTS")
    if path and report.skipped:
        with open(path, "a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skipped(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skipped(report)


@pytest.fixture(params=forms())
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of the actors of this test and of its child processes: ``pure`` or ``compiled``."""
    monkeypatch.setenv(native.VARIABLE, "always" if request.param == "compiled" else "never")
    return str(request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close at the end what a test has entered."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def seed() -> int:
    """Return a fresh seed, and print it so that a failure shows it. RL4SYS_TEST_SEED repeats one."""
    value = int(os.environ.get("RL4SYS_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"RL4SYS_TEST_SEED={value}")
    return value


@pytest.fixture
def pure_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the pure form of actors, for a test that replaces parts of its I/O thread."""
    monkeypatch.setenv("RL4SYS_NATIVE", "never")
