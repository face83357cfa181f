"""The benchmark of weight diffs (the change of a policy's weights, as the learner sends it to actors): their size and speed.

The size is compared with a simple diff (XOR, byte shuffle, zstd level 1), the speed with a copy of the weights in memory.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import zstandard

from bench.ppo_versions import Floats
from rl4sys_zmq import native
from rl4sys_zmq.values import PolicySnapshot, TensorSpec
from rl4sys_zmq.weights import (
    HEADER_BYTES,
    EncodingOptions,
    WeightsHeader,
    WireDtype,
    apply_update,
    digest,
    encode_update,
    round_to,
)

__all__ = ["GOALS", "POLICY", "measure_diffs", "snapshot"]

T = TypeVar("T")

POLICY = b"diffs..."
GOALS = {
    "cartpole_mlp64_ppo_iteration": (1.45, 2.7),
    "lunarlander_mlp256_ppo_iteration": (1.47, 2.8),
    "lunarlander_mlp256_adam_step": (2.3, 22.0),
    "cartpole_mlp256_adam_step": (2.55, 35.0),
    "cnn_adam_step": (2.0, 7.5),
    "dqn_online_and_target": (6.4, 14.0),
    "transformer_lr3e-6_step": (2.8, 42.0),
    "transformer_lr1e-6_step": (3.1, 150.0),
}
"""Compression ratios to reach, for fp32 and bf16, by pair of versions. They come from the study behind the design."""


def measure_diffs(name: str, versions: Floats, repeat: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure the diff between two versions of weights, in float32 and bf16. Print and return the figures.

    Each diff is also applied, and the result must be exact. A time is the shortest of several measurements of the whole update,
    with header, hashes and coder. Applying includes the check of the digest. Rounding to bf16 is not included. If the compiled
    form is here, the pure form is measured too, between two series of the compiled one.

    Args:
        name: Name of the pair of versions.
        versions: Three consecutive versions, ``[3, n]``. The diff from the second to the third is measured. The receiver also
            has the first.
        repeat: Number of repetitions for each time.
        say: Function that prints a line.

    Returns:
        A dict of figures for each dtype.
    """
    rows: list[dict[str, Any]] = []
    for dtype in (WireDtype.FP32, WireDtype.BF16):
        states = [snapshot(round_to(dtype, flat), version) for version, flat in enumerate(versions)]
        v0, v1, v2 = states
        density = float(np.mean(v1.flat.view(np.uint32) != v2.flat.view(np.uint32)))
        raw = dtype.itemsize * v1.flat.size
        copy_us = timed(v1.flat.copy, 5 * repeat)[0]
        round_us = timed(functools.partial(round_to, dtype, versions[2]), repeat)[0]
        digest_us = timed(functools.partial(digest, v2.flat), repeat)[0]
        writing = EncodingOptions(dtype)
        encode = functools.partial(encode_update, POLICY, v1, v2, writing, before=v0)
        whole = functools.partial(encode_update, POLICY, v1, v2, EncodingOptions(dtype, 0))
        header, payload = encode()
        head = WeightsHeader.unpack(header)
        apply = functools.partial(apply_update, head, payload, v1, [TensorSpec("w", (v1.flat.size,))], before=v0)
        if apply().flat.tobytes() != v2.flat.tobytes():
            raise SystemExit(f"{name}: {dtype.name} is not exact")
        encode_us, apply_us, level_0_us = least_times([encode, apply, whole], repeat)
        pure = {}
        if native.load() is not None:
            with mock.patch.object(native, "load", return_value=None):
                pure_encode_us, pure_apply_us, _ = least_times([encode, apply, whole], repeat)
            encode_us, apply_us, level_0_us = map(
                min, zip((encode_us, apply_us, level_0_us), least_times([encode, apply, whole], repeat), strict=True)
            )
            pure = {
                "pure_encode_us": round(pure_encode_us),
                "pure_apply_us": round(pure_apply_us),
                "encode_of_pure": round(encode_us / pure_encode_us, 2),
                "apply_of_pure": round(apply_us / pure_apply_us, 2),
            }
        row = {
            "pair": name,
            "parameters": v1.flat.size,
            "dtype": dtype.name.lower(),
            "level": writing.level,
            "density": round(density, 4),
            "ratio": round(raw / (HEADER_BYTES + len(payload)), 2),
            "goal": GOALS[name][dtype] if name in GOALS else None,
            "baseline": round(raw / baseline(v1.flat, v2.flat, dtype), 2),
            "codec": head.codec.name.lower() + ("+" if head.predicted else ""),
            "encode_us": round(encode_us),
            "apply_us": round(apply_us),
            "encode_copies": round(encode_us / copy_us, 1),
            "apply_copies": round(apply_us / copy_us, 1),
            "digest_copies": round(digest_us / copy_us, 2),
            "round_us": round(round_us),
            "level_0_us": round(level_0_us),
            "form": "compiled" if pure else "pure",
            **pure,
        }
        if not rows:
            digests = row["digest_copies"]
            say(f"\n{name}: {v1.flat.size} parameters, a memcpy takes {copy_us:.0f} us, a digest {digests} of it")
        say(
            f"  {row['dtype']}: {row['ratio']:>6} (goal {row['goal']}, baseline {row['baseline']})"
            f"  density {density:.1%}  {row['codec']:<9} encode {row['encode_us']} us ({row['encode_copies']} copies),"
            f" apply {row['apply_us']} us ({row['apply_copies']}), level 0 {row['level_0_us']} us"
            + (f"; of the pure form {row['encode_of_pure']} and {row['apply_of_pure']}" if pure else "")
        )
        rows.append(row)
    return rows


def snapshot(flat: Floats, version: int) -> PolicySnapshot:
    """Return weights, an array ``[n]``, as a `PolicySnapshot` with this version number, for encoding."""
    return PolicySnapshot(1, version, digest(flat), flat)


def baseline(base: Floats, new: Floats, dtype: WireDtype) -> int:
    """Return the size of a simple diff (XOR, byte shuffle, zstd level 1) in bytes, including a header."""
    mixed = base.view(np.uint32) ^ new.view(np.uint32)
    words = mixed if dtype is WireDtype.FP32 else (mixed >> 16).astype(np.uint16)
    planes = np.ascontiguousarray(words.view(np.uint8).reshape(-1, dtype.itemsize).T)
    return HEADER_BYTES + len(zstandard.ZstdCompressor(level=1).compress(planes.tobytes()))


def least_times(calls: list[Callable[[], object]], repeat: int) -> list[float]:
    """Return the shortest time of each function, in microseconds."""
    return [timed(call, repeat)[0] for call in calls]


def timed(call: Callable[[], T], repeat: int) -> tuple[float, T]:
    """Call a function `repeat` times. Return the shortest time in microseconds, and the result of the last call."""
    least = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        out = call()
        least = min(least, time.perf_counter() - began)
    return 1e6 * least, out
