"""Demonstrations in the replay of off-policy algorithms, and behaviour cloning."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit import assignment, segment_with
from numpy.typing import NDArray

from rl4sys_zmq.algorithms import ALGORITHMS, CloneOptions, CloningAlgorithm, DemonstrationAlgorithm
from rl4sys_zmq.algorithms.cloning import MARGIN, clone_policy, margin_loss
from rl4sys_zmq.algorithms.offpolicy import offpolicy
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.compute import Compute
from rl4sys_zmq.learner.training.demonstrating import TrainingDemonstrations, read_minari
from rl4sys_zmq.learner.training.validation import SegmentValueLimits
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment, Space
from rl4sys_zmq.weights import digest
from rl4sys_zmq.wire import SegmentSchema

OBS = BoxSpace((3,))
CHOICE, FORCE = DiscreteSpace(3, 1), BoxSpace((2,), low=-2.0, high=2.0)
SMALL: dict[str, Any] = {"hidden_sizes": [16], "batch_size": 16, "learning_starts": 20, "train_frequency": 4, "buffer_size": 64}
REPLAYED = [
    ("DQN", CHOICE, {}),
    ("DQN", CHOICE, {"prioritised": True}),
    ("SAC", FORCE, {}),
    ("SAC", CHOICE, {}),
    ("TD3", FORCE, {}),
]


def make(name: str, space: Space, seed: int = 0, **parameters: Any) -> Any:
    return ALGORITHMS.get(name).load()(OBS, space, parameters, seed)


def rule(space: Space, observations: NDArray[np.float32]) -> NDArray[Any]:
    """Return the demonstrator's actions: a function of the first two numbers of each observation."""
    if isinstance(space, DiscreteSpace):
        return np.searchsorted([-0.5, 0.5], observations[:, 0]) + space.start
    return np.asarray(np.tanh(observations[:, :2]), np.float32)


def segment(space: Space, steps: int, seed: int, *, reward: float = 0.0) -> Segment:
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(steps + 1, 3)).astype(np.float32)
    return segment_with(
        steps,
        "truncated",
        observations=observations,
        actions=rule(space, observations[:-1]),
        rewards=np.full(steps, reward, np.float32),
        generation=0,
        episode_id=seed,
    )


def train(algorithm: Any) -> int:
    count = 0
    while algorithm.update() is not None:
        count += 1
    return count


@pytest.mark.parametrize(("name", "space", "parameters"), REPLAYED)
def test_a_fraction_of_each_batch_is_demonstrated(name: str, space: Space, parameters: dict[str, Any]) -> None:
    algorithm: Any = make(name, space, **SMALL, **parameters)
    assert issubclass(type(algorithm), DemonstrationAlgorithm)
    algorithm.use_demonstrations([segment(space, 10, seed, reward=7.0) for seed in range(2)], 0.25, 1)
    algorithm.observe(segment(space, 30, 9))
    for _ in range(3):
        returns = algorithm._sampler.gather(algorithm._draw()).returns
        assert (returns >= 7.0).sum() == 4 and (returns == 0.0).sum() == 12
    assert train(algorithm) == 2
    assert all(np.isfinite(array).all() for array in algorithm.numbers_to_check())


@pytest.mark.parametrize(("name", "space", "parameters"), REPLAYED)
def test_a_resumed_training_with_demonstrations_is_bit_equal(name: str, space: Space, parameters: dict[str, Any]) -> None:
    def begin() -> Any:
        algorithm = make(name, space, **SMALL, **parameters)
        algorithm.use_demonstrations([segment(space, 10, 1, reward=7.0)], 0.25, 1)
        return algorithm

    whole = begin()
    whole.observe(segment(space, 30, 9))
    train(whole)
    state = whole.state()
    resumed = begin()
    resumed.load(state)
    for algorithm in (whole, resumed):
        algorithm.observe(segment(space, 20, 10))
        assert train(algorithm) == 5
    for tensor, values in whole.snapshot().items():
        np.testing.assert_array_equal(values, resumed.snapshot()[tensor])


