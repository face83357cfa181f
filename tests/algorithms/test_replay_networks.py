"""Tests of kinds of networks in the replay algorithms: values against a slow twin, actors, and refusals."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from rl4sys_zmq.algorithms import make_algorithm, planned_policy  # noqa: E402
from rl4sys_zmq.algorithms.networks import NETWORKS, NetworkEntry, ReplayShape, choose_network, register_network  # noqa: E402
from rl4sys_zmq.algorithms.networks.inputs import encode_observations  # noqa: E402
from rl4sys_zmq.algorithms.networks.layer_networks import SharedLayerNetworks  # noqa: E402
from rl4sys_zmq.algorithms.networks.mlp import ENTRY as MLP  # noqa: E402
from rl4sys_zmq.algorithms.networks.module import module_network  # noqa: E402
from rl4sys_zmq.algorithms.networks.module_networks import JOINED_UNITS, ModuleNetworks  # noqa: E402
from rl4sys_zmq.config.options import integer, option  # noqa: E402
from rl4sys_zmq.errors import ConfigError  # noqa: E402
from rl4sys_zmq.policies import RandomSource, build_policy  # noqa: E402
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot  # noqa: E402
from rl4sys_zmq.values.spaces import FlatSpace  # noqa: E402

from .test_cnn import SMALL, image, pictures, slow_convolutions  # noqa: E402
from .test_resume import updates  # noqa: E402

IMAGE, FOUR, BOX = image(6, 6, 2), DiscreteSpace(4, 1), BoxSpace((2,), low=-2.0, high=2.0)
REPLAY: dict[str, Any] = {
    "batch_size": 8, "learning_starts": 20, "train_frequency": 8, "buffer_size": 100, "learning_rate": 1e-2,
}  # fmt: skip
CASES: dict[str, tuple[str, FlatSpace, dict[str, Any]]] = {
    "DQN": ("DQN", FOUR, {}),
    "dueling": ("DQN", FOUR, {"dueling": True, "initialisation": "orthogonal"}),
    "quantiles": ("DQN", FOUR, {"distribution": "quantile", "quantiles": 3}),
    "C51": ("C51", FOUR, {"atoms": 5, "prioritised": True}),
    "SAC": ("SAC", BOX, {}),
    "discrete SAC": ("SAC", FOUR, {}),
    "TD3": ("TD3", BOX, {}),
    "DDPG": ("DDPG", BOX, {}),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    width: int = option(integer(1), 8, doc="units of the hidden layer")


class Pooled(nn.Module):
    """A convolution over an image with the colours last, the mean of each filter, and a skip connection."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.filters, self.hidden = nn.Conv2d(2, width, 3), nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.relu(self.filters(x.permute(0, 3, 1, 2) / 255.0)).mean((2, 3))
        outputs: Tensor = self.last(pooled + torch.relu(self.hidden(pooled)))
        return outputs


def pooled(options: Options, space: BoxSpace, outputs: int) -> nn.Module:
    return Pooled(options.width, outputs)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setattr(NETWORKS, "_entries", {})
    register_network(module_network("pooled", Options, pooled))


def make(case: str, seed: int = 0, network: Any = SMALL) -> Any:
    name, actions, parameters = CASES[case]
    return make_algorithm(name, IMAGE, actions, {**REPLAY, **parameters, "network": network}, seed)


def replay_of(shape: ReplayShape) -> SharedLayerNetworks:
    network = choose_network(SMALL, {}).replay(IMAGE, shape)
    assert isinstance(network, SharedLayerNetworks)
    return network


