"""The action heads, which choose an action from the outputs of a policy network. There is a head for each kind of action space.

`action_head` returns the head for a space. A head samples from the distribution that the outputs describe, and computes the
log-probability of the sample. `rl4sys_zmq.algorithms.action_distributions` has the same distributions in torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from math import exp, log, nan, pi
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.policies.action_bounds import bounder, unbounder
from rl4sys_zmq.policies.base import Act, Action, Choice, Choices, Mask
from rl4sys_zmq.policies.draws import PYTHON_MAX_ACTIONS, draw, draw_allowed, draw_batch, draw_large, draw_rows, log_prob_of
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.values.action_layout import action_layout, choice_groups
from rl4sys_zmq.values.spaces import ActionSpace
from rl4sys_zmq.values.trees import Tree

_LIMITS = np.finfo(np.float32)
_TOTALS = 1e-100, 1e100
"""The smallest and the largest sum of exponentials whose logarithm is accurate without a shift by the largest logit."""


class ActionHead(Protocol):
    """The interface of an action head: it chooses actions from the outputs of a policy network.

    A head is immutable and does not keep the outputs, so their buffer can be reused.
    """

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        """Choose one action as `Policy.act` does, from float32 `outputs` and a `mask` in the order of `ActionLayout`.

        The log-probability is not finite if an output is NaN or infinity. The output for a discrete option can be minus
        infinity.
        """

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        """Choose ``N`` actions, as `Policy.act_batch` does, from outputs ``[N, outputs]`` and masks ``[N, logits]`` or None."""

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        """Return the raw action that stands for the action `act`, and its log-probability, from the network's outputs."""


def action_head(space: ActionSpace, squash: str = "clip", log_std: NDArray[Any] | None = None) -> ActionHead:
    """Return the head that chooses actions of a space. `squash` (``clip`` or ``tanh``) brings Box actions into the bounds.

    `log_std` has the logarithms of the standard deviations, float32 ``[n]`` for the ``n`` elements of all Boxes.
    """
    layout = action_layout(space)
    given = 0 if log_std is None else len(log_std)
    if given != layout.numbers:
        raise ConfigError(f"the head has {given} standard deviations; the action space {space!s:.80} needs {layout.numbers}")
    if isinstance(space, DiscreteSpace):
        return CategoricalHead(space)
    if isinstance(space, BoxSpace):
        assert log_std is not None
        return GaussianHead(space, squash, log_std)
    return JointHead(space, squash, log_std)


class CategoricalHead:
    """The head for a Discrete space: it samples an allowed action from the softmax of the outputs."""

    def __init__(self, space: DiscreteSpace) -> None:
        self.actions = action_scalars(space)

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        if len(self.actions) > PYTHON_MAX_ACTIONS:
            index, log_prob = draw_large(outputs, mask, rng.uniform() if explore else None)
        elif mask is None:
            index, log_prob = draw(outputs.tolist(), rng.uniform() if explore else None)
        else:
            index, log_prob = draw_allowed(outputs.tolist(), mask.tolist(), rng.uniform() if explore else None)
        action = self.actions[index]
        return action, action, log_prob

    def bind(self, forward: Callable[[Any], NDArray[Any]], rng: RandomSource, explore: bool) -> Act:
        """Return a fast `Act` for one thread, which chooses from the outputs that `forward` computes for an observation."""
        actions, uniform = self.actions, rng.uniform
        if len(actions) > PYTHON_MAX_ACTIONS:
            return lambda observation, mask: self.choose(forward(observation), mask, rng, explore)
        least, most = _TOTALS

        def act(observation: Any, mask: Mask) -> Choice:
            logits = forward(observation).tolist()
            if mask is not None:
                index, log_prob = draw_allowed(logits, mask.tolist(), uniform() if explore else None)
            elif not explore:
                index, log_prob = draw(logits, None)
            else:  # as `draw`, without the shift by the largest logit where that is not needed
                cumulative = []
                total = 0.0
                try:
                    for logit in logits:
                        total += exp(logit)
                        cumulative.append(total)
                except OverflowError:
                    total = 0.0
                if least < total < most:
                    index = bisect_right(cumulative, uniform() * total)
                    log_prob = logits[index] - log(total)
                else:
                    index, log_prob = draw(logits, uniform())
            action = actions[index]
            return action, action, log_prob

        return act

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        draws = rng.uniforms(len(outputs)) if explore else None
        index, log_probs = draw_batch(outputs, masks, draws)
        index += self.actions[0]
        # Two arrays: the host can write to its own.
        return index, index.copy(), log_probs

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        return act, log_prob_of(int(act - self.actions[0]), outputs, mask)


