"""Tests of the adapter of TorchRL's losses: it trains on segments and resumes exactly, and actors act as its networks."""

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from kit import random_segment

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment, Space

pytest.importorskip("torchrl", reason="the extra torchrl is not installed")

OBS = BoxSpace((3,))
DISCRETE, BOX = DiscreteSpace(3, 1), BoxSpace((2,), low=-1.0, high=3.0)
SMALL: dict[str, Any] = {"hidden_sizes": [8, 8], "rollout_length": 16, "learning_starts": 32, "train_frequency": 16}
SMALL |= {"batch_size": 32, "buffer_size": 200}
CASES: dict[str, tuple[str, Space]] = {
    "bc_discrete": ("BC", DISCRETE),
    "bc_box": ("BC", BOX),
    "iql_discrete": ("IQL", DISCRETE),
    "iql_box": ("IQL", BOX),
    "cql_discrete": ("CQL", DISCRETE),
    "cql_box": ("CQL", BOX),
    "td3bc": ("TD3BC", BOX),
    "redq": ("REDQ", BOX),
    "tqc": ("TQC", BOX),
}


def make(name: str, actions: Space, **parameters: Any) -> Any:
    return make_algorithm(f"torchrl:{name}", OBS, actions, {**SMALL, **parameters}, 3)


def segment(space: Space, seed: int, **columns: Any) -> Segment:
    return random_segment(16, seed, spaces=(OBS, space), **columns)


def trained(name: str, actions: Space, **parameters: Any) -> Any:
    algorithm, seed = make(name, actions, **parameters), 0
    while algorithm.update() is None:
        algorithm.observe(segment(actions, seed))
        seed += 1
    return algorithm


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_the_contract_of_an_algorithm(case: str) -> None:
    """The contract includes equal runs, bit-equal resuming from a checkpoint, and untouched global generators."""
    name, actions = CASES[case]
    check_algorithm(ALGORITHMS.get(f"torchrl:{name}"), observation_space=OBS, action_space=actions, parameters=SMALL)


@pytest.mark.parametrize("case", CASES)
def test_actors_act_greedily_as_the_trained_network_does(case: str) -> None:
    name, actions = CASES[case]
    algorithm = trained(name, actions)
    trainable = {parameter.data_ptr() for parameter in algorithm._loss.parameters()}
    assert {parameter.data_ptr() for parameter in algorithm._policy.parameters()} <= trainable
    spec = algorithm.spec()
    policy = build_policy(spec, PolicySnapshot(1, 1, 0, *spec.flatten(algorithm.snapshot())))
    rows = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    with torch.no_grad():
        outputs = algorithm._policy(torch.from_numpy(rows)).numpy()
    ours = np.array([policy.act(row, None, RandomSource(1), False)[1] for row in rows])
    if isinstance(actions, DiscreteSpace):
        assert ours.tolist() == (outputs.argmax(axis=1) + 1).tolist()
    else:
        np.testing.assert_allclose(ours, np.tanh(outputs[:, :2]) * 2.0 + 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ["IQL", "CQL", "TD3BC", "REDQ", "TQC"])
def test_the_defaults_of_a_loss_are_those_of_the_library(name: str) -> None:
    import torchrl.objectives

    signature = inspect.signature(getattr(torchrl.objectives, f"{name}Loss").__init__).parameters
    parameters: Any = ALGORITHMS.get(f"torchrl:{name}").read({})
    for key, value in parameters.arguments().items():
        assert signature[key].default == value, key
    assert parameters.ours <= {f.name for f in fields(parameters)}


def test_the_loss_of_cqls_values_is_the_librarys_default_of_each_kind_of_actions() -> None:
    import torchrl.objectives

    for actions, theirs in ((BOX, "CQLLoss"), (DISCRETE, "DiscreteCQLLoss")):
        default = inspect.signature(getattr(torchrl.objectives, theirs).__init__).parameters["loss_function"].default
        losses = [make("CQL", actions, **given)._loss.loss_function for given in ({}, {"loss_function": "l1"})]
        assert losses == [default, "l1"]


def test_a_learnt_weight_of_cql_multiplies_the_penalty_and_has_a_loss_of_its_own() -> None:
    """At a weight of 4, the critics' gradient is 4 times that of the penalty, and the weight's is minus half the penalty times 4.

    In TorchRL 0.14 itself, the critics' gradient is that of the penalty times 1 - 4 / 2, so its sign is wrong.
    """
    plain, learnt = make("CQL", BOX), make("CQL", BOX, with_lagrange=True, lagrange_thresh=0.5)
    with torch.no_grad():
        learnt._loss.log_alpha_prime.fill_(float(np.log(4.0)))
    found = []
    for algorithm in (plain, learnt):
        for seed in range(2):
            algorithm.observe(segment(BOX, seed))
        with algorithm._random.active():
            torch.manual_seed(5)
            losses = algorithm._loss(algorithm._batch(np.arange(32)))
        total = sum(loss for name, loss in losses.items() if name in ("loss_cql", "loss_alpha_prime"))
        critics = list(algorithm._loss.qvalue_network_params.parameters())
        weight = [algorithm._loss.log_alpha_prime] if algorithm is learnt else []
        found.append((losses, torch.autograd.grad(total, [*critics, *weight])))
    (penalty, expected), (losses, gradients) = found
    torch.testing.assert_close(losses["loss_cql"], 4.0 * penalty["loss_cql"])
    for one, other in zip(gradients, expected, strict=False):
        torch.testing.assert_close(one, 4.0 * other)
    torch.testing.assert_close(gradients[-1], -4.0 * (penalty["loss_cql"].detach() / 2 - 0.5))


