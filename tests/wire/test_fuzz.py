"""Valid messages with small changes: the decoder returns a message or raises a ProtocolError."""

import os
import random
import re
import resource
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash

import rl4sys_zmq.wire
from rl4sys_zmq import native
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.weights import WeightsHeader
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, encode, read_submit, spec_from_document
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire import thread_messages as t
from rl4sys_zmq.wire.codec import decode_as, kinds_of
from rl4sys_zmq.wire.frames import PREFIX_BYTES, checksum, pack_frames, read_prefix, unpack_header

from .conftest import update

MUTATIONS = int(os.environ.get("RL4SYS_MUTATIONS") or (1_000_000 if os.environ.get("RL4SYS_SOAK") else 20_000))
CLASSES = kinds_of(m.Message) | kinds_of(t.ThreadMessage)
MAX_BYTES = 1 << 16
SCHEMA = SegmentSchema(BoxSpace((2,), low=-1.0, high=1.0), DiscreteSpace(2), 8)
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e308, 1e-300,
    float("nan"), float("inf"), "", "x", "|O", "<f4", ">f8", "<u8", "Box", "o", "x" * 300, b"", b"\x80\x04.", b"12345678", [],
    [[]], {}, [1, 2], {"type": "Discrete", "n": 2}, {b"nd": True}, {b"nd": False, b"type": "<f4", b"data": bytes(4)},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": bytes(8)},
    {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"\x80\x04."},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [0, 2**63], b"data": b""},
]  # fmt: skip


def read(frames: Any) -> None:
    """Decode and check frames as a receiver does before it uses them."""
    message = decode_as(CLASSES, frames, MAX_BYTES, True)
    if isinstance(message, m.Submit):
        for error in (*read_submit(message), *SegmentBatchReader(message).errors(SCHEMA).values()):
            if isinstance(error, ProtocolError):
                raise error
    if isinstance(message, m.Welcome | t.ThreadReady):
        spec_from_document(message.spec, message.body)


