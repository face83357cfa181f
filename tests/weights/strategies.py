"""Strategies that draw states: unrelated bits, special values, small moves, of any size."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

SPECIAL = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC12345, 0x7F800001, 0x00000001, 0x80000001, 0x7F7FFFFF]
KINDS = ["random", "special", "near", "sparse", "frozen", "step", "same"]


def bits_of(flat: Any) -> Any:
    return flat.view(np.uint32)


SIZES = st.one_of(st.integers(0, 20), st.integers(0, 5000))


@st.composite
def state_lists(draw: Any, count: Any, *, bf16: bool = False, sizes: Any = SIZES) -> Any:
    """Draw `count` states of one size. Each differs in some way from the one before."""
    n = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    states = [rng.standard_normal(n).astype(np.float32).view(np.uint32) if draw(st.booleans()) else any_bits(rng, n)]
    for _ in range(count - 1):
        kind = draw(st.sampled_from(KINDS))
        last = states[-1].copy()
        if kind == "random":
            last = any_bits(rng, n)
        elif kind == "special":
            last = rng.choice(np.array(SPECIAL, dtype=np.uint32), n)
        elif kind == "near":
            last += rng.integers(-300, 300, n).astype(np.uint32) << np.uint32(16 * bf16)
        elif kind == "sparse":
            last[rng.random(n) < draw(st.sampled_from([0.001, 0.02, 0.3, 0.6]))] ^= np.uint32(0x10001)
        elif kind == "frozen":
            last[: n // 3] ^= np.uint32(0x10000)
        elif kind == "step":
            with np.errstate(all="ignore"):
                last = (last.view(np.float32) + np.float32(1e-3) * rng.standard_normal(n).astype(np.float32)).view(np.uint32)
        states.append(last)
    mask = np.uint32(0xFFFF0000 if bf16 else 0xFFFFFFFF)
    return [(s & mask).view(np.float32) for s in states]


def any_bits(rng: Any, n: Any) -> Any:
    return rng.integers(0, 2**32, n, dtype=np.uint32)


def ordered_slow(bits: Any) -> Any:
    """Return the bits of a float as an integer of the same order, with Python's own integers."""
    return bits if bits < 2**31 else -(bits - 2**31) - 1