def test_critics_share_convolutions_and_get_the_action_after_them() -> None:
    network = replay_of(ReplayShape(outputs=(1, 1), actions=2, extras=3))
    network.initialise_uniform(torch.Generator().manual_seed(1))
    assert not network.leaves[0][-1].any() and len(network.leaves[1]) == 4
    rng = np.random.default_rng(2)
    images, actions = rng.integers(0, 256, (5, *IMAGE.shape)).astype(np.uint8), rng.normal(size=(5, 2)).astype(np.float32)
    weights = [leaf.detach().numpy().astype(np.float64) for network_leaves in network.leaves for leaf in network_leaves]
    joined = np.concatenate([slow_convolutions(images / 255.0, weights[:4]), actions], axis=1)
    x, acted = encode_observations(IMAGE, images), torch.from_numpy(actions)
    for k, layers in enumerate((weights[4:8], weights[9:])):
        hidden = np.maximum(joined @ layers[0].T + layers[1], 0.0)
        expected = hidden @ layers[2].T + layers[3]
        with torch.no_grad():
            np.testing.assert_allclose(network(x, actions=acted)[k], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(network.one(k, x, actions=acted), expected, rtol=1e-4, atol=1e-5)


def test_an_action_is_joined_to_the_features_of_a_module() -> None:
    network = ModuleNetworks(pooled, Options(width=4), IMAGE, ReplayShape(outputs=(1, 1), actions=2))
    network.initialise_uniform(torch.Generator().manual_seed(3))
    assert not torch.equal(network.leaves[0][0], network.leaves[1][0])
    body = Pooled(4, JOINED_UNITS)
    with torch.no_grad():
        for parameter, leaf in zip(body.parameters(), network.leaves[1], strict=False):
            parameter.copy_(leaf)
        images, actions = torch.rand(3, *IMAGE.shape), torch.rand(3, 2)
        weight, bias, last_weight, last_bias = network.leaves[1][-4:]
        hidden = torch.relu(torch.cat((torch.relu(body(images)), actions), 1) @ weight.T + bias)
        expected = hidden @ last_weight.T + last_bias
        torch.testing.assert_close(network(images.flatten(1), actions=actions)[1], expected)


def greedy_by_torch(algorithm: Any, case: str, images: Any) -> Any:
    """Return the actions without exploration, as the networks in training choose them."""
    x = encode_observations(IMAGE, images)
    with torch.no_grad():
        if case in ("SAC", "TD3", "DDPG"):
            outputs = algorithm._policy(x)[0]
            return (2.0 * torch.tanh(outputs[:, :2])).numpy()
        if case == "discrete SAC":
            return algorithm._policy(x)[0].argmax(1).numpy() + FOUR.start
        head = algorithm._head
        return head.values(head.estimates(algorithm._online(x)[0])).argmax(1).numpy() + FOUR.start


REFUSED = {("pooled", "dueling"), ("pooled", "quantiles")}
"""Networks and settings that exclude each other. `test_a_network_that_does_not_fit_is_refused` tests them."""


@pytest.mark.parametrize(
    ("case", "kind"),
    [(case, kind) for kind in ("cnn", "pooled") for case in CASES if (kind, case) not in REFUSED],
)
def test_an_actor_acts_as_the_networks_in_training(case: str, kind: str, module: None) -> None:
    pytest.importorskip("onnxruntime")
    algorithm = make(case, 5, SMALL if kind == "cnn" else kind)
    source = pictures(IMAGE, CASES[case][1], 4)
    updates(algorithm, source, 3)
    spec = algorithm.spec()
    assert spec.kind == ("layers" if kind == "cnn" else "onnx")
    name, acts, parameters = CASES[case]
    network = SMALL if kind == "cnn" else kind
    assert spec == planned_policy(name, IMAGE, acts, {**REPLAY, **parameters, "network": network})
    flat, others = spec.flatten(algorithm.snapshot())
    policy = build_policy(spec, PolicySnapshot(1, 1, 0, flat, others))
    images = np.random.default_rng(1).integers(0, 256, (20, *IMAGE.shape)).astype(np.uint8)
    acted, _, _ = policy.act_batch(images, None, RandomSource(1), False)
    np.testing.assert_allclose(acted, greedy_by_torch(algorithm, case, images), rtol=1e-3, atol=1e-5)


def test_images_are_bytes_in_the_replay() -> None:
    algorithm = make("DQN")
    updates(algorithm, pictures(IMAGE, FOUR, 1), 2)
    batch = algorithm._sampler.gather(algorithm._draw())
    assert batch.observations.dtype == np.uint8
    assert 100 * IMAGE.size <= algorithm._replay.nbytes < 100 * (IMAGE.size + 100)  # not four bytes for each pixel


@pytest.mark.parametrize(
    ("algorithm", "given", "problem"),
    [
        ("SAC", {"network": "gru"}, "SAC cannot train a network of kind 'gru'"),
        ("DQN", {"network": "cnn", "hidden_sizes": [8]}, r"hidden_sizes: \[8\] describes an MLP"),
        (
            "DQN",
            {"network": "pooled", "dueling": True},
            "dueling needs a network whose last layer is linear.*'pooled'.*within the",
        ),
        ("DQN", {"network": "pooled", "distribution": "quantile"}, "quantile needs a network .* use categorical"),
        ("DQN", {"network": "linear"}, "DQN cannot train a network of kind 'linear'"),
        ("DQN", {"network": {"kind": "cnn", "kernels": [3]}}, "channels, kernels and strides of equal lengths"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(algorithm: str, given: dict[str, Any], problem: str, module: None) -> None:
    register_network(NetworkEntry(name="linear", options=Options, plan=MLP.plan, actor_critic="no_module:X"))
    with pytest.raises(ConfigError, match=problem) as caught:
        planned_policy(algorithm, IMAGE, FOUR, given)
    assert str(caught.value.key).startswith("algorithm_parameters.")
    with pytest.raises(ConfigError, match=problem):
        make_algorithm(algorithm, IMAGE, FOUR, given, 0)
