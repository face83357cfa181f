"""The commands as a user runs them: processes, signals and exit codes."""

import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.cli.learner import main as learner
from rl4sys_zmq.errors import Closed, WorkerDied
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.local_actors import await_status

from .conftest import Spawn, act, invoke, output, serve


def status(address: str) -> dict[str, dict[str, object]]:
    text = output(invoke(learner, "status", address, "--json", "--timeout", "10"))
    return dict(json.loads(text)["clients"])


def until_running(address: str) -> dict[str, object]:
    """Return the status of the client luna, once its learner thread runs."""
    while (found := status(address)["luna"])["state"] != "running":
        assert found["state"] == "starting", found
    return found


def test_ctrl_c_says_what_was_saved_where(spawn: Spawn, tmp_path: Path) -> None:
    server, address = serve(spawn, "--inference", "auto")
    assert server.lines[0].startswith(f"learner at {address} (weights tcp://127.0.0.1:")
    assert ", inference tcp://127.0.0.1:" in server.lines[0] and len(server.lines[0]) <= 100
    short = act(spawn, address, "--episodes", "6", "--seed", "1", "--algorithm", "DQN")
    assert short.end() == 0, short.errors
    server.wait_for(r"\d luna: return ")
    assert server.signal(signal.SIGINT) == 130, server.errors
    said = server.lines[[line.startswith("SIGINT") for line in server.lines].index(True) :]
    assert said[0] == "SIGINT: the learner has ended; files in runs/learner"
    assert re.fullmatch(r"  luna: checkpoint [1-9]\d* with version \d+, [1-9][\d,]* steps, 6 episodes", said[1])
    assert said[2] == "  journal.db has the segments accepted since the checkpoints, if any; the same command continues"
    assert (tmp_path / "runs" / "learner" / "checkpoints" / "luna").is_dir()


def test_a_change_of_parameters_that_was_answered_survives_kill_9(spawn: Spawn, tmp_path: Path) -> None:
    server, address = serve(spawn)
    short = act(spawn, address, "--episodes", "2", "--seed", "1", "--algorithm", "PPO")
    assert short.end() == 0, short.errors
    said = output(invoke(learner, "client", address, "luna", "set", "learning_rate=1e-3", "ent_coef=null"))
    assert said.startswith("client luna: learning_rate 0.0003 -> 0.001\n")
    server.process.kill()
    server.process.wait()
    again, address = serve(spawn)
    again.wait_for("continues the run in this directory, with the clients: luna")
    parameters = until_running(address)["parameters"]
    assert isinstance(parameters, dict)
    assert (parameters["learning_rate"], parameters["ent_coef"], parameters["gamma"]) == (1e-3, None, 0.99)


def test_an_actor_plays_for_a_learner_that_status_sees_and_sigterm_ends(spawn: Spawn, tmp_path: Path) -> None:
    server, address = serve(spawn)
    short = act(spawn, address, "--episodes", "6", "--seed", "1", "--algorithm", "PPO", "--num-envs", "2")
    assert short.end() == 0, short.errors
    assert [line.partition(",")[0] for line in short.lines] == ["2 x CartPole-v1 for client 'luna' at " + address, "6 episodes"]
    luna = status(address)["luna"]
    assert luna["state"] == "running"
    assert int(str(luna["accepted"])) > 0
    assert "luna" in output(invoke(learner, "status", address))
    server.wait_for(r"\d luna: return ")
    endless = act(spawn, address, "--seed", "1")
    endless.wait_for("acting with version")
    assert endless.signal(signal.SIGTERM) == 0, endless.errors
    assert server.signal(signal.SIGTERM) == 0, server.errors
    events = map(json.loads, (tmp_path / "runs" / "learner" / "log.jsonl").read_text().splitlines())
    joined = {event["actor_id"] for event in events if event["event"] == "actor_joined"}
    assert len(joined) == 2, "an actor that reconnects joins again, under its own name"
    assert list((tmp_path / "runs" / "learner" / "tensorboard" / "luna").glob("events.out.tfevents.*"))


