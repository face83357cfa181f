"""Set-ups of learners that are predicted by `rl4sys_zmq.capacity` and then run, to compare both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rl4sys_zmq.capacity.constants import Constants
from rl4sys_zmq.capacity.harness import P1, SEED, SMALL, TrajectoryKind
from rl4sys_zmq.capacity.measure_paths import measure_fanout, measure_ingress, policy_bytes
from rl4sys_zmq.capacity.resources import ResourceLoad, fanout, ingress, journal
from rl4sys_zmq.capacity.workload import Traffic, Workload
from rl4sys_zmq.values import BoxSpace

__all__ = ["SETUPS", "MeasuredSetup", "Setup", "measure_setup", "predicted_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A set-up that is predicted and run, to compare both.

    Attributes:
        name: Name for the output.
        limit: The resource that is expected to be the first limit: ``ingress``, ``journal`` or ``fanout``.
        kind: The segments, unless the limit is ``fanout``.
        batch: Number of segments in a message.
        actors: Number of actors.
        kilobytes: Size of the policy, if the limit is ``fanout``.
    """

    name: str
    limit: str
    kind: TrajectoryKind = SMALL
    batch: int = 1
    kilobytes: int = 0
    actors: int = 1


SETUPS = (
    Setup(name="small: 20 steps of 4 floats, 32 segments in a message", limit="ingress", kind=replace(SMALL, steps=20), batch=32),
    Setup(
        name="large: 128 steps of 8,192 floats",
        limit="ingress",
        kind=replace(SMALL, steps=128, observation_space=BoxSpace((8192,))),
    ),
    Setup(name="many: 64 actors with 5 steps in a message", limit="ingress", kind=replace(SMALL, steps=5), actors=64),
    Setup(name="weights: a policy of 500 kB to 4 actors, level 0", limit="fanout", kilobytes=500, actors=4),
    Setup(name="journal: 200 steps of 8 floats, 16 in a message, fsync always", limit="journal", kind=P1, batch=16),
)
"""The five set-ups of ``benchmarks/capacity.py``."""


@dataclass(frozen=True, slots=True)
class MeasuredSetup:
    """The result of a set-up: steps per second, or versions per second of weights.

    Attributes:
        predicted: The predicted rate at which the load of the limit is 100 %.
        measured: The rate that was reached.
    """

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """The predicted rate divided by the measured rate."""
        return self.predicted / self.measured


def predicted_rate(setup: Setup, constants: Constants) -> float:
    """Return the predicted rate at the limit of a set-up: steps per second, or versions per second of weights."""
    rate = 1.0
    load = _workload(setup, rate)
    flow = Traffic(load, constants.diff_ratio)
    return rate / _limit(setup, load, flow, constants).share


def measure_setup(
    setup: Setup, constants: Constants, *, seconds: float, versions: int, folder: Path | None = None
) -> MeasuredSetup:
    """Run a set-up, and return its measured rate beside the predicted one.

    Args:
        setup: The set-up.
        constants: The constants of the prediction.
        seconds: Duration of the measurement, if data is sent.
        versions: Number of versions, if weights are published.
        folder: Folder for the journal. None: the temporary folder.
    """
    if setup.limit == "fanout":
        measured = 1e3 / measure_fanout(setup.kilobytes, setup.actors, 0, versions, SEED)
    else:
        fsync = "always" if setup.limit == "journal" else ""
        measured = measure_ingress(
            setup.kind, batch=setup.batch, actors=setup.actors, seconds=seconds, fsync=fsync, folder=folder
        ).steps_per_s
    return MeasuredSetup(predicted_rate(setup, constants), measured)


def _workload(setup: Setup, rate: float) -> Workload:
    """Return the workload of a set-up with `rate` steps, or versions, per second."""
    if setup.limit == "fanout":
        return Workload(
            actors=setup.actors,
            steps_per_s=0.0,
            model_bytes=policy_bytes(setup.kilobytes),
            publish_per_s=rate,
            weights_level=0,
            journal=False,
        )
    space = setup.kind.observation_space
    assert isinstance(space, BoxSpace)
    return Workload(
        actors=1,  # the rate is that of all actors together, and no heartbeat is sent at saturation
        steps_per_s=rate,
        model_bytes=4,
        observation_bytes=int(np.prod(space.shape)) * np.dtype(space.dtype).itemsize,
        segment_steps=setup.kind.steps,
        segments_per_message=setup.batch,
        publish_per_s=0.0,
        journal=setup.limit == "journal",
        fsync="always",
    )


def _limit(setup: Setup, load: Workload, flow: Traffic, constants: Constants) -> ResourceLoad:
    flow.heartbeats_s = 0.0
    match setup.limit:
        case "fanout":
            return fanout(load, flow, constants)
        case "journal":
            on_disk = journal(load, flow, constants)
            assert on_disk is not None
            return on_disk
        case _:
            return ingress(load, flow, constants)
