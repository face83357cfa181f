"""The bandwidth of a link over time."""

import math

import numpy as np
from numpy.typing import NDArray

GRID_S = 0.005
"""The bandwidth changes in steps of this length."""
MB = 1e6

Profile = NDArray[np.float64]
"""Bandwidth in bytes/s for each step of `GRID_S`, ``[T]``."""

KINDS = ("constant", "step up", "step down", "steps", "sine", "random walk", "stalls", "traffic")


def profile(kind: str, seconds: float, low: float, high: float, period_s: float, rng: np.random.Generator) -> Profile:
    """Return the bandwidth over time: between `low` and `high`, in bytes/s. It is 0 while the link is stalled."""
    t = np.arange(0.0, seconds, GRID_S)
    span = math.log(high / low)
    match kind:
        case "constant":
            found = np.full(len(t), high)
        case "step up":
            found = np.where(t < seconds / 2, low, high)
        case "step down":
            found = np.where(t < seconds / 2, high, low)
        case "steps":
            found = np.where(t % period_s < period_s / 2, high, low)
        case "sine":
            found = low * np.exp(span * (0.5 - 0.5 * np.cos(2 * np.pi * t / period_s)))
        case "random walk":
            walk = np.cumsum(rng.normal(0.0, span * math.sqrt(2 * GRID_S / period_s), len(t))) + rng.uniform(0.0, span)
            found = low * np.exp(np.abs((walk + span) % (2 * span) - span)) if span else np.full(len(t), low)
        case "stalls":
            found = np.where(t % period_s < 0.75 * period_s, high, 0.0)
        case "traffic":
            levels = rng.uniform(0.0, span, len(t))
            found = low * np.exp(levels[(t / period_s * 4).astype(int)])
        case _:
            raise ValueError(f"no kind of profile is called {kind!r}")
    return found


def profiles(seconds: float) -> dict[str, Profile]:
    """Return the ten profiles of the comparison, by name: an uplink of 3 to 40 Mbit/s."""
    rng = np.random.default_rng(10)
    made = {
        "constant 0.6 MB/s": ("constant", 0.6, 0.6, 1),
        "constant 3 MB/s": ("constant", 3, 3, 1),
        "step up": ("step up", 0.5, 4, 1),
        "step down": ("step down", 0.5, 4, 1),
        "steps": ("steps", 0.5, 4, seconds / 2),
        "slow sine": ("sine", 0.4, 5, seconds),
        "fast sine": ("sine", 0.4, 5, seconds / 3),
        "random walk": ("random walk", 0.4, 5, seconds),
        "stalls": ("stalls", 2, 2, seconds / 3),
        "traffic": ("traffic", 0.4, 4, seconds),
    }
    return {
        name: profile(kind, seconds, low * MB, high * MB, period_s, rng) for name, (kind, low, high, period_s) in made.items()
    }
