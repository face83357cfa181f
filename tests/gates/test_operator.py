"""An operator's command that was confirmed survives kill -9 right after the reply, and the counters are then exact."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from kit import play, until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.ops.requests import request_command
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import OperatorCommand

from .conftest import PATIENCE_S, Child, Report, StartLearner, Tier, check_learner_law, join

SEGMENTS = 11
"""The number of segments, of two steps each.

Four make an update, so three are pending. No checkpoint is written in the first hour.
"""


def law(client: dict[str, Any]) -> bool:
    """Return True if the client runs and has resumed. Check its conservation law."""
    if client["state"] != "running" or client["resuming"]:
        return False
    check_learner_law(client)
    return True


def clients(process: Child) -> dict[str, Any]:
    found = until(lambda: ready(process.ask("status")["clients"]), "the clients to be fed")
    assert found is not None
    return found


def ready(found: dict[str, Any]) -> dict[str, Any] | None:
    return {"": {}, **found} if all(map(law, found.values())) else None


@pytest.mark.parametrize("command", ["restart", "give-up-pending", "forget", "drop-actor"])
def test_a_command_outlasts_kill_9(command: str, tier: Tier, tmp_path: Path, report: Report, learner: StartLearner) -> None:
    rounds = tier.size(1, 20)
    rolled_back = forgotten = fed_again = 0
    for number in range(rounds):
        config = {"run_dir": str(tmp_path / f"run{number}"), "checkpoint_every_s": 3600}
        process, address = learner(steps_per_update=8, rollout_length=16, config=config)
        with join(address, actor_id="a1") as agent:
            send(agent)
            until(lambda: clients(process)["lab"]["pending"] == 3, "three segments to be pending")  # noqa: B023
        done = request_command(address, OperatorCommand(command, "lab", "a1" if command == "drop-actor" else ""), PATIENCE_S)
        process.kill()
        process, address = learner(steps_per_update=8, rollout_length=16, config=config)
        after = clients(process)
        fed = 0
        if command == "forget":
            assert set(after) == {""}
            forgotten += done.figures["pending"]
        else:
            lab = after["lab"]
            assert lab["accepted"] == SEGMENTS
            assert lab["rolled_back"] == (SEGMENTS if command == "give-up-pending" else 0), (done, lab)
            assert ("a1" in lab["actors"]) == (command != "drop-actor")
            rolled_back += lab["rolled_back"]
            fed = lab["verdicts"]["trained"] + lab["pending"]
        with join(address, actor_id="a1") as agent:
            send(agent)
        lab = clients(process)["lab"]
        assert lab["accepted"] == SEGMENTS * (1 if command == "forget" else 2) and lab["gap"] == 0
        keys = until(lambda: all_of(process.ask("keys"), fed + SEGMENTS), "every segment to be observed")  # noqa: B023
        assert keys is not None
        assert keys["observed"] == keys["different"] == fed + SEGMENTS, "no segment is trained on twice"
        fed_again += fed
        process.end()
    report(command=command, kills=rounds, rolled_back=rolled_back, forgotten=forgotten, fed_again=fed_again)


def test_kill_9_in_the_middle_of_a_command(tier: Tier, seed: int, tmp_path: Path, report: Report, learner: StartLearner) -> None:
    """The command may be done, not done or done in part, and no reply reports it. The counters are exact in each case."""
    rng = random.Random(seed)
    rounds, was_done = tier.size(2, 60), 0
    for number in range(rounds):
        command = rng.choice(["restart", "give-up-pending", "forget", "drop-actor"])
        config = {"run_dir": str(tmp_path / f"run{number}"), "checkpoint_every_s": rng.choice([0.05, 3600])}
        process, address = learner(steps_per_update=8, rollout_length=16, config=config)
        with join(address, actor_id="a1") as agent:
            send(agent)
        clients(process)
        with Socket.dealer(address) as dealer:
            dealer.send(encode(OperatorCommand(command, "lab", "a1" if command == "drop-actor" else "")))
            threading.Event().wait(rng.expovariate(100.0))  # the time of the kill is random
            process.kill()
        process, address = learner(steps_per_update=8, rollout_length=16, config=config)
        lab = clients(process).get("lab")
        assert lab is None or lab["accepted"] == SEGMENTS
        assert lab is not None or command == "forget"
        was_done += lab is None or lab["rolled_back"] > 0 or "a1" not in lab["actors"]
        with join(address, actor_id="a1") as agent:
            send(agent)
        assert clients(process)["lab"]["accepted"] == SEGMENTS * (1 if lab is None else 2)
        process.end()
    report(kills=rounds, was_done=was_done)


def all_of(keys: dict[str, int], segments: int) -> dict[str, int] | None:
    """Return the counts of the algorithm when it has observed this many segments."""
    return keys if keys["observed"] >= segments else None


def send(agent: RL4SysAgent) -> None:
    for _ in range(SEGMENTS):
        play(agent, 2)
    agent.flush(PATIENCE_S)
