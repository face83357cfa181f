"""How small weight diffs are, and how fast: each pair of versions beside XOR, byte shuffle and zstd-1, and a memcpy.

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
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from train import machine

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import (
    HEADER_BYTES,
    WeightsHeader,
    WireDtype,
    Writing,
    apply_update,
    choose_steps,
    digest,
    encode_update,
    round_to,
)

Floats = NDArray[np.float32]
POLICY = b"diffs..."
NOISES = (0.5, 1.0, 2.0, 2.3, 4.0)
OBSERVATIONS = 4096
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
"""For fp32 and bf16, from the study that the design goes back to."""


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
        rows = [row for name, versions, sizes in pairs for row in measure(name, versions, sizes, options.repeat)]
    if options.json is not None:
        result = {"command": " ".join(["python", *sys.argv]), **machine(), "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def from_folder(folder: Path) -> Iterator[tuple[str, Floats, tuple[int, ...]]]:
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as data:
            yield file.stem, data["versions"], tuple(int(size) for size in data["sizes"])


def own_pairs(seed: int) -> Iterator[tuple[str, Floats, tuple[int, ...]]]:
    iterations, steps, sizes, _ = train("CartPole-v1", 64, 4, seed)
    yield "cartpole_64_ppo_iteration (own)", np.stack(iterations[-3:]), sizes
    yield "cartpole_64_adam_step (own)", np.stack(steps[-3:]), sizes


def measure(name: str, versions: Floats, sizes: tuple[int, ...], repeat: int) -> list[dict[str, Any]]:
    """The rows of one pair; prints them."""
    rows: list[dict[str, Any]] = []
    for dtype in (WireDtype.FP32, WireDtype.BF16):
        states = [snapshot(round_to(dtype, flat), version) for version, flat in enumerate(versions)]
        v0, v1, v2 = states
        density = float(np.mean(v1.flat.view(np.uint32) != v2.flat.view(np.uint32)))
        raw = dtype.itemsize * v1.flat.size
        copy_us = timed(v1.flat.copy, 5 * repeat)[0]
        round_us = timed(functools.partial(round_to, dtype, versions[2]), repeat)[0]
        digest_us = timed(functools.partial(digest, v2.flat), repeat)[0]
        for level in (1, 2):
            writing = Writing(dtype, level)
            encode = functools.partial(encode_update, POLICY, v1, v2, writing, before=v0)
            encode_us, (header, payload) = timed(encode, repeat)
            apply = functools.partial(apply_update, header, payload, v1, [v1.flat.size], before=v0)
            apply_us, got = timed(apply, repeat)
            if got.flat.tobytes() != v2.flat.tobytes():
                raise SystemExit(f"{name}: {dtype.name} at level {level} is not exact")
            head = WeightsHeader.unpack(header)
            row = {
                "pair": name,
                "parameters": v1.flat.size,
                "dtype": dtype.name.lower(),
                "level": level,
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
            }
            if not rows:
                print(
                    f"\n{name}: {v1.flat.size} parameters, a memcpy takes {copy_us:.0f} us, a digest {row['digest_copies']} of it"
                )
            print(
                f"  {row['dtype']} level {level}: {row['ratio']:>6} (goal {row['goal']}, baseline {row['baseline']})"
                f"  density {density:.1%}  {row['codec']:<9} encode {row['encode_us']} us ({row['encode_copies']} copies),"
                f" apply {row['apply_us']} us ({row['apply_copies']})",
                flush=True,
            )
            rows.append(row)
    return rows


def snapshot(flat: Floats, version: int) -> PolicySnapshot:
    return PolicySnapshot(1, version, digest(flat), flat)


def baseline(base: Floats, new: Floats, dtype: WireDtype) -> int:
    """The bytes of XOR, byte shuffle and zstd-1, with a header of the same size."""
    mixed = base.view(np.uint32) ^ new.view(np.uint32)
    words = mixed if dtype is WireDtype.FP32 else (mixed >> 16).astype(np.uint16)
    planes = np.ascontiguousarray(words.view(np.uint8).reshape(-1, dtype.itemsize).T)
    return HEADER_BYTES + len(zstandard.ZstdCompressor(level=1).compress(planes.tobytes()))


def timed(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The least time of several, in microseconds, and what came out."""
    least = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        out = call()
        least = min(least, time.perf_counter() - began)
    return 1e6 * least, out


