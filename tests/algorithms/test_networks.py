"""Tests of the flat perceptrons against torch's own modules, of Adam against torch's Adam, and of the policy twin."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from rl4sys_zmq.algorithms.action_distributions import Categorical, DiagonalGaussian
from rl4sys_zmq.algorithms.networks.flat_networks import MAX_RESCALE, FlatAdam, MLPGroup
from rl4sys_zmq.algorithms.networks.inputs import encode_observations, standardise
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, DiscreteSpace

from .policy_twin import policy_outputs

MODULES = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU, "leaky_relu": nn.LeakyReLU,
    "identity": nn.Identity,
}  # fmt: skip


def stack(
    outputs: tuple[int, ...] = (4, 1),
    hidden: tuple[int, ...] = (16, 8),
    activation: str = "tanh",
    features: int = 5,
    extras: int = 0,
    seed: int = 0,
) -> MLPGroup:
    network = MLPGroup(features, hidden, outputs, activation, extras=extras)
    network.initialise(torch.Generator().manual_seed(seed), (1.0,) * len(outputs))
    with torch.no_grad():
        network.flat.add_(torch.randn(network.flat.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return network


def as_modules(
    network: MLPGroup, outputs: tuple[int, ...], hidden: tuple[int, ...], activation: str, features: int, extras: int
) -> list[nn.Module]:
    """Return the same networks as ordinary modules, read from the flat vector in manifest order, all as wide as network 0."""
    modules: list[nn.Module] = []
    for k in range(len(outputs)):
        flat = network.flat[network.parts[k]].detach()
        layers: list[nn.Module] = []
        widths = [features, *hidden, outputs[0]]
        at = 0
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            linear = nn.Linear(a, b)
            linear.weight.data = flat[at : at + a * b].view(b, a).clone()
            linear.bias.data = flat[at + a * b : at + a * b + b].clone()
            at += a * b + b
            layers += [linear] + ([MODULES[activation]()] if i < len(hidden) else [])
        assert at == len(flat) - extras
        modules.append(nn.Sequential(*layers))
    return modules


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("outputs", "hidden", "extras"),
    [((4, 1), (16, 8), 0), ((3,), (7,), 0), ((2, 1), (6, 6, 6), 2), ((3, 1), (), 0), ((3, 2, 3), (6, 4), 1)],
)
def test_outputs_and_gradients_are_those_of_ordinary_modules(
    activation: str, outputs: tuple[int, ...], hidden: tuple[int, ...], extras: int
) -> None:
    network = stack(outputs, hidden, activation, extras=extras)
    modules = as_modules(network, outputs, hidden, activation, 5, extras)
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(2))
    mine, theirs = network(x), [module(x)[:, :n] for module, n in zip(modules, outputs, strict=True)]
    assert [out.shape for out in mine] == [(9, n) for n in outputs]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    gradient = network.gradient(torch.stack([out.square().sum() for out in mine]).sum())
    torch.stack([out.square().sum() for out in theirs]).sum().backward()
    for part, module in zip(network.parts, modules, strict=True):
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(gradient[part][: len(expected)], expected, atol=1e-4, rtol=1e-4)
        assert not gradient[part][len(expected) :].any()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("outputs", "hidden", "extras"), [((4, 1), (16, 8), 0), ((2, 1), (6, 6, 6), 2), ((3, 2, 3), (6, 4), 1)])
def test_one_network_by_itself_gives_the_outputs_and_the_gradient_of_the_stack(
    activation: str, outputs: tuple[int, ...], hidden: tuple[int, ...], extras: int
) -> None:
    network = stack(outputs, hidden, activation, extras=extras)
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(2))
    for k in range(len(outputs)):
        every = network(x)[k]
        network.gradient(torch.stack([out.square().sum() for out in network(x)]).sum())  # must not affect the next gradients
        torch.testing.assert_close(network.one(k, x), every, atol=1e-5, rtol=1e-5)
        losses = [every.square().sum(), network.one(k, x).square().sum()]
        if k == 0 and network.extras is not None:
            losses = [loss + network.extras.square().sum() for loss in losses]
        joint = network.gradient(losses[0]).clone()
        assert joint.any()
        torch.testing.assert_close(network.gradient(losses[1], only=k), joint, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("outputs", "extras"), [((4, 1), 0), ((2, 1), 2), ((3,), 0)])
def test_networks_compute_the_same_after_a_change_of_the_inputs_statistics(outputs: tuple[int, ...], extras: int) -> None:
    generator = torch.Generator().manual_seed(4)
    network = stack(outputs, (16, 8), extras=extras)
    x = torch.randn(50, 5, generator=generator) * 3 + 1
    mean, new_mean = torch.randn(5, generator=generator), torch.randn(5, generator=generator)
    scale = torch.rand(5, generator=generator) + 0.5
    new_scale = scale * torch.tensor([1.9, 0.6, 1.0, 1.2, 0.8])
    before = network((x - mean) * scale)
    factor = network.change_inputs(mean, scale, new_mean, new_scale)
    for was, now in zip(before, network((x - new_mean) * new_scale), strict=True):
        torch.testing.assert_close(now, was, atol=1e-4, rtol=1e-4)
    for part in network.parts:
        first = factor[part][: 16 * 5].view(16, 5)
        torch.testing.assert_close(first, (new_scale / scale).expand(16, 5))
        assert torch.all(factor[part][16 * 5 :] == 1)


def test_a_scale_that_jumps_changes_a_weight_by_a_bounded_factor() -> None:
    """The weights of a nearly constant feature that begins to vary must not grow as much as its range."""
    network = stack()
    ones, mean = torch.ones(5), torch.zeros(5)
    weights = network.views(network.flat)[0][0].detach().clone()
    there = network(mean[None])
    network.change_inputs(mean, ones * 1e6, mean, ones)
    torch.testing.assert_close(network.views(network.flat)[0][0].detach(), weights * MAX_RESCALE)
    for was, now in zip(there, network(mean[None]), strict=True):
        torch.testing.assert_close(now, was)


def test_initialisation_is_orthogonal_seeded_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    a, b, c = (MLPGroup(8, (64, 64), (4, 1)) for _ in range(3))
    a.initialise(torch.Generator().manual_seed(3), (0.01, 1.0))
    b.initialise(torch.Generator().manual_seed(3), (0.01, 1.0))
    c.initialise(torch.Generator().manual_seed(4), (0.01, 1.0))
    assert torch.equal(a.flat, b.flat) and not torch.equal(a.flat, c.flat)
    assert torch.equal(before, torch.get_rng_state())
    weight = [views[2] for views in a.views(a.flat)]
    assert [matrix.shape for matrix in weight] == [(64, 64)] * 2
    for matrix in weight:
        torch.testing.assert_close(matrix @ matrix.T, 2.0 * torch.eye(64), atol=1e-4, rtol=0)
    assert not torch.equal(weight[0], weight[1])


def test_flat_adam_is_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    mine = torch.randn(50, generator=generator)
    theirs = nn.Parameter(mine.clone())
    adam, reference = FlatAdam(mine, eps=1e-5), torch.optim.Adam([theirs], lr=3e-3, eps=1e-5)
    for _ in range(30):
        grad = torch.randn(50, generator=generator)
        theirs.grad = grad.clone()
        nn.utils.clip_grad_norm_([theirs], 0.5)
        reference.step()
        adam.step(grad, [3e-3], max_norm=0.5)
    torch.testing.assert_close(mine, theirs.detach(), atol=1e-6, rtol=1e-5)


def test_flat_adam_without_a_mean_and_a_bias_correction_is_rms_prop() -> None:
    generator = torch.Generator().manual_seed(0)
    mine = torch.randn(50, generator=generator)
    theirs = nn.Parameter(mine.clone())
    rms = FlatAdam(mine, eps=1e-5, rms_prop=True)
    reference = torch.optim.RMSprop([theirs], lr=3e-3, alpha=0.99, eps=1e-5)
    for _ in range(30):
        grad = torch.randn(50, generator=generator)
        theirs.grad = grad.clone()
        reference.step()
        rms.step(grad, [3e-3])
    torch.testing.assert_close(mine, theirs.detach(), atol=1e-6, rtol=1e-5)


def test_flat_adam_moves_the_parts_with_a_rate_only_and_resumes() -> None:
    flat = torch.zeros(6)
    parts = (slice(0, 3), slice(3, 6))
    adam = FlatAdam(flat, parts)
    adam.step(torch.ones(6), [0.1, None])
    assert (flat[:3] < 0).all() and not flat[3:].any()
    again = FlatAdam(flat.clone(), parts)
    again.load(adam.state())
    assert again.steps == [1, 0]
    adam.step(torch.ones(6), [0.1, 0.1])
    again.step(torch.ones(6), [0.1, 0.1])
    assert torch.equal(adam._flat, again._flat)
    with pytest.raises(ConfigError, match="2 parts; this network has 1"):
        FlatAdam(flat).load(adam.state())


def test_parts_that_take_different_numbers_of_steps_equal_two_optimizers() -> None:
    """100 updates of 4 policy and 76 value steps: each part's bias correction counts its own steps."""
    generator = torch.Generator().manual_seed(3)
    mine = torch.randn(60, generator=generator, dtype=torch.float64)
    parts = (slice(0, 40), slice(40, 60))
    theirs = [nn.Parameter(mine[part].clone()) for part in parts]
    adam = FlatAdam(mine, parts)
    references = [torch.optim.Adam([p], lr=rate, eps=1e-5) for p, rate in zip(theirs, (3e-4, 1e-3), strict=True)]
    for _ in range(100):
        for number in range(76):
            rates = [3e-4 if number < 4 else None, 1e-3]
            grad = torch.randn(60, generator=generator, dtype=torch.float64)
            for part, tensor, reference, rate in zip(parts, theirs, references, rates, strict=True):
                if rate is not None:
                    tensor.grad = grad[part].clone()
                    reference.step()
            adam.step(grad, rates)
    assert adam.steps == [400, 7600]
    torch.testing.assert_close(mine, torch.cat([p.detach() for p in theirs]), atol=1e-6, rtol=0)


