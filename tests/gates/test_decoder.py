"""A million slightly changed messages in the decoder: it raises only its own error, with every code, and does not grow."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
from wire.conftest import build
from wire.test_fuzz import Mutator, read

import rl4sys_zmq.wire
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.wire.prefix import PREFIX_BYTES, read_prefix
from rl4sys_zmq.wire.values import unpack_header

from .conftest import Report, Tier, resident_kib

WARM_UP = 1000
GROWTH_KIB = 50 * 1024


def raisable() -> set[str]:
    sources = Path(rl4sys_zmq.wire.__file__).parent.glob("*.py")
    names = {name for source in sources for name in re.findall(r"\bRefusalReason\.([A-Z_]+)", source.read_text())}
    return {RefusalReason[name].value for name in names}


def passes_the_header(frames: list[bytes]) -> bool:
    """Return True if the prefix is valid and the header can be read. An error, if any, is then in a later part."""
    try:
        read_prefix(frames)
        unpack_header(memoryview(frames[0])[PREFIX_BYTES:])
    except (ProtocolError, IndexError):
        return False
    return True


def test_changed_messages(tier: Tier, seed: int, report: Report) -> None:
    mutations = tier.size(10_000, 1_000_000, least=20_000)
    mutator = Mutator(seed, build())
    codes: Counter[str] = Counter()
    far, slowest, spent, start_kib = 0, 0.0, 0.0, 0
    for index in range(mutations):
        if index == WARM_UP:
            start_kib = resident_kib(os.getpid())
        frames, _ = mutator.mutate()
        far += passes_the_header(frames)
        began = time.perf_counter()
        try:
            with np.errstate(all="raise"):
                read(frames)
            codes["read"] += 1
        except ProtocolError as exc:
            codes[exc.code.value] += 1
        took = time.perf_counter() - began
        spent, slowest = spent + took, max(slowest, took)
    grown_kib = resident_kib(os.getpid()) - start_kib
    report(
        mutations=mutations,
        past_the_header=round(far / mutations, 3),
        per_second=round(mutations / spent),
        slowest_ms=round(slowest * 1e3, 2),
        grown_kib=grown_kib,
        codes=dict(codes),
    )
    assert far >= mutations / 2
    assert raisable() | {"read"} == set(codes)
    assert grown_kib < GROWTH_KIB