@pytest.mark.parametrize(("name", "space", "parameters"), REPLAYED)
def test_a_new_batch_size_keeps_the_fraction_as_a_restart_does(name: str, space: Space, parameters: dict[str, Any]) -> None:
    given = {**SMALL, **parameters}
    changed, restarted = make(name, space, **given), make(name, space, **{**given, "batch_size": 40})
    for algorithm in (changed, restarted):
        algorithm.use_demonstrations([segment(space, 10, 1, reward=7.0)], 0.25, 1)
    changed.observe(segment(space, 30, 9))
    train(changed)
    restarted.load(changed.state())
    changed.change({**given, "batch_size": 40})
    assert np.count_nonzero(changed._draw() < 0) == np.count_nonzero(restarted._draw() < 0) == 10
    for algorithm in (changed, restarted):
        algorithm.observe(segment(space, 20, 10))
        assert train(algorithm) == 5
    for tensor, values in changed.snapshot().items():
        np.testing.assert_array_equal(values, restarted.snapshot()[tensor])
    with pytest.raises(ConfigError, match=r"0.25 of a batch of 1 is 0 transitions; .*set a larger batch_size"):
        changed.change({**given, "batch_size": 1})
    assert changed.parameters.batch_size == 40


def test_a_state_of_other_demonstrations_is_refused_and_none_is_allowed() -> None:
    first, other, none = (make("DQN", CHOICE, **SMALL) for _ in range(3))
    first.use_demonstrations([segment(CHOICE, 10, 1)], 0.25, 1)
    other.use_demonstrations([segment(CHOICE, 10, 2)], 0.25, 2)
    with pytest.raises(ConfigError, match="began with other ones"):
        other.load(first.state())
    none.load(first.state())
    other.load(none.state())


def test_a_fraction_that_rounds_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0.01 of a batch of 16 is 0 transitions; expected 1 to 15"):
        make("DQN", CHOICE, **SMALL).use_demonstrations([segment(CHOICE, 10, 1)], 0.01, 1)


def test_data_that_make_an_update_fail_are_found_beside_demonstrations() -> None:
    algorithm = make("DQN", CHOICE, **{**SMALL, "learning_starts": 0, "train_frequency": 30})
    algorithm.use_demonstrations([segment(CHOICE, 10, 1)], 0.5, 1)
    algorithm.observe(segment(CHOICE, 30, 3, reward=np.nan))
    assert algorithm.discard() == [0]


ON_POLICY: dict[str, Any] = {"hidden_sizes": [16], "steps_per_update": 32}
CLONED: list[tuple[str, Space, dict[str, Any]]] = [
    ("PPO", CHOICE, ON_POLICY),
    ("PPO", CHOICE, {**ON_POLICY, "normalise_observations": True}),
    ("PPO", FORCE, ON_POLICY),
    ("IMPALA", CHOICE, ON_POLICY),
    ("DQN", CHOICE, SMALL),
    ("SAC", FORCE, SMALL),
    ("SAC", CHOICE, SMALL),
    ("TD3", FORCE, SMALL),
]


@pytest.mark.parametrize(("name", "space", "parameters"), CLONED)
def test_a_cloned_policy_acts_as_the_demonstrator(name: str, space: Space, parameters: dict[str, Any]) -> None:
    def clone() -> Any:
        algorithm = make(name, space, **parameters)
        assert isinstance(algorithm, CloningAlgorithm)
        loss = algorithm.clone([segment(space, 200, seed) for seed in range(3)], CloneOptions(600, 64, 1e-2))
        assert np.isfinite(loss)
        return algorithm

    algorithm, again = clone(), clone()
    spec = algorithm.spec()
    flat, others = spec.flatten(algorithm.snapshot())
    policy = build_policy(spec, PolicySnapshot(1, 0, digest(flat, others), flat, others))
    tried = segment(space, 100, 77)
    _, acts, _ = policy.act_batch(tried.observations[:-1], None, RandomSource(0), False)
    if isinstance(space, DiscreteSpace):
        assert (acts == tried.actions).mean() > 0.9
    else:
        assert np.abs(acts - tried.actions).mean() < 0.1
    for tensor, values in algorithm.snapshot().items():
        np.testing.assert_array_equal(values, again.snapshot()[tensor])


