"""Measurement of the constants from which loads are predicted: data into a learner, weights to actors, training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rl4sys_zmq.algorithms import make_algorithm
from rl4sys_zmq.capacity.constants import Constants, MeasuredConstants, fit_fanout, fit_ingress
from rl4sys_zmq.capacity.harness import P1, SEED, SMALL, TrajectoryKind, body_bytes, make_segment
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.measure_paths import append_rate, measure_fanout, measure_ingress, policy_bytes
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import HEADER_BYTES, EncodingOptions, WireDtype, digest, encode_update

SIMULATED = 32
"""Number of actors for the cost of a message: so many that each gets an acknowledgement for each of its messages."""
LARGE = replace(SMALL, name="large", steps=512, observation_space=BoxSpace((1024,)))
INGRESS_CASES = ((SMALL, 1, SIMULATED), (SMALL, 64, 1), (P1, 16, 1), (LARGE, 1, 1))
"""The measured messages: a kind of trajectory, the number in a message, and the number of actors."""
DURABLE_CASES = ((SMALL, 1, SIMULATED), (SMALL, 64, 1), (P1, 64, 1))
"""The same with a journal. The bytes are in messages of a size at which many of them share a commit."""
FANOUT_CASES = ((50, 1), (50, 6), (1000, 1), (1000, 6))
"""The measured publications: the size of the policy in kilobytes, and the number of actors."""
DIFF_PARAMETERS, DIFF_STEP, DIFF_REPEAT = 250_000, 1e-3, 3
TRAINING_CASES = ((64, 128), (512, 256))
"""The measured gradient steps of PPO: the width of two hidden layers, and the size of a minibatch."""
TRAINING_STEPS, TRAINING_EPOCHS = 1024, 2

PrintLine = Callable[[str], None]


def measure_constants(say: PrintLine, *, seconds: float = 0.7, versions: int = 20) -> MeasuredConstants:
    """Measure all constants of the predictions on this machine. `say` prints the progress.

    Each measurement of data takes about `seconds`. Weights of each measured size are published `versions` times.
    """
    say("the way of data into the learner")
    in_memory = [_Case(kind, batch, actors, seconds) for kind, batch, actors in INGRESS_CASES]
    durable = {}
    for fsync in ("normal", "always"):
        say(f"the journal, fsync {fsync}")
        on_disk = [_Case(kind, batch, actors, seconds, fsync) for kind, batch, actors in DURABLE_CASES]
        durable[fsync] = fit_ingress([case.amounts for case in on_disk], [case.seconds for case in on_disk])
    appended = append_rate(SMALL, batch=1, items_per_commit=1, seconds=seconds / 2)
    say("the weights")
    times = [1e-3 * measure_fanout(kb, actors, 0, versions, SEED) for kb, actors in FANOUT_CASES]
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
    return MeasuredConstants(constants=constants, machine=machine_record())


class _Case:
    """The measured speed of a learner that receives one kind of message: `batch` trajectories in each, from `actors` actors."""

    def __init__(self, kind: TrajectoryKind, batch: int, actors: int, seconds: float, fsync: str = "") -> None:
        self.measured = measure_ingress(kind, batch=batch, actors=actors, seconds=seconds, fsync=fsync)
        self.seconds = batch * kind.steps / self.measured.steps_per_s  # of a message
        # number of messages, segments and bytes of a message
        self.amounts = (1.0, float(batch), float(sum(body_bytes(kind, batch))))


def _diffs() -> tuple[float, float]:
    """Return the seconds to encode a diff, per byte of the weights, and the weights' size divided by the diff's.

    All weights change, as in an update of PPO. The option ``weights.level`` is 1.
    """
    rng = np.random.default_rng(SEED)
    first = rng.normal(0.0, 0.1, DIFF_PARAMETERS)
    changes = rng.uniform(-DIFF_STEP, DIFF_STEP, (2, DIFF_PARAMETERS)).cumsum(axis=0)
    weights = np.stack([first, *(first + changes)]).astype(np.float32)
    before, held, new = (PolicySnapshot(1, version, digest(flat), flat) for version, flat in enumerate(weights))
    took = []
    for _ in range(DIFF_REPEAT):
        began = time.perf_counter()
        _, payload = encode_update(b"capacity", held, new, EncodingOptions(WireDtype.FP32, 1), before=before)
        took.append(time.perf_counter() - began)
    return min(took) / new.flat.nbytes, new.flat.nbytes / (HEADER_BYTES + len(payload))


def _gradients() -> tuple[float, float]:
    """Measure a gradient step of PPO. Return its fixed time in seconds, and the seconds per parameter and minibatch row."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measured = [_gradient(hidden, minibatch) for hidden, minibatch in TRAINING_CASES]
    finally:
        torch.set_num_threads(threads)
    (units, took), (more_units, more_took) = measured
    each = max(0.0, (more_took - took) / (more_units - units))
    return max(0.0, took - units * each), each


def _gradient(hidden: int, minibatch: int) -> tuple[float, float]:
    """Return the number of the policy's parameters times the minibatch rows, and the seconds of a gradient step of PPO."""
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
