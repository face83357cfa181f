"""What a wheel has: all that users need, and nothing that only our own tests use."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rl4sys_zmq

from .test_architecture import FLOOR_OF, GROUND, imports_of

PACKAGE = Path(rl4sys_zmq.__file__).parent
ROOT = PACKAGE.parent

TEST_TOOLS = {
    *("addresses", "chaos", "chaos_frames", "chaos_loop", "chaos_pub", "check_algorithm", "check_data_store"),
    *("check_policy", "check_transport", "children", "fakes", "kills", "plugin", "trace", "trace_check"),
}
"""The modules of `testing` that users test with. The others prove our own delivery, and stay in the sdist."""

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the package is installed, not a checkout")


def module(path: Path) -> str:
    """The dotted name of a file of the package."""
    name = ".".join(path.with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    """The files that setup.py puts into a wheel, relative to it."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "egg_info",
        "--egg-base",
        str(folder),
        "build",
        "--build-base",
        str(folder / "build"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return {path.relative_to(folder / "build/lib") for path in (folder / "build/lib").rglob("*") if path.is_file()}


def test_a_wheel_has_every_room_and_only_rooms(built: set[Path]) -> None:
    rooms = {path.parts[1].removesuffix(".py") for path in built if path.suffix == ".py"}
    assert {path.parts[0] for path in built} == {PACKAGE.name}
    assert rooms == set(FLOOR_OF)
    assert rooms >= set(GROUND)


def test_a_wheel_has_each_module_but_the_simulator(built: set[Path]) -> None:
    checkout = {path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}
    tests_only = {path for path in checkout if path.parts[1] == "testing" and path.stem not in {*TEST_TOOLS, "__init__"}}
    shipped = {path for path in built if path.suffix == ".py"}
    assert shipped == checkout - tests_only, "a new module of testing: add it to TEST_TOOLS, or leave it out in setup.py"
    assert not tests_only or Path("rl4sys_zmq/testing/simulator.py") in tests_only


def test_a_wheel_has_the_marker_of_a_typed_package_and_no_other_data(built: set[Path]) -> None:
    assert {str(path) for path in built if path.suffix != ".py"} == {"rl4sys_zmq/py.typed"}


def test_nothing_in_a_wheel_imports_what_it_leaves_out(built: set[Path]) -> None:
    modules = {module(path) for path in built if path.suffix == ".py"}
    left_out = {module(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")} - modules
    wrong = []
    for path in built:
        if path.suffix == ".py":
            package = module(path) if path.name == "__init__.py" else module(path).rpartition(".")[0]
            for found in imports_of(ast.parse((ROOT / path).read_text()), package):
                if found.name in left_out or found.name.rpartition(".")[0] in left_out:
                    wrong.append(f"{path}:{found.line} imports {found.name}")
    assert not wrong


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py as a module, without the setup."""
    setuptools = pytest.importorskip("setuptools", minversion="77")
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("see [the guide](docs/guide.md#running)", "see the guide (docs/guide.md)"),
        ("see [docs/wire.md](docs/wire.md)", "see docs/wire.md"),
        ("see [below](#limits)", "see below"),
        ("![a curve](docs/curve.png)\n", "\n"),
        ("[RL4Sys](https://example.org/rl4sys)", "[RL4Sys](https://example.org/rl4sys)"),
    ],
)
def test_an_index_page_shows_words_for_relative_links(setup_script: ModuleType, markdown: str, shown: str) -> None:
    assert setup_script.for_index_page(markdown) == shown
