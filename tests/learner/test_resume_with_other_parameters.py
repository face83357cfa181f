"""A client that resumes from its checkpoint with parameters that were changed while it did not run."""

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import assignment, random_segment

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

torch: Any = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from rl4sys_zmq.algorithms import make_algorithm  # noqa: E402
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore  # noqa: E402
from rl4sys_zmq.learner.training.checkpointing import TrainingCheckpoints  # noqa: E402
from rl4sys_zmq.learner.training.publishing import PolicyPublisher  # noqa: E402

OBS = BoxSpace((3,))
DISCRETE, BOX = DiscreteSpace(2), BoxSpace((1,), low=-1.0, high=1.0)
OFF = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 16}


def needs(name: str) -> None:
    library = {"sb3": "sb3_contrib", "torchrl": "torchrl"}.get(name.partition(":")[0])
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def trained(name: str, actions: Any, parameters: dict[str, Any], *, steps: int = 16, episodes: int = 8) -> Any:
    """Return an algorithm after an update or more."""
    needs(name)
    algorithm = make_algorithm(name, OBS, actions, parameters, 3)
    for episode in range(episodes):
        algorithm.observe(random_segment(steps, episode, spaces=(OBS, actions)))
        while algorithm.update() is not None:
            pass
    return algorithm


def resumed(name: str, actions: Any, old: Any, parameters: dict[str, Any]) -> Any:
    """Return an algorithm with these parameters and the state of another one."""
    algorithm: Any = make_algorithm(name, OBS, actions, parameters, 3)
    algorithm.load(old.state())
    return algorithm


def checkpoints(folder: Path, name: str, actions: Any, algorithm: Any) -> TrainingCheckpoints:
    """Return the checkpoints of a client with this algorithm, in this folder."""
    assign = assignment(name, actions, checkpoints=str(folder), checkpoint_every_s=0.0)
    publisher = PolicyPublisher(assign, algorithm.spec(), lambda *_: None)
    return TrainingCheckpoints(assign, algorithm, publisher, CheckpointStore(folder), threading.Event())


