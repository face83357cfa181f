"""Tests of training with a recurrent network: PyTorch's gradients, recorded states, minibatches of sequences, resuming."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit import segment_with
from torch import Tensor

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm, planned_policy
from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder
from rl4sys_zmq.algorithms.networks import choose_network
from rl4sys_zmq.algorithms.networks.inputs import Sequences, initial_states
from rl4sys_zmq.algorithms.networks.interface import RecurrentNetwork
from rl4sys_zmq.algorithms.networks.layer_networks import RecurrentNetworks
from rl4sys_zmq.algorithms.onpolicy.ppo import PPO, TrainingTensors, equal_groups
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, join_segments
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.compute import Compute
from rl4sys_zmq.policies import ExtraColumnPolicy, RandomSource, build_policy
from rl4sys_zmq.policies.layer_policy import STATE
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot, Segment, TupleSpace

BOX, DISCRETE = BoxSpace((3,)), DiscreteSpace(2, start=1)
NUMBERS = BoxSpace((2,), low=-1.0, high=1.0)
NETWORK = {"kind": "gru", "units": 4, "hidden_sizes": [5]}
SMALL: dict[str, Any] = {"steps_per_update": 40, "rollout_length": 8, "network": NETWORK, "learning_rate": 1e-2}
LENGTHS = [3, 1, 6, 2]


def network_of(hidden_sizes: tuple[int, ...] = (5,), seed: int = 0, **options: Any) -> RecurrentNetworks:
    chosen = {**NETWORK, "hidden_sizes": hidden_sizes, "activation": "relu", **options}
    spec = planned_policy("PPO", BOX, NUMBERS, {"network": chosen})
    assert spec is not None
    network = choose_network(chosen, {}).actor_critic(spec)
    assert isinstance(network, RecurrentNetworks)
    network.initialise(torch.Generator().manual_seed(seed), (0.5, 1.0))
    return network


def batch_of(seed: int = 0) -> tuple[Tensor, Sequences]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(LENGTHS), 3, generator=generator)
    return x, Sequences(LENGTHS, torch.randn(len(LENGTHS), 4, generator=generator).tanh())


def slow(network: RecurrentNetworks, flat: Tensor, x: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Return the outputs and values of the twin. It computes step by step with torch's cell, from a vector of parameters."""
    policy, value = network.views(flat)
    outputs, values = [], []
    for rows, state in zip(x.split(list(sequences.lengths)), sequences.states, strict=True):
        for row in rows:
            hidden, layers = row, list(policy)
            while layers[0].shape[0] != 12:
                hidden = torch.relu(layers.pop(0) @ hidden + layers.pop(0))
            state = torch.gru_cell(hidden[None], state[None], *layers[:4])[0]
            outputs.append(layers[4] @ state + layers[5])
            values.append(value[2] @ torch.relu(value[0] @ state + value[1]) + value[3])
    return torch.stack(outputs), torch.stack(values)


@pytest.mark.parametrize("hidden_sizes", [(), (5,), (5, 3)])
def test_outputs_and_gradients_are_those_of_single_steps(hidden_sizes: tuple[int, ...]) -> None:
    network, (x, sequences) = network_of(hidden_sizes), batch_of()
    free = network.flat.detach().clone().requires_grad_()
    wanted = slow(network, free, x, sequences)
    found = network(x, sequences)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    weights = torch.randn(len(x), generator=torch.Generator().manual_seed(5))

    def loss(outputs: Tensor, values: Tensor) -> Tensor:
        return (outputs.square().sum(1) * weights).sum() + (values.squeeze(1) * weights).sum()

    expected = torch.autograd.grad(loss(*wanted), free)[0]
    torch.testing.assert_close(network.gradient(loss(*found)), expected, atol=1e-5, rtol=1e-4)
    assert isinstance(network, RecurrentNetwork) and network.flat.shape == free.shape
    assert network.extras is not None and network.extras.shape == (2,)


def test_one_network_alone_has_a_gradient_by_its_own_parameters() -> None:
    network, (x, sequences) = network_of(), batch_of()
    both = network(x, sequences)
    for k in range(2):
        alone = network.one(k, x, sequences)
        assert torch.equal(alone, both[k])
        gradient = network.gradient(alone.square().sum(), k)
        assert gradient[network.parts[k]].any() and not gradient[network.parts[1 - k]].any()


def test_without_sequences_each_row_starts_an_episode() -> None:
    network, (x, _) = network_of(), batch_of()
    alone = Sequences([1] * len(x), torch.zeros(len(x), 4))
    assert all(torch.equal(a, b) for a, b in zip(network(x), network(x, alone), strict=True))


