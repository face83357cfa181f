"""Overridden actions: the host does another action than the one that the policy chose (`RL4SysAction.override`)."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.inputs import inputs_for
from rl4sys_zmq.actor.segments import EpisodeStep
from rl4sys_zmq.errors import ActionError, ObservationError
from rl4sys_zmq.policies import AssessingPolicy
from rl4sys_zmq.policies.action_bounds import action_bounds, unbounder
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.arrays import without_float_errors
from rl4sys_zmq.values.segment import SOURCE_RULE, is_source
from rl4sys_zmq.values.trees import Tree

MAX_SOURCES = 64
"""The largest number of sources of one agent. A message lists at most 255 layouts, two for each source."""


class ActionOverrider:
    """The checks and the record of the actions by which a host overrides a policy's. Several threads can use it."""

    def __init__(self, spec: PolicySpec) -> None:
        space = spec.action_space
        self._layout = action_layout(space)
        self._reader = inputs_for(space, space)  # it converts an action as it does an observation of the same space
        self._squash = str(spec.document.get("squash", "clip")) if "head" in spec.document else "clip"
        self._sources: set[str] = set()

    @without_float_errors
    def override(self, step: EpisodeStep, act: object, source: str, state: Any) -> Tree:
        """Change the action that a step records, and its log-probability. Return the action for the environment."""
        if step.writer is not None:
            raise ActionError("this action is stored already; call override before add_to_trajectory")
        self._check_source(source)
        done = self._checked(act, step.mask)
        if step.raw is not None:
            stamp = step.stamp
            policy: Any = stamp.policy()
            sampler = stamp.sampler
            if isinstance(policy, AssessingPolicy) and sampler is not None:
                raw, log_prob = policy.assess(done, step.obs, step.mask, sampler, state)
            else:
                raw, log_prob = self._raw(done), nan
            step.raw, step.log_prob, step.stamp = raw, float(log_prob), replace(stamp, source=source)
        return done

    def _check_source(self, source: object) -> None:
        if not isinstance(source, str) or not is_source(source):
            raise ActionError(f"the source of an overridden action is {source!r:.60}; {SOURCE_RULE}")
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            raise ActionError(f"{source!r} is one source too many; an agent has at most {MAX_SOURCES}")
        self._sources.add(source)

    def _checked(self, action: object, mask: NDArray[np.bool_] | None) -> Tree:
        """Return a checked copy of an action, in the dtypes of the space."""
        try:
            act = self._reader.observation(action)[0]
        except ObservationError as exc:
            raise ActionError(str(exc).replace("observation", "action")) from exc
        layout = self._layout
        for part, leaf in zip(layout.parts, layout.leaves.flatten(act), strict=True):
            if isinstance(part.space, BoxSpace):
                bounds, flat = action_bounds(part.space), np.asarray(leaf, part.space.dtype).reshape(-1)
                outside = ~((flat >= bounds.low) & (flat <= bounds.high))
                if outside.any():
                    at = int(outside.argmax())
                    limits = f"{bounds.low[at]:g} to {bounds.high[at]:g}"
                    raise ActionError(f"{part.name} element {at} is {flat[at]:g}; the space allows {limits}: clip the action")
        if mask is not None:
            first = np.cumsum((0, *layout.counts[:-1]))
            forbidden = ~mask[first + layout.indices(act)]
            if forbidden.any():
                raise ActionError(f"the mask forbids the action: {layout.name_of(int(forbidden.argmax()))} has a forbidden value")
        space = layout.parts[0].space
        return np.int64(act) if layout.leaves.structure is None and isinstance(space, DiscreteSpace) else act

    def _raw(self, act: Tree) -> Tree:
        """Return the raw action of an action, for a policy that has no `AssessingPolicy.assess`."""
        layout = self._layout
        raw = [
            unbounder(part.space, self._squash)(leaf).reshape(part.space.shape) if isinstance(part.space, BoxSpace) else leaf
            for part, leaf in zip(layout.parts, layout.leaves.flatten(act), strict=True)
        ]
        return layout.leaves.unflatten(raw)
