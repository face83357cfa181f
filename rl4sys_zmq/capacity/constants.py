"""The measured times and sizes from which a load is predicted: the recorded values, and the file of those of this machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import make_private, write_private

FORMAT = 1
FSYNC = ("normal", "always")
INGRESS_COSTS = ("ingress", "gateway", "trainer", "processor")
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivingCost:
    """The time that a learner spends on data that arrives, in seconds: per message with segments, per segment and per byte."""

    message_s: float
    segment_s: float
    byte_s: float

    def seconds(self, messages: float, segments: float, nbytes: float) -> float:
        """Return the seconds for these numbers of messages, segments and bytes. For rates, the result is a load."""
        return messages * self.message_s + segments * self.segment_s + nbytes * self.byte_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutCost:
    """The time from an update until all actors have the new weights, in seconds. All weights are sent, not a diff."""

    version_s: float  # per version
    actor_s: float  # per version and actor
    model_byte_s: float  # per byte of the weights: copying, checksums
    sent_byte_s: float  # per byte that is sent to one actor

    def seconds(self, model_bytes: float, update_bytes: float, actors: float) -> float:
        """Return the seconds for one version. `model_bytes` is the size of the weights, `update_bytes` that of the message."""
        here = self.version_s + model_bytes * self.model_byte_s
        return here + actors * (self.actor_s + update_bytes * self.sent_byte_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The measured times (in seconds) and sizes (in bytes) from which the load of a learner is predicted."""

    # wall time of the whole way of a message in memory, at saturation: gateway, learner thread, and their switches of the
    # interpreter lock
    ingress: ReceivingCost
    gateway: ReceivingCost  # CPU time of the gateway for a message
    trainer: ReceivingCost  # CPU time of the learner thread for a message, without training
    processor: ReceivingCost  # CPU time of the learner's process for a message, over all threads
    durable: Mapping[str, ReceivingCost]  # as `ingress`, with the journal on disk, by value of the option ``fsync``
    commit_s: float  # one write and flush of a small message to the disk
    fanout: FanoutCost  # a version of the weights
    encode_byte_s: float  # the encoding of a diff at level 1, per byte of the weights
    diff_ratio: float  # size of the weights divided by that of a diff at level 1
    gradient_s: float  # a gradient step of PPO, besides `gradient_unit_s`
    gradient_unit_s: float  # a gradient step per parameter of the policy and row of the minibatch
    all_reduce_s: float = 3.5e-3  # the sum of a small gradient over two processes. Not measured here, as all that follow
    crypt_message_s: float = 2.5e-6  # the encryption of a message
    crypt_byte_s: float = 2e-9  # the encryption of a byte
    connection_bytes: float = 53e3  # memory of a bare ROUTER and XPUB for the two connections of an actor
    session_bytes: float = 6.5e3  # memory of the learner's records for a resting actor
    learner_bytes: float = 250e6  # memory of a learner process with torch and without actors


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConstants:
    constants: Constants
    # the result of `machine_record`; empty if the constants were not measured here
    machine: Mapping[str, Any] = field(default_factory=dict)


def fit_ingress(points: Sequence[tuple[float, float, float]], seconds: Sequence[float]) -> ReceivingCost:
    """Return the costs, at least 0, that predict measured times with the smallest relative errors.

    `seconds` has the measured times. The point of each time has its numbers of messages, segments and bytes.
    """
    message_s, segment_s, byte_s = _fit(np.array(points, np.float64), np.array(seconds, np.float64))
    return ReceivingCost(message_s=message_s, segment_s=segment_s, byte_s=byte_s)


def fit_fanout(points: Sequence[tuple[float, float]], seconds: Sequence[float]) -> FanoutCost:
    """Return the costs, at least 0, that predict the measured times of versions with the smallest relative errors.

    `seconds` has the times. The point of each time has the size of the weights in bytes and the number of actors.
    """
    rows = np.array([(1.0, actors, size, size * actors) for size, actors in points])
    solved = _fit(rows, np.array(seconds, np.float64))
    return FanoutCost(version_s=solved[0], actor_s=solved[1], model_byte_s=solved[2], sent_byte_s=solved[3])