@pytest.mark.parametrize("hidden_sizes", [(), (5,)])
def test_other_statistics_of_observations_change_no_output(hidden_sizes: tuple[int, ...]) -> None:
    network, (x, sequences) = network_of(hidden_sizes), batch_of()
    generator = torch.Generator().manual_seed(3)
    mean, new_mean = torch.randn(3, generator=generator), torch.randn(3, generator=generator)
    scale, new_scale = torch.rand(3, generator=generator) + 1.0, torch.rand(3, generator=generator) + 1.0
    before = [out.detach() for out in network((x - mean) * scale, sequences)]
    factor = network.change_inputs(mean, scale, new_mean, new_scale)
    for a, b in zip(network((x - new_mean) * new_scale, sequences), before, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    changed = network.views(factor)[0][0]
    torch.testing.assert_close(changed, (new_scale / scale).expand_as(changed))
    assert int((factor != 1.0).sum()) == changed.numel()


def test_a_cut_goes_on_from_the_state_before_it() -> None:
    network, (x, sequences) = network_of(), batch_of()
    whole = network(x, sequences)
    pieces = sequences.cut(2, network.states(x, sequences))
    assert list(pieces.lengths) == [2, 1, 1, 2, 2, 2, 2]
    for a, b in zip(network(x, pieces), whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert sequences.cut(6, network.states(x, sequences)) is sequences


def test_chosen_sequences_come_with_their_rows() -> None:
    x, sequences = batch_of()
    chosen, rows = sequences.select([2, 0])
    assert rows.tolist() == [4, 5, 6, 7, 8, 9, 0, 1, 2] and list(chosen.lengths) == [6, 3]
    assert torch.equal(chosen.states, sequences.states[[2, 0]])
    network = network_of()
    torch.testing.assert_close(network(x[rows], chosen)[0], network(x, sequences)[0][rows])


@pytest.mark.parametrize(("lengths", "count"), [([8] * 6, 3), ([1, 30, 1, 1, 1], 4), ([5], 3), ([2, 2, 9, 4, 4, 3], 2)])
def test_groups_of_sequences_are_whole_and_about_equal(lengths: list[int], count: int) -> None:
    groups = equal_groups(np.array(lengths), count)
    assert 1 <= len(groups) <= count
    assert [n for group in groups for n in lengths[group]] == lengths
    sums = [sum(lengths[group]) for group in groups]
    assert min(sums) > 0 and max(sums) <= sum(lengths) / count + max(lengths)


def segments_of(algorithm: Any, count: int = 6, seed: int = 0, steps: int = 8) -> list[Segment]:
    """Return episodes of an actor with the newest policy, cut into segments of up to `steps` steps."""
    spec, rng, random = algorithm.spec(), np.random.default_rng(seed), RandomSource(seed)
    policy = build_policy(spec, PolicySnapshot(1, 0, 0, *spec.flatten(algorithm.snapshot())))
    assert isinstance(policy, ExtraColumnPolicy)
    step = policy.bind_step(random, True)
    found: list[Segment] = []
    state = None
    for index in range(count):
        length, terminated = int(rng.integers(1, steps + 1)), index % 3 == 2
        observations = rng.normal(size=(length + (not terminated), 3)).astype(np.float32)
        taken = []
        for observation in observations[:length]:
            taken.append(step(observation, None, state))
            state = taken[-1][4]
        found.append(
            segment_with(
                length,
                observations=observations,
                actions=np.array([raw for raw, *_ in taken]),
                rewards=rng.normal(size=length).astype(np.float32),
                log_probs=np.array([log_prob for _, _, log_prob, *_ in taken], np.float32),
                episode_id=index // 3,
                segment_index=index % 3,
                terminated=terminated,
                initial={STATE: np.array(taken[0][3][STATE])},
            )
        )
        state = None if terminated else state
    return found


def rollout_of(algorithm: PPO, segments: list[Segment]) -> RolloutBatch:
    return join_segments([(part, False) for part in segments], BOX, ActionDistributionBuilder(algorithm.spec().action_space))


@pytest.mark.parametrize("sequence_length", [None, 3])
@pytest.mark.parametrize("actions", [DISCRETE, NUMBERS])
def test_before_the_first_step_the_ratio_is_one(actions: Any, sequence_length: int | None) -> None:
    """The log-probabilities that the learner computes are those that the actor recorded, in the middle of episodes too."""
    algorithm = PPO(BOX, actions, {**SMALL, "network": {**NETWORK, "sequence_length": sequence_length}}, 0)
    algorithm._network.flat.mul_(2.0)
    segments = segments_of(algorithm)
    columns, metrics = algorithm._prepare(rollout_of(algorithm, segments), 0.2)
    assert metrics["losses/ratio_first"] < 1e-5
    assert columns.sequences is not None
    assert max(columns.sequences.lengths) <= (sequence_length or 8) and sum(columns.sequences.lengths) == len(columns.actions)
    with torch.no_grad():  # the minibatches of a pass have the same outputs, from the states at their starts
        for batch, weight in columns.minibatches([10] * 4, torch.Generator().manual_seed(0)):
            outputs, _ = algorithm._network(batch.features, batch.sequences)
            again = algorithm._distribution(outputs, None).log_probs(batch.actions)
            torch.testing.assert_close(again, batch.log_probs, atol=2e-5, rtol=1e-5)
            assert weight == 1.0


def test_minibatches_are_all_sequences_in_a_random_order() -> None:
    algorithm = PPO(BOX, DISCRETE, SMALL, 0)
    columns, _ = algorithm._prepare(rollout_of(algorithm, segments_of(algorithm)), 0.2)

    def passed(seed: int) -> list[TrainingTensors]:
        return [batch for batch, _ in columns.minibatches([10] * 3, torch.Generator().manual_seed(seed))]

    assert 1 < len(passed(0)) <= 3
    rows = torch.cat([batch.features for batch in passed(0)])
    assert not torch.equal(rows, columns.features)
    assert torch.equal(rows.sort(0).values, columns.features.sort(0).values)
    assert torch.equal(rows, torch.cat([batch.features for batch in passed(0)]))
    assert not torch.equal(rows, torch.cat([batch.features for batch in passed(1)]))


@pytest.mark.parametrize("name", ["PPO", "A2C", "A3C", "IMPALA", "REINFORCE"])
def test_the_algorithms_keep_their_contract(name: str) -> None:
    """Equal seeds and segments give equal bits, also after a checkpoint."""
    given: dict[str, Any] = {"rollout_length": 6, "network": {**NETWORK, "sequence_length": 4}}
    given |= {"episodes_per_update": 3, "with_vf_baseline": True} if name == "REINFORCE" else {"steps_per_update": 24}
    given |= {"minibatch_size": 8, "update_epochs": 2} if name == "PPO" else {}
    check_algorithm(ALGORITHMS.get(name), observation_space=BOX, parameters=given)


def test_observations_and_actions_can_have_several_parts() -> None:
    observations = DictSpace({"near": BOX, "kind": DiscreteSpace(2)})
    actions = TupleSpace((DiscreteSpace(3), NUMBERS))
    parameters = {**SMALL, "minibatch_size": 8, "update_epochs": 2, "normalise_observations": True}
    check_algorithm(ALGORITHMS.get("PPO"), observation_space=observations, action_space=actions, parameters=parameters)


def test_rpo_and_rl4sys_updates_train() -> None:
    check_algorithm(ALGORITHMS.get("RPO"), observation_space=BOX, action_space=NUMBERS, parameters={**SMALL, "minibatch_size": 8})
    in_turn = {**SMALL, "train_pi_iters": 2, "train_v_iters": 2, "minibatch_size": 8, "target_kl": 0.01}
    check_algorithm(ALGORITHMS.get("PPO"), observation_space=BOX, parameters=in_turn)


def test_what_was_seen_before_changes_the_gradient() -> None:
    """The weights of the state are trained. With a batch of one segment of one step, their gradient is not zero either."""
    algorithm = PPO(BOX, DISCRETE, {**SMALL, "steps_per_update": 1}, 0)
    [segment] = segments_of(algorithm, 1, steps=1)
    before = algorithm.snapshot()["gru.0.weight_hh"]
    algorithm.observe(replace(segment, initial={STATE: np.full(4, 0.5, np.float32)}))
    algorithm.update()
    assert not np.array_equal(before, algorithm.snapshot()["gru.0.weight_hh"])


def test_a_segment_without_its_state_is_named() -> None:
    algorithm = PPO(BOX, DISCRETE, {**SMALL, "steps_per_update": 1}, 0)
    [segment] = segments_of(algorithm, 1)
    algorithm.observe(replace(segment, initial={}))
    with pytest.raises(ConfigError, match="lacks the column 'state', the recurrent state before its first step"):
        algorithm.update()


def test_a_state_is_limited_to_its_range() -> None:
    algorithm = make_algorithm("PPO", BOX, DISCRETE, SMALL, 0)
    [segment] = segments_of(algorithm, 1)
    states = initial_states([replace(segment, initial={STATE: np.array([1e15, -1e15, 0.5, 0.0], np.float32)})], STATE)
    assert states.tolist() == [[1.0, -1.0, 0.5, 0.0]]


def test_several_ranks_are_refused() -> None:
    algorithm = PPO(BOX, DISCRETE, SMALL, 0)
    ranks: Any = SimpleNamespace(rank=0, size=2)
    with pytest.raises(ConfigError, match="a network of kind 'gru' trains in one process, not in 2; use learners: 1"):
        algorithm.place(Compute(device=torch.device("cpu"), ranks=ranks))


def test_a_large_image_is_refused() -> None:
    image = BoxSpace((96, 96, 3), "|u1", low=0, high=255)
    with pytest.raises(ConfigError, match="would flatten the image"):
        planned_policy("PPO", image, DISCRETE, {"network": "gru"})


def test_the_values_can_leave_the_unit_as_it_is() -> None:
    network, (x, sequences) = network_of(), batch_of()
    apart = network_of(value_gradient=False)
    apart.flat.copy_(network.flat)
    for each, reached in ((network, True), (apart, False)):
        outputs, values = each(x, sequences)
        gradient = each.gradient(outputs.mean() * 0.0 + values.square().sum())
        assert bool(gradient[each.parts[0]].any()) == reached and gradient[each.parts[1]].any()
