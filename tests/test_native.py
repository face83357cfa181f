"""The loader of the extension module: what it refuses, and the reason that it gives."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rl4sys_zmq
from rl4sys_zmq import native
from rl4sys_zmq.errors import ConfigError

extension = pytest.mark.skipif(native._find()[0] is None, reason=f"no extension here: {native._find()[1]}")


@pytest.fixture(autouse=True)
def searched_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    native._find.cache_clear()
    yield
    native._find.cache_clear()


def stand_in(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> object:
    """Put an object into the place of the extension module."""
    module = SimpleNamespace(**{"VERSION": rl4sys_zmq.__version__, "missing": lambda: "", **attributes})
    monkeypatch.setattr(rl4sys_zmq, "_native", module, raising=False)
    monkeypatch.setitem(sys.modules, "rl4sys_zmq._native", cast(Any, module))
    return module


def test_an_extension_of_this_version_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in(monkeypatch)
    assert (native.load(), native.reason(), native.form()) == (module, "", "compiled")


def test_an_extension_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, VERSION="0.0.9")
    assert native.load() is None
    assert "of version 0.0.9" in native.reason() and rl4sys_zmq.__version__ in native.reason()
    assert native.form() == f"pure: {native.reason()}"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, missing=lambda: "the system has no libzstd.so.1")
    assert (native.load(), native.reason()) == (None, "the system has no libzstd.so.1")


@pytest.mark.parametrize(("file", "told"), [(False, "was not built"), (True, "does not load")])
def test_a_module_that_is_absent_or_broken(monkeypatch: pytest.MonkeyPatch, file: bool, told: str) -> None:
    monkeypatch.delattr(rl4sys_zmq, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "rl4sys_zmq._native", None)
    monkeypatch.setattr(native, "_file_exists", lambda: file)
    assert native.load() is None and told in native.reason()


def test_the_environment_can_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in(monkeypatch)
    monkeypatch.setenv(native.VARIABLE, "never")
    assert (native.default(), native.load()) == ("never", None)
    assert native.reason() == "the environment has RL4SYS_NATIVE=never"
    monkeypatch.setenv(native.VARIABLE, "always")
    assert (native.default(), native.load(), native.reason()) == ("always", module, "")


def test_another_word_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "sometimes")
    with pytest.raises(ConfigError, match="RL4SYS_NATIVE is 'sometimes'; it must be auto, always or never"):
        native.load()


def in_a_new_process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_importing_the_package_does_not_load_it() -> None:
    assert in_a_new_process("import sys, rl4sys_zmq; print('rl4sys_zmq._native' in sys.modules)") == "False"


@extension
def test_a_process_in_which_pyzmq_has_loaded_no_library() -> None:
    program = "import sys; sys.modules['zmq'] = sys; from rl4sys_zmq import native; print(native.reason())"
    assert in_a_new_process(program) == "pyzmq has loaded no libzmq whose path is known"


@extension
def test_a_second_interpreter_is_refused() -> None:
    """In a process of its own: Python checks the GIL no more in one that has had a second interpreter."""
    interpreters = "_xxsubinterpreters"
    pytest.importorskip(interpreters)
    program = f"""import {interpreters} as them
try:
    them.run_string(them.create(), "import rl4sys_zmq._native")
except Exception as exc:
    print(exc)
"""
    assert "subinterpreter" in in_a_new_process(program)


@extension
def test_each_function_has_a_signature() -> None:
    """The file _native.pyi is written by hand."""
    module = native.load()
    assert module is not None
    stub = Path(native.__file__).with_name("_native.pyi").read_text()
    functions = [name for name, value in vars(module).items() if callable(value) and not isinstance(value, type)]
    assert [name for name in functions if f"def {name}(" not in stub and not name.startswith("__")] == []


@extension
def test_the_module_can_be_imported_again() -> None:
    again = "import sys, zmq; import rl4sys_zmq._native; del sys.modules['rl4sys_zmq._native'], rl4sys_zmq._native"
    assert in_a_new_process(f"{again}; import rl4sys_zmq._native as it; print(it.VERSION)") == rl4sys_zmq.__version__


DAEMON = """
import sys, threading, time
import numpy as np
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.acting import ActionSelector
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(1.0)  # in this time the other thread asks for the GIL, and is ended

def request(self, *given, first=ActionSelector.request):
    if going:
        ready.set()
        time.sleep(0.5)
    return first(self, *given)

ready, going = threading.Event(), []
ActionSelector.request = request
register_algorithm("FAKE", FakeAlgorithm.factory("offpolicy"))
learner = Learner(LearnerConfig(bind="inproc://*", run_dir=None))
learner.start()
agent = RL4SysAgent(config=AgentConfig(client_id="lab", algorithm_name="FAKE", observation_space=BoxSpace((2,)),
                                       action_space=DiscreteSpace(2), train_server_address=learner.address))
sample = np.zeros(2, np.float32)
agent.request_for_action(None, sample)
going.append(True)
threading.Thread(target=agent.request_for_action, args=(None, sample), daemon=True).start()
ready.wait()
sys.modules["last"] = Last()
print("end", flush=True)
"""


@extension
def test_a_daemon_thread_in_a_call_ends_with_the_process() -> None:
    assert in_a_new_process(DAEMON) == "end"
