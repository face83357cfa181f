"""Operators' commands on the files of a learner that is not running."""

from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.journal import ClientRow
from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.gateway.admission import resolve_configuration
from rl4sys_zmq.learner.gateway.offline import command_on_directory
from rl4sys_zmq.learner.run.resume import BEST, JOURNAL, open_journal
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire.messages import Hello, OperatorCommand


def a_run(run_dir: Path, algorithm: str, actions: BoxSpace | DiscreteSpace) -> Path:
    """Return a run directory whose journal has the client ``lab``."""
    spaces: dict[str, Any] = {"observation_space": space_to_json(BoxSpace((4,))), "action_space": space_to_json(actions)}
    hello = Hello("lab", "a1", 0, 0, 0, 0, algorithm_name=algorithm, **spaces)
    settings = resolve_configuration(LearnerConfig(engine="process"), hello)
    journal, _ = open_journal(LearnerConfig(run_dir=run_dir), lambda: None)
    journal.put_client(ClientRow("lab", 1, settings.to_json(), 0, 0, 0))
    journal.stop()
    journal.join()
    assert (run_dir / JOURNAL).exists()
    return run_dir


@pytest.mark.parametrize("algorithm", ["sb3:SAC", "torchrl:REDQ", "DQN"])
def test_a_parameter_changes_whatever_engine_the_algorithm_needs(algorithm: str, tmp_path: Path) -> None:
    actions = DiscreteSpace(2) if algorithm == "DQN" else BoxSpace((1,), low=-1.0, high=1.0)
    run_dir = a_run(tmp_path / "run", algorithm, actions)
    done = command_on_directory(run_dir, OperatorCommand("set", "lab", "", {"learning_rate": 0.5}))
    assert done.figures["changes"]["learning_rate"][1] == 0.5


def test_the_best_policy_of_a_forgotten_client_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = a_run(tmp_path / "run", "DQN", DiscreteSpace(2))
    policy = run_dir / BEST / "lab" / "policy"
    policy.mkdir(parents=True)
    (policy / "spec.json").write_text("{}")

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(RunDirectoryError, match="policy cannot be renamed: Permission denied; the client is not forgotten"):
            command_on_directory(run_dir, OperatorCommand("forget", "lab", "", {}))
    command_on_directory(run_dir, OperatorCommand("forget", "lab", "", {}))
    (aside,) = policy.parent.iterdir()
    assert aside.name.startswith("policy.abandoned-") and (aside / "spec.json").exists()
