"""The size and the speed of weight diffs: each pair of versions beside XOR, byte shuffle and zstd-1, and a memcpy.

    python benchmarks/diffs.py FOLDER            (or RL4SYS_DIFFS=FOLDER)
    python benchmarks/diffs.py                   (trains for a few seconds, and takes its own pairs)
    python benchmarks/diffs.py --grid            (what a grid costs: trains LunarLander-v3 for a minute or two)

A folder has ``*.npz`` files with ``versions`` [3, n] float32 (v-1, v, v+1), and ``sizes`` and ``names`` of the tensors. The
task is v -> v+1 with v-1 known to both sides. Ratios are raw bytes in the wire's own dtype over the bytes of the diff, its
header included. Every diff is applied and compared before it counts. Times are the least of several, for the whole update:
header, hashes, coder; of applying also the check of the new state's digest. Rounding to bf16 is not in them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.diffs import POLICY, measure_diffs, snapshot
from bench.ppo_versions import Floats, own_pairs, train
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.values import PolicySnapshot, TensorSpec
from rl4sys_zmq.weights import EncodingOptions, WireDtype, choose_steps, encode_update, round_to

NOISES = (0.5, 1.0, 2.0, 2.3, 4.0)


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("RL4SYS_DIFFS"))
    parser.add_argument("--grid", action="store_true", help="answer the question of the grid instead")
    parser.add_argument("--iterations", type=int, default=40, help="of PPO, with --grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=9, help="how often each time is taken")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    if options.grid:
        rows = grid(options.iterations, options.seed)
    else:
        pairs = from_folder(Path(options.folder)) if options.folder else own_pairs(options.seed)
        rows = [row for name, versions, _ in pairs for row in measure_diffs(name, versions, options.repeat, print)]
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**machine_record(), "rows": rows}, indent=2) + "\n")


def from_folder(folder: Path) -> Iterator[tuple[str, Floats, tuple[int, ...]]]:
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as data:
            yield file.stem, data["versions"], tuple(int(size) for size in data["sizes"])


def grid(iterations: int, seed: int) -> list[dict[str, Any]]:
    """Bytes of a grid's diffs for several step sizes and of bf16's, and what they do to the policy beside what an update does."""
    versions, _, sizes, observations = train("LunarLander-v3", 256, iterations, seed)
    versions = versions[len(versions) // 2 :]
    moved = np.mean([kl(a, b, sizes, observations) for a, b in itertools.pairwise(versions)])
    print(f"{sum(sizes)} parameters, {len(versions)} versions; an update moves the policy by a mean KL of {moved:.2e}")
    rows = []
    for dtype, noise in [(WireDtype.BF16, 0.0), *((WireDtype.GRID, noise) for noise in NOISES)]:
        writing = EncodingOptions(dtype, tensors=tuple(TensorSpec(str(n), (size,)) for n, size in enumerate(sizes)))
        steps: tuple[int, ...] = ()
        last: Floats | None = None
        states: list[PolicySnapshot] = []
        nbytes, harm = [], []
        for version, flat in enumerate(versions):
            if dtype is WireDtype.GRID:
                steps = choose_steps(flat, last, steps, sizes, noise=noise)
            last = flat
            states.append(snapshot(round_to(dtype, flat, steps, sizes), version))
            if version >= 3:  # the first steps are chosen without an update
                header, payload = encode_update(POLICY, states[-2], states[-1], writing, before=states[-3])
                nbytes.append(len(header) + len(payload))
                harm.append(kl(flat, states[-1].flat, sizes, observations))
        mean, share = np.mean(nbytes), np.mean(harm) / moved
        name = f"step about {noise:>3} updates" if noise else "bf16"
        print(f"  {name}: {mean:,.0f} bytes, 1/{4 * sum(sizes) / mean:.1f} of float32; KL to float32 {share:.5f} of an update's")
        rows.append({"dtype": dtype.name.lower(), "noise": noise, "bytes": float(mean), "kl_share": float(share)})
    return rows


def kl(one: Floats, other: Floats, sizes: tuple[int, ...], observations: Floats) -> float:
    """The mean divergence of the second policy from the first."""
    p, q = log_probabilities(one, sizes, observations), log_probabilities(other, sizes, observations)
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))


def log_probabilities(flat: Floats, sizes: tuple[int, ...], observations: Floats) -> NDArray[np.float64]:
    """Of all actions under the policy of `train`, whose tensors are weights and biases in turn; tanh between them."""
    tensors = np.split(flat.astype(np.float64), np.cumsum(sizes)[:-1])
    h: NDArray[np.float64] = observations.astype(np.float64)
    for layer, (weight, bias) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        h = (np.tanh(h) if layer else h) @ weight.reshape(bias.size, -1).T + bias
    h -= h.max(axis=1, keepdims=True)
    h -= np.log(np.exp(h).sum(axis=1, keepdims=True))
    return h


if __name__ == "__main__":
    main()
