"""Tests of algorithms that continue from a checkpoint on disk as without a restart, and of the last part of a batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import assert_same_state, manifest, segment_with

from rl4sys_zmq.algorithms import Algorithm, make_algorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.values.spaces import FlatSpace

OBS = BoxSpace((3,))
DISCRETE, BOX = DiscreteSpace(4, 1), BoxSpace((2,), low=-1.0, high=1.0)
PPO_SMALL: dict[str, Any] = {
    "steps_per_epoch": 48,
    "minibatch_size": 16,
    "update_epochs": 3,
    "hidden_sizes": [8, 8],
    "learning_rate": 1e-2,
}
PPO_CASES: dict[str, tuple[FlatSpace, dict[str, Any]]] = {
    "discrete": (DISCRETE, {}),
    "gaussian": (BOX, {"target_kl": 0.05, "clip_vloss": True}),
    "schedules": (DISCRETE, {"anneal_lr": True, "anneal_clip": True, "total_steps": 700, "value_epochs": 4, "vf_lr": 3e-3}),
    "trajectories": (DISCRETE, {"steps_per_epoch": None, "episodes_per_update": 3}),
    "plain": (BOX, {"normalise_observations": False, "normalise_rewards": False, "norm_adv": False, "num_minibatches": 3}),
}
DQN_SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 16,
    "learning_starts": 20,
    "train_frequency": 8,
    "total_steps": 2000,
}
DQN_CASES: dict[str, dict[str, Any]] = {
    "wrapped": {"buffer_size": 150},
    "not_wrapped": {"buffer_size": 5000},
    "exactly_full": {"buffer_size": 160},
    "slow_target": {"buffer_size": 150, "tau": 0.05, "target_net_update_frequency": 3, "learning_rate_final": 0.0, "n_step": 5},
    "prioritised": {"buffer_size": 150, "prioritised": True, "gradient_steps": 2},
    "prioritised, not_wrapped": {"buffer_size": 5000, "prioritised": True},
    "samples per insert": {"buffer_size": 150, "samples_per_insert": 3.0},
    "episodes": {"buffer_size": 200, "traj_per_epoch": 2, "gradient_steps": 4, "double_q": False},
}


def segments(actions: FlatSpace, seed: int, *, masked: bool = False, steps: int = 16) -> Iterator[Segment]:
    """Yield the segments of three actors in turn, without end. Episodes have many segments. Some have masks."""
    rng = np.random.default_rng(seed)
    episodes = [(int(rng.integers(2**64, dtype=np.uint64)), 0) for _ in range(3)]
    while True:
        for actor, (episode, index) in enumerate(episodes):
            end = ("cut", "cut", "cut", "terminated", "truncated")[int(rng.integers(5))]
            rows = steps + (end != "terminated")
            masks = None
            if isinstance(actions, DiscreteSpace):
                moves: Any = rng.integers(actions.start, actions.start + actions.n, steps)
                if masked and rng.random() < 0.7:
                    masks = rng.random((rows, actions.n)) < 0.5
                    masks[:, 0] |= ~masks.any(axis=1)
                    masks[np.arange(steps), moves - actions.start] = True
            else:
                moves = rng.normal(size=(steps, *actions.shape)).astype(np.float32)
            yield segment_with(
                steps,
                end,
                observations=(rng.normal(size=(rows, 3)) * [1, 10, 0.1]).astype(np.float32),
                actions=moves,
                rewards=rng.normal(1.0, 3.0, steps).astype(np.float32),
                log_probs=rng.normal(-1.4, 0.1, steps).astype(np.float32),
                masks=masks,
                episode_id=episode,
                segment_index=index,
            )
            ended = end != "cut"
            episodes[actor] = (int(rng.integers(2**64, dtype=np.uint64)), 0) if ended else (episode, index + 1)


def flat_of(algorithm: Algorithm) -> Any:
    return algorithm.spec().flatten(algorithm.snapshot())[0]


def updates(algorithm: Algorithm, source: Iterator[Segment], count: int) -> list[tuple[dict[str, float], bytes]]:
    """Observe segments until `count` updates are done and no further one is due. Return the metrics and weights after each."""
    done: list[tuple[dict[str, float], bytes]] = []
    while len(done) < count:
        algorithm.observe(next(source))
        while (metrics := algorithm.update()) is not None:
            done.append((dict(metrics), flat_of(algorithm).tobytes()))
    return done


def through_disk(algorithm: Algorithm, folder: Path) -> dict[str, Any]:
    CheckpointStore(folder).write(manifest(), algorithm.state())
    store = CheckpointStore(folder)
    loaded = store.load()
    assert loaded is not None and store.damaged == []
    return loaded[1]


def check_resume(name: str, actions: FlatSpace, parameters: dict[str, Any], before: int, folder: Path, masked: bool) -> Algorithm:
    through = make_algorithm(name, OBS, actions, parameters, 3)
    source = segments(actions, 11, masked=masked)
    updates(through, source, before)
    resumed = make_algorithm(name, OBS, actions, parameters, 99)
    updates(resumed, segments(actions, 5), 1)  # a history of its own, which `load` must remove
    resumed.observe(next(segments(actions, 6)))
    resumed.load(through_disk(through, folder))
    assert resumed.demand() == through.demand()
    assert flat_of(resumed).tobytes() == flat_of(through).tobytes()
    further = [next(source) for _ in range(400)]
    one, two = updates(through, iter(further), 5), updates(resumed, iter(further), 5)
    assert one == two and len({weights for _, weights in one}) == len(one) >= 5
    final, other = (through_disk(a, folder / str(k)) for k, a in enumerate((through, resumed)))
    assert_same_state(final, other)
    return through


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", PPO_CASES)
def test_ppo_goes_on_to_the_last_bit(case: str, masked: bool, tmp_path: Path) -> None:
    actions, parameters = PPO_CASES[case]
    through: Any = check_resume("PPO", actions, {**PPO_SMALL, **parameters}, 4, tmp_path, masked)
    if case == "discrete":
        assert through._reward_scale._open, "the test must have episodes that run over an update"


SMALL_STEPS: dict[str, Any] = {"steps_per_update": 48, "hidden_sizes": [8, 8], "learning_rate": 1e-2}
OTHER_CASES: dict[str, tuple[str, FlatSpace, dict[str, Any]]] = {
    "a2c": ("A2C", DISCRETE, SMALL_STEPS),
    "a3c": ("A3C", BOX, SMALL_STEPS),
    "reinforce": ("REINFORCE", DISCRETE, {"episodes_per_update": 3, "hidden_sizes": [8]}),
    "reinforce_baseline": ("REINFORCE", BOX, {"episodes_per_update": 3, "hidden_sizes": [8], "with_vf_baseline": True}),
    "rpo": ("RPO", BOX, {**SMALL_STEPS, "num_minibatches": 3, "update_epochs": 2}),
    "impala": ("IMPALA", DISCRETE, {**SMALL_STEPS, "anneal_lr": True, "total_steps": 700}),
    "impala_box": ("IMPALA", BOX, {**SMALL_STEPS, "rms_prop": True}),
}


@pytest.mark.parametrize("case", OTHER_CASES)
def test_the_other_on_policy_algorithms_go_on_to_the_last_bit(case: str, tmp_path: Path) -> None:
    name, actions, parameters = OTHER_CASES[case]
    check_resume(name, actions, parameters, 4, tmp_path, isinstance(actions, DiscreteSpace))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", DQN_CASES)
def test_dqn_goes_on_to_the_last_bit(case: str, masked: bool, tmp_path: Path) -> None:
    parameters = {**DQN_SMALL, **DQN_CASES[case]}
    through: Any = check_resume("DQN", DISCRETE, parameters, 26, tmp_path, masked)
    replay = through._replay
    assert (replay._ring.end > replay.options.capacity) is ("not_wrapped" not in case)


@pytest.mark.parametrize("steps", [1, 2, 3, 17])
@pytest.mark.parametrize("trained_before", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", PPO_CASES)
def test_ppo_trains_on_a_part_of_a_batch(case: str, masked: bool, trained_before: int, steps: int) -> None:
    actions, parameters = PPO_CASES[case]
    algorithm = make_algorithm("PPO", OBS, actions, {**PPO_SMALL, **parameters}, 0)
    updates(algorithm, segments(actions, 1, masked=masked), trained_before)
    before = flat_of(algorithm)
    demand = algorithm.demand()
    assert algorithm.update(partial=True) is None and algorithm.demand() == demand
    assert (flat_of(algorithm) == before).all()
    algorithm.observe(next(segments(actions, 2, masked=masked, steps=steps)))
    assert algorithm.update() is None
    metrics = algorithm.update(partial=True)
    assert metrics is not None and all(np.isfinite(value) for value in metrics.values()), metrics
    after = flat_of(algorithm)
    assert np.isfinite(after).all() and (after != before).any()
    assert algorithm.update(partial=True) is None and algorithm.demand() > 0
    weights = [weights for _, weights in updates(algorithm, segments(actions, 3, masked=masked), 3)]
    assert all(np.isfinite(np.frombuffer(w, np.float32)).all() for w in weights)


def test_ppo_with_partial_and_a_full_batch_is_an_ordinary_update() -> None:
    one, two = (make_algorithm("PPO", OBS, DISCRETE, PPO_SMALL, 0) for _ in range(2))
    for segment, _ in zip(segments(DISCRETE, 1), range(3), strict=False):
        one.observe(segment)
        two.observe(segment)
    assert one.update() == two.update(partial=True) is not None


def test_a_single_first_reward_is_taken_as_it_is() -> None:
    """One return has no deviation. After a division by a number near 0, any reward would be clipped to 10."""
    algorithm: Any = make_algorithm("PPO", OBS, DISCRETE, PPO_SMALL, 0)
    scale = algorithm._reward_scale
    assert scale(np.array([0.5]), [1], [7], [False]).tolist() == pytest.approx([0.5])
    assert abs(scale(np.array([0.5, -0.5]), [2], [8], [True])).max() < 10


def test_dqn_and_partial() -> None:
    one, two = (make_algorithm("DQN", OBS, DISCRETE, DQN_SMALL, 0) for _ in range(2))
    for segment, _ in zip(segments(DISCRETE, 1), range(6), strict=False):
        one.observe(segment)
        two.observe(segment)
        assert [dict(m) for m in iter(one.update, None)] == [dict(m) for m in iter(lambda: two.update(partial=True), None)]
    assert_same_state(one.state(), two.state())