class GaussianHead:
    """The head for a Box, which samples ``mean + exp(log_std) * noise`` in float32. The outputs are the means. Masks are ignored.

    The log-probability of a sample ``a`` of ``n`` dimensions is ``-0.5 * sum(((a - mean) / std)^2) - sum(log_std) - n / 2 *
    log(2 pi)``, with ``std = exp(log_std)``. It is computed from the sample after rounding to float32, so that the learner gets
    the same number from the stored action.
    """

    def __init__(self, space: BoxSpace, squash: str, log_std: NDArray[Any]) -> None:
        wide = log_std.astype(np.float64)
        # A standard deviation of 0 or infinity would make the log-probability NaN.
        exponent = np.clip(wide, np.log(_LIMITS.tiny), np.log(_LIMITS.max))
        self._shape = None if len(space.shape) == 1 else space.shape
        self._bound, self._unbound = bounder(space, squash), unbounder(space, squash)
        self._std, self._inverse_std = np.exp(exponent).astype(np.float32), np.exp(-exponent).astype(np.float32)
        self._constant = -float(wide.sum()) - 0.5 * space.size * log(2.0 * pi)

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        log_prob = self._constant
        if explore:
            raw = self._std * rng.normals(len(outputs))
            np.add(raw, outputs, raw)
            z = raw - outputs
            np.multiply(z, self._inverse_std, z)
            log_prob -= 0.5 * float(z.dot(z))
        else:
            raw = outputs.copy()
            log_prob += 0.0 * sum(raw.tolist())  # NaN if a mean is not finite
        env = self._bound(raw)
        if self._shape is not None:
            return raw.reshape(self._shape), env.reshape(self._shape), log_prob
        return raw, env, log_prob

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        count = len(outputs)
        log_probs = np.full(count, self._constant, dtype=np.float32)
        if explore:
            raw = self._std * rng.normals(outputs.size).reshape(outputs.shape)
            np.add(raw, outputs, raw)
            z = raw - outputs
            np.multiply(z, self._inverse_std, z)
            log_probs -= 0.5 * np.square(z, out=z).sum(axis=1)
        else:
            raw = outputs.copy()
            log_probs[~np.isfinite(raw).all(axis=1)] = nan
        env = self._bound(raw)
        if self._shape is not None:
            return raw.reshape(count, *self._shape), env.reshape(count, *self._shape), log_probs
        return raw, env, log_probs

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        raw = self._unbound(act)
        z = (raw - outputs) * self._inverse_std
        return raw if self._shape is None else raw.reshape(self._shape), self._constant - 0.5 * float(z.dot(z))


