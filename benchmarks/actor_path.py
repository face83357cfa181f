"""Compare what the environment did with what DQN received: the path that ``dqn_twin.py`` leaves out.

    python benchmarks/actor_path.py                       # 25,000 steps of dqn-lunarlander: four minutes
    python benchmarks/actor_path.py --case dqn-cartpole --steps 5000

A learner trains a case of DQN of ``benchmarks/learning.py`` with one actor process over tcp. In the actor, the environment writes
each step to a file. In the learner, the algorithm keeps each segment. The script compares the two, transition by transition, and
prints one line of JSON: the numbers of transitions that differ, of ended episodes, of units of training beside those that are
due, and of steps by the age of their version. From the probabilities that the actor sent, it also computes epsilon beside the
schedule, and the share of actions other than the greedy one beside the share that epsilon makes likely.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bench.learning_cases import CASES
from rl4sys_zmq.algorithms import ALGORITHMS, register_algorithm
from rl4sys_zmq.algorithms.offpolicy.dqn import DQN
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.values import Segment

ENV = "actor_path:Noted-v0"
"""The environment that notes its steps. Gymnasium imports this file for it, in the actor."""
INNER, NOTES = "ACTOR_PATH_ENV", "ACTOR_PATH_NOTES"
"""The variables with the environment in it and with the file of its notes."""
CLIENT = "path"
LIMIT_S = 60.0
"""Longest time from one policy version to the next."""


class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that writes each reset and step to a file, one line of JSON each."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(gymnasium.make(os.environ[INNER], **arguments))
        self._notes = open(os.environ[NOTES], "a", buffering=1)  # noqa: SIM115 - `close` closes it

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset, and note the observation."""
        observation, info = self.env.reset(**arguments)
        self._note(observation=observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do a step, and note it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._note(observation=observation, action=int(action), reward=float(reward), terminated=terminated, truncated=truncated)
        return observation, reward, terminated, truncated, info

    def _note(self, observation: Any, **step: Any) -> None:
        self._notes.write(json.dumps({"observation": np.asarray(observation, np.float32).tolist(), **step}) + "\n")

    def close(self) -> None:
        """Close the environment and the file."""
        super().close()
        self._notes.close()


gymnasium.register("Noted-v0", entry_point=Noted)


class NotedDQN(DQN):
    """DQN that keeps its segments and counts its units of training. There is one."""

    segments: list[Segment] = []
    units = 0

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Keep the segment, and observe it."""
        self.segments.append(segment)
        super().observe(segment, correct=correct)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do a unit of training, and count it."""
        metrics = super().update(partial=partial)
        NotedDQN.units += metrics is not None
        return metrics


def train(values: Mapping[str, Any], env: str, steps: int, seed: int, folder: Path) -> tuple[list[dict[str, Any]], Any]:
    """Train for at least `steps` steps. Return what the environment noted, and the steps by the age of their version."""
    register_algorithm("NOTED-DQN", NotedDQN)
    client = ClientConfig(algorithm_name="NOTED-DQN", algorithm_parameters=dict(values), pacing_lag=0)
    config = LearnerConfig(
        bind="tcp://127.0.0.1:0", run_dir=folder / "run", clients={CLIENT: client}, seed=seed, torch_threads=1,
        checkpoint_every_s=3600.0,
    )  # fmt: skip
    notes = folder / "notes"
    variables = {INNER: env, NOTES: str(notes), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with Learner(config) as learner:
        command = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--env", ENV, "--learner", learner.address]
        command += ["--client-id", CLIENT, "--num-envs", "1", "--seed", str(seed), "--exit-with-stdin"]
        actor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **variables})
        try:
            status: dict[str, Any] = {"steps": 0, "version": -1}
            while status["steps"] < steps:
                learner.wait(client_id=CLIENT, version=status["version"] + 1, timeout_s=LIMIT_S)
                status = learner.status()["clients"][CLIENT]
        finally:
            actor.terminate()
            actor.wait(10)
        lags = learner.status()["clients"][CLIENT]["policy_lags"]
    return [json.loads(line) for line in notes.read_text().splitlines()], lags


def different(notes: list[dict[str, Any]], segments: list[Segment]) -> int:
    """Count the steps of segments that are not those of the environment, in the same order."""
    wrong, place = 0, 0
    current: list[float] = []
    for segment in segments:
        for at, (action, reward) in enumerate(zip(segment.actions, segment.rewards, strict=True)):
            if "action" not in notes[place]:  # a reset
                current, place = notes[place]["observation"], place + 1
            note, last = notes[place], at == len(segment.actions) - 1
            ours = (segment.observations[at].tolist(), int(action), float(reward))
            ends = (last and segment.terminated, last and segment.truncated)
            wrong += ours != (current, note["action"], float(np.float32(note["reward"]))) or ends != (
                note["terminated"],
                note["truncated"] and not note["terminated"],
            )
            current, place = note["observation"], place + 1
        if not segment.terminated:
            wrong += segment.observations[-1].tolist() != current
    return wrong


def main() -> None:
    """Trains, compares, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[n for n, c in CASES.items() if c.peer == "DQN"], default="dqn-lunarlander")
    parser.add_argument("--steps", type=int, default=25_000)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    case = CASES[options.case]
    values = case.values or {}
    with tempfile.TemporaryDirectory() as folder:
        notes, lags = train(values, case.env, options.steps, options.seed, Path(folder))
    segments = NotedDQN.segments
    steps = sum(len(segment.actions) for segment in segments)
    read: Any = ALGORITHMS.get("DQN").read({key: value for key, value in values.items() if key != "publish_every_updates"})
    every, starts, low = read.train_frequency, read.learning_starts, read.epsilon_min
    found = {
        "transitions": steps,
        "different": different(notes, segments),
        "terminated": sum(segment.terminated for segment in segments),
        "truncated": sum(segment.truncated for segment in segments),
        "units": NotedDQN.units,
        "units_due": steps // every - starts // every,
        "steps_by_version_age": lags,
    }
    probabilities = np.exp(np.concatenate([segment.log_probs for segment in segments]).astype(np.float64))
    schedule = np.maximum(low, 1 - (1 - low) * np.arange(steps) / (read.exploration_fraction * read.total_steps))
    choices = int(gymnasium.make(case.env).action_space.n)  # type: ignore[attr-defined]
    other = probabilities < 1 / choices
    epsilon = np.where(other, probabilities * choices, (1 - probabilities) * choices / (choices - 1))
    acted = np.concatenate([segment.versions for segment in segments]) > 0  # version 0 acts before the first unit
    late = acted & (schedule == low)
    found |= {
        "largest_epsilon_difference": round(float(np.abs(epsilon - schedule)[acted].max()), 4),
        "other_actions": round(float(other[late].mean()), 4) if late.any() else None,  # None: too few steps
        "other_actions_expected": round(low * (choices - 1) / choices, 4),
    }
    print(json.dumps({"case": options.case, "seed": options.seed, **found}))


if __name__ == "__main__":
    main()
