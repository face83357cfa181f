"""The programs of the page for C and C++ compile against the library that `make native` builds, and the first one runs."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rl4sys_zmq import AgentConfig
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

from .player import ROOT

BUILD = ROOT / "build/native"
INCLUDES = [f"-I{ROOT}/native/include"]
PAGE = (ROOT / "docs/howto/embed_cpp.md").read_text()
PROGRAM, RULE = re.findall(r"^```cpp\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(IN_C,) = re.findall(r"^```c\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(CONFIG,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    compiler = shutil.which("cc" if name.endswith(".c") else "c++")
    if compiler is None or not (BUILD / "librl4sys_client.so").exists():
        pytest.skip("there is no compiler, or no library: run `make native`")
    (folder / name).write_text(source)
    out = folder / Path(name).stem
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", *INCLUDES, folder / name, *flags, "-o", out], check=True)
    return out


def test_python_reads_the_file_too() -> None:
    config = AgentConfig.from_mapping(json.loads(CONFIG))
    assert (config.client_id, config.overflow, config.connect_timeout_s) == ("thermostat", "wait", 60.0)


@pytest.mark.parametrize("name", ["room.cpp", "room.c"])
def test_the_programs_act_and_send(tmp_path: Path, name: str) -> None:
    source, steps, standard = (PROGRAM, "30'000", "-std=c++17") if name == "room.cpp" else (IN_C, "30000", "-std=c99")
    assert len(source.splitlines()) <= 60 and source.count(steps) == 1
    linked = (standard, str(BUILD / "librl4sys_client.so"), f"-Wl,-rpath,{BUILD}", "-lm")
    room = compiled(tmp_path, name, source.replace(steps, "2000"), *linked)
    register_algorithm("THERMOSTAT", FakeAlgorithm.factory(steps_per_update=400))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as learner:
        options = {"algorithm_name": "THERMOSTAT", "train_server_address": learner.address}
        parameters = {"input_size": 1, "act_dim": 2}
        (tmp_path / "room.json").write_text(json.dumps(json.loads(CONFIG) | options | {"algorithm_parameters": parameters}))
        done = subprocess.run([room], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == (10 if name == "room.cpp" else 0)
        assert learner.status()["clients"]["thermostat"]["accepted"] >= 10


def test_the_rule_compiles(tmp_path: Path) -> None:
    headers = "#include <rl4sys/config_loader.h>\n#include <rl4sys/rl4sys_agent.h>\nusing namespace rl4sys::cppclient;\n"
    compiled(tmp_path, "rule.cpp", f"{headers}int main() {{\n{RULE}}}\n", "-std=c++17", "-c")
