"""SERL's two programs on Pendulum: ``python serl_loop.py '{"role": "actor", "address": ..., "example": ...}'``.

The loops have the shape of SERL's `async_sac_state_sim.py`: one process for the learner and one for the actor, transitions as
dicts with ``masks`` and ``dones``, a nested dict as the network, a replay iterator, the custom request ``send-stats`` with its
callback, and no ``try`` around the client's calls. The agent is the SAC of `examples/async_learner_actor.py`. Both write a JSON
line for each report, and end when their stdin closes.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np

from rl4sys_zmq.serving import QueuedDataStore, ReplayBufferDataStore, TrainerClient, TrainerConfig, TrainerServer

MAX_STEPS = 1_000_000
RANDOM_STEPS = TRAINING_STARTS = 300
STEPS_PER_UPDATE, LOG_PERIOD, EVAL_PERIOD, EVAL_EPISODES = 10, 50, 500, 10
BATCH_SIZE, PUBLISH_PERIOD, REPORT_PERIOD = 64, 10, 250
CONTROL_S = 0.004
"""The time that a step of the plant takes. A simulator without it would run far ahead of a learner on the same machine."""

options = json.loads(sys.argv[1])
stop = threading.Event()
spec = importlib.util.spec_from_file_location("async_learner_actor", options["example"])
assert spec is not None and spec.loader is not None
sac = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sac)


def report(**figures: Any) -> None:
    print(json.dumps([figures]), flush=True)


def make_trainer_config() -> TrainerConfig:
    return TrainerConfig(port_number=options["address"], broadcast_port=options["address"] + "-pub", request_types=["send-stats"])


class Plant(gym.Wrapper[Any, Any, Any, Any]):
    """Pendulum with an observation ``{"state": ...}``, in real time."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.observation_space = gym.spaces.Dict({"state": self.env.observation_space})

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return {"state": observation}, info

    def step(self, action: Any) -> Any:
        time.sleep(CONTROL_S)
        observation, *rest = self.env.step(action)
        return {"state": observation}, *rest


def evaluate(params: Any) -> float:
    return float(sac.evaluate(params["modules_actor"], gym.make("Pendulum-v1"), seed=1, episodes=EVAL_EPISODES))


def actor() -> None:
    env, data_store, rng = Plant(), QueuedDataStore(50_000), np.random.default_rng(options["seed"])
    client = TrainerClient("actor_env", options["address"], make_trainer_config(), data_store, wait_for_server=True)
    params: Any = None
    networks = 0

    def update_params(new: Any) -> None:
        nonlocal params, networks
        params = new["params"]
        networks += 1

    client.recv_network_callback(update_params)
    obs, _ = env.reset(seed=options["seed"])
    failed = 0
    for step in range(MAX_STEPS):
        held = params
        if step < RANDOM_STEPS or held is None:
            actions = env.action_space.sample()
        else:
            actions = sac.act(held["modules_actor"], obs["state"], rng)

        next_obs, reward, done, truncated, _ = env.step(actions)
        reward = np.asarray(reward, dtype=np.float32)
        data_store.insert(
            {
                "observations": obs,
                "actions": actions,
                "next_observations": next_obs,
                "rewards": reward,
                "masks": 1.0 - done,
                "dones": done or truncated,
            }
        )
        obs = next_obs
        if done or truncated:
            obs, _ = env.reset()

        if step % STEPS_PER_UPDATE == 0:
            client.update()

        if step % EVAL_PERIOD == 0 and held is not None:
            stats = {"eval": {"return": evaluate(held)}}
            client.request("send-stats", stats)
            report(step=step, evaluated=stats["eval"]["return"])

        if step % LOG_PERIOD == 0:
            answer = client.request("send-stats", {"timer": {"step": step}})
            failed += answer is None
            report(step=step, networks=networks, failed=failed, held=len(data_store))
        if stop.is_set():
            break
    client.stop()


def learner() -> None:
    env = Plant()
    settings = sac.Settings()
    agent = sac.Sac(env.observation_space["state"], env.action_space, settings, options["seed"])  # type: ignore[index]
    replay_buffer = ReplayBufferDataStore(env.observation_space, env.action_space, capacity=100_000)
    replay_iterator = replay_buffer.get_iterator(sample_args={"batch_size": BATCH_SIZE}, device=None)
    update_steps = 0

    def params() -> dict[str, Any]:
        return {"params": {"modules_actor": agent.parameters_for_acting(), "modules_temperature": {"updates": update_steps}}}

    def stats_callback(type: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert type == "send-stats", f"Invalid request type: {type}"
        if payload.get("timer", {"step": 1})["step"] % REPORT_PERIOD == 0:
            report(**payload, replay=len(replay_buffer), updates=update_steps)
        return {}  # the client does not use the response

    server = TrainerServer(make_trainer_config(), request_callback=stats_callback)
    server.register_data_store("actor_env", replay_buffer)
    server.start(threaded=True)
    while len(replay_buffer) < TRAINING_STARTS and not stop.wait(0.05):
        pass
    server.publish_network(params())
    for _ in range(MAX_STEPS):
        if stop.is_set():
            break
        batch = next(replay_iterator)
        flat = {key: batch[key]["state"] for key in ("observations", "next_observations")}
        agent.update({**batch, **flat, "terminated": batch["masks"] == 0})
        update_steps += 1
        if update_steps % PUBLISH_PERIOD == 0:
            server.publish_network(params())
    server.stop()


def end_with_stdin() -> None:
    sys.stdin.read()
    stop.set()


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    {"actor": actor, "learner": learner}[options["role"]]()


if __name__ == "__main__":
    main()
