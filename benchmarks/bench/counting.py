"""A learner process for benchmarks that does not train and only counts the steps that it receives.

Run as a program, this module is that process. It prints its address. Then, for each line on its input, it prints the number of
steps so far.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from bench.environment import environment
from rl4sys_zmq.layers.gru import GRU
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.head_parameters import HeadParameters, stochastic_head
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space

__all__ = ["ALGORITHM", "CountingLearner"]

ALGORITHM = "COUNT"
HIDDEN = (64, 64)
ROLLOUT = 128
DEMAND = 1 << 20
END_S = 10.0


class CountingAlgorithm(FakeAlgorithm):
    """An algorithm that only counts the received steps and never learns, to measure the system without training."""

    kind = "offpolicy"

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Count the steps of a received segment (consecutive steps of an episode)."""
        self.steps += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Return None, because this algorithm never updates."""
        return None

    def demand(self) -> int:
        """Return a large constant number of steps, so that actors never wait."""
        return DEMAND


class CountingLearner(Resource):
    """A running learner process that only counts steps.

    A client has an MLP policy, or a recurrent one if its algorithm parameters have the number of ``units``.

    Attributes:
        address: Address that actors connect to.
    """

    def __init__(self, bind: str = "tcp://127.0.0.1:*") -> None:
        command = [sys.executable, "-m", "bench.counting", bind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        self.address = self._hear()

    def steps(self) -> int:
        """Return the number of steps received so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._hear())

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the counting learner ended with exit code {self._process.wait(END_S)}")
        return line.strip()


def _serve(bind: str) -> None:
    made: list[CountingAlgorithm] = []

    def factory(
        observation_space: ObservationSpace, action_space: Space, options: Mapping[str, object], seed: int
    ) -> CountingAlgorithm:
        units = options.get("units")
        if isinstance(units, int):
            parameters = HeadParameters(head=stochastic_head(action_space))
            spec = layers_spec(observation_space, action_space, parameters, [GRU(units=units)])
        else:
            head = "categorical" if isinstance(action_space, DiscreteSpace) else "gaussian"
            spec = mlp_spec(observation_space, action_space, head, HIDDEN)
        made.append(CountingAlgorithm(spec, FakeParameters(rollout_length=ROLLOUT), seed))
        return made[-1]

    register_algorithm(ALGORITHM, factory)
    with Learner(LearnerConfig(bind=bind, run_dir=None)) as learner:
        sys.stdout.write(f"{learner.address}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(f"{sum(algorithm.steps for algorithm in made)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
