"""The policy of the kind ``gru`` in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.activations import ACTIVATION_FUNCTIONS
from rl4sys_zmq.policies.base import Action
from rl4sys_zmq.policies.column_policy import BatchChoice, BoundStep, ExtraColumnPolicy, StepChoice
from rl4sys_zmq.policies.gru import STATE, gru_document
from rl4sys_zmq.policies.network import normaliser
from rl4sys_zmq.policies.network_policy import policy_head
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, PolicySnapshot, PolicySpec
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

Array = NDArray[np.float32]

_ONE = np.ones((), np.float32)
_HALF = np.full((), 0.5, np.float32)


class GRUPolicy(ExtraColumnPolicy):
    """A recurrent policy. The state is the array h of `GRUParameters`, float32 ``[units]``; None stands for zeros.

    All gates are computed by one product. Its input is the concatenation of x, h and a 1, and its matrix has four groups of
    columns: r, z, and the two terms of n that come from x and from h. The sigmoid is ``(1 + tanh(a / 2)) / 2``. So the columns of
    r and z, and those of the term that r multiplies, are halved.
    """

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        super().__init__(snapshot)
        document = gru_document(spec)
        tensors: Mapping[str, Array] = spec.views(snapshot.flat)
        self._space, self._features = spec.observation_space, feature_layout(spec.observation_space)
        self._units = document.units
        self._normalise = normaliser(tensors) if document.normalise_observations else None
        self._activation = ACTIVATION_FUNCTIONS[document.activation]
        names = [f"layers.{index}" for index in range(len(document.hidden_sizes))]
        self._hidden = tuple([_with_bias(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names])
        self._gates = _gate_matrix(tensors)
        self._output = _with_bias(tensors["output.weight"], tensors["output.bias"])
        self._head = policy_head(spec, document, snapshot)
        self._zero = np.zeros(document.units, np.float32)
        self._zero.flags.writeable = False

    def step(self, observation: Any, mask: NDArray[Any] | None, rng: RandomSource, explore: bool, state: Any) -> StepChoice:
        """Choose one action, as `ExtraColumnPolicy.step` describes."""
        return self.bind_step(rng, explore)(observation, mask, state)

    def bind_step(self, rng: RandomSource, explore: bool) -> BoundStep:
        """Return a faster form of `step` for one thread, with the given `rng` and `explore`. It has its own buffers."""
        units, width, zero, choose = self._units, len(self._gates) - self._units - 1, self._zero, self._head.choose
        joined = np.ones(len(self._gates), np.float32)  # x, h, 1
        before = joined[width:-1]
        fill = self._fill(joined[:width])
        gates = np.empty(4 * units, np.float32)
        both, r, z = gates[: 2 * units], gates[:units], gates[units : 2 * units]
        new, recurrent = gates[2 * units : 3 * units], gates[3 * units :]
        top = np.ones(units + 1, np.float32)
        state_above, outputs = top[:-1], np.empty(self._output.shape[1], np.float32)
        gate, out = self._gates.T.dot, self._output.T.dot
        add, multiply, subtract, tanh, one, half = np.add, np.multiply, np.subtract, np.tanh, _ONE, _HALF

        def step(observation: Any, mask: NDArray[Any] | None, state: Any) -> StepChoice:
            if state is None:
                state = zero
            fill(observation)
            before[...] = state
            gate(joined, gates)
            tanh(both, both)
            add(both, one, both)  # 2r and 2z
            multiply(r, recurrent, recurrent)
            add(new, recurrent, new)
            tanh(new, new)
            subtract(before, new, state_above)
            multiply(z, half, z)
            multiply(state_above, z, state_above)
            after = add(state_above, new)
            state_above[...] = after
            out(top, outputs)
            raw, act, log_prob = choose(outputs, mask, rng, explore)
            return raw, act, log_prob, {STATE: state}, after

        return step

    def step_batch(
        self, observations: Tree, masks: NDArray[Any] | None, rng: RandomSource, explore: bool, states: Sequence[Any]
    ) -> BatchChoice:
        """Choose ``N`` actions with one forward pass, as `ExtraColumnPolicy.step_batch` describes."""
        before, after, outputs = self._outputs(observations, states)
        raws, acts, log_probs = self._head.choose_batch(outputs, masks, rng, explore)
        return raws, acts, log_probs, {STATE: before}, list(after)

    def assess(
        self, act: Action, observation: Tree, mask: NDArray[Any] | None, rng: RandomSource, state: Any
    ) -> tuple[Action, float]:
        """Return the raw action of an action, and its log-probability, as `AssessingPolicy.assess` describes."""
        outputs = self._outputs(leaves_of(self._space).stack([observation]), [state])[2]
        return self._head.assess(act, outputs[0], mask, rng)

    def _outputs(self, observations: Tree, states: Sequence[Any]) -> tuple[Array, Array, Array]:
        """Return the states before and after ``N`` steps, ``[N, units]``, and the outputs ``[N, outputs]``."""
        count, units = len(states), self._units
        x = self._batch(observations)
        before = np.stack([self._zero if state is None else state for state in states])
        gates = np.concatenate([x, before, np.ones((count, 1), np.float32)], axis=1).dot(self._gates)
        both = np.tanh(gates[:, : 2 * units])
        both += _ONE
        new = np.tanh(gates[:, 2 * units : 3 * units] + both[:, :units] * gates[:, 3 * units :])
        after = new + (before - new) * (both[:, units:] * _HALF)
        return before, after, _apply(self._output, after)

    def _fill(self, x: Array) -> Callable[[Any], None]:
        """Return a function that writes the input of the recurrent unit for one observation to `x`."""
        if self._hidden:
            inputs = [np.ones(len(layer), np.float32) for layer in self._hidden]
            targets = [*(buffer[:-1] for buffer in inputs[1:]), x]
            layers = tuple([(layer.T.dot, a, b) for layer, a, b in zip(self._hidden, inputs, targets, strict=True)])
            write, activation = self._write(inputs[0][:-1]), self._activation

            def fill(observation: Any) -> None:
                write(observation)
                for dot, before, after in layers:
                    dot(before, after)
                    activation(after, after)

            return fill
        return self._write(x)

    def _write(self, features: Array) -> Callable[[Any], None]:
        """Return a function that writes the standardised features of one observation to `features`."""
        space, normalise, features_of = self._space, self._normalise, self._features.one
        if isinstance(space, BoxSpace):
            entry = features.reshape(space.shape)

            def plain(observation: Any) -> None:
                entry[...] = observation
        else:

            def plain(observation: Any) -> None:
                features[...] = features_of(observation)

        if normalise is None:
            return plain

        def normalised(observation: Any) -> None:
            plain(observation)
            normalise(features, features)

        return normalised

    def _batch(self, observations: Tree) -> Array:
        """Return the inputs of the recurrent unit for ``N`` observations, float32 ``[N, width]``."""
        x = self._features.batch(observations)
        if self._normalise is not None:
            x = self._normalise(x)
        for layer in self._hidden:
            x = _apply(layer, x)
            self._activation(x, x)
        return x


def _with_bias(weight: Array, bias: Array) -> Array:
    """Return a layer as one matrix ``[inputs + 1, outputs]``. Its last row is the bias, whose input is always 1."""
    return np.concatenate([weight.T, bias[None]])


def _apply(layer: Array, x: Array) -> Array:
    """Return the outputs of a layer of `_with_bias` for inputs ``[N, inputs]``."""
    out: Array = x.dot(layer[:-1])
    out += layer[-1]
    return out


def _gate_matrix(tensors: Mapping[str, Array]) -> Array:
    """Return the matrix of `GRUPolicy`, ``[inputs + units + 1, 4 units]``."""
    from_input, from_state = tensors["gru.weight_ih"].T, tensors["gru.weight_hh"].T
    bias_input, bias_state = tensors["gru.bias_ih"], tensors["gru.bias_hh"]
    width, units = len(from_input), len(from_state)
    matrix = np.zeros((width + units + 1, 4 * units), np.float32)
    matrix[:width, : 3 * units] = from_input
    matrix[width:-1, : 2 * units] = from_state[:, : 2 * units]
    matrix[width:-1, 3 * units :] = from_state[:, 2 * units :]
    matrix[-1, : 3 * units] = bias_input
    matrix[-1, : 2 * units] += bias_state[: 2 * units]
    matrix[-1, 3 * units :] = bias_state[2 * units :]
    matrix[:, : 2 * units] *= _HALF
    matrix[:, 3 * units :] *= _HALF
    return matrix
