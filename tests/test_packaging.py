"""The contents of a wheel: everything that users need, and nothing that only this package's own tests use."""

import ast
import configparser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_architecture import FLOOR_OF, GROUND

import rl4sys_zmq
from rl4sys_zmq.ops.episodes import SIMULATOR_EXTRAS

PACKAGE = Path(rl4sys_zmq.__file__).parent
ROOT = PACKAGE.parent

TEST_TOOLS = {
    *("chaos", "check_algorithm", "check_data_store", "check_policy", "check_transport", "fakes"),
    *("hidden_velocities", "plugin"),
}
"""The modules of `testing`, which users use in their tests. Helpers for the tests of delivery are in tests/."""

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the package is installed, not a checkout")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the build of setup.py into a folder."""
    pytest.importorskip("setuptools", reason="this environment has no setuptools")
    command = [sys.executable, *f"setup.py -q egg_info --egg-base {folder} build --build-base {folder}/build".split()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    """Return the files that setup.py puts into a wheel, with paths relative to it."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    done = build(folder, RL4SYS_NATIVE="never")
    assert done.returncode == 0, done.stderr
    return {path.relative_to(folder / "build/lib") for path in (folder / "build/lib").rglob("*") if path.is_file()}


def test_a_wheel_has_every_room_and_only_rooms(built: set[Path]) -> None:
    rooms = {path.parts[1].removesuffix(".py") for path in built if path.suffix == ".py"}
    assert {path.parts[0] for path in built} == {PACKAGE.name}
    assert rooms == set(FLOOR_OF)
    assert rooms >= set(GROUND)


def test_a_wheel_has_each_module(built: set[Path]) -> None:
    checkout = {path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}
    assert {path for path in built if path.suffix == ".py"} == checkout
    tools = {path.stem for path in checkout if path.parts[1] == "testing"} - {"__init__"}
    assert tools == TEST_TOOLS, "a new module of testing: is it for users? Then add it to TEST_TOOLS; else it belongs in tests/"


def test_a_wheel_has_the_marker_of_a_typed_package_and_no_other_data(built: set[Path]) -> None:
    page = {f"rl4sys_zmq/web/static/{path.name}" for path in (ROOT / "rl4sys_zmq/web/static").iterdir()}
    assert {str(path) for path in built if path.suffix != ".py"} == {"rl4sys_zmq/py.typed", "rl4sys_zmq/_native.pyi", *page}


def test_an_extension_that_was_asked_for_is_built_or_the_install_fails(tmp_path: Path) -> None:
    done = build(tmp_path, RL4SYS_NATIVE="always", CXX="no-such-compiler")
    assert done.returncode != 0
    assert "the extension cannot be built: no C++ compiler was found" in done.stderr


def test_an_install_without_a_compiler_is_the_pure_form_and_says_so(tmp_path: Path) -> None:
    done = build(tmp_path, RL4SYS_NATIVE="auto", CXX="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this install is the pure Python form: no C++ compiler was found") == 1
    assert not list(tmp_path.rglob("*.so"))


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
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


HINT = re.compile(r"rl4sys-zmq\[([^\]]*)\]")
EXTRA = re.compile(r"""(?:require\(|extra=)["'](\w+)["']""")


def test_every_hint_to_install_an_extra_names_one_that_exists() -> None:
    """Hints that are computed, such as ``[{extra}]``, take their extra from `require` and from entries of registries."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = set(settings["options.extras_require"])
    found: set[str] = set()
    for path in (*PACKAGE.rglob("*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py"), ROOT / "README.md"):
        text = path.read_text()
        for named in HINT.findall(text):
            if not re.fullmatch(r"\{.*\}", named):
                assert set(named.split(",")) <= extras, f"{path} names the extra {named}"
                found.add(named)
        for named in EXTRA.findall(text):
            assert named in extras, f"{path} names the extra {named}"
    assert {"images", "learner", "yaml"} <= found
    assert set(SIMULATOR_EXTRAS.values()) <= extras


def test_a_module_is_in_the_extra_that_a_command_names() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    for path in (PACKAGE / "cli").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(func=ast.Name(id="require"), args=[ast.Constant(value=str(extra)), *modules]):
                    for module in modules:
                        assert isinstance(module, ast.Constant) and isinstance(module.value, str)
                        assert module.value in settings["options.extras_require"][extra], f"{path}: {module.value}"
