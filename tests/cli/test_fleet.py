"""``rl4sys-actor run --num-actors``: a fleet as a user runs it, and the options that it passes to its actors."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit import python, until

from rl4sys_zmq.cli.act import RunOptions
from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.fleet import FleetOptions, actor_command, fleet_config, shared_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.ops.playing import EpisodeCounts, play

from .conftest import RUN, Command, Spawn, act, invoke, refused, serve
from .test_play import Agent, Env

FLEET = FleetOptions(run=RUN, engine="process", num_actors=2, min_actors=None, max_actors=None, grace_s=1.0)


def options_of(command: list[str]) -> dict[str, str]:
    at = command.index("run") + 1
    words = [word for word in command[at:] if word not in ("--exit-with-stdin", "--json", "--sidecar", "--debug")]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_each_actor_has_its_own_name_spool_and_seed_and_each_start_its_own_seed() -> None:
    shared = replace(RUN, actor_id="pool", spool=Path("spools"))
    found = {at: options_of(actor_command(shared, *at)) for at in [(0, 0), (1, 0), (1, 1)]}
    assert [(o["--actor-id"], o["--spool"]) for o in found.values()] == [
        ("pool-0", "spools/actor-0"),
        ("pool-1", "spools/actor-1"),
        ("pool-1", "spools/actor-1"),
    ]
    assert len({o["--seed"] for o in found.values()}) == 3
    assert options_of(actor_command(shared, 1, 0)) == found[1, 0]
    assert "--seed" not in options_of(actor_command(replace(shared, seed=None), 0, 0))


def test_every_option_of_an_actor_reaches_it() -> None:
    run = replace(
        RUN,
        config_path=Path("luna.json"),
        episodes=3,
        algorithm="DQN",
        connect_timeout_s=2.5,
        keys=Path("a.keys"),
        sidecar=True,
        masks=False,
        debug=True,
        plugin=("one", "two"),
    )
    command = actor_command(replace(run, actor_id="pool", spool=None), 0, 0)
    seen = actor.commands["run"].make_context("run", command[command.index("run") + 1 : command.index("--plugin")]).params
    assert command[-4:] == ["--plugin", "one", "--plugin", "two"]
    assert seen["json"] and seen["exit_with_stdin"] and seen["sidecar"] and seen["debug"] and not seen["masks"]
    expected = {"config": Path("luna.json"), "episodes": 3, "algorithm": "DQN", "connect_timeout": 2.5, "keys": Path("a.keys")}
    assert {name: seen[name] for name in expected} == expected
    assert (seen["env"], seen["learner"], seen["client_id"], seen["num_envs"]) == ("CartPole-v1", "learner:50051", "luna", 4)
    assert all(seen[name] is None for name in ("num_actors", "min_actors", "max_actors")), "an actor is no fleet"


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"min_actors": 2, "num_actors": None}, "give both --min-actors and --max-actors"),
        ({"min_actors": 3, "max_actors": 5}, "--num-actors 2 is not between --min-actors 3 and --max-actors 5"),
        ({"min_actors": 5, "max_actors": 3, "num_actors": None}, "--num-actors 5 is not between"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fleet_config(replace(FLEET, **numbers))


def test_a_fleet_with_bounds_starts_with_the_lower_one_and_runs_no_number_of_episodes() -> None:
    bounds = replace(FLEET, num_actors=None, min_actors=3, max_actors=9)
    assert fleet_config(bounds).actors == 3
    for limit, run in (("episodes", replace(RUN, episodes=5)), ("steps", replace(RUN, steps=5))):
        with pytest.raises(ConfigError, match=f"--{limit} needs a fixed number of actors"):
            fleet_config(replace(bounds, run=run))


def test_what_actors_cannot_share_is_split_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "luna.json"

    def shared(resizes: bool = False, **given: Any) -> RunOptions:
        path.write_text(json.dumps(given))
        return shared_options(replace(RUN, config_path=path), resizes=resizes)

    assert shared(spool="s", actor_id="plant") == replace(RUN, config_path=path, actor_id="plant", spool=Path("s"))
    assert shared().actor_id != shared().actor_id
    with pytest.raises(ConfigError, match="policy_cache: the actors of a fleet cannot share a file"):
        shared(policy_cache="p")
    shared(overflow="drop_oldest")
    with pytest.raises(ConfigError, match="need actors that wait for the learner"):
        shared(resizes=True, overflow="drop_oldest")


def test_draining_actors_end_their_episodes() -> None:
    tally = EpisodeCounts()

    class DrainsAtTheThirdStep(Env):
        def step(self, action: int) -> Any:
            if self._at == 2:
                tally.drain()
            return super().step(action)

    agent = Agent()
    play(agent, [DrainsAtTheThirdStep("...x"), Env(".x")], [0, 1], tally)  # type: ignore[arg-type]
    assert [end[0] for end in agent.of("end")] == [1, 0, 1]
    assert tally.done


def test_the_fleet_imports_neither_torch_nor_gymnasium() -> None:
    python("-c", "import sys, rl4sys_zmq.cli.fleet; assert not {'torch', 'gymnasium'} & set(sys.modules)")


@pytest.fixture
def address(spawn: Spawn) -> str:
    return serve(spawn)[1]


def fleet(spawn: Spawn, address: str, *arguments: str) -> Command:
    return act(spawn, address, "--algorithm", "PPO", "--num-envs", "1", "--connect-timeout", "60", *arguments)


def children(command: Command) -> list[int]:
    pid = command.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def wait_for_status(command: Command, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = json.loads(command.wait_for(r"^\{.*\}$").group())
        if condition(status):
            return status


def test_a_killed_actor_is_replaced_and_ctrl_c_drains_all(spawn: Spawn, address: str, tmp_path: Path) -> None:
    command = fleet(spawn, address, "--num-actors", "2", "--json", "--spool", "spools", "--actor-id", "pool", "--grace", "30")
    wait_for_status(command, lambda status: status["joined"] == 2 and status["episodes"] > 2)
    victim = children(command)[0]
    os.kill(victim, signal.SIGKILL)
    status = wait_for_status(command, lambda status: status["restarts"] == 1 and status["joined"] == 2)
    assert status["size"] == 2 and status["steps"] > 0 and status["mean_return"] > 5
    assert "ended with exit code -9; it starts again in 0.5 s" in command.errors
    actors = children(command)
    assert len(actors) == 2 and victim not in actors
    assert command.signal(signal.SIGINT) == 130, command.errors
    assert all(ended(pid) for pid in actors)
    assert "draining 2 actors, at most 30 s" in command.errors
    assert sorted(path.name for path in (tmp_path / "spools").iterdir()) == ["actor-0", "actor-1"]
    from rl4sys_zmq.ops.requests import request_status

    luna = request_status(address, 30.0)["clients"]["luna"]
    assert sorted(luna["actors"]) == ["pool-0", "pool-1"]


def test_no_actor_outlives_a_fleet_that_was_killed(spawn: Spawn, address: str) -> None:
    command = fleet(spawn, address, "--num-actors", "2", "--json")
    wait_for_status(command, lambda status: status["joined"] == 2)
    actors = children(command)
    command.process.kill()
    until(lambda: all(ended(pid) for pid in actors))


def test_a_fleet_whose_actors_have_run_their_episodes_ends(spawn: Spawn, address: str) -> None:
    command = fleet(spawn, address, "--num-actors", "2", "--episodes", "3")
    assert command.end() == 0, command.errors
    last = command.lines[-1].partition(" ")[2]
    assert "2 done: " in last and "episodes, mean return" in last and "restarts 0" in last
    assert int(last.partition("done: ")[2].partition(" ")[0]) >= 6


def test_a_line_on_stdin_drains_the_fleet(spawn: Spawn, address: str) -> None:
    command = fleet(spawn, address, "--num-actors", "2", "--json", "--exit-with-stdin")
    wait_for_status(command, lambda status: status["joined"] == 2)
    assert command.process.stdin is not None
    command.process.stdin.write("drain\n")
    command.process.stdin.flush()
    assert command.end() == 0, command.errors
    assert "draining 2 actors" in command.errors


@pytest.mark.parametrize("word", [("--engine", "process"), ("--grace", "1")])
def test_an_option_of_fleets_without_a_fleet_is_refused(word: tuple[str, str]) -> None:
    line = refused(invoke(actor, "run", "--env", "CartPole-v1", "--client-id", "luna", *word))
    assert f"{word[0]} applies to a fleet: give --num-actors" in line


def test_a_fleet_that_cannot_begin_says_why() -> None:
    pytest.importorskip("gymnasium")
    result = invoke(actor, "run", "--env", "No-Such-v0", "--client-id", "luna", "--num-actors", "1")
    assert result.exit_code == 2 and "actor 0 cannot begin: rl4sys-actor: environment 'No-Such-v0'" in result.stderr
