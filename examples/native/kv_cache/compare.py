"""A cache server that learns which eviction rule to use, against each fixed rule, on the same traces.

Build the C library first (``make native`` in the top folder). Then, in this folder, a quarter of an hour for five seeds::

    python compare.py

For each seed, a learner of its own (``rl4sys-learner serve``) trains the server's agent while `kv_load` plays traces against it
over TCP. Then the agent, which explores no more, and each fixed rule play new traces.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RULES = ("lru", "lfu", "fifo", "random")
CAPACITY, PHASES = 500, 10  # entries of the cache; phases of a trace
PPO: dict[str, object] = {
    "input_size": 10, "act_dim": 4, "gamma": 0.9, "learning_rate": 1e-3, "steps_per_update": 1200, "rollout_length": 100,
    "hidden_sizes": [32, 32],
}  # fmt: skip


def build(folder: Path, library: Path) -> None:
    """Compile the server and the load generator."""
    compiler = ["cc", "-O2", "-std=gnu11", "-Wall"]
    rpath = f"-Wl,-rpath,{library}"
    server = ["-I", str(ROOT / "native" / "include"), str(HERE / "kv_server.c"), str(library / "librl4sys_client.so"), rpath]
    subprocess.run([*compiler, "-o", str(folder / "kv_server"), *server], check=True)
    subprocess.run([*compiler, "-o", str(folder / "kv_load"), str(HERE / "kv_load.c"), "-lm"], check=True)


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """Run a program, and yield the first line of its output. A server is told to stop, a learner gets a signal."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        try:
            yield line
        finally:
            if line.isdigit():
                with socket.create_connection(("127.0.0.1", int(line))) as connection:
                    connection.sendall(b"STOP\n")
            else:
                process.terminate()
            process.communicate(timeout=60)


def play(folder: Path, port: str, seed: int) -> list[float]:
    """Play one trace. Return the hit rates: of all requests, of the scans, and of the moving working set."""
    command = [str(folder / "kv_load"), port, str(seed), str(PHASES)]
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def agent_config(folder: Path, address: str, seed: int, *, explore: bool) -> str:
    """Write the configuration of the server's agent. Return its path."""
    path = folder / f"agent-{seed}-{explore}.json"
    config = {"client_id": "cache", "algorithm_name": "PPO", "train_server_address": address, "algorithm_parameters": PPO,
              "seed": seed, "explore": explore}  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)


def one_seed(folder: Path, seed: int, traces: int, tests: int) -> dict[str, list[list[float]]]:
    """Train one agent. Return the hit rates on the test traces, by rule and for the agent."""
    run_dir = folder / f"run-{seed}"
    settings = folder / f"learner-{seed}.json"
    settings.write_text(json.dumps({"seed": seed}))
    program = str(Path(sys.executable).parent / "rl4sys-learner")
    learner = [program, "serve", "--port", "0", "--run-dir", str(run_dir), "--config", str(settings)]
    server = str(folder / "kv_server")
    found: dict[str, list[list[float]]] = {}
    test_seeds = [10_000 * seed + 5000 + number for number in range(tests)]
    with running(learner) as line:
        address = line.split()[2]  # learner at ADDRESS (weights ...)
        with running([server, agent_config(folder, address, seed, explore=True), str(CAPACITY)]) as port:
            for number in range(traces):
                rates = play(folder, port, 10_000 * seed + number)
                print(f"seed {seed} trace {number + 1}: hit rate {rates[0]:.3f}", end="\r", flush=True)
        with running([server, agent_config(folder, address, seed, explore=False), str(CAPACITY)]) as port:
            found["learned"] = [play(folder, port, one) for one in test_seeds]
    for rule in RULES:
        with running([server, rule, str(CAPACITY)]) as port:
            found[rule] = [play(folder, port, one) for one in test_seeds]
    return found


def main() -> None:
    """Train and compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--traces", type=int, default=200, help="traces of training, each with 400 decisions")
    parser.add_argument("--tests", type=int, default=5, help="traces of the comparison")
    parser.add_argument("--library", type=Path, default=ROOT / "build" / "native", help="folder with librl4sys_client.so")
    options = parser.parse_args()
    wins, means = 0, dict[str, list[list[float]]]()
    with tempfile.TemporaryDirectory(prefix="kv-") as name:
        folder = Path(name)
        build(folder, options.library.resolve())
        for seed in range(1, options.seeds + 1):
            found = one_seed(folder, seed, options.traces, options.tests)
            for rule, rates in found.items():
                means.setdefault(rule, []).append([statistics.mean(column) for column in zip(*rates, strict=True)])
            best = max(means[rule][-1][0] for rule in RULES)
            wins += means["learned"][-1][0] > best
            print(f"seed {seed}: learned {means['learned'][-1][0]:.3f}, best fixed rule {best:.3f}" + " " * 20)
    print(f"\n{'rule':10}{'hit rate':>10}{'scans':>10}{'moving':>10}")
    for rule, rows in means.items():
        print(f"{rule:10}" + "".join(f"{statistics.mean(column):10.3f}" for column in zip(*rows, strict=True)))
    print(f"the learned choice beats every fixed rule for {wins} of {options.seeds} seeds")


if __name__ == "__main__":
    main()