def policy_gradient(algorithm: Any) -> torch.Tensor:
    """Return the gradient of the policy's weights as one tensor; zeros where there is none."""
    found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in algorithm._policy.parameters()]
    return torch.cat([gradient.flatten() for gradient in found])


def test_cql_trains_its_policy_on_one_loss_first_on_the_one_of_cloning() -> None:
    algorithm = make("CQL", BOX, policy_eval_start=1)
    for seed in range(2):
        algorithm.observe(segment(BOX, seed))
    names = ("loss_actor_bc", "loss_actor", "loss_actor")
    for index, name in enumerate(names):
        if index == 2:
            resumed = make("CQL", BOX, policy_eval_start=1)
            resumed.load(algorithm.state())
            algorithm = resumed
        before = algorithm.checkpoint()
        with algorithm._random.active():
            losses = algorithm._loss(algorithm._batch(np.arange(32)))
        algorithm._optimizer.zero_grad()
        losses[name].backward()
        expected = policy_gradient(algorithm)
        algorithm.restore(before)
        algorithm._train_on(np.arange(32))
        torch.testing.assert_close(policy_gradient(algorithm), expected)


def test_td3bc_delays_the_steps_of_the_policy_and_of_the_targets() -> None:
    algorithm = make("TD3BC", BOX, policy_delay=3)
    for seed in range(2):
        algorithm.observe(segment(BOX, seed))
    moved = []
    for _ in range(7):
        resumed = make("TD3BC", BOX, policy_delay=3)
        resumed.load(algorithm.state())
        algorithm, before = resumed, resumed.checkpoint()["weights"]
        algorithm._train_on(np.arange(32))
        changed = {name for name, tensor in algorithm._tensors().items() if not torch.equal(tensor, before[name])}
        moved.append({name.partition("_network")[0] for name in changed})
    assert moved == 2 * [{"qvalue"}, {"qvalue"}, {"qvalue", "actor", "target_qvalue", "target_actor"}] + [{"qvalue"}]


def test_cloning_makes_the_datas_action_the_likeliest() -> None:
    algorithm = make("BC", DISCRETE, learning_rate=0.01, gradient_steps=50)
    for seed in range(4):
        algorithm.observe(segment(DISCRETE, seed, actions=np.full(16, 2)))
    losses = []
    while (metrics := algorithm.update()) is not None:
        losses.append(metrics["losses/bc_loss"])
    assert losses[-1] < 0.1 < losses[0]


def test_cql_with_a_learnt_weight_keeps_the_contract_of_an_algorithm() -> None:
    entry = ALGORITHMS.get("torchrl:CQL")
    check_algorithm(entry, observation_space=OBS, action_space=BOX, parameters={**SMALL, "with_lagrange": True})


def test_what_it_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="torchrl:REDQ needs a Box action space, not Discrete"):
        make("REDQ", DISCRETE)
    with pytest.raises(ConfigError, match=r"unknown algorithm 'torchrl:PILCO'; valid: .*torchrl:IQL"):
        ALGORITHMS.get("torchrl:PILCO")
    with pytest.raises(ConfigError, match="30 of 25 quantiles leave none"):
        make("TQC", BOX, top_quantiles_to_drop_per_net=30)
    with pytest.raises(ConfigError, match="gamma: torchrl:BC has no such parameter"):
        make("BC", BOX, gamma=0.9)
    with pytest.raises(ConfigError, match="sub_sample_len: 3 of 3 networks leave none out"):
        make("REDQ", BOX, num_qvalue_nets=3, sub_sample_len=3)
    assert make("REDQ", BOX, num_qvalue_nets=1, sub_sample_len=1).parameters.sub_sample_len == 1
    with pytest.raises(ConfigError, match="min_alpha: 5 is above max_alpha 1"):
        make("REDQ", BOX, min_alpha=5.0, max_alpha=1.0)
    with pytest.raises(ConfigError, match="ignores action masks"):
        make("CQL", DISCRETE).observe(segment(DISCRETE, 1, masks=np.ones((16, 3), np.bool_)))
    with pytest.raises(ConfigError, match="networks of other sizes"):
        make("IQL", DISCRETE).restore(make("IQL", DISCRETE, hidden_sizes=[4]).checkpoint())
