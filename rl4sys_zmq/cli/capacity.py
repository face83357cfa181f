"""The command ``rl4sys-learner capacity``: predicts the load of a learner, from constants measured on this machine."""

from __future__ import annotations

import json as json_module
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl4sys_zmq.capacity.constants import RECORDED, Constants, MeasuredConstants, constants_path, read_constants, write_constants
from rl4sys_zmq.capacity.resources import HOW_TO, Proposal, ResourceLoad, first_limit, predict, propose
from rl4sys_zmq.capacity.workload import PlannedTraining, Workload
from rl4sys_zmq.cli.app import print_line, require
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.memory_watch import available_bytes
from rl4sys_zmq.version import package_version

MEMORY_SHARE = 0.8
UNLIMITED = 1 << 20
FIELDS = {"obs_bytes": "observation_bytes", "journal_max": "journal_max_bytes", "bandwidth": "bandwidth_bits_s"}
"""The fields of `Workload` for options of other names."""


def capacity(*, measure: bool, constants: Path | None, json: bool, **plan: Any) -> None:
    """Measure the constants if asked to, and print the predicted loads if a workload is given, by the options of the command."""
    path = constants or constants_path()
    if measure:
        measured = _measure(path, quiet=json)
    elif constants is not None or path.exists():
        measured = read_constants(path)
    else:
        measured = MeasuredConstants(constants=RECORDED)
    notes = _notes(measured)
    if plan["actors"] is None:
        if json:
            print_line(json_module.dumps({"notes": notes, "constants": asdict(measured.constants)}, indent=2))
        else:
            _print_constants(measured.constants, notes)
        return
    load = _workload(**plan)
    rows = predict(load, measured.constants)
    proposals = propose(load, measured.constants, rows)
    if json:
        print_line(json_module.dumps(_document(load, rows, proposals, notes), indent=2))
    else:
        _print(rows, proposals, notes)


def _measure(path: Path, *, quiet: bool) -> MeasuredConstants:
    require("learner", "torch")
    from rl4sys_zmq.capacity.measure import measure_constants

    measured = measure_constants(lambda line: None if quiet else print_line(f"measuring {line}"))
    write_constants(path, measured)
    if not quiet:
        print_line(f"constants written to {path}")
    return measured


def _notes(measured: MeasuredConstants) -> list[str]:
    """Return lines that say where the constants come from, and what has changed on this machine since they were measured."""
    machine = measured.machine
    if not machine:
        return [
            "constants: recorded on another machine with two cores; `rl4sys-learner capacity --measure` measures this one",
        ]
    about, versions = _mapping(machine.get("machine")), _mapping(machine.get("versions"))
    notes = [f"constants: measured {machine.get('time')} on {about.get('cpu')} with {about.get('cores')} cores"]
    if about.get("cores") != os.cpu_count():
        notes.append(f"this machine has {os.cpu_count()} cores: measure again with --measure")
    if versions.get("rl4sys-zmq") != package_version():
        notes.append(
            f"they are of version {versions.get('rl4sys-zmq')}, this is {package_version()}: measure again with --measure"
        )
    return notes


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _workload(
    *,
    algorithm: str | None,
    minibatch: int | None,
    epochs: int | None,
    journal: str,
    cores: int | None,
    memory: int | None,
    **plan: Any,
) -> Workload:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Workload(
        **{FIELDS.get(name, name): value for name, value in plan.items()},
        journal=journal == "sqlite",
        training=_training(algorithm, minibatch, epochs),
        cores=cores or os.cpu_count() or 1,
        memory_bytes=round(MEMORY_SHARE * available_bytes()) if memory is None else memory,
        descriptors=UNLIMITED if hard == resource.RLIM_INFINITY else hard,
    )


def _training(algorithm: str | None, minibatch: int | None, epochs: int | None) -> PlannedTraining | None:
    from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters
    from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import DEFAULT_MINIBATCH, PPOParameters

    if algorithm is None:
        if minibatch is not None or epochs is not None:
            raise ConfigError("minibatch and epochs are parameters of an algorithm; give --algorithm too", key="algorithm")
        return None
    if algorithm == "PPO":
        minibatch = minibatch or DEFAULT_MINIBATCH
        epochs = epochs or PPOParameters().update_epochs
        return PlannedTraining(algorithm="PPO", gradients_per_step=epochs / minibatch, minibatch=minibatch)
    if epochs is not None:
        raise ConfigError("DQN has no epochs; omit --epochs", key="epochs")
    dqn = DQNParameters()
    return PlannedTraining(
        algorithm="DQN",
        gradients_per_step=dqn.gradient_steps / dqn.train_frequency,
        minibatch=minibatch or dqn.batch_size,
        replay_steps=dqn.buffer_size,
    )


def _print(rows: Sequence[ResourceLoad], proposals: Sequence[Proposal], notes: Sequence[str]) -> None:
    for note in notes:
        print_line(note)
    print_line()
    for row in rows:
        print_line(f"{row.name:<24} {row.share:7.1%}  {row.detail}".rstrip())
    first = first_limit(rows)
    print_line()
    carried = f"{1 / first.share:.2g} {'of' if first.share > 1 else 'times'} this load" if first.share else "any such load"
    print_line(f"first limit: {first.name}, at {first.share:.0%}: one learner process carries {carried}")
    for proposal in proposals:
        print_line(f"  {proposal.resource}: {proposal.text}")
    needed = {proposal.needs for proposal in proposals}
    if needed & HOW_TO.keys():
        print_line()
        for name, text in HOW_TO.items():
            if name in needed:
                print_line(f"{name:<10} {text}")


def _print_constants(constants: Constants, notes: Sequence[str]) -> None:
    for note in notes:
        print_line(note)
    for name, value in asdict(constants).items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, number in parts.items():
            inner = number if isinstance(number, dict) else {"": number}
            for key, seconds in inner.items():
                print_line(f"  {'.'.join(filter(None, (name, part, key))):<32} {seconds:.4g}")


def _document(
    load: Workload, rows: Sequence[ResourceLoad], proposals: Sequence[Proposal], notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "notes": list(notes),
        "workload": asdict(load),
        "resources": [{**asdict(row), "share": row.share} for row in rows],
        "first_limit": first_limit(rows).name,
        "proposals": [asdict(proposal) for proposal in proposals],
        "how_to": HOW_TO,
    }
