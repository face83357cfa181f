"""Poisoned data: a segment that is out of bounds or makes an update not finite is quarantined, and CartPole is learned."""

from pathlib import Path
from typing import Any

import pytest
from kit import until

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.learner.run.deadletters import MAX_LETTERS, list_letters

from .conftest import PATIENCE_S, Child, Report, Spawn, Tier, check_law, check_learner_law

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytestmark = pytest.mark.timeout(1800)

TARGET = 475.0
QUICK_TARGET = 250.0
"""The target of the quick tier: a policy that is partly trained. It takes half the time."""

FLT_MAX = 3.4028234663852886e38
BEYOND = [
    *(
        f"{column} {value}"
        for column in ("observations", "rewards", "log_probs")
        for value in ("FLT_MAX", "-FLT_MAX", "1e30", "1e19")
    ),
    "log_probs -1e38",
    "log_probs 0.7",
    "return 1e30",
    "rewards late",
]
WITHIN = ["log_probs -99"]
"""Within all bounds. With a negative advantage, the probability ratio exceeds float32."""

LEGAL = ["observations subnormal", "rewards subnormal"]


class Run:
    """A learner and an actor that poisons its data."""

    def __init__(
        self, spawn: Spawn, folder: Path, seed: int, algorithm: str, kinds: list[str], share: float, target: float, **config: Any
    ) -> None:
        folder.mkdir()
        preset = ALGORITHMS.get(algorithm).presets["CartPole-v1"]
        self.run_dir = folder / "run"
        config = {"run_dir": str(self.run_dir), "pacing_lag": preset.pacing_lag, "seed": seed, **config}
        self.learner: Child = spawn("learner", {"bind": f"ipc://{folder}/l", "torch": True, "config": config})
        self.address = self.learner.hear()["address"]
        self.actor: Child = spawn(
            "poisoner",
            {
                "seed": seed,
                "kinds": kinds,
                "share": share,
                "target": target,
                "num_envs": preset.num_envs * preset.actors,
                "config": {
                    "client_id": "cart",
                    "algorithm_name": algorithm,
                    "algorithm_parameters": dict(preset.parameters),
                    "train_server_address": self.address,
                    "overflow": "wait",
                    "send_frequency": preset.num_envs,
                    "connect_timeout_s": 60.0,
                    "seed": seed,
                },
            },
        )
        self.actor.hear()

    def client(self) -> dict[str, Any]:
        found: dict[str, Any] = self.learner.ask("status")["clients"]["cart"]
        return found

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Deliver and train on everything, and end both processes."""
        played = self.actor.ask("finish", PATIENCE_S)
        assert played["errors"] == [], played["errors"]
        client = self.learner.ask("drain", PATIENCE_S)["clients"]["cart"]
        check_law(played["stats"])
        assert client["state"] == "running", client["error"]
        check_learner_law(client)
        assert client["rolled_back"] == 0
        refused = [name for name in played["stats"]["counters"] if name.startswith("weights_refused")]
        assert refused == [], "weights that are not finite were published"
        for child in (self.actor, self.learner):
            child.end()
        letters = list_letters(self.run_dir / "dead")  # the learner writes the last ones before its end
        assert len(letters) == min(client["verdicts"]["quarantined"], MAX_LETTERS), "each, until the oldest are removed"
        assert {(letter.client_id, bool(letter.reason)) for letter in letters} <= {("cart", True)}
        return played, client


def greedy_return(address: str, episodes: int, seed: int) -> float:
    """Return the mean return of episodes without exploration, with the newest version."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    total = 0.0
    config = AgentConfig(
        client_id="cart", train_server_address=address, explore=False, report_returns=False, swap="episode", seed=seed
    )
    with RL4SysAgent(config=config) as agent:
        for episode in range(episodes):
            observation, _ = env.reset(seed=seed + episode)
            traj: Any = None
            over = False
            while not over:
                traj, action = agent.request_for_action(traj, observation)
                observation, reward, terminated, truncated, _ = env.step(action.act)
                total, over = total + float(reward), terminated or truncated
            agent.mark_end_of_trajectory(traj, action)
    env.close()
    return total / episodes


def undone(client: dict[str, Any]) -> int:
    return int(client["alarms"].get("update_undone", {"count": 0})["count"])


