"""The benchmark of an actor's cost to its host program: import time, resident memory, and CPU time in a control loop."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import rl4sys_zmq
from bench.environment import environment
from bench.pairs import PairedFigures, measure_pairs

__all__ = ["Footprint", "LoopOverhead", "measure_footprint", "measure_overhead", "measure_running"]

PACKAGE = Path(rl4sys_zmq.__file__).parent
_RESIDENT = "int(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')).split()[1])"
_IMPORT = "import json, time\nbegan = time.perf_counter()\n{imports}\ntook = time.perf_counter() - began\n"
_SAY = f"print(json.dumps([took, {_RESIDENT}]))\n"
OURS = "from rl4sys_zmq import AgentConfig, RL4SysAgent"
BASELINE = "import numpy, zmq, msgpack"
_ACTOR = """
import numpy
from rl4sys_zmq import AgentConfig, RL4SysAgent
config = AgentConfig.from_mapping({{
    "client_id": "bench-memory", "algorithm_name": "COUNT", "input_size": 8, "act_dim": 4, "train_server_address": {address!r},
}})
agent, traj = RL4SysAgent(config=config), None
for _ in range({steps}):
    traj, action = agent.request_for_action(traj, numpy.zeros(8, numpy.float32))
    agent.add_to_trajectory(traj, action)
    action.update_reward(1.0)
agent.flush(10.0)
"""

_LOOP = """
import json, time, numpy
rate, seconds, address = {rate}, {seconds}, {address!r}
observation, traj, agent, plain = numpy.zeros(8, numpy.float32), None, None, None
if address == "plain":
    from bench.step import plain_step
    plain = plain_step()
elif address is not None:
    from rl4sys_zmq import AgentConfig, RL4SysAgent
    agent = RL4SysAgent(config=AgentConfig.from_mapping({{
        "client_id": "bench-loop", "algorithm_name": "COUNT", "input_size": 8, "act_dim": 4, "train_server_address": address,
    }}))
    traj, action = agent.request_for_action(None, observation)
    agent.add_to_trajectory(traj, action)
    action.update_reward(1.0)
time.sleep(0.5)
began, used = time.perf_counter(), time.process_time()
for tick in range(int(rate * seconds)):
    if agent is not None:
        traj, action = agent.request_for_action(traj, observation)
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
    elif plain is not None:
        plain(observation, 1.0)
    left = began + (tick + 1) / rate - time.perf_counter()
    if left > 0:
        time.sleep(left)
wall, used = time.perf_counter() - began, time.process_time() - used
print(json.dumps([used, wall]))
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The import time and the memory of new Python processes, in pairs.

    One process of a pair imports this library, the other (the baseline) only numpy, pyzmq and msgpack.

    Attributes:
        import_s: Import time, in seconds.
        resident_kib: Resident memory after the import, in KiB.
    """

    import_s: PairedFigures
    resident_kib: PairedFigures


@dataclass(frozen=True, slots=True)
class LoopOverhead:
    """The CPU use of control loops: CPU time divided by wall time. Each attribute pairs one loop with an empty loop.

    After a pause of a millisecond the CPU caches are cold, so a step costs several times as much as in a loop without pauses.

    Attributes:
        ours: The loop with an actor of this library.
        plain: The loop with a plain function that computes an action, samples and stores, as any library must.
    """

    ours: PairedFigures
    plain: PairedFigures


def measure_footprint(pairs: int) -> Footprint:
    """Measure the import time and the memory of new Python processes that import this library, or only its dependencies.

    Both kinds of processes alternate. The package is compiled to bytecode first, as after an installation.
    """
    compileall.compile_dir(PACKAGE, quiet=2)
    memory: dict[str, list[float]] = {OURS: [], BASELINE: []}

    def one(imports: str) -> float:
        took, resident = _fresh(_IMPORT.format(imports=imports) + _SAY)
        memory[imports].append(resident)
        return took

    seconds = measure_pairs(lambda: one(OURS), lambda: one(BASELINE), pairs)
    # Leave out the first process, which warmed the disk's cache.
    return Footprint(seconds, PairedFigures(tuple(memory[OURS][1:]), tuple(memory[BASELINE][1:])))


def measure_running(address: str, steps: int = 2000) -> float:
    """Return the resident memory, in KiB, of an actor process that has joined a learner and acted `steps` times.

    The process imports only the modules of an actor.
    """
    return _fresh(f"import json\n{_ACTOR.format(address=address, steps=steps)}took = 0.0\n{_SAY}")[1]


def measure_overhead(address: str, pairs: int, seconds: float = 5.0, rate_hz: int = 1000) -> LoopOverhead:
    """Measure the CPU time divided by the wall time of three control loops: with an actor, with a plain function, and empty.

    The CPU time is that of the whole process, including the I/O thread. Compare the differences between the loops, not the
    values.
    """

    def share(what: str | None) -> float:
        used, wall = _fresh(_LOOP.format(rate=rate_hz, seconds=seconds, address=what), seconds)
        return used / wall

    rounds = []
    for number in range(pairs):
        order = (address, "plain", None) if number % 2 == 0 else (None, "plain", address)
        rounds.append({what: share(what) for what in order})
    ours, plain, bare = (tuple(shares[what] for shares in rounds) for what in (address, "plain", None))
    return LoopOverhead(PairedFigures(ours, bare), PairedFigures(plain, bare))


def _fresh(code: str, seconds: float = 0.0) -> tuple[float, float]:
    command, limit_s = [sys.executable, "-c", code], 60 + 2 * seconds
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s, env=environment())
    first, second = json.loads(done.stdout.splitlines()[-1])
    return first, second
