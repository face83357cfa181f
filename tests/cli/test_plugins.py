"""Algorithms and policies of plug-ins: the example of docs/howto/plugins.md, installed by pip, and as modules."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.cli.learner import main as learner

from .conftest import PACKAGE, Command, Spawn, act, invoke, output, serve

PAGE = PACKAGE / "docs" / "howto" / "plugins.md"
BROKEN = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "rl4sys-broken"
version = "2.0"

[project.entry-points."rl4sys_zmq.algorithms"]
PPO = "broken_module:ENTRY"
RAISES = "broken_module:ENTRY"
WRONG = "pathlib:Path"

[project.entry-points."rl4sys_zmq.policies"]
raises = "broken_module:ENTRY"

[tool.setuptools]
py-modules = ["broken_module"]
"""


def write_example(folder: Path) -> None:
    """Write the files of the page: each block names its file in its first line."""
    folder.mkdir()
    for text in re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if named := re.match(r"# (\S+)\n", text):
            (folder / named[1]).write_text(text)


def install(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", target, source], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed distribution, and with one whose entry points do not work."""
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    write_example(sources / "example")
    install(sources / "example", target)
    (sources / "broken").mkdir()
    (sources / "broken" / "pyproject.toml").write_text(BROKEN)
    (sources / "broken" / "broken_module.py").write_text("raise RuntimeError('it never works')\n")
    install(sources / "broken", target)
    return target


def run(command: Command) -> tuple[int, str, str]:
    """Wait for the end of a command. Return its exit code, its output, and the text of its stderr."""
    code = command.end()
    return code, "\n".join(command.lines), command.errors


def test_an_installed_distribution_is_listed_and_a_broken_one_fails_alone(spawn: Spawn, outside: Path) -> None:
    code, listed, _ = run(spawn("learner", "algorithms", path=(outside,)))
    assert code == 0
    assert {"PPO", "DQN", "GRADIENT_BANDIT"} <= set(listed.splitlines())
    assert "Gradient bandit: learns which action is best, whatever is observed. (onpolicy)" in listed
    assert "  rate = 0.1\n      step size of the preferences  [also: learning_rate, lr]" in listed
    faults = [line for line in listed.splitlines() if line.startswith("!!")]
    assert len(faults) == 3
    assert any("'PPO' of rl4sys-broken 2.0" in f and "this package has that name" in f for f in faults)
    assert any("'RAISES' cannot be loaded" in f and "RuntimeError: it never works" in f for f in faults)
    assert any("'WRONG' cannot be loaded" in f and "it is a type, not a AlgorithmEntry" in f for f in faults)


@pytest.mark.parametrize(
    ("name", "parameters", "code", "said"),
    [
        ("GRADIENT_BANDIT", {"lr": 0.2}, 0, "GRADIENT_BANDIT (onpolicy) can be built; its policy has 2 parameters"),
        ("gradient_bandit", {"lr": 20}, 2, "algorithm_parameters.lr: expected a number from 0 to 10, not 20"),
        ("GRADIENT_BANDITO", {}, 2, "did you mean 'GRADIENT_BANDIT'?"),
        ("RAISES", {}, 2, "RuntimeError: it never works; repair or uninstall that distribution"),
    ],
)
def test_config_check_knows_it(
    spawn: Spawn, outside: Path, tmp_path: Path, name: str, parameters: dict[str, Any], code: int, said: str
) -> None:
    (tmp_path / "agent.json").write_text(json.dumps({"algorithm_name": name, "algorithm_parameters": parameters}))
    found, lines, errors = run(spawn("learner", "config", "check", "agent.json", path=(outside,)))
    assert (found, said in lines + errors) == (code, True), lines + errors


def test_the_commands_import_no_torch_for_it(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"client_id": "a", "algorithm_name": "PPO", "input_size": 4, "act_dim": 2}')
    code = (
        "import sys\nfrom rl4sys_zmq.cli.learner import main\n"
        "main(['config', 'check', 'agent.json'], standalone_mode=False)\nmain(['algorithms'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": f"{PACKAGE}:{outside}"}, timeout=60, check=True)


@pytest.mark.parametrize("way", ["installed", "plugin"])
def test_an_actor_trains_with_it(spawn: Spawn, outside: Path, tmp_path: Path, way: str) -> None:
    path: tuple[Path, ...] = (outside,)
    extra: tuple[str, ...] = ()
    if way == "plugin":
        write_example(tmp_path / "modules")
        for file in (tmp_path / "modules").glob("bandit_*.py"):
            file.rename(tmp_path / file.name)
        path, extra = (), ("--plugin", "bandit_plugin")
    server, address = serve(spawn, *extra, path=path)
    arguments = ("--num-envs", "2", "--episodes", "40")
    code, lines, errors = run(act(spawn, address, *arguments, "--algorithm", "GRADIENT_BANDIT", *extra, path=path))
    assert code == 0, errors
    assert int(re.findall(r"last version (\d+)", lines)[0]) >= 3
    luna = json.loads(output(invoke(learner, "status", address, "--json", "--timeout", "10")))["clients"]["luna"]
    assert (luna["state"], luna["accepted"] > 0) == ("running", True)
    # An actor without the distribution: the learner's policy has a kind that is not registered there.
    code, _, errors = run(act(spawn, address, *arguments))
    assert (code, len(errors.strip().splitlines())) == (2, 1)
    assert "the policy kind 'gradient_bandit' is not registered in this process (registered: " in errors
    assert server.signal(signal.SIGTERM) == 0, server.errors


def test_a_plugin_that_cannot_be_imported_is_one_line(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("1 / 0\n")
    for module, said in (("faulty", "ZeroDivisionError"), ("no.such", "ModuleNotFoundError")):
        code, _, errors = run(spawn("learner", "algorithms", "--plugin", module))
        assert (code, len(errors.strip().splitlines())) == (2, 1)
        assert f"plugin {module!r} cannot be imported: {said}" in errors


def test_the_pages_own_tests_pass(outside: Path, tmp_path: Path) -> None:
    write_example(tmp_path / "page")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_bandit.py"]
    env = {"PYTHONPATH": f"{PACKAGE}:{outside}"}
    done = subprocess.run(command, cwd=tmp_path / "page", env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "2 passed" in done.stdout, done.stdout