def _fit(rows: Any, seconds: Any) -> list[float]:
    """Return the ``x``, without negative numbers, for which ``rows @ x`` has the smallest relative errors to `seconds`.

    This is a least-squares solution. A column with a negative element is left out, and the rest is solved again.
    """
    weighted = rows / seconds[:, None]
    scale = np.abs(weighted).max(axis=0)
    used = [column for column in range(rows.shape[1]) if scale[column] > 0]
    while used:
        solution, *_ = np.linalg.lstsq(weighted[:, used] / scale[used], np.ones(len(seconds)), rcond=None)
        if (solution >= 0).all():
            break
        used.pop(int(np.argmin(solution)))
    solved = np.zeros(rows.shape[1])
    if used:
        solved[used] = solution / scale[used]
    return [float(x) for x in solved]


RECORDED = Constants(
    ingress=ReceivingCost(message_s=300e-6, segment_s=5e-6, byte_s=0.45e-9),
    gateway=ReceivingCost(message_s=150e-6, segment_s=2e-6, byte_s=0.2e-9),
    trainer=ReceivingCost(message_s=120e-6, segment_s=3e-6, byte_s=0.15e-9),
    processor=ReceivingCost(message_s=350e-6, segment_s=5e-6, byte_s=0.8e-9),
    durable={
        "normal": ReceivingCost(message_s=330e-6, segment_s=12e-6, byte_s=3e-9),
        "always": ReceivingCost(message_s=330e-6, segment_s=12e-6, byte_s=3.2e-9),
    },
    commit_s=1e-3,
    fanout=FanoutCost(version_s=0.6e-3, actor_s=60e-6, model_byte_s=0.4e-9, sent_byte_s=0.75e-9),
    encode_byte_s=1.8e-9,
    diff_ratio=1.45,
    gradient_s=0.6e-3,
    gradient_unit_s=0.2e-9,
)
"""Constants of a machine with two cores, used until ``rl4sys-learner capacity --measure`` has measured this one."""


def constants_path() -> Path:
    """Return the path of the file with this user's measured constants: ``rl4sys_zmq/capacity.json`` in the cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rl4sys_zmq" / "capacity.json"


def write_constants(path: Path, measured: MeasuredConstants) -> None:
    """Write constants and the description of their machine to a file that only this user can read. Replace an existing file."""
    document = {"format": FORMAT, "machine": dict(measured.machine), "constants": asdict(measured.constants)}
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        make_private(path.parent)
        write_private(new, json.dumps(document, indent=2).encode() + b"\n")
        new.replace(path)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written ({exc.strerror}); give --constants FILE", key="constants") from exc


def read_constants(path: Path) -> MeasuredConstants:
    """Read the constants that `write_constants` wrote."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _unusable(path, f"has more than {MAX_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise _unusable(path, f"cannot be read ({exc.strerror})") from exc
    except (ValueError, RecursionError) as exc:
        raise _unusable(path, f"is not JSON ({exc})") from exc
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _unusable(path, "was not written by this version")
    try:
        return MeasuredConstants(constants=_constants(document["constants"]), machine=dict(document["machine"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise _unusable(path, f"lacks a constant, or has one that is not a number ({exc})") from exc


def _unusable(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{path} {problem}; run rl4sys-learner capacity --measure again, or remove the file", key="constants")


def _constants(document: Mapping[str, Any]) -> Constants:
    def group(kind: Any, numbers: Mapping[str, Any]) -> Any:
        return kind(**{each.name: _number(numbers[each.name]) for each in fields(kind)})

    values: dict[str, Any] = {name: group(ReceivingCost, document[name]) for name in INGRESS_COSTS}
    values["fanout"] = group(FanoutCost, document["fanout"])
    values["durable"] = {name: group(ReceivingCost, document["durable"][name]) for name in FSYNC}
    for each in fields(Constants):
        if each.name not in values:
            values[each.name] = _number(document[each.name])
    return Constants(**values)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a finite number of 0 or more")
    return float(value)
