"""Programs with a C++ actor, compiled against the library that `make native` builds, and a driver of such a program."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "native" / "tests"
BUILD = Path(os.environ.get("RL4SYS_CLIENT_BUILD", ROOT / "build" / "native"))


def libraries() -> list[Path]:
    """The built C++ client: the shared library, or the static one."""
    return [path for name in ("librl4sys_client.so", "librl4sys_client.a") if (path := BUILD / name).exists()]


def build(source: Path) -> Path:
    """Compile a program that uses the C++ client, beside the client. An earlier result is used again if it is still valid."""
    found, target = libraries(), BUILD / source.stem
    compiler = shutil.which("cc" if source.suffix == ".c" else "c++")
    if not found or compiler is None:
        pytest.skip("the C++ client is not built: run `make native`" if compiler else "there is no C++ compiler")
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, found[0].stat().st_mtime):
        return target
    standard = "-std=c99" if source.suffix == ".c" else "-std=c++17"
    more = ["-lzmq", "-lzstd", "-lstdc++"] if found[0].suffix == ".a" else [f"-Wl,-rpath,{BUILD}"]
    sanitize = os.environ.get("RL4SYS_CLIENT_FLAGS", "").split()
    made = target.with_name(f"{target.name}.{os.getpid()}")  # tests of other processes may use the target
    subprocess.run(
        [compiler, standard, "-Wall", "-Wextra", "-Werror", *sanitize, f"-I{ROOT / 'native' / 'include'}", str(source),
         "-o", str(made), str(found[0]), *more, "-lm", "-pthread"],
        check=True,
    )  # fmt: skip
    made.replace(target)
    return target


class DriverError(Exception):
    """The answer of the driver to a command that failed."""


class Driver:
    """A process with one C++ agent, which carries out commands (native/tests/actor_driver.cpp)."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, do: str, **fields: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the driver died of {do}: exit status {self.process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["ok"]

    def open(self, address: str, *, baseline: list[float] | None = None, baseline_throws: bool = False, **options: Any) -> None:
        config = {
            "client_id": "lab", "algorithm_name": "KEEPER", "train_server_address": address, "seed": 7, "linger_ms": 0,
            "algorithm_parameters": {"input_size": 4, "act_dim": 3}, **options,
        }  # fmt: skip
        extra = {} if baseline is None else {"baseline": baseline}
        self("open", config=json.dumps(config), baseline_throws=baseline_throws, **extra)

    def step(self, value: float, reward: float | None = 1.0, **fields: Any) -> Any:
        """Make one step in trajectory 0."""
        action = self("request", obs=[value] * 4, **fields)
        self("add", a=action["a"])
        if reward is not None:
            self("reward", a=action["a"], reward=reward)
        return action

    def stop(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(30.0)
        self.process.stdout.close()
        return code
