"""The parts of registry entries that the algorithms of all libraries share. This module imports no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from rl4sys_zmq.algorithms.networks.layer_kind import check_not_image
from rl4sys_zmq.config.options import one_of, option, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import (
    ANY_AGE,
    AlgorithmEntry,
    NamedFactory,
    parameter_error,
    read_parameters,
)
from rl4sys_zmq.policies.head_parameters import BOUNDED_HEADS
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace, PolicySpec, Space, feature_size
from rl4sys_zmq.values.action_layout import action_layout

TQC_REFERENCE = (
    "Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional quantile critics"
)


def check_quantiles(dropped: int, quantiles: int) -> None:
    """Raise `ConfigError` unless the number of dropped quantiles of a network is below the number of its quantiles."""
    if dropped >= quantiles:
        raise parameter_error("top_quantiles_to_drop_per_net", f"{dropped} of {quantiles} quantiles leave none; drop fewer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryParameters:
    """The parameters of every algorithm from another library: those of the networks and of the segments."""

    ours: ClassVar[frozenset[str]] = frozenset({"hidden_sizes", "activation", "rollout_length"})
    """The parameters that are no arguments of the library's class."""

    hidden_sizes: tuple[int, ...] = option(
        sizes, (256, 256), names=("net_arch",), doc="widths of the hidden layers of each network"
    )
    activation: str = option(one_of(*ACTIVATIONS), "relu", doc="activation of the hidden layers")
    rollout_length: int = option(whole_number(1, 1 << 20), 32, names=("num_steps",), doc="most steps per segment")

    def arguments(self) -> dict[str, Any]:
        """Return the parameters that are arguments of the class in the other library, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.ours}


def library_entry(
    library: str, own_name: str, parameters: type[LibraryParameters], heads: Mapping[str, str], **described: Any
) -> AlgorithmEntry:
    """Return the registry entry of an algorithm from another library.

    Args:
        library: The short name of the library, such as ``sb3``. Its module here and the extra to install have that name.
        own_name: The name of the algorithm in the library.
        parameters: The dataclass of the parameters.
        heads: For each kind of action space, the name of the head, which is the meaning of the outputs of the policy.
        described: The other attributes of the entry.
    """
    kinds = (f"bounded {kind}" if head in BOUNDED_HEADS else kind for kind, head in heads.items())
    name = f"{library}:{own_name}"
    return AlgorithmEntry(
        name=name,
        factory=NamedFactory(f"rl4sys_zmq.algorithms.libraries.{library}:build", own_name),
        parameters=parameters,
        plan=partial(_plan, name, parameters, heads),
        count=partial(count_values, name, parameters),
        extra=library,
        spaces=f"any observations; {' or '.join(kinds)} actions",
        isolated=True,
        **{"staleness": ANY_AGE, "takes_masks": False, **described},
    )


def count_values(
    name: str,
    cls: type[LibraryParameters],
    observation_space: ObservationSpace,
    action_space: Space,
    parameters: Mapping[str, object],
) -> int:
    """Return the number of weights and biases of all networks that estimate values, except of target networks."""
    p, actions = read_parameters(cls, parameters, algorithm=name), action_layout(action_space).outputs
    inputs, outputs = (actions, 1) if isinstance(action_space, BoxSpace) else (0, actions)
    widths = (feature_size(observation_space) + inputs, *p.hidden_sizes, outputs * getattr(p, "n_quantiles", 1))
    networks = getattr(p, "n_critics", getattr(p, "num_qvalue_nets", 1))
    return int(networks * sum((before + 1) * width for before, width in pairwise(widths)))


def _plan(
    name: str,
    cls: type[LibraryParameters],
    heads: Mapping[str, str],
    observation_space: ObservationSpace,
    action_space: Space,
    parameters: Mapping[str, object],
) -> PolicySpec:
    p = read_parameters(cls, parameters, algorithm=name)
    check_not_image(observation_space, next(iter(p.hidden_sizes), 0), name)
    if action_space.KIND not in heads:
        raise ConfigError(f"{name} needs a {' or '.join(heads)} action space, not {action_space!s:.80}", key="action_space")
    return mlp_spec(observation_space, action_space, heads[action_space.KIND], p.hidden_sizes, p.activation)
