"""DQN with a recurrent network: a slow twin of its gradient step, its contract, undoing, and refusals."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import assert_same_state, segment_with

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm, planned_policy  # noqa: E402
from rl4sys_zmq.algorithms.networks import choose_network  # noqa: E402
from rl4sys_zmq.algorithms.networks.flat_networks import FlatAdam  # noqa: E402
from rl4sys_zmq.algorithms.networks.interface import SequenceNetwork  # noqa: E402
from rl4sys_zmq.algorithms.networks.layer_networks import RecurrentNetworks  # noqa: E402
from rl4sys_zmq.errors import ConfigError  # noqa: E402
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions  # noqa: E402
from rl4sys_zmq.learner.registry.compute import Compute  # noqa: E402
from rl4sys_zmq.policies import RandomSource, build_policy  # noqa: E402
from rl4sys_zmq.policies.layer_policy import STATE  # noqa: E402
from rl4sys_zmq.replay import StatePiece  # noqa: E402
from rl4sys_zmq.testing import check_algorithm  # noqa: E402
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot, Segment  # noqa: E402

from .test_resume import OBS, segments, updates  # noqa: E402

FOUR, UNITS = DiscreteSpace(4, 1), 5
NETWORK = {"kind": "gru", "units": UNITS, "hidden_sizes": [6]}
SMALL: dict[str, Any] = {
    "network": NETWORK, "batch_size": 16, "learning_starts": 20, "train_frequency": 8, "buffer_size": 400, "learning_rate": 1e-2,
    "rollout_length": 16, "n_step": 3, "max_grad_norm": None,
}  # fmt: skip
SEQUENCES: dict[str, dict[str, Any]] = {
    "whole segments": {},
    "short": {"sequence_length": 5},
    "overlapping": {"sequence_length": 5, "overlap": 3},
    "burn-in": {"sequence_length": 4, "burn_in": 6, "overlap": 1},
    "long returns": {"sequence_length": 5, "burn_in": 2, "n_step": 9},
    "single steps": {"sequence_length": 1, "burn_in": 3, "n_step": 1},
}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("DQN", {}),
    "rescaled": ("DQN", {"value_rescaling": True}),
    "dueling": ("DQN", {"dueling": True, "double_q": False, "initialisation": "orthogonal"}),
    "quantiles": ("DQN", {"distribution": "quantile", "quantiles": 3}),
    "C51": ("C51", {"atoms": 5, "v_min": -9.0, "v_max": 9.0}),
    "prioritised": ("DQN", {"prioritised": True, "priority_beta": 0.7, "priority_beta_final": 0.7}),
}


def make(head: str = "plain", seed: int = 0, **parameters: Any) -> Any:
    name, given = HEADS[head]
    return make_algorithm(name, OBS, FOUR, {**SMALL, **given, **parameters}, seed)


def recurrent(seed: int, *, masked: bool = False, steps: int = 16) -> Iterator[Segment]:
    """Yield the segments of `segments`, with random recurrent states."""
    rng = np.random.default_rng(seed)
    for segment in segments(FOUR, seed, masked=masked, steps=steps):
        yield replace(segment, initial={STATE: rng.uniform(-1.2, 1.2, UNITS).astype(np.float32)})


def observe(algorithm: Any, count: int = 8, seed: int = 1, *, masked: bool = False) -> list[Segment]:
    found = [next(recurrent(seed + k, masked=masked, steps=3 + (k * 5) % 14)) for k in range(count)]
    for segment in found:
        algorithm.observe(segment)
    return found


def unrolled(algorithm: Any, flat: Tensor, segment: Segment, start: int, stop: int) -> list[Tensor]:
    """Return the vectors ``[n, W]`` of the observations from `start` to `stop` of one sequence, computed step by step."""
    p, layers = algorithm.parameters, algorithm._online.views(flat)[0]
    begin = max(0, start - p.burn_in)
    state = torch.zeros(UNITS)
    if begin == 0:
        state = torch.from_numpy(np.clip(segment.initial[STATE], -1.0, 1.0))
    found = []
    for t in range(begin, stop + 1):
        if t == start:
            state = state.detach()
        row = segment.observations[t] if t < len(segment.observations) else np.zeros(3, np.float32)  # terminal: any value
        hidden = torch.tanh(layers[0] @ torch.from_numpy(row) + layers[1])
        state = torch.gru_cell(hidden[None], state[None], *layers[2:6])[0]
        if t >= start:
            found.append(algorithm._head.estimates((layers[6] @ state + layers[7])[None])[0])
    return found


def slow_sequence(algorithm: Any, online: Tensor, segment: Segment, start: int) -> list[tuple[Tensor, Tensor]]:
    """Return the loss and the error of each trained step of one sequence."""
    p, head = algorithm.parameters, algorithm._head
    stop = min(start + p.steps_per_sequence, segment.steps)
    own = unrolled(algorithm, online, segment, start, stop)
    target = [vectors.detach() for vectors in unrolled(algorithm, algorithm._target.flat, segment, start, stop)]
    found = []
    for t in range(start, stop):
        reach = min(t + p.n_step, stop)
        paid = sum(p.gamma ** (k - t) * float(segment.rewards[k]) for k in range(t, reach))
        discount = 0.0 if segment.terminated and reach == segment.steps else p.gamma ** (reach - t)
        best = 0
        if discount:
            values = head.values((own if p.double_q else target)[reach - start].detach())
            allowed = range(4) if segment.masks is None else np.flatnonzero(segment.masks[reach]).tolist() or range(4)
            best = max(allowed, key=lambda action: float(values[action]))
        goal = head.targets(torch.tensor([paid]), torch.tensor([discount]), target[reach - start][best][None])
        estimate = own[t - start][int(segment.actions[t]) - 1][None]
        found.append((head.losses(estimate, goal)[0], head.errors(estimate, goal)[0].detach()))
    return found


def starts_of(p: Any, segment: Segment) -> list[int]:
    found: list[int] = []
    covered = 0
    while not found or covered < segment.steps:
        found.append(len(found) * (p.steps_per_sequence - p.overlap))
        covered = found[-1] + p.steps_per_sequence
    return found


@pytest.mark.parametrize(
    ("sequences", "head", "masked"),
    [*[(sequences, "plain", False) for sequences in SEQUENCES], *[("burn-in", head, True) for head in HEADS]],
)
def test_a_gradient_step_is_that_of_the_slow_twin(
    sequences: str, head: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make(head, 2, **SEQUENCES[sequences])
    algorithm._target.flat.add_(0.05)
    observed = observe(algorithm, masked=masked)
    p, memory = algorithm.parameters, algorithm._replay
    of_row = [(segment, start) for segment in observed for start in starts_of(p, segment)]
    assert len(memory) == len(of_row)
    masses = np.ones(len(of_row))
    if p.prioritised:
        errors = np.linspace(0.1, 2.0, len(of_row))
        memory.update_priorities(np.arange(len(of_row)), np.pad(errors[:, None], ((0, 0), (0, p.steps_per_sequence - 1))), 1.0)
        masses = (errors + 1e-6) ** 0.6
    rows = np.array([0, 3, len(of_row) - 1, 3, 7, *np.random.default_rng(0).integers(0, len(of_row), 5)])
    online = algorithm._online.flat.detach().clone().requires_grad_()
    slow = [slow_sequence(algorithm, online, *of_row[row]) for row in rows]
    weights = (masses[rows] / masses[rows].min()) ** -(0.7 if p.prioritised else 0.0)
    losses = [weight * loss for weight, steps in zip(weights, slow, strict=True) for loss, _ in steps]
    expected = torch.stack(losses).mean()
    gradients: list[Tensor] = []
    step = FlatAdam.step

    def recording(self: FlatAdam, gradient: Tensor, *given: Any, **options: Any) -> None:
        gradients.append(gradient.clone())
        step(self, gradient, *given, **options)

    monkeypatch.setattr(FlatAdam, "step", recording)
    found = algorithm._train_on(rows)["losses/td_loss"]
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[0], torch.autograd.grad(expected, online)[0], rtol=1e-3, atol=1e-4)
    if p.prioritised:
        for row, steps in zip(rows, slow, strict=True):
            sizes = np.array([abs(float(error)) for _, error in steps])
            mixed = 0.9 * sizes.max() + 0.1 * sizes.mean()
            assert memory.state()["priorities"]["masses"][row] == pytest.approx((mixed + 1e-6) ** 0.6, rel=1e-3)


def test_a_batch_has_about_as_many_steps_as_asked_for() -> None:
    for batch_size, sequences in ((30, 4), (3, 1)):
        algorithm = make(batch_size=batch_size, sequence_length=8)
        observe(algorithm)
        assert len(algorithm._draw()) == sequences


def test_the_network_is_that_of_the_actor() -> None:
    """The greedy actions of an episode are those of the network in training, from the first state to the last."""
    for head in HEADS:
        algorithm = make(head, 3)
        updates(algorithm, recurrent(4), 5)
        assert isinstance(algorithm._online, SequenceNetwork)
        spec = algorithm.spec()
        policy: Any = build_policy(spec, PolicySnapshot(1, 1, 0, *spec.flatten(algorithm.snapshot())))
        [segment] = [replace(next(recurrent(9)), initial={STATE: np.zeros(UNITS, np.float32)})]
        with torch.no_grad():
            vectors = unrolled(algorithm, algorithm._online.flat, segment, 0, 15)
        state = None
        for t, wanted in enumerate(vectors):
            raw, act, _, columns, state = policy.step(segment.observations[t], None, RandomSource(0), False, state)
            assert raw == act == int(algorithm._head.values(wanted).argmax()) + FOUR.start, head
            assert set(columns) == {STATE}


def test_uniform_initial_weights_are_those_of_torch() -> None:
    network = choose_network({"kind": "gru", "units": 50, "hidden_sizes": (40,)}, {}).sequence_replay(BoxSpace((9,)), 7)
    assert isinstance(network, RecurrentNetworks)
    network.initialise_uniform(torch.Generator().manual_seed(0))
    first, *_, last = network.views(network.flat)[0]
    unit = network.views(network.flat)[0][2]
    for tensor, bound in ((first, 1 / 3), (unit, 50**-0.5), (last, 50**-0.5)):
        assert 0.8 * bound < tensor.abs().max() <= bound


@pytest.mark.parametrize(
    ("head", "observations"),
    [
        *[(head, BoxSpace((4,))) for head in HEADS],
        ("plain", BoxSpace((2, 3), "|u1", 0, 255)),
        ("prioritised", BoxSpace((4, 20, 20), "|u1", 0, 255)),
        ("C51", DictSpace({"a": OBS, "b": FOUR})),
    ],
)
def test_the_contract_is_kept(head: str, observations: Any) -> None:
    name, given = HEADS[head]
    parameters = {
        **SMALL, **given, "learning_starts": 8, "batch_size": 8, "rollout_length": 8, "sequence_length": 3, "burn_in": 2,
    }  # fmt: skip
    check_algorithm(ALGORITHMS.get(name), observation_space=observations, action_space=FOUR, parameters=parameters)


def test_a_checkpoint_has_only_new_pieces() -> None:
    algorithm = make(buffer_size=6400, train_frequency=160)
    source = recurrent(1)
    updates(algorithm, source, 12)
    stored = {piece.name for piece in pieces_of(algorithm.state()["replay"])}
    updates(algorithm, source, 1)
    further = list(pieces_of(algorithm.state_beyond(stored)["replay"]))
    assert len(further) > 10 and 0 < sum(piece.arrays is not None for piece in further) < 10


def pieces_of(replay: dict[str, Any]) -> Iterator[StatePiece]:
    for part in ("steps", "sequences"):
        for piece in replay[part]["pieces"]:
            yield piece["piece"]


def test_training_starts_from_a_policy() -> None:
    for head in HEADS:
        trained, fresh = make(head, 1), make(head, 2)
        updates(trained, recurrent(1), 3)
        fresh.load_policy(trained.snapshot())
        for name, tensor in fresh.snapshot().items():
            if name != "epsilon":
                np.testing.assert_allclose(tensor, trained.snapshot()[name], atol=1e-6, err_msg=name)


def test_every_weight_moves() -> None:
    algorithm = make(target_net_update_frequency=1, sequence_length=4, burn_in=2)
    before = {name: network.flat.clone() for name, network in algorithm._networks.items()}
    updates(algorithm, recurrent(1), 3)
    for name, network in algorithm._networks.items():
        assert (network.flat != before[name]).float().mean() > 0.9, name


@pytest.mark.parametrize("prioritised", [False, True])
def test_segments_that_make_an_update_fail_are_found_and_removed(prioritised: bool) -> None:
    algorithm = make(batch_size=300, n_step=1, prioritised=prioritised, sequence_length=6, burn_in=3)
    source = recurrent(11)
    for number in range(12):
        segment = next(source)
        if number in (4, 7):
            segment = replace(segment, rewards=np.full(segment.steps, 3e38, np.float32))
        algorithm.observe(segment)
    kept, before = algorithm.checkpoint(), algorithm.state()
    metrics = algorithm.update()
    assert not np.isfinite(metrics["losses/td_loss"])
    algorithm.restore(kept)
    assert_same_state(algorithm.state(), before)
    gone: set[int] = set()
    for attempt in range(6):
        gone |= set(algorithm.discard())
        if gone == {4, 7}:
            break
        algorithm.restore({**kept, "generator": torch.Generator().manual_seed(attempt + 5).get_state()})
    assert gone == {4, 7} and len(algorithm._replay) == 30
    while (metrics := algorithm.update()) is not None:
        assert np.isfinite(metrics["losses/td_loss"])
    assert all(np.isfinite(array).all() for array in algorithm.numbers_to_check())


def test_an_empty_replay_asks_for_new_data() -> None:
    algorithm = make(n_step=1)
    segment = next(recurrent(1))
    for _ in range(3):
        algorithm.observe(replace(segment, rewards=np.full(segment.steps, 3e38, np.float32)))
    while len(algorithm._replay):
        assert algorithm.discard()
    assert algorithm.update() is None and algorithm.demand() == 16
    assert updates(algorithm, recurrent(2), 3)


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"network": "mlp", "burn_in": 3}, "burn_in", "3 is for a recurrent network such as gru, not for the kind 'mlp'"),
        ({"network": "mlp", "sequence_length": 3}, "sequence_length", "is for a recurrent network"),
        ({"network": "mlp", "overlap": 3}, "overlap", "is for a recurrent network"),
        ({"burn_in": 1}, "sequence_length", "16 steps and a burn_in of 1 do not fit into a segment of 16 steps"),
        ({"sequence_length": 17}, "sequence_length", "do not fit into a segment"),
        ({"sequence_length": 4, "overlap": 4}, "overlap", "4 is not below sequence_length 4"),
        ({"buffer_size": 16}, "buffer_size", "16 has no room for a segment of 16 steps and one more"),
        ({"network": {**NETWORK, "sequence_length": 4}}, "network.sequence_length", "give the parameter sequence_length of DQN"),
        ({"network": {**NETWORK, "value_gradient": False}}, "network.value_gradient", "DQN has no value network"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(given: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        planned_policy("DQN", OBS, FOUR, {**SMALL, **given})
    assert caught.value.key == f"algorithm_parameters.{key}"


@pytest.mark.parametrize("actions", [FOUR, BoxSpace((2,), low=-1.0, high=1.0)])
def test_other_replay_algorithms_refuse_a_recurrent_network(actions: Any) -> None:
    words = "SAC cannot train a network of kind 'gru'; it can train cnn, .*mlp.*; on-policy .* and replay .* such as DQN can"
    with pytest.raises(ConfigError, match=words):
        planned_policy("SAC", OBS, actions, {"network": "gru"})


def test_several_ranks_are_refused() -> None:
    ranks: Any = SimpleNamespace(rank=0, size=2)
    with pytest.raises(ConfigError, match="a network of kind 'gru' trains in one process, not in 2; use learners: 1"):
        make().place(Compute(device=torch.device("cpu"), ranks=ranks))


def test_demonstrations_are_refused() -> None:
    segment = next(recurrent(1))
    with pytest.raises(ConfigError, match="recurrent states, which demonstrations do not have") as caught:
        make().use_demonstrations([segment], 0.25, 1)
    assert caught.value.key == "demonstrations.fraction"
    with pytest.raises(ConfigError, match="DQN clones only policies without a recurrent state, not gru") as caught:
        make().clone([segment], CloneOptions(1, 1, 0.1))
    assert caught.value.key == "demonstrations.clone_steps"


def test_it_learns_to_remember() -> None:
    """The first of four observations determines the best last action. Without a memory, the mean return is 0.5."""
    algorithm: Any = make_algorithm("DQN", BoxSpace((1,)), DiscreteSpace(2), {
        "network": {"kind": "gru", "units": 8}, "rollout_length": 4, "batch_size": 64, "learning_rate": 1e-2, "n_step": 1,
        "learning_starts": 200, "train_frequency": 4, "target_net_update_frequency": 20, "total_steps": 2000,
    }, 0)  # fmt: skip
    rng, random, spec = np.random.default_rng(0), RandomSource(0), algorithm.spec()

    def episode(policy: Any, cue: float, explore: bool) -> Segment:
        observations = np.array([[cue], [0.0], [0.0], [0.0]], np.float32)
        state, actions = None, []
        for observation in observations:
            raw, _, _, _, state = policy.step(observation, None, random, explore, state)
            actions.append(raw)
        rewards = np.zeros(4, np.float32)
        rewards[-1] = float(actions[-1] == (cue > 0))
        return segment_with(
            4, observations=observations, actions=np.array(actions), rewards=rewards, initial={STATE: np.zeros(8, np.float32)}
        )

    policy: Any = None
    for count in range(500):
        if count % 10 == 0:
            policy = build_policy(spec, PolicySnapshot(1, 1, 0, *spec.flatten(algorithm.snapshot())))
        algorithm.observe(episode(policy, float(rng.choice([-1.0, 1.0])), True))
        while algorithm.update() is not None:
            pass
    assert [episode(policy, cue, False).rewards[-1] for cue in (-1.0, 1.0)] == [1.0, 1.0]