class Mutator:
    """A generator of changed messages."""

    def __init__(self, seed: Any, samples: Any) -> None:
        self.rng = random.Random(seed)
        self.samples = [[bytes(f) for f in encode(s)] for s in samples.values()]
        self.submits = [[bytes(f) for f in encode(samples[n])] for n in ("Submit", "Submit", "Welcome", "ThreadReady")]

    def mutate(self) -> list[bytes]:
        """Return changed frames. In three of four, the prefix and the checksum were made valid again."""
        rng = self.rng
        frames = list(rng.choice(self.submits if rng.random() < 0.4 else self.samples))
        if rng.random() < 0.25:
            return self.break_prefix(frames)
        if rng.random() < 0.8:
            header = msgpack.unpackb(frames[0][PREFIX_BYTES:], strict_map_key=False)
            for _ in range(rng.randint(1, 2)):
                header = self.change(header)
            try:
                data = msgpack.packb(header, use_bin_type=True)
            except (OverflowError, ValueError):
                data = frames[0][PREFIX_BYTES:]
        else:
            data = self.scramble(frames[0][PREFIX_BYTES:])
        body = frames[1:]
        if body and rng.random() < 0.2:
            body = [self.scramble(f) if rng.random() < 0.5 else f for f in body]
        if rng.random() < 0.05:
            body = rng.choice([body[1:], [*body, b"more"], body * 2, body[::-1]])
        kind, seq, count, _ = read_prefix(frames)
        if rng.random() < 0.05:
            kind = rng.randrange(60)
        if rng.random() < 0.05:
            seq, count = rng.choice([0, 1, 2**63, 2**64 - 1]), rng.choice([0, 1, 3, 2**32 - 1])
        flags = rng.choice([1, 0x8000, 0x10000, 2**32 - 1]) if rng.random() < 0.02 else 0
        return pack_frames(kind, data, body, seq, count, (), flags, rng.choice([0, 0, 0, 1]))  # type: ignore[return-value]

    def break_prefix(self, frames: list[bytes]) -> list[bytes]:
        rng = self.rng
        first = bytearray(frames[0])
        match rng.randrange(6):
            case 0:
                first[rng.randrange(PREFIX_BYTES)] ^= 1 << rng.randrange(8)
            case 1:
                first[rng.randrange(40)] = rng.randrange(256)
                struct.pack_into("<Q", first, 40, checksum(bytes(first), frames[1:]))
            case 2:
                return frames[: rng.randrange(len(frames) + 1)]
            case 3:
                first = first[: rng.randrange(len(first))]
            case 4:
                frames = [*frames, bytes(rng.choice([0, 1, MAX_BYTES]))]
            case _:
                first = bytearray(self.scramble(bytes(first)))
        return [bytes(first), *frames[1:]]

    def scramble(self, data: bytes) -> bytes:
        rng, out = self.rng, bytearray(data)
        for _ in range(rng.randint(1, 3)):
            where = rng.randrange(len(out) + 1)
            match rng.randrange(4):
                case 0 if out:
                    out[min(where, len(out) - 1)] = rng.randrange(256)
                case 1:
                    out[where:where] = rng.randbytes(rng.randint(1, 8))
                case 2:
                    del out[where : where + rng.randint(1, 8)]
                case _:
                    out += out[where : where + 16]
        return bytes(out)

    def change(self, tree: Any) -> Any:
        """Return the tree with a change at one place."""
        rng = self.rng
        out: Any
        if isinstance(tree, dict) and tree and rng.random() < 0.9:
            out, key = dict(tree), rng.choice(list(tree))
            what = rng.random()
            if what < 0.1:
                del out[key]
            elif what < 0.2:
                out[rng.choice(["extra", "body", "first_seq", b"nd", ""])] = rng.choice(ODD)
            else:
                out[key] = self.change(out[key])
            return out
        if isinstance(tree, list) and tree and rng.random() < 0.9:
            out, where = list(tree), rng.randrange(len(tree))
            what = rng.random()
            if what < 0.1:
                del out[where]
            elif what < 0.2:
                out.insert(where, rng.choice(ODD))
            else:
                out[where] = self.change(out[where])
            return out
        if type(tree) is bytes and tree and rng.random() < 0.9:
            return self.scramble(tree)
        if type(tree) is str and tree and rng.random() < 0.5:
            return self.scramble(tree.encode()).decode("latin-1")
        if type(tree) is int and rng.random() < 0.5:
            return tree + rng.choice([-2, -1, 1, 2, 16, 1 << 20])
        return rng.choice(ODD)


def raisable() -> set[str]:
    """Return the codes that the sources of the decoder name."""
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


@pytest.mark.timeout(1_800)
def test_changed_messages_are_read_or_refused_by_name(seed: int, samples: dict[str, m.Message | t.ThreadMessage]) -> None:
    mutator = Mutator(seed, samples)
    codes: Counter[str] = Counter()
    far = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = slowest = 0.0
    for _ in range(MUTATIONS):
        frames = mutator.mutate()
        far += passes_the_header(frames)
        start = time.perf_counter()
        try:
            with np.errstate(all="raise"):
                read(frames)
            codes["read"] += 1
        except ProtocolError as exc:
            codes[exc.code.value] += 1
        took = time.perf_counter() - start
        spent, slowest = spent + took, max(slowest, took)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{MUTATIONS} mutations, {MUTATIONS / spent:.0f}/s, slowest {slowest * 1e3:.1f} ms, {grown} MiB: {dict(codes)}")
    assert far >= MUTATIONS / 2
    assert raisable() | {"read"} == set(codes)
    assert grown < 50


KINDS = kinds_of(m.Message)
"""The messages between processes, which the compiled form has. The others go between a gateway and its learner threads."""