def test_cartpole_is_learned_from_data_of_which_one_segment_in_twenty_is_spoilt(
    spawn: Spawn, tmp_path: Path, seed: int, tier: Tier, report: Report
) -> None:
    target = TARGET if tier.long else QUICK_TARGET
    groups = [[*BEYOND, *WITHIN, *LEGAL]] if not tier.long else [[kind] for kind in (*BEYOND, *WITHIN, *LEGAL)]
    for number, kinds in enumerate(groups):
        run = Run(spawn, tmp_path / str(number), seed, "PPO", kinds, 0.05, target)
        until(lambda run=run: run.actor.ask("status")["done"], f"a mean return of {target:g}", 10 * PATIENCE_S, every_s=0.2)  # type: ignore[misc]
        played, client = run.finish()
        within = sum(played["spoilt"].get(kind, 0) for kind in WITHIN)
        quarantined = client["verdicts"]["quarantined"]
        report(
            kinds=len(kinds),
            mean=round(played["mean"], 1),
            steps=played["steps"],
            segments=played["segments"],
            spoilt=sum(played["spoilt"].values()),
            beyond=played["beyond"],
            within=within,
            quarantined=quarantined,
            undone=undone(client),
        )
        assert played["reached"] and played["mean"] >= target
        assert played["beyond"] <= quarantined <= played["beyond"] + within, "what is beyond the bounds, and only that"
        assert undone(client) <= within
        assert played["stats"]["alarms"].get("segment_quarantined", 0) <= quarantined


def test_a_replay_with_poison_in_it_teaches_cartpole_too(
    spawn: Spawn, tmp_path: Path, seed: int, tier: Tier, report: Report
) -> None:
    """DQN reaches the target in the long tier only."""
    run = Run(spawn, tmp_path / "run", seed, "DQN", [*BEYOND, *LEGAL], 0.05, 1e9)
    mean = 0.0
    if tier.long:
        mean = until(lambda: (m := greedy_return(run.address, 20, seed)) >= TARGET and m, "475 without exploration", 900.0, 5.0)
    else:
        until(lambda: run.actor.ask("status")["steps"] > 1500, "training is under way", 120.0)
    played, client = run.finish()
    quarantined = client["verdicts"]["quarantined"]
    report(mean=mean, steps=played["steps"], segments=played["segments"], beyond=played["beyond"], quarantined=quarantined)
    assert quarantined == played["beyond"] > 0 == undone(client)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_one_poison_at_a_time_that_no_bound_stops(
    algorithm: str, spawn: Spawn, tmp_path: Path, seed: int, tier: Tier, report: Report
) -> None:
    """With bounds that permit FLT_MAX, the update itself detects the poison. It is undone, and training continues."""
    kinds = ["observations FLT_MAX", "rewards FLT_MAX", *(["observations 1e30", "rewards 1e30"] if tier.long else [])]
    bounds = {"max_magnitude": FLT_MAX, "max_reward": FLT_MAX}
    run = Run(spawn, tmp_path / "run", seed, algorithm, [], 0.0, 1e9, **bounds)  # the actor plays on after it has learned
    ready = 2000
    until(lambda: run.actor.ask("status")["steps"] > ready, "training is under way", 120.0, every_s=0.05)
    found = []
    for kind in kinds:
        before, updates = run.client()["verdicts"]["quarantined"], run.client()["updates"]
        run.actor.ask("one", kind)
        further = tier.size(5, 40) if algorithm == "PPO" else 400  # PPO trains on a segment soon or never
        until(
            lambda b=before, u=updates, f=further: (c := run.client())["verdicts"]["quarantined"] > b or c["updates"] > u + f,  # type: ignore[misc]
            f"{kind}: {further} more updates",
            120.0,
            every_s=0.05,
        )
        found.append(run.client()["verdicts"]["quarantined"] - before)
    after = run.client()["updates"]
    until(lambda: run.client()["updates"] > after + 5, "training goes on", 120.0, every_s=0.05)
    if tier.long and algorithm == "PPO":
        until(lambda: run.actor.ask("status")["mean"] >= TARGET, "a mean return of 475", 10 * PATIENCE_S, every_s=0.2)
    played, client = run.finish()
    quarantined = client["verdicts"]["quarantined"]
    report(algorithm=algorithm, poisons=len(kinds), quarantined=quarantined, undone=undone(client), mean=round(played["mean"], 1))
    assert quarantined == sum(found) <= len(kinds) and undone(client) <= len(kinds)
    assert quarantined >= 1, "a poison that makes an update not finite is found"
