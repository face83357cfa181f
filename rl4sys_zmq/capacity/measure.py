"""Measurement of the constants from which `rl4sys_zmq.capacity` predicts loads, and of set-ups that test the predictions.

The measurements are those of the benchmarks `ingress`, `fanout` and `diffs`, and one of the training. All run in under a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.diffs import measure_diffs
from rl4sys_zmq.capacity import Constants, Measured, ResourceLoad, Traffic, Workload, traffic
from rl4sys_zmq.capacity.constants import fit_fanout, fit_ingress
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.measure_fanout import measure_fanout, policy_bytes
from rl4sys_zmq.capacity.measure_ingress import IngressMeasurement, append_rate, ours
from rl4sys_zmq.capacity.resources import fanout, ingress, journal
from rl4sys_zmq.capacity.senders import PAYLOADS, SEED, SMALL, TrajectoryKind, body_bytes, make_segment
from rl4sys_zmq.learner.algorithms import make_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

__all__ = ["SETUPS", "MeasuredSetup", "Setup", "measure_constants", "measure_setup", "predicted_rate"]

SIMULATED = 32
"""Number of actors for the cost of a message: so many that each gets an acknowledgement for each of its messages."""
LARGE = replace(SMALL, name="large", steps=512, observation_space=BoxSpace((1024,)))
INGRESS_CASES = ((SMALL, 0), (SMALL, 64), (PAYLOADS["P1"], 16), (LARGE, 1))
"""The measured messages: a kind of trajectory, and the number in a message. 0 stands for `SIMULATED` actors with one each."""
DURABLE_CASES = ((SMALL, 0), (SMALL, 64), (PAYLOADS["P1"], 64))
"""The same with a journal. The bytes are in messages of a size at which many of them share a commit."""
FANOUT_CASES = ((50, 1), (50, 6), (1000, 1), (1000, 6))
"""The measured publications: the size of the policy in kilobytes, and the number of actors."""
DIFF_PARAMETERS, DIFF_STEP = 250_000, 1e-3
TRAINING_CASES = ((64, 128), (512, 256))
"""The measured gradient steps of PPO: the width of two hidden layers, and the size of a minibatch."""
TRAINING_STEPS, TRAINING_EPOCHS = 1024, 2

PrintLine = Callable[[str], None]


def measure_constants(say: PrintLine, *, seconds: float = 0.7, versions: int = 20, folder: Path | None = None) -> Measured:
    """Measure all constants on this machine.

    Args:
        say: Function that prints a line.
        seconds: Duration of each measurement of a loop.
        versions: Number of versions in each measurement of the weights.
        folder: Folder for journals. None: the temporary folder.
    """
    say("the way of data into the learner")
    in_memory = [_case(kind, batch, seconds) for kind, batch in INGRESS_CASES]
    durable = {}
    for fsync in ("normal", "always"):
        say(f"the journal, fsync {fsync}")
        found = [_case(kind, batch, seconds, fsync, folder) for kind, batch in DURABLE_CASES]
        durable[fsync] = fit_ingress([case.amounts for case in found], [case.seconds for case in found])
    appended = append_rate(SMALL, batch=1, items_per_commit=1, seconds=seconds / 2, folder=folder)
    say("the weights")
    times = [1e-3 * measure_fanout(kb, actors, 0, 1, versions, SEED).ours[0] for kb, actors in FANOUT_CASES]
    encode_byte_s, diff_ratio = _diffs()
    say("the training")
    gradient_s, gradient_unit_s = _gradients()
    amounts = [case.amounts for case in in_memory]
    constants = Constants(
        ingress=fit_ingress(amounts, [case.seconds for case in in_memory]),
        gateway=fit_ingress(amounts, [case.seconds * case.measured.gateway_cpu for case in in_memory]),
        trainer=fit_ingress(amounts, [case.seconds * case.measured.trainer_cpu for case in in_memory]),
        processor=fit_ingress(amounts, [case.seconds * case.measured.cpu for case in in_memory]),
        durable=durable,
        commit_s=SMALL.steps / appended.steps_per_s,
        fanout=fit_fanout([(policy_bytes(kb), actors) for kb, actors in FANOUT_CASES], times),
        encode_byte_s=encode_byte_s,
        diff_ratio=diff_ratio,
        gradient_s=gradient_s,
        gradient_unit_s=gradient_unit_s,
    )
    return Measured(constants=constants, machine=machine_record())


@dataclass(frozen=True, slots=True)
class _Case:
    """One measurement of messages.

    Attributes:
        amounts: Number of messages, segments and bytes of a message: the first two are 1 and the size of its batch.
        seconds: Time of a message.
        measured: The measurement.
    """

    amounts: tuple[float, float, float]
    seconds: float
    measured: IngressMeasurement


def _case(kind: TrajectoryKind, batch: int, seconds: float, fsync: str = "", folder: Path | None = None) -> _Case:
    each, simulated = max(1, batch), 0 if batch else SIMULATED
    found = ours(kind, batch=each, actors=1, seconds=seconds, fsync=fsync, folder=folder, simulated=simulated)
    return _Case((1.0, float(each), float(sum(body_bytes(kind, each)))), each * kind.steps / found.steps_per_s, found)


def _diffs() -> tuple[float, float]:
    """Return the time to encode a diff at level 1 in seconds per byte of the weights, and the weights' size over the diff's.

    All weights change, as in an update of PPO.
    """
    rng = np.random.default_rng(SEED)
    first = rng.normal(0.0, 0.1, DIFF_PARAMETERS)
    changes = rng.uniform(-DIFF_STEP, DIFF_STEP, (2, DIFF_PARAMETERS)).cumsum(axis=0)
    weights = np.stack([first, *(first + changes)]).astype(np.float32)
    row = measure_diffs("capacity", weights, 3, lambda line: None)[0]
    return 1e-6 * row["encode_us"] / (4 * DIFF_PARAMETERS), row["ratio"]


def _gradients() -> tuple[float, float]:
    """Return the time of a gradient step of PPO in seconds: a fixed part, and a part per parameter and row of a minibatch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [_gradient(hidden, minibatch) for hidden, minibatch in TRAINING_CASES]
    finally:
        torch.set_num_threads(threads)
    (units, took), (more_units, more_took) = found
    each = max(0.0, (more_took - took) / (more_units - units))
    return max(0.0, took - units * each), each