def plain(value: Any) -> Any:
    """Return a value of a header with types that can be compared: arrays and floats as bytes, dicts with their order."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape if isinstance(value, np.ndarray) else None, value.tobytes()
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return struct.pack("<d", value) if type(value) is float else (type(value), value)


def read_by(module: Any, frames: list[bytes]) -> tuple[str, Any]:
    """Read a message with the compiled functions, or in Python without `module`. Return the refusal code, and what was read."""
    try:
        if module is None:
            message = decode_as(KINDS, frames, MAX_BYTES, True)
            header = unpack_header(memoryview(frames[0])[PREFIX_BYTES:])
            submit = message if isinstance(message, m.Submit) else None
            numbers = (submit.first_seq, submit.count) if submit is not None else (0, 0)
            return "", (message.KIND, plain(header), *numbers, bad_heads(submit) if submit is not None else None)
        kind, header, first_seq, count = module.read_message(frames, MAX_BYTES)
        is_plain = kind == m.Submit.KIND and not header.get("codings")
        return "", (kind, plain_of_compiled(header), first_seq, count, module.bad_heads(frames) if is_plain else None)
    except ProtocolError as exc:
        return exc.code.value, None


def bad_heads(submit: m.Submit) -> list[int] | None:
    """Return the indices of the contradictory heads of a message; None if its body is compressed."""
    if submit.codings:
        return None
    batch = SegmentBatchReader(submit)
    return sorted({*batch.errors(), *(place for place, steps in enumerate(batch.steps) if not steps)})


def plain_of_compiled(value: Any) -> Any:
    """Do the same as `plain`. The compiled form has a tuple of the dtype, the shape and the bytes for an array."""
    if type(value) is tuple:
        return value
    if isinstance(value, dict):
        return [(key, plain_of_compiled(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [plain_of_compiled(item) for item in value]
    return plain(value)


@pytest.mark.timeout(3_600)
@pytest.mark.skipif(native.load() is None, reason=native.reason())
def test_both_forms_read_and_refuse_the_same(seed: int, samples: dict[str, m.Message | t.ThreadMessage]) -> None:
    module = native.load()
    for sample in samples.values():
        frames = [bytes(frame) for frame in encode(sample)]
        assert read_by(module, frames) == read_by(None, frames)
    between = {name: sample for name, sample in samples.items() if sample.KIND in KINDS}
    mutator = Mutator(seed, {**between, "ThreadReady": samples["Welcome"]})
    codes: Counter[str] = Counter()
    for _ in range(MUTATIONS):
        frames = mutator.mutate()
        expected = read_by(None, frames)
        assert read_by(module, frames) == expected, frames
        codes[expected[0]] += 1
    print(f"{MUTATIONS} mutations: {dict(codes)}")
    assert codes[""] > MUTATIONS / 20 and len(codes) > 10


def header_by(module: Any, data: bytes) -> Any:
    try:
        if module is not None:
            return module.read_weights_header(data)
        h = WeightsHeader.unpack(data)
    except ProtocolError as exc:
        return exc.code.value
    return [h.policy_id, h.generation, h.base_version, h.new_version, int(h.codec), h.elements, h.payload_bytes, h.payload_hash,
            h.state_hash, int(h.wire_dtype), h.chunk, h.chunks, h.predicted, h.others]  # fmt: skip


@pytest.mark.skipif(native.load() is None, reason=native.reason())
def test_both_forms_read_and_refuse_the_same_weights_headers(seed: int) -> None:
    rng, module = random.Random(seed), native.load()
    for _ in range(MUTATIONS // 10):
        data = bytearray(update()[0])
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 255, rng.randrange(256)])
        if rng.random() < 0.8:  # a valid checksum, so that the rules after it are reached
            data[52:56] = bytes(4)
            data[52:56] = (xxhash.xxh3_64_intdigest(bytes(data)) & 0xFFFFFFFF).to_bytes(4, "little")
        if rng.random() < 0.05:
            data = data[: rng.randrange(len(data))]
        assert header_by(module, bytes(data)) == header_by(None, bytes(data)), bytes(data)