def test_observations_become_features() -> None:
    box = BoxSpace((2, 3), "|u1", 0.0, 255.0)
    assert encode_observations(box, np.full((4, 2, 3), 7, np.uint8)).shape == (4, 6)
    one_hot = encode_observations(DiscreteSpace(4, start=-1), np.array([-1, 2]))
    assert one_hot.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    read_only = np.ones((2, 3), np.float32)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_observations(BoxSpace((3,)), read_only)
    own = np.ones((2, 3), np.float32)
    assert encode_observations(BoxSpace((3,)), own).data_ptr() == own.ctypes.data, "float32 is taken without a copy"


def test_the_twin_of_a_described_policy() -> None:
    spec = mlp_spec(BoxSpace((5,)), DiscreteSpace(4), "categorical", (16, 8), "relu", normalise_observations=True)
    network = stack((4, 1), (16, 8), "relu")
    flat = np.concatenate([np.full(5, 0.5), np.full(5, 2.0), network.flat[network.parts[0]].detach().numpy()]).astype(np.float32)
    x = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    expected = network(standardise(torch.from_numpy(x), torch.full((5,), 0.5), torch.full((5,), 2.0)))[0]
    torch.testing.assert_close(policy_outputs(spec, spec.views(flat), x), expected.detach(), atol=1e-5, rtol=1e-5)