def grid(iterations: int, seed: int) -> list[dict[str, Any]]:
    """Bytes of a grid's diffs for several step sizes, and what they do to the policy beside what an update does."""
    versions, _, sizes, observations = train("LunarLander-v3", 256, iterations, seed)
    versions = versions[len(versions) // 2 :]
    moved = np.mean([kl(a, b, sizes, observations) for a, b in itertools.pairwise(versions)])
    print(f"{sum(sizes)} parameters, {len(versions)} versions; an update moves the policy by a mean KL of {moved:.2e}")
    rows = []
    for noise in NOISES:
        for level in (1, 2):
            writing = Writing(WireDtype.GRID, level, sizes)
            steps: tuple[int, ...] = ()
            last: Floats | None = None
            states: list[PolicySnapshot] = []
            nbytes, harm = [], []
            for version, flat in enumerate(versions):
                steps = choose_steps(flat, last, steps, sizes, noise=noise)
                last = flat
                states.append(snapshot(round_to(WireDtype.GRID, flat, steps, sizes), version))
                if version >= 3:  # the first steps are chosen without an update
                    header, payload = encode_update(POLICY, states[-2], states[-1], writing, before=states[-3])
                    nbytes.append(len(header) + len(payload))
                    harm.append(kl(flat, states[-1].flat, sizes, observations))
            ratio, share = 4 * sum(sizes) / np.mean(nbytes), np.mean(harm) / moved
            print(
                f"  step about {noise:>5} updates, level {level}: ratio {ratio:6.2f}, KL(fp32 to grid) {share:.5f} of an update's"
            )
            rows.append({"noise": noise, "level": level, "ratio": round(float(ratio), 2), "kl_share": float(share)})
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


def train(
    env_id: str, hidden: int, iterations: int, seed: int, *, num_envs: int = 8, length: int = 256
) -> tuple[list[Floats], list[Floats], tuple[int, ...], Floats]:
    """A plain PPO: the policy after each iteration, after each of the last optimiser steps, its sizes, and observations."""
    import gymnasium
    import torch
    from torch import nn

    choices: Any = torch.distributions.Categorical

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    envs = gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")
    shape = envs.single_observation_space.shape
    assert shape is not None
    inputs, outputs = int(shape[0]), int(envs.single_action_space.n)  # type: ignore[attr-defined]

    def network(out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out))

    policy, critic = network(outputs), network(1)
    optimiser = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=3e-4, eps=1e-5)

    def flat() -> Floats:
        return np.concatenate([p.detach().numpy().ravel() for p in policy.parameters()])

    after, steps, seen = [flat()], list[Floats](), list[Floats]()
    now, _ = envs.reset(seed=seed)
    for _ in range(iterations):
        rows: dict[str, list[Any]] = {key: [] for key in ("obs", "act", "logp", "value", "reward", "ended")}
        for _ in range(length):
            obs = torch.as_tensor(now, dtype=torch.float32)
            with torch.no_grad():
                choice = choices(logits=policy(obs))
                act = choice.sample()
                value = critic(obs)[:, 0]
            now, reward, terminated, truncated, _ = envs.step(act.numpy())
            scaled = torch.as_tensor(0.1 * reward, dtype=torch.float32)
            ended = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            for key, item in zip(rows, (obs, act, choice.log_prob(act), value, scaled, ended), strict=True):
                rows[key].append(item)
        obs, act, logp, value, reward, ended = (torch.stack(rows[key]) for key in rows)
        advantage = torch.zeros_like(value)
        with torch.no_grad():
            following, running = critic(torch.as_tensor(now, dtype=torch.float32))[:, 0], torch.zeros(num_envs)
        for t in reversed(range(length)):
            delta = reward[t] + 0.99 * following * (1 - ended[t]) - value[t]
            advantage[t] = running = delta + 0.99 * 0.95 * running * (1 - ended[t])
            following = value[t]
        data = [x.reshape(-1, *x.shape[2:]) for x in (obs, act, logp, advantage, advantage + value)]
        seen.append(data[0].numpy())
        for _ in range(4):
            for index in torch.randperm(num_envs * length).view(-1, 256):
                o, a, old, gain, target = (x[index] for x in data)
                ratio = (choices(logits=policy(o)).log_prob(a) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = (
                    -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    + 0.5 * (critic(o)[:, 0] - target).square().mean()
                )
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], 0.5)
                optimiser.step()
                steps = [*steps[-2:], flat()]
        after.append(flat())
    every = np.concatenate(seen[len(seen) // 2 :])
    chosen = np.random.default_rng(seed).choice(len(every), min(OBSERVATIONS, len(every)), replace=False)
    return after, steps, tuple(p.numel() for p in policy.parameters()), every[chosen]


if __name__ == "__main__":
    main()
