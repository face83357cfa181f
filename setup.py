"""Define what setup.cfg cannot: the long description for an index page, and the extension module of the compiled form.

The extension is optional. It needs a compiler of C++17 and Python's headers, and no other library. Where one is missing, the
package is installed without it: the pure Python form. The environment variable RL4SYS_NATIVE says otherwise: ``never`` builds
no extension, and ``always`` makes it an error if there is none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://|mailto:)([^)\s]+)\)")
"""A link of Markdown that leads to a file beside it, or to a place on the page."""

NATIVE = Path("native/src")
TESTED = Path("native/tests/extension")
"""What tests need to run both forms side by side. Only an extension that is built in place has it."""
IN_PLACE = bool({"editable_wheel", "develop", "--inplace"} & set(sys.argv))
LEFT_OUT = ("api", "config", "libraries/linked.cpp")
"""What only the C and C++ library has, which CMake builds."""
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-w", "-DPy_LIMITED_API=0x030B0000")
KERNELS = "native/src/policy/kernels.cpp"
"""The one file whose sums may be contracted. Elsewhere the bits of weights must not depend on the processor."""
PROBE = "#include <Python.h>\n#include <optional>\nstd::optional<PyObject*> found;\n"
CHOICE = os.environ.get("RL4SYS_NATIVE", "auto")


def for_index_page(markdown: str) -> str:
    """Return the README with words in place of relative links, which lead nowhere on an index page."""

    def in_words(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = target.partition("#")[0]
        return "" if image else text if path in ("", text) else f"{text} ({path})"

    return LINK.sub(in_words, markdown)


def compile_command() -> list[str]:
    """Return the program that compiles, with its flags. Python's own may be missing where Python came from another machine."""
    named = [os.environ.get("CXX"), sysconfig.get_config_var("CXX"), "c++", "g++", "clang++"]
    for program in filter(None, named[:1] if named[0] else named):
        words = shlex.split(program)
        if not subprocess.call(["sh", "-c", 'command -v "$0" >/dev/null 2>&1', words[0]]):
            tests = ["-DRL4SYS_TESTS"] if IN_PLACE else []
            return [*words, *FLAGS, *tests, f"-I{NATIVE}", *shlex.split(os.environ.get("CXXFLAGS", ""))]
    return []


def why_pure(command: list[str]) -> str:
    """Return the reason why this machine does not build the extension; empty if it does."""
    if CHOICE == "never":
        return "RL4SYS_NATIVE=never"
    if sys.platform != "linux" or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the extension is for CPython with the GIL, on Linux"
    if not command:
        return "no C++ compiler was found"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE)
        include = f"-I{sysconfig.get_paths()['include']}"
        done = subprocess.run([*command, include, "-c", source, "-o", f"{source}.o"], cwd=ROOT, capture_output=True, check=False)
    return f"{command[0]} compiles no C++17 with Python.h (is Python's development package there?)" if done.returncode else ""


class BuildExtension(build_ext):
    """Compiles on all cores, and only what has changed. A failure leaves the pure form."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link the one extension."""
        objects = Path("build/extension", hashlib.blake2b(repr(COMMAND).encode(), digest_size=8).hexdigest())
        define = f'-DRL4SYS_VERSION="{self.distribution.get_version()}"'
        command = [*COMMAND, define, f"-I{sysconfig.get_paths()['include']}"]
        newest = max(Path(header).stat().st_mtime for header in [*ext.depends, "setup.py", "setup.cfg"])

        def compiled(source: str) -> Path:
            out = objects / Path(source).with_suffix(".o")
            if not out.exists() or out.stat().st_mtime < max(newest, Path(source).stat().st_mtime):
                out.parent.mkdir(parents=True, exist_ok=True)
                contract = "fast" if source == KERNELS else "off"
                subprocess.run([*command, f"-ffp-contract={contract}", "-c", source, "-o", out], check=True)
            return out

        extension = Path(self.get_ext_fullpath(ext.name))
        extension.parent.mkdir(parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                try:
                    files = list(pool.map(compiled, ext.sources))
                except subprocess.CalledProcessError:
                    pool.shutdown(cancel_futures=True)
                    raise
            link = ["-shared", *files, "-o", extension, "-ldl", "-pthread", *shlex.split(os.environ.get("LDFLAGS", ""))]
            subprocess.run([*command, *link], check=True)
        except subprocess.CalledProcessError as exc:
            extension.unlink(missing_ok=True)
            say_pure(f"{exc.cmd[0]} ended with {exc.returncode}")


class StableWheel(bdist_wheel):
    """A wheel with the extension fits each later Python."""

    def finalize_options(self) -> None:
        """Take the tag of the limited interface, if there is an extension."""
        if self.distribution.ext_modules:
            self.py_limited_api = "cp311"
        super().finalize_options()


def say_pure(reason: str) -> None:
    """Say that the extension is missing, or end if it was asked for. One of an earlier editable install goes."""
    if CHOICE == "always":
        sys.exit(f"rl4sys_zmq: the extension cannot be built: {reason}")
    if CHOICE != "never" and IN_PLACE:
        (ROOT / "rl4sys_zmq/_native.abi3.so").unlink(missing_ok=True)
    sys.stderr.write(f"rl4sys_zmq: this install is the pure Python form: {reason}\n")


COMMAND = compile_command()


def extensions() -> list[Extension]:
    """Return the extension, or none where it cannot be built."""
    if not {"bdist_wheel", "editable_wheel", "build", "build_ext", "install", "develop"} & set(sys.argv):
        return []
    if reason := why_pure(COMMAND):
        say_pure(reason)
        return []
    sources = sorted(str(path) for path in NATIVE.rglob("*.cpp") if not path.relative_to(NATIVE).as_posix().startswith(LEFT_OUT))
    sources += sorted(map(str, TESTED.glob("*.cpp"))) if IN_PLACE else []
    headers = [str(path) for folder in (NATIVE, TESTED) for path in folder.rglob("*.[hi]*")]
    return [Extension("rl4sys_zmq._native", sources, depends=headers, py_limited_api=True, optional=True)]


os.chdir(ROOT)
setup(
    long_description=for_index_page((ROOT / "README.md").read_text(encoding="utf-8")),
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtension, "bdist_wheel": StableWheel},
)