def test_categorical_is_torchs() -> None:
    logits, actions = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    mine, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(mine.log_probs(actions), theirs.log_prob(actions))
    torch.testing.assert_close(mine.mean_entropy(), theirs.entropy().mean())


def test_masked_categorical_is_one_over_the_allowed_actions() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 50.0]], requires_grad=True)
    forbidden = torch.tensor([[False, True, False], [False, False, True]])
    head = Categorical(logits, forbidden)
    few = torch.distributions.Categorical(logits=logits[:1, [0, 2]])
    torch.testing.assert_close(head.log_probs(torch.tensor([2, 0]))[0], few.log_prob(torch.tensor(1))[0])
    assert head.log_probs(torch.tensor([2, 0]))[1].item() == pytest.approx(np.log(0.5))
    entropy = head.mean_entropy()
    assert entropy.item() == pytest.approx((few.entropy().item() + np.log(2)) / 2)
    (gradient,) = torch.autograd.grad(entropy, logits)
    assert torch.isfinite(gradient).all() and not gradient[forbidden].any()


def test_gaussian_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    means, actions, log_std = (
        torch.randn(6, 3, generator=generator),
        torch.randn(6, 3, generator=generator),
        torch.tensor([0.1, -1, 0.5]),
    )
    mine, theirs = DiagonalGaussian(means, log_std), torch.distributions.Normal(means, log_std.exp())
    torch.testing.assert_close(mine.log_probs(actions), theirs.log_prob(actions).sum(1))
    torch.testing.assert_close(mine.mean_entropy(), theirs.entropy().sum(1).mean())
