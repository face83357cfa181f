"""The action heads compute the same as a slow twin and their torch twins, for every kind of action space."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.policies import RandomSource
from rl4sys_zmq.policies.action_heads import action_head
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, TupleSpace
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.spaces import ActionSpace

torch = pytest.importorskip("torch")

from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder  # noqa: E402

SPACES: dict[str, ActionSpace] = {
    "discrete": DiscreteSpace(5, start=-2),
    "box": BoxSpace((2, 2), low=-1.0, high=2.0),
    "multidiscrete": MultiDiscreteSpace((3, 2, 3), start=(0, 7, 1), dtype="<i4"),
    "many": MultiDiscreteSpace((30, 3, 30)),
    "multibinary": MultiBinarySpace((2, 2)),
    "hybrid": DictSpace(
        {
            "aim": BoxSpace((2,), low=-1.0, high=1.0),
            "keys": TupleSpace((MultiDiscreteSpace((2, 4)), BoxSpace((1,), "<f8", low=0.0, high=5.0))),
            "gear": DiscreteSpace(3, start=4),
        }
    ),
}


def make(name: str, seed: int = 0, rows: int = 7) -> tuple[ActionSpace, Any, Any, Any, Any]:
    """Return a space, random outputs, log_std, masks that allow at least one option of each choice, and a head."""
    space = SPACES[name]
    layout = action_layout(space)
    rng = np.random.default_rng(seed)
    outputs = rng.normal(0.0, 2.0, (rows, layout.outputs)).astype(np.float32)
    log_std = rng.normal(-0.5, 0.3, layout.numbers).astype(np.float32) if layout.numbers else None
    masks = None
    if layout.logits:
        masks = rng.random((rows, layout.logits)) < 0.6
        starts = np.cumsum((0, *layout.counts))
        for start, end in itertools.pairwise(starts):
            masks[np.arange(rows), rng.integers(start, end, rows)] = True
    return space, outputs, log_std, masks, action_head(space, "clip", log_std)


def slow_parts(space: ActionSpace, outputs: Any, log_std: Any, mask: Any, joined: Any) -> tuple[float, float]:
    """Return the log-probability of one action and the entropy, part by part, from the formulas."""
    layout = action_layout(space)
    log_prob = entropy = 0.0
    at = 0
    for count, index in zip(layout.counts, joined, strict=False):
        logits = outputs[at : at + count].astype(np.float64)
        if mask is not None:
            logits = np.where(mask[at : at + count], logits, -np.inf)
        weights = np.exp(logits - logits.max())
        p = weights / weights.sum()
        log_prob += math.log(p[int(index)])
        entropy -= sum(x * math.log(x) for x in p if x > 0.0)
        at += count
    for k in range(layout.numbers):
        mean, deviation = float(outputs[at + k]), math.exp(float(log_std[k]))
        z = (float(joined[layout.choices + k]) - mean) / deviation
        log_prob += -0.5 * z * z - math.log(deviation) - 0.5 * math.log(2.0 * math.pi)
        entropy += math.log(deviation) + 0.5 * math.log(2.0 * math.pi * math.e)
    return log_prob, entropy


def batch_of(space: ActionSpace, trees: list[Any]) -> Any:
    return action_layout(space).leaves.stack(trees)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_and_entropies_equal_the_slow_twins(name: str, masked: bool) -> None:
    space, outputs, log_std, masks, head = make(name)
    masks = masks if masked else None
    raw, _, log_probs = head.choose_batch(outputs, masks, RandomSource(1), True)
    rng = RandomSource(2)
    singles = [head.choose(row, None if masks is None else masks[k], rng, True) for k, row in enumerate(outputs)]
    distributions = ActionDistributionBuilder(space)
    layout = distributions.layout
    forbidden = None if masks is None else torch.from_numpy(~masks)
    extras = None if log_std is None else torch.from_numpy(log_std)
    torch_side = distributions(torch.from_numpy(outputs), extras, forbidden)
    for actions, found in (
        (raw, log_probs),
        (batch_of(space, [single[0] for single in singles]), [single[2] for single in singles]),
    ):
        joined = layout.join(actions)
        slow = [slow_parts(space, outputs[k], log_std, None if masks is None else masks[k], row) for k, row in enumerate(joined)]
        np.testing.assert_allclose(found, [s[0] for s in slow], rtol=2e-5, atol=2e-5)
        twin = torch_side.log_probs(distributions.encode(actions))
        np.testing.assert_allclose(twin.numpy(), found, rtol=1e-4, atol=1e-4)
        entropy = float(np.mean([s[1] for s in slow]))
        assert float(torch_side.mean_entropy()) == pytest.approx(entropy, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_the_greedy_action_is_the_mode_and_the_same_for_one_and_for_many(name: str) -> None:
    space, outputs, log_std, masks, head = make(name)
    rng = RandomSource(1)
    raw, env, _ = head.choose_batch(outputs, masks, rng, False)
    singles = [head.choose(row, None if masks is None else masks[k], rng, False) for k, row in enumerate(outputs)]
    distributions = ActionDistributionBuilder(space)
    forbidden = None if masks is None else torch.from_numpy(~masks)
    extras = None if log_std is None else torch.from_numpy(log_std)
    twin = distributions(torch.from_numpy(outputs), extras, forbidden)
    encoded, layout = distributions.encode(raw), distributions.layout
    others = [distributions.encode(head.choose_batch(outputs, masks, rng, True)[0]) for _ in range(50)]
    assert all((twin.log_probs(other) <= twin.log_probs(encoded)).all() for other in others)
    if layout.numbers:
        assert torch.equal(encoded[:, encoded.shape[1] - layout.numbers :], torch.from_numpy(outputs[:, layout.logits :]))
    for many, one in ((raw, 0), (env, 1)):
        for ours, theirs in zip(
            distributions.layout.leaves.flatten(many),
            distributions.layout.leaves.flatten(batch_of(space, [single[one] for single in singles])),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("name", SPACES)
def test_the_host_can_write_to_its_action(name: str) -> None:
    space, outputs, _, _, head = make(name)
    raw, env, _ = head.choose_batch(outputs, None, RandomSource(1), True)
    layout = action_layout(space)
    kept = layout.join(raw)
    for leaf in layout.leaves.flatten(env):
        leaf[...] = 1
    np.testing.assert_array_equal(layout.join(raw), kept)
    buffer = outputs[0].copy()
    raw, _, _ = head.choose(buffer, None, RandomSource(1), False)
    kept = layout.join(batch_of(space, [raw]))
    buffer[:] = 0.0
    np.testing.assert_array_equal(layout.join(batch_of(space, [raw])), kept)


def test_each_choice_has_its_own_frequencies() -> None:
    """The frequencies of 4000 draws are within five standard deviations of the softmax, for one draw at a time and for many."""
    space = MultiDiscreteSpace((3, 2))
    outputs = np.log(np.array([0.2, 0.5, 0.3, 0.9, 0.1], np.float32))
    head, rng, count = action_head(space), RandomSource(5), 4000
    many = head.choose_batch(np.tile(outputs, (count, 1)), None, rng, True)[0]
    each = np.array([head.choose(outputs, None, rng, True)[0] for _ in range(count)])
    for drawn in (many, each):
        for choice, p in ((0, (0.2, 0.5, 0.3)), (1, (0.9, 0.1))):
            for value, probability in enumerate(p):
                deviation = math.sqrt(probability * (1 - probability) / count)
                assert abs((drawn[:, choice] == value).mean() - probability) < 5 * deviation
        pairs = ((drawn[:, 0] == 1) & (drawn[:, 1] == 1)).mean()
        assert abs(pairs - 0.05) < 5 * math.sqrt(0.05 * 0.95 / count)  # the choices are independent


def test_a_mask_that_forbids_a_whole_choice_is_refused_by_name() -> None:
    space, outputs, _, _, head = make("hybrid")
    mask = np.ones(action_layout(space).logits, bool)
    mask[3:5] = False  # the first number of `keys`, after the three gears
    with pytest.raises(MaskError, match=r"actions\['keys'\]\[0\]\[0\]"):
        head.choose(outputs[0], mask, RandomSource(1), True)
    masks = np.ones((len(outputs), len(mask)), bool)
    masks[2] = mask
    with pytest.raises(MaskError, match=r"mask 2 forbids every value of actions\['keys'\]\[0\]\[0\]"):
        head.choose_batch(outputs, masks, RandomSource(1), True)


def test_tanh_maps_each_box_into_its_own_bounds() -> None:
    space = TupleSpace((BoxSpace((1,), low=0.0, high=10.0), DiscreteSpace(2), BoxSpace((1,), low=-4.0, high=0.0)))
    head = action_head(space, "tanh", np.zeros(2, np.float32))
    raw, env, _ = head.choose(np.array([0.0, 1.0, 0.5, -0.5], np.float32), None, RandomSource(1), False)
    assert raw[1] == 1
    assert [float(raw[0][0]), float(raw[2][0])] == [0.5, -0.5]
    assert [float(env[0][0]), float(env[2][0])] == pytest.approx([5 + 5 * math.tanh(0.5), -2 - 2 * math.tanh(0.5)])


def test_the_number_of_standard_deviations_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"2 standard deviations; .* needs 3"):
        action_head(SPACES["hybrid"], "clip", np.zeros(2, np.float32))
    with pytest.raises(ConfigError, match="0 standard deviations"):
        action_head(BoxSpace((1,)))


@pytest.mark.parametrize("name", ["multidiscrete", "hybrid"])
def test_the_gradient_of_a_log_probability_equals_finite_differences(name: str) -> None:
    space, outputs, log_std, masks, head = make(name, rows=3)
    raw, _, _ = head.choose_batch(outputs, masks, RandomSource(1), True)
    distributions = ActionDistributionBuilder(space)
    encoded, forbidden = distributions.encode(raw).double(), torch.from_numpy(~masks)
    extras = None if log_std is None else torch.from_numpy(log_std).double()

    def total(values: Any) -> Any:
        made = distributions(values, extras, forbidden)
        return made.log_probs(encoded).sum() + made.mean_entropy()

    assert torch.autograd.gradcheck(total, torch.from_numpy(outputs).double().requires_grad_(), atol=1e-4)