def _gradient(hidden: int, minibatch: int) -> tuple[float, float]:
    """Return the number of parameters of the policy times the rows of a minibatch, and the time of a gradient step in seconds."""
    observations, actions = BoxSpace((8,)), DiscreteSpace(4)
    parameters = {
        "hidden_sizes": [hidden, hidden],
        "steps_per_update": TRAINING_STEPS,
        "minibatch_size": minibatch,
        "update_epochs": TRAINING_EPOCHS,
    }
    algorithm = make_algorithm("PPO", observations, actions, parameters, SEED)
    kind = TrajectoryKind(name="ppo", steps=128, observation_space=observations, action_space=actions)
    segment, least = make_segment(kind, 0), float("inf")
    for _ in range(3):
        for _ in range(TRAINING_STEPS // kind.steps):
            algorithm.observe(segment)
        began = time.perf_counter()
        algorithm.update()
        least = min(least, time.perf_counter() - began)
    return algorithm.spec().size * minibatch, least / (TRAINING_EPOCHS * TRAINING_STEPS / minibatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A set-up that is predicted and run, to compare both.

    Attributes:
        name: Name for the output.
        limit: The resource that is expected to be the first limit: ``ingress``, ``journal`` or ``fanout``.
        kind: The segments, unless the limit is ``fanout``.
        batch: Number of segments in a message, from one sender.
        simulated: Number of simulated actors, with one segment in a message; 0 for one sender.
        kilobytes, actors: Size of the policy and number of actors, if the limit is ``fanout``.
    """

    name: str
    limit: str
    kind: TrajectoryKind = SMALL
    batch: int = 1
    simulated: int = 0
    kilobytes: int = 0
    actors: int = 1


SETUPS = (
    Setup(name="small: 20 steps of 4 floats, 32 segments in a message", limit="ingress", kind=replace(SMALL, steps=20), batch=32),
    Setup(
        name="large: 128 steps of 8,192 floats",
        limit="ingress",
        kind=replace(SMALL, steps=128, observation_space=BoxSpace((8192,))),
    ),
    Setup(name="many: 64 actors with 5 steps in a message", limit="ingress", kind=replace(SMALL, steps=5), simulated=64),
    Setup(name="weights: a policy of 500 kB to 4 actors, level 0", limit="fanout", kilobytes=500, actors=4),
    Setup(name="journal: 200 steps of 8 floats, 16 in a message, fsync always", limit="journal", kind=PAYLOADS["P1"], batch=16),
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
    flow = traffic(load, constants.diff_ratio)
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
        measured = 1e3 / measure_fanout(setup.kilobytes, setup.actors, 0, 1, versions, SEED).ours[0]
    else:
        fsync = "always" if setup.limit == "journal" else ""
        measured = ours(
            setup.kind, batch=setup.batch, actors=1, seconds=seconds, fsync=fsync, folder=folder, simulated=setup.simulated
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
    flow = replace(flow, heartbeats_s=0.0)
    match setup.limit:
        case "fanout":
            return fanout(load, flow, constants)
        case "journal":
            found = journal(load, flow, constants)
            assert found is not None
            return found
        case _:
            return ingress(load, flow, constants)