class JointHead:
    """The head for the spaces with several parts: MultiDiscrete, MultiBinary, Dict and Tuple.

    Each discrete element is drawn from the softmax of its logits. The elements of all Boxes together are drawn from a diagonal
    Gaussian. The parts are independent, so the log-probability of an action is the sum over its parts.
    """

    def __init__(self, space: ActionSpace, squash: str, log_std: NDArray[Any] | None) -> None:
        self._layout = layout = action_layout(space)
        self._groups = choice_groups(layout)
        self._gaussian = None if log_std is None else GaussianHead(BoxSpace((layout.numbers,)), "clip", log_std)
        self._bounders = [bounder(part.space, squash) if isinstance(part.space, BoxSpace) else None for part in layout.parts]
        self._squash = squash

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        layout = self._layout
        count = layout.logits
        if count > PYTHON_MAX_ACTIONS:
            raw, env, log_probs = self.choose_batch(outputs[None], None if mask is None else mask[None], rng, explore)
            leaves = layout.leaves
            return leaves.rows(raw)[0], leaves.rows(env)[0], float(log_probs[0])
        log_prob, at, indices = 0.0, 0, []
        logits = outputs[:count].tolist()
        allowed = None if mask is None else mask.tolist()
        for choice, options in enumerate(layout.counts):
            end = at + options
            uniform = rng.uniform() if explore else None
            if allowed is None:
                index, part = draw(logits[at:end], uniform)
            elif any(allowed[at:end]):
                index, part = draw_allowed(logits[at:end], allowed[at:end], uniform)
            else:
                raise MaskError(f"the mask forbids every value of {layout.name_of(choice)}")
            indices.append(index)
            log_prob += part
            at = end
        numbers = None
        if self._gaussian is not None:
            numbers, _, part = self._gaussian.choose(outputs[count:], None, rng, explore)
            log_prob += part
        raw, env = self._trees(np.array(indices, np.int64), numbers)
        return raw, env, log_prob

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        layout, rows = self._layout, len(outputs)
        log_probs = np.zeros(rows, np.float32)
        indices = np.empty((rows, layout.choices), np.int64)
        draws = rng.uniforms((rows, layout.choices)) if explore and layout.choices else None
        if masks is not None and (forbidden := layout.forbidden_choice(masks)) is not None:
            raise MaskError("mask {} forbids every value of {}".format(*forbidden))
        for group in self._groups:
            shape = (-1, group.options)
            drawn, parts = draw_rows(
                outputs[:, group.logits].reshape(shape),
                None if masks is None else masks[:, group.logits].reshape(shape),
                None if draws is None else draws[:, group.choices].reshape(-1),
            )
            indices[:, group.choices] = drawn.reshape(rows, -1)
            log_probs += parts.reshape(rows, -1).sum(axis=1)
        numbers = None
        if self._gaussian is not None:
            numbers, _, parts = self._gaussian.choose_batch(outputs[:, layout.logits :], None, rng, explore)
            log_probs += parts
        raw, env = self._trees(indices, numbers)
        return raw, env, log_probs

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        layout, log_prob, at = self._layout, 0.0, 0
        indices = layout.indices(act)
        for index, options in zip(indices.tolist(), layout.counts, strict=True):
            part = slice(at, at + options)
            log_prob += log_prob_of(index, outputs[part], None if mask is None else mask[part])
            at += options
        numbers = None
        if self._gaussian is not None:
            pairs = zip(layout.parts, layout.leaves.flatten(act), strict=True)
            boxes = [unbounder(part.space, self._squash)(leaf) for part, leaf in pairs if isinstance(part.space, BoxSpace)]
            numbers, density = self._gaussian.assess(np.concatenate(boxes), outputs[at:], None, rng)
            log_prob += density
        return self._trees(indices, numbers)[0], log_prob

    def _trees(self, indices: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> tuple[Tree, Tree]:
        """Return raw actions and actions for the environment, from option indices and Box elements (None: no Box)."""
        raw: list[Any] = []
        env: list[Any] = []
        lead = indices.shape[:-1]
        for part, bound in zip(self._layout.parts, self._bounders, strict=True):
            shape = (*lead, *part.space.shape)
            if bound is not None:
                assert numbers is not None
                values = numbers[..., part.columns]
                raw.append(values.reshape(shape))
                env.append(bound(values).reshape(shape))
                continue
            assert part.lowest is not None
            chosen = (indices[..., part.columns] + part.lowest).astype(part.space.dtype).reshape(shape)
            raw.append(chosen if shape else chosen[()])
            env.append(chosen.copy() if shape else chosen[()])
        leaves = self._layout.leaves
        return leaves.unflatten(raw), leaves.unflatten(env)


@lru_cache(maxsize=64)
def action_scalars(space: DiscreteSpace) -> tuple[np.int64, ...]:
    """Return all actions of a discrete space as int64 scalars. Looking one up takes 0.01 us, creating a new one 0.2 us."""
    return tuple(np.arange(space.start, space.start + space.n, dtype=np.int64))
