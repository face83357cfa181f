"""A private state of the global random generators of Python, numpy and torch, for libraries that draw from them.

Another thread that draws at the same time would change the results, so these libraries need a process of their own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class GlobalRandomState:
    """The states of the three global generators, as one object's own."""

    def __init__(self, seed: int) -> None:
        before = _current()
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.manual_seed(seed)
        self._states = _current()
        _set(before)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the code in the ``with`` block draw from these states, and give the generators their earlier states back."""
        before = _current()
        _set(self._states)
        try:
            yield
        finally:
            self._states = _current()
            _set(before)

    def state(self) -> dict[str, Any]:
        return dict(self._states)

    def load(self, state: Mapping[str, Any]) -> None:
        self._states = {name: state[name] for name in ("python", "numpy", "torch")}


def _current() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=True), "torch": torch.get_rng_state()}


def _set(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
