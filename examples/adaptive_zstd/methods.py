"""The methods of the comparison: fixed levels, a rule, ``zstd --adapt``, and the policy."""

from collections.abc import Callable
from functools import partial
from shutil import which

from adaptive_zstd.bandwidth import Profile
from adaptive_zstd.data import LEVELS, Costs, sample
from adaptive_zstd.sockets import Chooser, run, run_command
from adaptive_zstd.view import QUEUE, View
from rl4sys_zmq import RL4SysAgent


def fixed(action: int) -> Chooser:
    return lambda view, block: action


def queue_rule() -> Chooser:
    """Return the idea of ``zstd --adapt``: a stronger level while the output waits, a faster one while it has nothing to do."""
    action = LEVELS.index(6)

    def choose(view: View, block: bytes) -> int:
        nonlocal action
        step = (view.waiting >= QUEUE) - (view.waiting <= 1)
        action = min(max(action + step, 0), len(LEVELS) - 1)
        return action

    return choose


def learned(agent: RL4SysAgent) -> Chooser:
    """Return the policy. It only acts: nothing of the comparison is recorded."""

    def choose(view: View, block: bytes) -> int:
        _, action = agent.request_for_action(None, view.observation(sample(block)))
        return int(action.act)

    return choose


def make_methods(agent: RL4SysAgent, blocks: list[bytes], costs: Costs) -> dict[str, Callable[[Profile], float]]:
    """Return functions from a profile to the goodput in bytes/s, by the name of the method."""
    usual_s = costs.times_s.mean(axis=0)
    methods: dict[str, Callable[[Profile], float]] = {}
    for index, level in enumerate(LEVELS):
        methods[str(level)] = partial(run, blocks=blocks, usual_s=usual_s, choose=fixed(index))
    methods["rule"] = lambda bandwidth: run(bandwidth, blocks, usual_s, queue_rule())
    if which("zstd"):
        methods["--adapt"] = partial(run_command, blocks=blocks)
    methods["policy"] = partial(run, blocks=blocks, usual_s=usual_s, choose=learned(agent))
    return methods
