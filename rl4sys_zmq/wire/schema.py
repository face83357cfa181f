"""The columns that a client's segments must have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ActionError, ObservationError, ProtocolError, RefusalReason
from rl4sys_zmq.values import ColumnSpec, DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space
from rl4sys_zmq.values.action_layout import ActionLayout, action_layout
from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of
from rl4sys_zmq.wire.layout import SegmentLayout, action_dtype, parse_layout, wanted_layouts


@dataclass(frozen=True, slots=True)
class SegmentSchema:
    """The columns that a client's segments must have, and their largest number of steps.

    Attributes:
        extras: The extra columns: first those with a row per step, then those with one row per segment.
        discrete: Spaces of the columns with discrete actions or observations, by name.
        layouts: The allowed layouts as texts: one without masks and, if actions have a discrete part, another with masks.
    """

    observation_space: ObservationSpace
    action_space: Space
    max_steps: int
    extras: tuple[ColumnSpec, ...] = ()
    leaves: SpaceLeaves = field(init=False)
    actions: ActionLayout = field(init=False, hash=False, compare=False)
    discrete: dict[str, DiscreteSpace] = field(init=False, hash=False, compare=False)
    layouts: tuple[str, ...] = field(init=False)
    extra_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        extras = tuple(sorted(self.extras, key=lambda column: column.per == "segment"))
        object.__setattr__(self, "extras", extras)
        leaves = leaves_of(self.observation_space)
        object.__setattr__(self, "leaves", leaves)
        actions = action_layout(self.action_space)
        object.__setattr__(self, "actions", actions)
        pairs = (*zip(actions.leaves.names, actions.leaves.spaces, strict=True), *zip(leaves.names, leaves.spaces, strict=True))
        object.__setattr__(self, "discrete", {name: space for name, space in pairs if isinstance(space, DiscreteSpace)})
        object.__setattr__(self, "layouts", wanted_layouts(leaves.spaces, self.action_space, extras))
        object.__setattr__(self, "extra_names", tuple(column.name for column in extras))

    @classmethod
    def of(cls, spec: PolicySpec, max_steps: int) -> SegmentSchema:
        """Return the schema of the segments that actors with a policy send."""
        return cls(spec.observation_space, spec.action_space, max_steps, spec.columns)

    def names(self, layout: SegmentLayout) -> list[str]:
        """Return the name of each column of a layout, also if the schema does not allow the layout."""
        return layout.names(self.leaves.names, self.extra_names, self.actions.leaves.names)

    def check(self, segment: Segment) -> ProtocolError | None:
        """Return an error if a segment does not fit the schema, else None. The values in the columns are not checked."""
        steps = segment.steps
        rows = steps + (0 if segment.terminated else 1)
        if not 1 <= steps <= self.max_steps:
            return ProtocolError(RefusalReason.RANGE, f"a segment of {steps} steps; 1 to {self.max_steps} are allowed")
        try:
            observed = self.leaves.flatten(segment.observations)
            acted = self.actions.leaves.flatten(segment.actions, error=ActionError, what="action")
        except (ObservationError, ActionError) as exc:
            return ProtocolError(RefusalReason.SPEC, str(exc))
        leaves = zip(self.leaves.names, observed, self.leaves.spaces, strict=True)
        wanted: list[tuple[str, Any, tuple[int, ...], str]] = [
            *((name, column, (rows, *leaf.shape), leaf.dtype) for name, column, leaf in leaves),
            *(
                (part.name, column, (steps, *part.space.shape), action_dtype(part.space))
                for part, column in zip(self.actions.parts, acted, strict=True)
            ),
            ("rewards", segment.rewards, (steps,), "<f4"),
            ("log_probs", segment.log_probs, (steps,), "<f4"),
            ("versions", segment.versions, (steps,), "<u8"),
        ]
        if segment.masks is not None:
            if not self.actions.logits:
                return ProtocolError(RefusalReason.SPEC, "masks for a continuous action space")
            wanted.append(("masks", segment.masks, (rows, self.actions.logits), "|b1"))
        held = {**segment.extras, **segment.initial}
        if held.keys() != set(self.extra_names):
            return ProtocolError(RefusalReason.SPEC, f"the extra columns are {sorted(held)}; expected {sorted(self.extra_names)}")
        for extra in self.extras:
            rows_of = (steps, *extra.shape) if extra.per == "step" else extra.shape
            wanted.append((extra.name, held[extra.name], rows_of, extra.dtype))
        for name, column, shape, dtype in wanted:
            if not isinstance(column, np.ndarray):
                return ProtocolError(RefusalReason.SPEC, f"{name} are a {type(column).__name__}; expected {dtype} {shape}")
            if column.shape != shape or column.dtype.str != dtype:
                return ProtocolError(
                    RefusalReason.SPEC, f"{name} are {column.dtype.str} {column.shape}; expected {dtype} {shape}"
                )
        return None

    def check_layout(self, layout: SegmentLayout) -> ProtocolError | None:
        """Return an error if segments with this layout do not fit the schema, else None."""
        if layout.text.partition(" @")[0] in self.layouts:
            return None
        if layout.has_masks and not self.actions.logits:
            return ProtocolError(RefusalReason.SPEC, "masks for a continuous action space")
        wanted = parse_layout(self.layouts[-1 if layout.has_masks else 0])
        for name, column, own in zip(self.names(layout), layout.columns, wanted.columns, strict=False):
            if column != own and column.letter == own.letter:
                said, ours = (f"{c.dtype.str} with rows of {c.row}" for c in (column, own))
                return ProtocolError(RefusalReason.SPEC, f"{name} are {said}; expected {ours}")
        return ProtocolError(RefusalReason.SPEC, f"the columns are {layout.text:.80}; expected {wanted.text:.80}")
