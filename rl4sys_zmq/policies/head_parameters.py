"""The parameters of an action head: the meaning of the outputs of a policy network, for policies of every kind."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rl4sys_zmq.config.options import MAX_NUMBER, check_fields, number, one_of, option, whole_number
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Space, TensorSpec
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.arrays import LARGEST_FLOAT32

BOUNDED_HEADS = ("squashed_gaussian", "deterministic")
"""The heads that need a Box of actions with finite bounds."""
VALUE_HEADS = ("q_values", "q_distribution")
"""The heads whose outputs are action values, or distributions of the return. They choose epsilon-greedily."""
_BOX_HEADS = ("gaussian", *BOUNDED_HEADS)
_HEADS = ("categorical", "gaussian", "joint", "squashed_gaussian", "deterministic", "q_values", "q_distribution")
_HEADS_WITH = {
    "squash": ("categorical", "gaussian", "joint", "q_values"),
    "atoms": ("q_distribution",),
    "v_min": ("q_distribution",),
    "v_max": ("q_distribution",),
    "epsilon_ladder": VALUE_HEADS,
    "log_std_min": ("squashed_gaussian",),
    "log_std_max": ("squashed_gaussian",),
}
"""The heads that have an option, for the options that not all heads have."""
_LEFT_OUT = ("epsilon_ladder",)
"""The options that a document has only if they differ from their default."""


MIN_ACTIONS = 256
"""The smallest number of float32 numbers between the bounds of an action that is stored as float32 within its bounds."""


def stochastic_head(action_space: Space) -> str:
    """Return the head that samples actions of a space: ``categorical`` for Discrete, ``gaussian`` for Box, else ``joint``."""
    if isinstance(action_space, DiscreteSpace):
        return "categorical"
    return "gaussian" if isinstance(action_space, BoxSpace) else "joint"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParameters:
    """The parameters of an action head. `head` defines the meaning of the network's outputs.

    - ``categorical``: The outputs are logits of the actions.
    - ``gaussian``: The outputs are the means of ``n`` dimensions. The tensor ``log_std`` ``[n]`` has the logarithms of the
      standard deviations. The raw sample is trained on. The environment gets the sample clipped to the bounds of the action
      space (``squash="clip"``), or the ``tanh`` of the sample scaled to the bounds (``squash="tanh"``).
    - ``joint``: For MultiDiscrete, MultiBinary, Dict and Tuple spaces. The outputs are the logits of all discrete elements,
      and then the means of all Box elements (`rl4sys_zmq.values.action_layout.ActionLayout`). The tensor ``log_std`` has one
      number for each Box element; there is no such tensor without a Box. `squash` applies to each Box.
    - ``squashed_gaussian``: The outputs are the means of ``n`` dimensions, and then ``n`` logarithms of their standard
      deviations, clipped to the range from `log_std_min` to `log_std_max`. The action is the ``tanh`` of the sample, scaled to
      the bounds of the action space. This action is trained on, and the environment gets it.
    - ``deterministic``: The ``tanh`` of the outputs, scaled to the bounds, is the action. The tensor ``noise_std`` ``[1]`` is the
      standard deviation of the exploration noise, as a fraction of half the range of each dimension. The tensor ``epsilon``
      ``[1]`` is the probability of a uniform random action.
    - ``q_values``: The outputs are action values. The tensor ``epsilon`` ``[1]`` is the probability of a random action. With
      `epsilon_ladder`, each actor raises epsilon to the power ``1 + epsilon_ladder * u``, where ``u`` from 0 to 1 depends on
      its ``actor_id`` (`RandomSource.place`).
    - ``q_distribution``: The outputs are, for each action, the logits of `atoms` equally spaced values from `v_min` to `v_max`.
      The action value is the mean of this distribution. The rest is as with ``q_values``.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    head: str = option(one_of(*_HEADS), required=True)
    squash: str = option(one_of("clip", "tanh"), "clip")
    log_std_min: float = option(number(-20.0, 2.0), -20.0)
    log_std_max: float = option(number(-20.0, 2.0), 2.0)
    atoms: int = option(whole_number(2, 10_000), 51)
    v_min: float = option(number(-MAX_NUMBER, MAX_NUMBER), -10.0)
    v_max: float = option(number(-MAX_NUMBER, MAX_NUMBER), 10.0)
    epsilon_ladder: float = option(number(0.0, 100.0), 0.0)

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            heads = _HEADS_WITH.get(field.name)
            if heads is not None and self.head not in heads and getattr(self, field.name) != field.default:
                raise ConfigError(f"{field.name} has no meaning for a {self.head} head", key=field.name)
        if self.log_std_min > self.log_std_max:
            raise ConfigError(f"log_std_min {self.log_std_min:g} is above log_std_max {self.log_std_max:g}", key="log_std_min")
        if self.v_min >= self.v_max:
            raise ConfigError(f"v_min {self.v_min:g} is not below v_max {self.v_max:g}", key="v_min")

    def plain(self) -> dict[str, Any]:
        """Return the parameters as a document of a `PolicySpec`, without those that have no meaning for the head."""
        used = [
            f.name
            for f in fields(self)
            if self.head in _HEADS_WITH.get(f.name, (self.head,))
            and (f.name not in _LEFT_OUT or getattr(self, f.name) != f.default)
        ]
        used.sort(key=lambda name: name in _HEADS_WITH)
        return {name: getattr(self, name) for name in used}

    def outputs(self, action_space: Space) -> int:
        """Return the number of outputs of the network for an action space.

        Raises:
            ConfigError: If the head cannot act in this space, for example a ``gaussian`` head with discrete actions.
        """
        kind = "gaussian" if self.head in _BOX_HEADS else "joint" if self.head == "joint" else "categorical"
        if kind != stochastic_head(action_space):
            raise ConfigError(f"a {self.head} head cannot act in {action_space!s:.80}", key="head")
        layout = action_layout(action_space)
        boxes = [part.space for part in layout.parts if isinstance(part.space, BoxSpace)]
        bounded = bool(boxes) and all(box.bounded for box in boxes)
        if self.squash == "tanh" and not bounded:
            raise ConfigError("squash 'tanh' needs a bounded Box of actions", key="squash")
        if self.head in BOUNDED_HEADS and not bounded:
            raise ConfigError(f"a {self.head} head needs a bounded Box of actions, not {action_space}", key="head")
        if self.head in BOUNDED_HEADS:
            for box in boxes:
                _check_resolution(box)
        return layout.outputs * {"squashed_gaussian": 2, "q_distribution": self.atoms}.get(self.head, 1)

    def head_tensors(self, action_space: Space) -> tuple[TensorSpec, ...]:
        """Return the tensors that belong to the head, not to the network. In a spec they follow the tensors of the network."""
        if self.head in ("gaussian", "joint"):
            numbers = action_layout(action_space).numbers
            return (TensorSpec("log_std", (numbers,)),) if numbers else ()
        epsilon = (TensorSpec("epsilon", (1,), exact=True),) if self.head in (*VALUE_HEADS, "deterministic") else ()
        return (TensorSpec("noise_std", (1,), exact=True), *epsilon) if self.head == "deterministic" else epsilon


def _check_resolution(box: BoxSpace) -> None:
    """Raise ConfigError if float32, the dtype of raw actions, is too coarse for the bounds or the numbers between them."""
    low, high = box.low_array().ravel(), box.high_array().ravel()
    differ = np.asarray(box.low, object) != np.asarray(box.high, object)  # float64 rounds large integers
    largest = np.maximum(np.abs(low), np.abs(high))
    if largest.max(initial=0.0) > LARGEST_FLOAT32:
        raise config_error(
            "action_space",
            f"{box} has bounds up to {largest.max():g}, and float32 ends at {LARGEST_FLOAT32:g}; scale the actions",
        )
    if (differ & (high - low < MIN_ACTIONS * np.finfo(np.float32).eps * largest)).any():
        raise config_error(
            "action_space",
            f"{box} has fewer than {MIN_ACTIONS} float32 numbers between its bounds, such as {low[0]:.10g} "
            f"and {high[0]:.10g}; let the Box begin at 0, and add the offset in the environment",
        )
