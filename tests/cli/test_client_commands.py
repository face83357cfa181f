"""``rl4sys-learner client``: the commands of operators for a client, of a running learner and of a run directory."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from kit import PATIENCE_S, open_agent, until, write_keys
from kit import play as play_episode

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.wire.messages import OperatorCommand

from . import conftest
from .conftest import invoke, output

register_algorithm("HOARDS", FakeAlgorithm.factory(steps_per_update=4, rollout_length=16))
"""Four episodes of one step make an update, and the others wait. No change of the generation cuts an episode of one step."""


@pytest.fixture(params=["tcp", "ipc"])
def bind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/l"


def start(stack: ExitStack, run_dir: Path | None, bind: str = "tcp://127.0.0.1:0", **options: Any) -> Learner:
    given = {"checkpoint_every_s": 0.05, "lease_s": 30.0, **options}
    return stack.enter_context(Learner(LearnerConfig(bind=bind, run_dir=run_dir, **given)))


def join(stack: ExitStack, learner: Learner, **options: Any) -> RL4SysAgent:
    given = {"actor_id": "a1", "algorithm_name": "HOARDS", "linger_ms": 0, "seed": 1, **options}
    return stack.enter_context(open_agent(learner, **given))


def play(agent: RL4SysAgent, episodes: int, steps: int = 1) -> None:
    for _ in range(episodes):
        play_episode(agent, steps)
    agent.flush(PATIENCE_S)


def client_of(learner: Learner, **wanted: Any) -> dict[str, Any]:
    """Return the client's status, once it runs, has resumed and has the `wanted` values. Check the conservation law."""

    def ready() -> dict[str, Any] | None:
        client: dict[str, Any] = learner.status()["clients"].get("lab", {})
        runs = client.get("state") == "running" and not client["resuming"]
        return client if runs and all(client[key] == value for key, value in wanted.items()) else None

    client = until(ready, lambda: (learner.status()["clients"], wanted))
    v = client["verdicts"]
    assert client["accepted"] == v["trained"] + v["stale"] + v["quarantined"] + client["pending"] + client["rolled_back"], client
    return client


def eleven(stack: ExitStack, learner: Learner, **options: Any) -> RL4SysAgent:
    """Return an actor that has sent eleven segments. Eight are trained and in a checkpoint, three are pending."""
    agent = join(stack, learner, **options)
    play(agent, 11)
    client_of(learner, accepted=11, pending=3)
    learner.save(timeout_s=PATIENCE_S)
    return agent


def run(*arguments: object) -> Result:
    return invoke(main, "client", *arguments)


def done(*arguments: object) -> dict[str, Any]:
    """Run a command that succeeds, and return its JSON output."""
    return dict(json.loads(output(run(*arguments, "--json"))))


def refused(*arguments: object, code: int = 2) -> str:
    """Run a command that is refused, and return its one line on stderr."""
    return conftest.refused(run(*arguments), code)


def test_a_client_is_restarted(stack: ExitStack, tmp_path: Path, bind: str) -> None:
    learner = start(stack, tmp_path / "run", bind)
    agent = eleven(stack, learner)
    before = client_of(learner)
    figures = done(learner.address, "lab", "restart")
    assert (figures["fed_again"], figures["rolled_back"], figures["version"]) == (3, 0, 2)
    assert figures["generation"] > before["generation"] and figures["checkpoint"] > 0
    play(agent, 5)
    client = client_of(learner, pending=0)
    assert (client["accepted"], client["verdicts"]["trained"], client["rolled_back"]) == (16, 16, 0)


def test_what_is_pending_is_given_up(stack: ExitStack, tmp_path: Path, bind: str, caplog: pytest.LogCaptureFixture) -> None:
    learner = start(stack, tmp_path / "run", bind)
    agent = eleven(stack, learner)
    assert done(learner.address, "lab", "give-up-pending")["rolled_back"] == 3
    client = client_of(learner, accepted=11, pending=0, rolled_back=3)
    assert "client lab: 3 acknowledged segments are rolled back, as an operator asked" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert client["verdicts"]["trained"] == 8
    play(agent, 4)
    assert client_of(learner, accepted=15, pending=0)["rolled_back"] == 3
    learner.drain(timeout_s=PATIENCE_S)