def test_ctrl_c_ends_a_learner_even_while_it_loads(spawn: Spawn) -> None:
    server, _ = serve(spawn)
    assert server.signal(signal.SIGINT) == 130
    assert server.errors == ""


def test_an_actor_that_waits_for_its_learner_is_ended_by_signals_and_by_its_parents_end(spawn: Spawn) -> None:
    waiting = ("--connect-timeout", "50")
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as gone:
        address = gone.address
    interrupted, orphan = act(spawn, address, *waiting), act(spawn, address, *waiting, "--exit-with-stdin")
    assert orphan.process.stdin is not None
    orphan.process.stdin.close()
    assert orphan.end() == 0, orphan.errors
    interrupted.wait_for_handlers()
    assert interrupted.signal(signal.SIGINT) == 130, interrupted.errors


def test_an_actor_says_which_learner_it_did_not_find(spawn: Spawn) -> None:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)) as gone:
        address = gone.address
    lost = act(spawn, address, "--connect-timeout", "0.1")
    assert lost.end() == 1
    assert lost.errors.count("\n") == 1
    assert address in lost.errors


def test_a_demo_reaches_an_easy_target_and_leaves_a_picture(spawn: Spawn, tmp_path: Path) -> None:
    shown = spawn("learner", "demo", "--target", "25", "--seed", "3", "--run-dir", "run")
    assert shown.end(100) == 0, shown.errors
    text = "\n".join(shown.lines)
    for expected in ("training CartPole-v1 with PPO", "target reached", "segments", "tensorboard --logdir run"):
        assert expected in text
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "tensorboard" / "CartPole-v1").glob("events.out.tfevents.*"))
    logs = [log.read_text() for log in (tmp_path / "run").glob("actor-*.log")]
    # Each actor has ended in an orderly way. One that was still starting when the target was reached has logged nothing.
    assert any(logs) and all("last version" in text for text in logs if text)


def test_a_demo_that_runs_out_of_time_says_so(spawn: Spawn) -> None:
    shown = spawn("learner", "demo", "--env", "Acrobot-v1", "--max-seconds", "0.3", "--actors", "1")
    assert shown.end(100) == 1, shown.errors
    assert "was not reached within 0.3 s" in shown.lines[-1]


def test_a_demo_without_a_known_target_says_when_it_ends_and_succeeds(spawn: Spawn) -> None:
    shown = spawn("learner", "demo", "--env", "Blackjack-v1", "--max-seconds", "0.3", "--actors", "1")
    assert shown.end(100) == 0, shown.errors
    assert "for 0.3 s, without a known target" in shown.lines[0]
    assert shown.lines[-1].endswith("Blackjack-v1 has no known target (--target sets one); the 0.3 s are over")


def test_a_demo_ends_with_everything_on_ctrl_c(spawn: Spawn) -> None:
    shown = spawn("learner", "demo", "--target", "501")
    shown.wait_for("CartPole-v1: return ")
    children = Path(f"/proc/{shown.process.pid}/task/{shown.process.pid}/children").read_text().split()
    assert len(children) == 2
    assert shown.signal(signal.SIGINT) == 130
    said = shown.lines[[line.startswith("SIGINT") for line in shown.lines].index(True) :]
    assert said[0].endswith("files in runs/demo-CartPole-v1-ppo-1")
    assert said[-1].endswith("rl4sys-learner plot runs/demo-CartPole-v1-ppo-1 draws the curve so far")
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_death_of_the_gateway_is_not_survived() -> None:
    with Learner(LearnerConfig(bind="inproc://dying", run_dir=None)) as dying:
        gateway: Any = dying._running
        gateway.core.turn = lambda: 1 // 0
        with contextlib.suppress(Closed):  # the gateway may die before it runs this call
            gateway.call(lambda: None).result(10)
        assert gateway.join(10)
        with pytest.raises(WorkerDied):
            await_status(dying)
