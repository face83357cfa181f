"""A PPO client and a DQN client on one learner. The DQN client is made to fail."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.errors import ClientFailed, Closed, LearnerUnavailable
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.values import Space

from .conftest import Lab

pytest.importorskip("torch")
gymnasium = pytest.importorskip("gymnasium")

VERSIONS = 12
PPO_PARAMETERS = {"steps_per_epoch": 512, "rollout_length": 32, "minibatch_size": 256, "update_epochs": 4, "lr": 1e-3, "seed": 3}
DQN_PARAMETERS = {"learning_starts": 200, "batch_size": 32, "rollout_length": 16, "seed": 4}


def raising_dqn(observation_space: Space, action_space: Space, parameters: Mapping[str, object], seed: int) -> Any:
    from rl4sys_zmq.algorithms.offpolicy.dqn import DQN

    class Raising(DQN):
        """A DQN that raises after 30 updates."""

        updates = 0

        def update(self, *, partial: bool = False) -> Any:
            metrics = super().update(partial=partial)
            self.updates += metrics is not None
            if self.updates >= 30:
                raise ZeroDivisionError("made to raise")
            return metrics

    return Raising(observation_space, action_space, parameters, seed)


def play(agent: RL4SysAgent, stop: threading.Event, seed: int) -> None:
    """Play CartPole in two environments, until `stop` is set or the agent's client has failed."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    trajs: Any = None
    try:
        while not stop.is_set():
            trajs, actions = agent.request_for_actions(trajs, obs)
            for i, (env, traj, action) in enumerate(zip(envs, trajs, actions, strict=True)):
                after, reward, terminated, truncated, _ = env.step(action.act)
                action.update_reward(reward)
                agent.add_to_trajectory(traj, action)
                if terminated or truncated:
                    cut = not terminated
                    agent.mark_end_of_trajectory(traj, action, truncated=cut, final_obs=after if cut else None)
                    after, _ = env.reset()
                obs[i] = after
    except (ClientFailed, Closed, LearnerUnavailable):
        pass
    finally:
        for env in envs:
            env.close()


def train(with_neighbour: bool) -> tuple[list[int], dict[str, Any]]:
    """Return the digests of the PPO client's first versions, and the learner's status at the end."""
    env = gymnasium.make("CartPole-v1")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    env.close()
    stop = threading.Event()
    clients = [("ppo", "PPO", PPO_PARAMETERS), *([("dqn", "RAISING_DQN", DQN_PARAMETERS)] if with_neighbour else [])]
    with ExitStack() as stack:
        lab = Lab(stack, lambda: "inproc://*")
        learner = lab.learner(pacing_lag=0, torch_threads=1, shutdown_timeout_s=20.0)
        threads = []
        for client_id, algorithm, parameters in clients:
            given = {"algorithm_name": algorithm, "algorithm_parameters": parameters, "overflow": "wait", **spaces}
            agent = lab.agent(learner, client_id, connect_timeout_s=60.0, seed=9, **given)
            threads.append(threading.Thread(target=play, args=(agent, stop, 100)))
        for thread in threads:
            thread.start()
        try:
            if with_neighbour:
                with pytest.raises(ClientFailed, match="made to raise"):
                    learner.wait(client_id="dqn", version=1_000_000, timeout_s=60.0)
            learner.wait(client_id="ppo", version=VERSIONS, timeout_s=60.0)
            digests = [learner.digest("ppo", version) for version in range(VERSIONS + 1)]
            status = learner.status()["clients"]
        finally:
            stop.set()
            for thread in threads:
                thread.join(30.0)
    return digests, status


def test_one_clients_crash_does_not_change_a_bit_of_the_others_curve() -> None:
    """With ``pacing_lag: 0`` and one actor a run is repeatable, so the two curves can be compared exactly."""
    register_algorithm("RAISING_DQN", raising_dqn)
    alone, _ = train(with_neighbour=False)
    beside, status = train(with_neighbour=True)
    assert status["dqn"]["state"] == "failed"
    assert status["ppo"]["state"] == "running"
    assert len(set(alone)) == VERSIONS + 1
    assert beside == alone