def test_more_than_one_transaction_of_entries_is_given_up(stack: ExitStack, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("rl4sys_zmq.delivery.journal_rows.TRIM_ROWS", 2)
    learner = start(stack, tmp_path / "run", checkpoint_every_s=1e6)
    agent = join(stack, learner)
    for _ in range(11):
        play(agent, 1)
    client_of(learner, accepted=11, pending=3)
    assert done(learner.address, "lab", "give-up-pending")["rolled_back"] == 11, "there is no checkpoint"
    assert client_of(learner, pending=0)["verdicts"]["trained"] == 0


def test_a_client_is_forgotten_and_founded_anew(stack: ExitStack, tmp_path: Path, bind: str) -> None:
    learner = start(stack, tmp_path / "run", bind)
    agent = eleven(stack, learner)
    number = client_of(learner)["checkpoint"]["number"]
    figures = done(learner.address, "lab", "forget")
    assert figures.items() >= {"accepted": 11, "pending": 3, "actors": 1}.items() and figures["checkpoints"] >= 1
    assert learner.status()["counters"]["segments_forgotten"] == 3
    folder = tmp_path / "run" / "checkpoints" / "lab"
    assert (folder / f"{number:08d}.abandoned").is_dir() and not (folder / f"{number:08d}").exists()
    client = client_of(learner, accepted=11)  # the actor joined again, and reported its acknowledged segments
    assert (client["gap"], client["rolled_back"], client["version"], client["restarts"]) == (11, 11, 0, 0)
    play(agent, 4)
    assert client_of(learner, accepted=15, pending=0)["verdicts"]["trained"] == 4
    assert agent.stats()["accepted"] == 15
    learner.close()  # its log is complete
    (forgotten,) = of_run(tmp_path / "run", "client_forgotten")
    assert forgotten.items() >= {"client_id": "lab", **figures}.items()
    assert len(of_run(tmp_path / "run", "client_started")) == 2, "the client was created again"


@pytest.mark.parametrize("live", [True, False])
def test_an_actor_that_is_dropped_goes_on_where_it_was(stack: ExitStack, tmp_path: Path, bind: str, live: bool) -> None:
    learner = start(stack, tmp_path / "run", bind)
    tomorrow = time.time_ns() + 86_400 * 10**9
    with pytest.MonkeyPatch.context() as clock:
        if not live:
            clock.setattr("rl4sys_zmq.actor.components.time.time_ns", lambda: tomorrow)
        agent = eleven(stack, learner)
    if not live:
        agent.close()
    assert done(learner.address, "lab", "drop-actor", "a1") == {"streams": 1, "live": int(live), "pending": 3}
    if not live:
        assert client_of(learner)["actors"] == {}
        agent = join(stack, learner)
    play(agent, 5)
    client = client_of(learner, accepted=16, pending=0)
    assert (client["verdicts"]["trained"], client["rolled_back"], client["gap"]) == (16, 0, 0)
    assert agent.stats()["in_doubt"] == 0 and agent.stats()["accepted"] == (16 if live else 5)


def test_commands_say_what_they_did(stack: ExitStack, tmp_path: Path) -> None:
    learner = start(stack, tmp_path / "run")
    eleven(stack, learner)
    for arguments, said in (
        (("drop-actor", "a1"), "actor a1 of client lab is dropped; it was live and can join again"),
        (("restart",), "client lab was restarted from checkpoint"),
        (("give-up-pending",), "3 are rolled back"),
        (("forget",), "0 of its 11 accepted segments were pending"),
    ):
        text = output(run(learner.address, "lab", *arguments))
        assert said in text and text.count("\n") == 2


def test_a_journal_in_memory_knows_the_commands_too(stack: ExitStack) -> None:
    learner = start(stack, None)
    agent = join(stack, learner)
    play(agent, 11)
    client_of(learner, accepted=11, pending=3)
    assert done(learner.address, "lab", "drop-actor", "a1")["pending"] == 3
    assert done(learner.address, "lab", "restart")["rolled_back"] == 3
    client_of(learner, accepted=11, pending=0, rolled_back=3)
    play(agent, 3)
    assert done(learner.address, "lab", "forget")["pending"] == 3
    play(agent, 1)
    client_of(learner, pending=1)


def test_who_is_not_known_is_told_who_is(stack: ExitStack, tmp_path: Path) -> None:
    learner = start(stack, tmp_path / "run")
    join(stack, learner)
    assert "no client 'lob'; known names: lab" in refused(learner.address, "lob", "forget")
    assert "no actor 'a2'; known names: a1" in refused(learner.address, "lab", "drop-actor", "a2")
    with pytest.raises(ConfigError, match="no client 'lob'"):
        learner.forget("lob")
    with pytest.raises(ConfigError, match="no actor 'a2'"):
        learner.drop_actor("lab", "a2")
    with pytest.raises(ConfigError, match="no command 'drop'; known names: drop-actor, forget"):
        gateway = learner._running
        gateway.call(lambda: gateway.core.operator.do(OperatorCommand("drop", "lab", "a1"))).result(PATIENCE_S).result(PATIENCE_S)


def test_wrong_usage_is_one_line(tmp_path: Path) -> None:
    assert "ID" in refused("127.0.0.1:1")
    assert "frobnicate" in refused("127.0.0.1:1", "lab", "frobnicate")
    assert "ACTOR_ID" in refused("127.0.0.1:1", "lab", "drop-actor")
    assert "nonsense" in refused("nonsense", "lab", "forget")
    assert "a: the value is nested too deeply" in refused("127.0.0.1:1", "lab", "set", "a=" + "[" * 100_000)
    assert "which continues if it was received" in refused("127.0.0.1:1", "lab", "forget", "--timeout", "0.2", code=1)


def test_commands_are_for_admins(stack: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    write_keys(folder, {"worker": ["submit", "read_weights"], "operator": ["admin"]}, ["lab"])
    output(invoke(main, "keys", folder, "--user", "stranger", "--role", "admin", "--client-id", "other"))
    learner = start(stack, tmp_path / "run", keys=folder)
    play(join(stack, learner, keys=folder / "worker.keys"), 3)
    address = learner.address
    assert "not have the role admin" in refused(address, "lab", "forget", "--keys", folder / "worker.keys", code=1)
    assert "for client 'lab'" in refused(address, "lab", "forget", "--keys", folder / "stranger.keys", code=1)
    assert "give --keys" in refused(address, "lab", "forget", code=1)
    assert done(address, "lab", "forget", "--keys", folder / "operator.keys")["accepted"] == 3


def test_a_learner_that_anybody_reaches_takes_no_commands(stack: ExitStack, tmp_path: Path) -> None:
    learner = start(stack, tmp_path / "run", "tcp://0.0.0.0:0", insecure=True)
    port = learner.address.rpartition(":")[2]
    assert "commands need keys" in refused(f"127.0.0.1:{port}", "lab", "forget", code=1)


RATE = {"learning_rate": 3e-4}


def learning(stack: ExitStack, learner: Learner, **options: Any) -> RL4SysAgent:
    """Return an actor of a PPO client with a learning rate, whose updates take eight steps."""
    given = {**RATE, "steps_per_update": 8, "minibatch_size": 8, "hidden_sizes": [4]}
    return join(stack, learner, algorithm_name="PPO", algorithm_parameters=given, **options)


def rate_of(learner: Learner, **wanted: Any) -> tuple[float, float]:
    """Return the learning rate in force, and the one of the last update."""
    client = client_of(learner, **wanted)
    return client["parameters"]["learning_rate"], client["scalars"]["charts/learning_rate"]


def of_run(run_dir: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in read_log(run_dir) if record["event"] == event]


def test_a_parameter_changes_in_a_running_client_and_stays_so(stack: ExitStack, tmp_path: Path, bind: str) -> None:
    learner = start(stack, tmp_path / "run", bind)
    agent = learning(stack, learner)
    play(agent, 8)
    assert rate_of(learner, updates=1) == (3e-4, 3e-4)
    said = output(run(learner.address, "lab", "set", "lr=1e-3", "ent_coef=0", "anneal_lr=false"))
    assert said.splitlines() == [
        "client lab: learning_rate 0.0003 -> 0.001, ent_coef null -> 0.0",
        "in force from the next update on, and after a restart",
    ]
    play(agent, 8)
    assert rate_of(learner, updates=2) == (1e-3, 1e-3)
    assert learner.set_parameters("lab", {"learning_rate": 1e-3}) == {}
    assert "these values already" in run(learner.address, "lab", "set", "learning_rate=0.001").stdout
    done(learner.address, "lab", "restart")
    client_of(learner, updates=2)
    play(agent, 8)
    assert rate_of(learner, updates=3) == (1e-3, 1e-3)
    agent.close()
    learner.close()

    again = start(stack, tmp_path / "run", bind)
    play(learning(stack, again), 8)  # the actor has the value with which the client was created
    assert rate_of(again, updates=4) == (1e-3, 1e-3)
    assert client_of(again)["parameters"]["ent_coef"] == 0.0
    assert again.start_notes == ()
    again.close()
    (changed,) = of_run(tmp_path / "run", "parameters_changed")
    assert changed.items() >= {"client_id": "lab", "by": "operator"}.items()
    assert changed["changes"] == {"learning_rate": [3e-4, 1e-3], "ent_coef": [None, 0.0]}


def test_an_actor_with_another_value_is_refused_after_a_change_too(stack: ExitStack, tmp_path: Path) -> None:
    learner = start(stack, tmp_path / "run")
    play(learning(stack, learner), 8)
    learner.set_parameters("lab", {"learning_rate": 1e-3})
    play(join(stack, learner, actor_id="a2", algorithm_name="PPO", algorithm_parameters={"lr": 1e-3}), 1)
    with pytest.raises(HandshakeRefused, match=r"learning_rate of client 'lab' is 0.001 on the learner, but the actor has 0.5"):
        join(stack, learner, actor_id="a3", algorithm_name="PPO", algorithm_parameters={"learning_rate": 0.5})


def test_what_cannot_change_is_named(stack: ExitStack, tmp_path: Path) -> None:
    learner = start(stack, tmp_path / "run")
    play(learning(stack, learner), 8)
    address = learner.address
    fixed = refused(address, "lab", "set", "hidden_sizes=[8]", "learning_rate=0.1", "seed=3")
    assert "hidden_sizes, seed: cannot change in a running client of PPO; parameters that can: anneal_ahead," in fixed
    assert "learning_rate: expected a number from 0 to 10, not 'fast'" in refused(address, "lab", "set", "learning_rate=fast")
    assert "did you mean 'learning_rate'?" in refused(address, "lab", "set", "learning_rat=1")
    assert "anneal_lr: a schedule needs a length; set total_steps" in refused(address, "lab", "set", "anneal_lr=true")
    assert "'gamma' is not of the form NAME=VALUE" in refused(address, "lab", "set", "gamma")
    assert "gamma is given twice" in refused(address, "lab", "set", "gamma=1", "gamma=0.5")
    assert "NAME=VALUE" in refused(address, "lab", "set")
    assert "no client 'lob'" in refused(address, "lob", "set", "gamma=1")
    assert rate_of(learner, updates=1) == (3e-4, 3e-4)
    join(stack, learner, client_id="hoards")
    assert "cannot change in a running client of HOARDS; parameters that can: none" in refused(address, "hoards", "set", "x=1")


def test_a_new_value_in_the_learners_file_is_said_and_recorded(stack: ExitStack, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def restarted(algorithms: dict[str, Any], **entry: Any) -> Learner:
        stack.close()
        clients = {"lab": ClientConfig(algorithm_parameters=entry)} if entry else {}
        learner = start(stack, run_dir, clients=clients, algorithms=algorithms)
        play(learning(stack, learner), 8)
        return learner

    assert rate_of(restarted({}), updates=1) == (3e-4, 3e-4)
    learner = restarted({}, lr=1e-3)
    assert learner.start_notes == ("client lab: learning_rate 0.0003 -> 0.001 (the learner's file)",)
    assert rate_of(learner, updates=2) == (1e-3, 1e-3)
    learner.set_parameters("lab", {"learning_rate": 2e-3})
    learner = restarted({}, lr=1e-3)  # the file is as before, so the operator's value is newer
    assert learner.start_notes[0].startswith("client lab keeps learning_rate 0.002 (the learner's file has 0.001); ")
    assert rate_of(learner, updates=3) == (2e-3, 2e-3)
    assert rate_of(restarted({}, lr=5e-3), updates=4) == (5e-3, 5e-3)
    learner = restarted({"PPO": {"gamma": 0.5, "lr": 0.1}}, lr=5e-3)
    (kept,) = learner.start_notes  # the section applies to new clients, and the client's entry comes first
    assert kept.startswith("client lab keeps gamma 0.99 (the learner's file has 0.5); ")
    assert rate_of(learner, updates=5) == (5e-3, 5e-3)
    with pytest.raises(ConfigError, match=r"hidden_sizes \[4\] -> \[8\] of client 'lab' makes another policy.*another name"):
        restarted({}, hidden_sizes=[8])
    with pytest.raises(ConfigError, match=r"client 'lab': .*gamma: expected a number"):
        restarted({}, gamma="much")
    assert rate_of(restarted({}), updates=6) == (5e-3, 5e-3)
    stack.close()
    changes = [(event["by"], event["changes"]) for event in of_run(run_dir, "parameters_changed")]
    assert changes == [
        ("file", {"learning_rate": [3e-4, 1e-3]}),
        ("operator", {"learning_rate": [1e-3, 2e-3]}),
        ("file", {"learning_rate": [2e-3, 5e-3]}),
    ]


def test_a_parameter_changes_in_a_directory(stack: ExitStack, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    learner = start(stack, run_dir)
    play(learning(stack, learner), 8)
    client_of(learner, updates=1)
    stack.close()
    assert done(run_dir, "lab", "set", "learning_rate=1e-3") == {"changes": {"learning_rate": [3e-4, 1e-3]}}
    assert "cannot change" in refused(run_dir, "lab", "set", "activation=relu")
    learner = start(stack, run_dir)
    play(learning(stack, learner), 8)
    assert rate_of(learner, updates=2) == (1e-3, 1e-3)


def a_run(tmp_path: Path) -> Path:
    """Return a run directory whose learner has ended. Of eleven segments three are pending."""
    with ExitStack() as stack:
        learner = start(stack, tmp_path / "run")
        eleven(stack, learner).close()
    return tmp_path / "run"


def test_what_is_pending_in_a_directory_is_given_up(stack: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = a_run(tmp_path)
    assert done(run_dir, "lab", "give-up-pending")["given_up"] == 3
    client = client_of(start(stack, run_dir))
    assert "client lab: 3 acknowledged segments are rolled back, as an operator asked" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert (client["accepted"], client["rolled_back"], client["pending"], client["verdicts"]["trained"]) == (11, 3, 0, 8)


def test_a_client_in_a_directory_is_forgotten(stack: ExitStack, tmp_path: Path) -> None:
    run_dir = a_run(tmp_path)
    figures = done(run_dir, "lab", "forget")
    assert figures.items() >= {"accepted": 11, "pending": 3, "actors": 1}.items() and figures["checkpoints"] >= 1
    last = json.loads((run_dir / "log.jsonl").read_text().splitlines()[-1])
    assert last.items() >= {"event": "client_forgotten", "client_id": "lab", "pending": 3}.items()
    learner = start(stack, run_dir)
    assert learner.resumed_clients == ()
    play(join(stack, learner), 4)
    client = client_of(learner, pending=0, version=1)
    assert (client["accepted"], client["gap"]) == (4, 0)


def test_an_actor_in_a_directory_is_dropped(stack: ExitStack, tmp_path: Path) -> None:
    run_dir = a_run(tmp_path)
    assert done(run_dir, "lab", "drop-actor", "a1") == {"streams": 1, "pending": 3}
    learner = start(stack, run_dir)
    assert client_of(learner, pending=3)["actors"] == {}
    play(join(stack, learner), 1)
    client = client_of(learner, pending=0)
    assert (client["accepted"], client["verdicts"]["trained"], client["rolled_back"]) == (12, 12, 0)


def test_a_directory_takes_no_nonsense(stack: ExitStack, tmp_path: Path) -> None:
    run_dir = a_run(tmp_path)
    assert "no client 'lob'; known names: lab" in refused(run_dir, "lob", "forget")
    assert "no actor 'a2'; known names: a1" in refused(run_dir, "lab", "drop-actor", "a2")
    assert "start a learner on this directory instead" in refused(run_dir, "lab", "restart")
    (tmp_path / "empty").mkdir()
    assert "is not a run directory" in refused(tmp_path / "empty", "lab", "forget")
    assert list((tmp_path / "empty").iterdir()) == []
    learner = start(stack, run_dir)
    assert "give the learner's address instead" in refused(run_dir, "lab", "forget")
    client_of(learner, accepted=11)