@pytest.mark.parametrize(("name", "parameters"), [("PPO", ON_POLICY), ("SAC", SMALL), ("TD3", SMALL)])
def test_an_action_that_is_a_single_number_can_be_cloned(name: str, parameters: dict[str, Any]) -> None:
    algorithm = make(name, BoxSpace((), low=-2.0, high=2.0), **parameters)
    shown = segment(FORCE, 40, 1)
    assert np.isfinite(algorithm.clone([replace(shown, actions=shown.actions[:, 0])], CloneOptions(2, 8, 1e-2)))


@pytest.mark.parametrize("name", ["PPO", "IMPALA"])
def test_a_policy_that_starts_with_given_weights_computes_the_same_with_the_statistics_of_demonstrations(name: str) -> None:
    teacher, algorithm = (make(name, CHOICE, seed, hidden_sizes=[16], steps_per_update=200) for seed in (1, 2))
    for number in range(2):
        teacher.observe(segment(CHOICE, 200, number))
        assert teacher.update() is not None
    algorithm.load_policy(teacher.snapshot())

    def outputs() -> Any:
        mean, scale, *_ = algorithm.snapshot().values()
        features = torch.from_numpy((segment(CHOICE, 50, 3).observations - mean) * scale)
        return mean, algorithm._network.one(0, features).detach().numpy()

    mean, before = outputs()
    shown = segment(CHOICE, 5000, 4)
    algorithm.clone([replace(shown, observations=shown.observations + 1.0)], CloneOptions(1, 4, 1e-30))
    new_mean, after = outputs()
    assert np.abs(new_mean - mean).min() > 0.2, "the statistics have not changed"
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 9])
def test_the_loss_of_few_steps_of_cloning_is_that_of_the_last_one(steps: int) -> None:
    found: list[float] = []

    def loss(features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        found.append(float(len(found) + 1))
        return torch.tensor(found[-1])

    columns, flat = (torch.zeros(4, 1), torch.zeros(4)), torch.zeros(3)
    options = CloneOptions(steps, 2, 1e-2)
    assert clone_policy(columns, loss, lambda _: torch.zeros(3), flat, options, torch.Generator()) == steps


@pytest.mark.parametrize(("name", "space", "parameters"), [case for case in CLONED if case[2] is SMALL])
def test_a_loss_of_cloning_is_on_the_device_of_the_network(
    name: str, space: Space, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_step(columns: Any, loss: Any, gradient: Any, flat: Any, *_: Any) -> float:
        """Stand for `clone_policy`, which reads numbers back, as this device cannot."""
        assert gradient(loss(*(column[:4].to(flat.device) for column in columns))).device == flat.device == torch.device("meta")
        return 0.25

    monkeypatch.setattr(offpolicy, "clone_policy", one_step)
    algorithm = make(name, space, **parameters)
    algorithm.place(Compute(device=torch.device("meta")))
    assert algorithm.clone([segment(space, 20, 1)], CloneOptions(1, 4, 1e-2)) == 0.25


def test_the_margin_loss_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    values, actions = rng.normal(size=(20, 4)), rng.integers(0, 4, 20)
    slow = []
    for row, expert in zip(values, actions, strict=True):
        best = max(value + (0.0 if action == expert else MARGIN) for action, value in enumerate(row))
        slow.append(best - row[expert])
    found = margin_loss(torch.from_numpy(values), torch.from_numpy(actions))
    assert float(found) == pytest.approx(np.mean(slow))


def masked_segment(steps: int, seed: int, *, reward: float = 0.0) -> Segment:
    """Return a demonstration whose masks forbid all actions but the demonstrated one and one other."""
    made = segment(CHOICE, steps, seed, reward=reward)
    chosen = np.append(made.actions - CHOICE.start, 0)
    masks = np.zeros((steps + 1, CHOICE.n), np.bool_)
    masks[np.arange(steps + 1), chosen] = masks[np.arange(steps + 1), (chosen + 1) % CHOICE.n] = True
    return replace(made, masks=masks)


def test_the_replay_of_demonstrations_keeps_their_masks() -> None:
    given = masked_segment(10, 1, reward=7.0)
    dqn = make("DQN", CHOICE, **SMALL)
    dqn.use_demonstrations([given], 0.25, 1)
    dqn.observe(segment(CHOICE, 30, 9))
    batch = dqn._sampler.gather(dqn._draw())
    ours = batch.returns >= 7.0
    assert (batch.masks[ours].sum(axis=1) == 2).all() and batch.masks[~ours].all()
    sac = make("SAC", CHOICE, **SMALL)
    sac.use_demonstrations([given], 0.25, 1)
    sac.observe(segment(CHOICE, 30, 9))
    batch = sac._sampler.gather(sac._draw())
    ours = batch.returns >= 7.0
    assert (batch.observations["allowed"][ours].sum(axis=1) == 2).all()
    assert (batch.successors["allowed"][ours].sum(axis=1) == 2).all()
    assert train(dqn) and train(sac)


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC", "IMPALA"])
def test_cloning_does_not_train_on_forbidden_actions(name: str) -> None:
    """With masks that allow only the demonstrated actions there is nothing to learn: the loss is 0, no weight changes."""
    given = segment(CHOICE, 20, 1)
    masks = np.zeros((21, CHOICE.n), np.bool_)
    masks[np.arange(21), np.append(given.actions - CHOICE.start, 0)] = True
    given = replace(given, masks=masks)
    algorithm = make(name, CHOICE, **(SMALL if name in ("DQN", "SAC") else {"normalise_observations": False}))
    before = {tensor: values.copy() for tensor, values in algorithm.snapshot().items()}
    assert algorithm.clone([given, given], CloneOptions(5, 8, 1e-2)) == pytest.approx(0.0, abs=1e-6)
    for tensor, values in algorithm.snapshot().items():
        np.testing.assert_allclose(values, before[tensor], atol=1e-6)
    assert algorithm.clone([given, segment(CHOICE, 30, 2)], CloneOptions(5, 64, 1e-2)) > 0.05  # the second one has no masks


def use(path: Path, /, name: str = "DQN", space: Space = CHOICE, **options: Any) -> TrainingDemonstrations:
    algorithm = make(name, space, **(SMALL if name != "REINFORCE" else {}))
    schema = SegmentSchema.of(algorithm.spec(), 1 << 20)
    given = {**({"path": str(path)} if "minari" not in options else {}), "clone_batch_size": 8, **options}
    assign = assignment(name, client_id="lab", demonstrations=given)
    return TrainingDemonstrations(assign, algorithm, schema, SegmentValueLimits(schema, 1e15, 1e12))


def write(path: Path, change: Callable[[Demonstration], Demonstration] = lambda episode: episode) -> Path:
    made = segment(CHOICE, 10, 1)
    episode = Demonstration([np.asarray(made.observations)], made.actions, made.rewards, terminated=False)
    write_demonstrations(path, OBS, CHOICE, [change(episode)])
    return path


@pytest.mark.parametrize("name", ["C51", "DQN", "SAC", "REINFORCE"])
def test_cloning_reports_its_progress_and_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("rl4sys_zmq.learner.training.demonstrating.REPORT_S", 0.0)
    said: list[dict[str, float]] = []
    assert use(write(tmp_path / "d.npz"), name, clone_steps=4).clone(said.append)
    assert [scalars["clone/progress"] for scalars in said] == [0.25, 0.5, 0.75, 1.0]
    assert all(np.isfinite(scalars["clone/loss"]) for scalars in said)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda e: Demonstration(e.observations, e.actions, None, False), {"fraction": 0.25}, "has no rewards"),
        (lambda e: Demonstration([e.observations[0] * np.nan], e.actions, e.rewards, False), {"clone_steps": 1}, "not finite"),
        (lambda e: Demonstration(e.observations, e.actions + 9, e.rewards, False), {"clone_steps": 1}, "actions are outside"),
        (lambda e: e, {"fraction": 0.25, "name": "REINFORCE"}, "REINFORCE has no replay"),
        (lambda e: e, {"clone_steps": 1, "space": DiscreteSpace(3)}, "their action_space"),
        (lambda e: e, {}, "they would have no effect"),
        (lambda e: e, {"minari": "a-v0", "path": "d.npz", "clone_steps": 1}, "give either path or minari"),
        (lambda e: e, {"minari": None, "clone_steps": 1}, "give either path or minari"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, change: Callable[[Demonstration], Demonstration], options: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "d.npz", change)
    with pytest.raises(ConfigError, match=words):
        use(path, **options)


def pretend_minari(
    monkeypatch: pytest.MonkeyPatch, *episodes: dict[str, Any], shape: tuple[int, ...] = (3,), dtype: Any = np.float32
) -> Any:
    """Replace Minari by a module with one dataset, ``test-v0``, and return the dataset."""
    spaces = pytest.importorskip("gymnasium").spaces
    dataset = SimpleNamespace(
        observation_space=spaces.Box(-9, 9, shape, dtype),
        action_space=spaces.Discrete(3, start=1),
        iterate_episodes=lambda: (SimpleNamespace(**episode) for episode in episodes),
    )
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset={"test-v0": dataset}.__getitem__))
    return dataset


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_minari_dataset_is_what_a_file_of_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset comes from Minari itself if it is installed, and else from a fake module of the test."""
    made = [segment(CHOICE, 10, seed, reward=2.0) for seed in (1, 2)]
    ends = {"terminations": np.zeros(10, bool), "truncations": np.arange(10) == 9}
    episodes = [{"observations": s.observations, "actions": s.actions, "rewards": s.rewards, **ends} for s in made]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with monkeypatch.context() as patched:
        dataset = pretend_minari(patched, *episodes)
        spaces = {name: getattr(dataset, name) for name in ("observation_space", "action_space")}
    if importlib.util.find_spec("minari") is not None:
        minari: Any = importlib.import_module("minari")
        buffers = [minari.data_collector.EpisodeBuffer(id=k, **episode) for k, episode in enumerate(episodes)]
        names = {"author": "a", "author_email": "a@b.c", "code_permalink": "d", "algorithm_name": "e"}
        minari.create_dataset_from_buffers("test-v0", buffers, **spaces, **names)
    else:
        pretend_minari(monkeypatch, *episodes)
    demonstrated = use(tmp_path, minari="test-v0", fraction=0.25, clone_steps=3)
    assert demonstrated.clone(lambda scalars: None)
    write_demonstrations(tmp_path / "d.npz", *read_minari("test-v0"))
    from_file = use(tmp_path / "d.npz", fraction=0.25)
    assert from_file._demonstrations.digest == demonstrated._demonstrations.digest  # either can resume the other
    with pytest.raises(ConfigError, match="minari download other-v0"):
        use(tmp_path, minari="other-v0", clone_steps=3)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"pip install 'minari\[hdf5,arrow\]'"):
        use(tmp_path, minari="test-v0", clone_steps=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actions": np.array([0.6, 1.7, 2.0])}, "actions are float64, and their space has int64"),
        ({"observations": None}, "observations are object"),
        ({"observations": np.zeros((3, 3), np.float32)}, "observations"),
        ({"rewards": None}, "has no len"),
        ({"rewards": np.zeros((3, 1))}, "number of dimensions"),
        ({"observations": np.full((4, 3), 1e300)}, r"numbers from 1e\+300 to 1e\+300, which float32 cannot hold"),
    ],
)
def test_a_minari_dataset_that_is_not_as_its_spaces_say_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    good = segment(CHOICE, 3, 1)
    episode = {"observations": good.observations, "actions": good.actions, "rewards": good.rewards, "terminations": [False] * 3}
    pretend_minari(monkeypatch, episode, episode | change)
    with pytest.raises(ConfigError, match=words):
        use(tmp_path, minari="test-v0", clone_steps=3)


def test_a_minari_dataset_whose_integers_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = {"actions": np.array([1, 2]), "rewards": np.zeros(2), "terminations": [False] * 2}
    pretend_minari(monkeypatch, {"observations": np.array([[1], [300], [2]]), **episode}, shape=(1,), dtype=np.int8)
    with pytest.raises(ConfigError, match="observations have numbers from 1 to 300, which int8 cannot hold"):
        read_minari("test-v0")


def test_episodes_without_a_step_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {"actions": np.zeros(0), "rewards": np.zeros(0), "terminations": []}
    pretend_minari(monkeypatch, {"observations": np.zeros((1, 3)), **empty})
    assert read_minari("test-v0")[2] == []


def test_a_clone_needs_no_rewards(tmp_path: Path) -> None:
    path = write(tmp_path / "d.npz", lambda e: Demonstration(e.observations, e.actions, None, False))
    assert use(path, clone_steps=1).clone(lambda scalars: None)