CHANGES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "DQN": (DISCRETE, OFF, {"epsilon": 0.7, "epsilon_min": 0.3}),
    "TD3": (BOX, OFF, {"exploration_noise": 0.03}),
    "BANDIT": (DISCRETE, {"steps_per_update": 16}, {"scale": 0.5}),
    "sb3:TD3": (BOX, OFF, {"exploration_noise": 0.03}),
    "torchrl:TD3BC": (BOX, OFF, {"exploration_noise": 0.03}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_is_loaded_with_another_exploration(name: str, tmp_path: Path) -> None:
    actions, given, changed = CHANGES[name]
    old = trained(name, actions, given)
    writes = checkpoints(tmp_path, name, actions, old)
    written = writes.save(1, asked=True)
    assert written is not None and written.number == 1, written
    new: Any = make_algorithm(name, OBS, actions, {**given, **changed}, 3)
    assert checkpoints(tmp_path, name, actions, new).load()
    before, after = old.snapshot(), new.snapshot()
    assert {key for key in before if not np.array_equal(before[key], after[key])} <= {"epsilon", "noise_std", "scale"}


def test_a_checkpoint_that_gives_other_weights_is_refused(tmp_path: Path) -> None:
    algorithm = trained("DQN", DISCRETE, OFF)
    checkpoints(tmp_path, "DQN", DISCRETE, algorithm).save(1, asked=True)
    other: Any = make_algorithm("DQN", OBS, DISCRETE, OFF, 3)
    load = other.load

    def load_wrong(state: Any) -> None:
        load(state)
        other._networks["online"].flat[0] += 1.0

    other.load = load_wrong
    with pytest.raises(CheckpointError, match="gives other weights than were saved"):
        checkpoints(tmp_path, "DQN", DISCRETE, other).load()


@pytest.mark.parametrize(
    ("name", "before", "after", "demand"),
    [
        ("PPO", {"steps_per_update": 64}, {"steps_per_update": 16}, 8),
        ("PPO", {"steps_per_update": 64}, {"traj_per_epoch": 15}, 16),
        ("sb3:PPO", {"n_steps": 64, "batch_size": 16}, {"n_steps": 16, "batch_size": 16}, 8),
    ],
    ids=["steps", "trajectories", "sb3"],
)
def test_a_smaller_batch_asks_for_at_least_half_of_its_steps(
    name: str, before: dict[str, Any], after: dict[str, Any], demand: int
) -> None:
    """The last batch had 32 steps too many. Without a demand for steps, the actors would wait forever."""
    old = trained(name, DISCRETE, {"hidden_sizes": [8], **before}, steps=48, episodes=2)
    assert old.demand() == 32
    new = resumed(name, DISCRETE, old, {"hidden_sizes": [8], **after})
    assert new.demand() == demand


@pytest.mark.parametrize("actions", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_a_temperature_that_is_not_learned_is_that_of_the_new_parameters(actions: Any) -> None:
    old = trained("SAC", actions, {**OFF, "learn_temperature": False, "temperature": 0.2})
    new = resumed("SAC", actions, old, {**OFF, "learn_temperature": False, "temperature": 0.01})
    assert new._policy.flat[new._temperature].exp().item() == pytest.approx(0.01)


def test_an_entropy_weight_of_sb3_that_is_not_learned_is_that_of_the_new_parameters() -> None:
    old = trained("sb3:SAC", BOX, {**OFF, "ent_coef": 0.2})
    new = resumed("sb3:SAC", BOX, old, {**OFF, "ent_coef": 0.01})
    assert new._model.ent_coef_tensor.item() == pytest.approx(0.01)


@pytest.mark.parametrize(("before", "after", "weight"), [("auto", 0.01, 0.01), (0.2, "auto_0.5", 0.5)], ids=["fixed", "learned"])
def test_an_entropy_weight_of_sb3_can_be_learned_before_or_after(before: Any, after: Any, weight: float) -> None:
    old = trained("sb3:SAC", BOX, {**OFF, "ent_coef": before})
    new = resumed("sb3:SAC", BOX, old, {**OFF, "ent_coef": after})
    model = new._model
    found = model.ent_coef_tensor if model.log_ent_coef is None else model.log_ent_coef.exp()
    assert found.item() == pytest.approx(weight)
    assert all(np.array_equal(one, new.snapshot()[name]) for name, one in old.snapshot().items())
    new._train_unit()


def test_an_optimizer_of_sb3_keeps_the_options_of_the_new_parameters() -> None:
    given = {"hidden_sizes": [8], "n_steps": 16}
    old = trained("sb3:A2C", DISCRETE, given)
    new = resumed("sb3:A2C", DISCRETE, old, {**given, "rms_prop_eps": 0.5})
    (group,) = new._model.policy.optimizer.param_groups
    assert group["eps"] == 0.5 and new._model.policy.optimizer.state


@pytest.mark.parametrize("changed", [{"train_frequency": 500}, {"learning_starts": 1000}], ids=["frequency", "start"])
@pytest.mark.parametrize(("name", "actions"), [("torchrl:CQL", DISCRETE), ("torchrl:TD3BC", BOX)])
def test_a_trained_policy_of_torchrl_does_not_act_at_random_again(name: str, actions: Any, changed: dict[str, Any]) -> None:
    """With another pace no update may be due at the observed steps, so the count of updates can be 0 again."""
    old = trained(name, actions, OFF)
    new = resumed(name, actions, old, {**OFF, **changed})
    assert new._pace.units == 0
    assert new.snapshot()["epsilon"] == old.snapshot()["epsilon"] < 1.0


def test_the_discount_of_torchrl_is_that_of_the_new_parameters() -> None:
    old = trained("torchrl:REDQ", BOX, {**OFF, "gamma": 0.9})
    new = resumed("torchrl:REDQ", BOX, old, {**OFF, "gamma": 0.5})
    assert dict(new._loss.named_buffers())["_value_estimator.gamma"].item() == pytest.approx(0.5)


@pytest.mark.parametrize("before", [True, False], ids=["from RMSProp", "from Adam"])
def test_another_optimizer_of_sb3_starts_without_the_state_of_the_old_one(before: bool) -> None:
    given = {"hidden_sizes": [8], "n_steps": 16}
    old = trained("sb3:A2C", DISCRETE, {**given, "use_rms_prop": before})
    new = resumed("sb3:A2C", DISCRETE, old, {**given, "use_rms_prop": not before})
    assert all(np.array_equal(one, new.snapshot()[name]) for name, one in old.snapshot().items())
    assert not new._model.policy.optimizer.state
    again = trained("sb3:A2C", DISCRETE, {**given, "use_rms_prop": not before})
    again.load(new.state())
    assert not again._model.policy.optimizer.state
    same = resumed("sb3:A2C", DISCRETE, old, {**given, "use_rms_prop": before})
    assert same._model.policy.optimizer.state
