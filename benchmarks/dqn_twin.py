"""DQN beside Stable-Baselines3 with the same random numbers: does anything else differ?

    python benchmarks/dqn_twin.py --steps 50000 --seed 1
    python benchmarks/dqn_twin.py --case dqn-lunarlander --steps 100000

Stable-Baselines3 (the extra ``sb3``) trains in this process with the values of a case of DQN in ``benchmarks/learning.py``. Our
DQN starts from the same weights, gets the same transitions at the same moments, and draws the same rows. After each unit of
training the script compares the weights of both networks, and for the transitions of the unit the greedy actions of our numpy
policy with theirs. So a difference in when a unit is due, in how many gradient steps it has, in the target network, the replay,
the loss, the gradient or the optimizer ends the equality. What it cannot compare: an actor keeps the epsilon of its version,
while Stable-Baselines3 lowers it at each step. The script prints the largest difference from the first unit on.

Neither side limits the norm of the gradient, unless ``--limit`` is given: we sum the squares of all parameters at once, and they
those of each layer first, so the scaled gradients differ in their last bits, and after thousands of steps so do the networks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from bench.learning_cases import CASES
from rl4sys_zmq.algorithms import make_algorithm
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.values import PolicySnapshot, Segment, observation_space_from, space_from

TWINS = [name for name, case in CASES.items() if case.peer == "DQN"]
"""The cases of Stable-Baselines3's DQN."""


class NotedRows(ReplayBuffer):
    """Their replay, which notes the rows that it draws."""

    rows: list[NDArray[np.int64]] = []

    def _get_samples(self, batch_inds: NDArray[np.int64], env: Any = None) -> Any:
        self.rows.append(batch_inds)
        return super()._get_samples(batch_inds, env)


class SameRows:
    """The random numbers of our replay: the rows that theirs has drawn."""

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """The next rows."""
        rows = NotedRows.rows.pop(0)
        assert low == 0 and len(rows) == size and rows.max() < high
        return rows.astype(np.int64)

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Nothing here draws such numbers."""
        raise AssertionError(size)


class Twin(DQN):
    """Their DQN, which trains ours beside it."""

    def begin(self, values: Mapping[str, Any]) -> None:
        """Builds our DQN from its values in the case, with their weights."""
        assert self.env is not None
        spaces = observation_space_from(self.observation_space), space_from(self.action_space)
        limit = self.max_grad_norm if np.isfinite(self.max_grad_norm) else None
        self.ours = cast(Any, make_algorithm("DQN", *spaces, {**values, "max_grad_norm": limit}, 0))
        self.ours._draws = SameRows()
        for network in (self.ours._online, self.ours._target):
            network.flat.copy_(flat(self.q_net))
        self.row = self.units = self.episode = self.disagreed = 0
        self.first_other: int | None = None
        self.worst = self.worst_epsilon = 0.0
        self.publish()

    def publish(self) -> None:
        """Makes our numpy policy from our weights."""
        spec = self.ours.spec()
        weights = spec.flatten(self.ours.snapshot())
        self.acting = build_policy(spec, PolicySnapshot(1, self.units, 0, *weights))
        self.epsilon = float(self.ours.snapshot()["epsilon"][0])

    def _on_step(self) -> None:
        super()._on_step()
        if self.units:
            self.worst_epsilon = max(self.worst_epsilon, abs(self.epsilon - self.exploration_rate))

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """One unit of both."""
        for segment in self.segments():
            self.ours.observe(segment)
        super().train(gradient_steps, batch_size)
        assert self.ours.update() is not None and self.ours.update() is None, f"our unit is not due at {self.num_timesteps}"
        assert not NotedRows.rows, f"we took {len(NotedRows.rows)} gradient steps fewer"
        self.units += 1
        difference = float((self.ours._online.flat - flat(self.q_net)).abs().max())
        if difference and self.first_other is None:
            self.first_other = self.num_timesteps
        self.worst = max(self.worst, difference)
        self.publish()

    def segments(self) -> list[Segment]:
        """The transitions since the last unit, as segments."""
        buffer = self.replay_buffer
        assert isinstance(buffer, ReplayBuffer)
        found, first, last = [], self.row, buffer.pos or buffer.buffer_size
        assert first < last, "a unit over the end of their replay, which is a ring"
        before = buffer.observations[first:last, 0]
        with torch.no_grad():
            theirs = self.q_net(torch.from_numpy(before)).argmax(1).numpy()
        greedy = self.acting.act_batch(before, None, RandomSource(0), False)[0]
        self.disagreed += int((np.asarray(greedy).ravel() != theirs).sum())
        for row in range(first, last):
            over = bool(buffer.dones[row, 0])
            if not over and row < last - 1:
                continue
            rows = slice(first, row + 1)
            terminated = over and not buffer.timeouts[row, 0]
            states = buffer.observations[rows, 0]
            steps = row + 1 - first
            found.append(
                Segment(
                    observations=states if terminated else np.concatenate([states, buffer.next_observations[row]]),
                    actions=buffer.actions[rows, 0, 0].astype(np.int64),
                    rewards=buffer.rewards[rows, 0].astype(np.float32),
                    log_probs=np.zeros(steps, np.float32),
                    versions=np.full(steps, self.units, np.uint64),
                    masks=None,
                    generation=1,
                    episode_id=row,
                    segment_index=0,
                    terminated=terminated,
                    truncated=over and not terminated,
                )
            )
            first = row + 1
        self.row = buffer.pos
        return found


def flat(network: torch.nn.Module) -> torch.Tensor:
    """All parameters of a network of theirs, in our order."""
    return torch.cat([parameter.detach().ravel() for parameter in network.parameters()])


def main() -> None:
    """Trains both, and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=TWINS, default="dqn-cartpole", help="default: dqn-cartpole")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="largest norm of the gradient, on both sides")
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.case]
    envs = make_vec_env(case.env, n_envs=1, seed=options.seed)
    values = {**case.peer_values, "replay_buffer_class": NotedRows, "max_grad_norm": options.limit}
    model = Twin("MlpPolicy", envs, seed=options.seed, device="cpu", **values)
    model.begin(case.values or {})
    model.learn(case.steps, callback=lambda names, _: names["self"].num_timesteps < options.steps)
    counts = {"steps": model.num_timesteps, "units": model.units, "gradient_steps": model._n_updates}
    weights = {"largest_weight_difference": model.worst, "first_difference_at_step": model.first_other}
    acting = {"largest_epsilon_difference": round(model.worst_epsilon, 4), "other_greedy_actions": model.disagreed}
    print(json.dumps({"case": options.case, "seed": options.seed, **counts, **weights, **acting}))


if __name__ == "__main__":
    main()
