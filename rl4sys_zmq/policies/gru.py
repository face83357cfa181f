"""The description of policies with a gated recurrent unit (the built-in policy kind ``gru``), and their registry entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rl4sys_zmq.config.options import flag, integer, one_of, option, parse_options, sizes
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import ACTIVATIONS, ColumnSpec, ObservationSpace, PolicySpec, Space, TensorSpec, feature_size

STATE = "state"
"""The name of the extra column with the recurrent state before the first step of a segment."""

MAX_UNITS = 4096
"""The largest number of units. The actor's copy of the weights has about eight numbers for each pair of units."""

_HEADS = ("categorical", "gaussian", "joint", "q_values", "q_distribution")
"""The meanings that the outputs of a recurrent policy can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GRUParameters(HeadParameters):
    """The parameters of a recurrent policy: the contents of `PolicySpec.document` for the policy kind ``gru``.

    The network gets the features of the observation, standardised and clipped as those of an ``mlp`` policy if
    `normalise_observations` is True. Hidden layers ``activation(x @ weight.T + bias)`` follow, then one gated recurrent unit (Cho
    et al. 2014, https://arxiv.org/abs/1406.1078) in the form of ``torch.nn.GRU``, and a linear output layer. With the input x,
    the state h before the step, and the state h' after it::

        r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
        z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n  = tanh(W_in x + b_in + r * (W_hn h + b_hn))
        h' = (1 - z) * n + z * h

    The tensors ``gru.weight_ih`` ``[3 units, inputs]``, ``gru.weight_hh`` ``[3 units, units]``, ``gru.bias_ih`` and
    ``gru.bias_hh`` ``[3 units]`` have the rows of r, z and n, in this order. The output layer reads h'. At the start of an
    episode, h is zero. All elements of h are between -1 and 1.

    `HeadParameters` describes the meaning of the outputs. There are no ``squashed_gaussian`` and ``deterministic`` heads.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    units: int = option(integer(1, MAX_UNITS), 64)
    hidden_sizes: tuple[int, ...] = option(sizes, ())
    activation: str = option(one_of(*ACTIVATIONS), "tanh")
    normalise_observations: bool = option(flag, False)

    def __post_init__(self) -> None:
        HeadParameters.__post_init__(self)
        if self.head not in _HEADS:
            raise ConfigError(f"a gru policy has no {self.head} head; it has one of {', '.join(_HEADS)}", key="head")

    def tensors(self, observation_space: ObservationSpace, action_space: Space) -> tuple[TensorSpec, ...]:
        """Return the names and shapes of the tensors that such a policy has for these spaces.

        Raises:
            ConfigError: If the policy cannot act in the action space.
        """
        outputs = self.outputs(action_space)
        return (*self._layers(feature_size(observation_space), outputs), *self.head_tensors(action_space))

    def _layers(self, width: int, outputs: int) -> Iterator[TensorSpec]:
        if self.normalise_observations:
            yield TensorSpec("obs_mean", (width,), exact=True)
            yield TensorSpec("obs_scale", (width,), exact=True)
        for index, size in enumerate(self.hidden_sizes):
            yield TensorSpec(f"layers.{index}.weight", (size, width))
            yield TensorSpec(f"layers.{index}.bias", (size,))
            width = size
        yield TensorSpec("gru.weight_ih", (3 * self.units, width))
        yield TensorSpec("gru.weight_hh", (3 * self.units, self.units))
        yield TensorSpec("gru.bias_ih", (3 * self.units,))
        yield TensorSpec("gru.bias_hh", (3 * self.units,))
        yield TensorSpec("output.weight", (outputs, self.units))
        yield TensorSpec("output.bias", (outputs,))

    def columns(self) -> tuple[ColumnSpec, ...]:
        """Return the extra columns: the state before the first step of each segment."""
        return (ColumnSpec(STATE, (self.units,), "<f4", per="segment"),)


def gru_spec(observation_space: ObservationSpace, action_space: Space, parameters: GRUParameters) -> PolicySpec:
    """Return the `PolicySpec` of a recurrent policy.

    Raises:
        ConfigError: If the policy cannot act in the spaces.
    """
    tensors = parameters.tensors(observation_space, action_space)
    return PolicySpec(observation_space, action_space, "gru", parameters.plain(), tensors, columns=parameters.columns())


def gru_document(spec: PolicySpec) -> GRUParameters:
    """Check a spec of the kind ``gru``, and return its parameters.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, the tensors or the extra columns do not match the parameters, or the
            spec has a blob.
    """
    document = GRUParameters(**parse_options(GRUParameters, spec.document))  # type: ignore[arg-type]
    if document.tensors(spec.observation_space, spec.action_space) != spec.tensors:
        raise ConfigError("the tensors of a gru policy do not match its layers", key="tensors")
    if document.columns() != spec.columns:
        raise ConfigError(f"a gru policy has the extra column {STATE!r} with {document.units} elements alone", key="columns")
    if spec.blob:
        raise ConfigError(f"a gru policy has a blob of {len(spec.blob)} bytes; expected none", key="blob")
    return document


ENTRY = PolicyEntry(
    name="gru",
    factory="rl4sys_zmq.policies.gru_policy:GRUPolicy",
    summary="A gated recurrent unit between hidden layers and a linear output layer. Its state is carried through an episode.",
    check=gru_document,
)
