"""Writes what the Python form gives for many cases, as files that the test programs read: ``make_vectors.py FOLDER``."""

from __future__ import annotations

import dataclasses
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import xxhash

from rl4sys_zmq.delivery.resend_timer import ResendTimer
from rl4sys_zmq.errors import ProtocolError, WeightsError
from rl4sys_zmq.layers.activation import ActivationLayer
from rl4sys_zmq.layers.dense import Dense
from rl4sys_zmq.layers.gru import GRU
from rl4sys_zmq.layers.layer import RecurrentState
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.network_policy import build_layers
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment, TensorSpec
from rl4sys_zmq.values.policy import other_bytes, other_tensors
from rl4sys_zmq.weights import (
    EncodingOptions,
    WeightsHeader,
    WireDtype,
    apply_update,
    choose_steps,
    digest,
    division_of,
    encode_update,
    round_to,
)
from rl4sys_zmq.wire import encode, join_submit, pack_segment, spec_to_document
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire.batch import SegmentBatchReader
from rl4sys_zmq.wire.codec import decode_as, kinds_of
from tests.policies.exact import exact_outputs
from tests.wire.conftest import build
from tests.wire.test_fuzz import MAX_BYTES, Mutator

Vector = dict[str, Any]
KINDS = kinds_of(m.Message)
MESSAGES, UPDATES, POLICIES, SUBMITS = 3000, 120, 120, 60


def hashes(rng: random.Random) -> Iterator[Vector]:
    for size in (*range(300), 511, 512, 513, 1023, 1024, 1025, 2048, 2049, 4096, 8191, 70_000):
        data = rng.randbytes(size)
        yield dict(data=data, xxh3=xxhash.xxh3_64_intdigest(data))


def randoms(rng: random.Random) -> Iterator[Vector]:
    for bits in (1, 31, 32, 33, 64, 65, 128, 700):
        seed = rng.getrandbits(bits)
        source, normals = random.Random(seed), RandomSource(seed)
        counts = [1, 3, 1000, 30, 2000]
        yield dict(
            words=words_of(seed),
            uniform=struct.pack("<700d", *(source.random() for _ in range(700))),
            bits=[[n, source.getrandbits(n)] for n in range(1, 65)],
            counts=counts,
            normals=b"".join(normals.normals(n).tobytes() for n in counts),
        )


def words_of(seed: int) -> list[int]:
    return [seed >> shift & 0xFFFFFFFF for shift in range(0, max(1, seed.bit_length()), 32)]


def timers(rng: random.Random) -> Iterator[Vector]:
    """Calls of a resend timer, as [name, time, number, flag], and the time of the next resend after each of them."""
    for seed in range(30):
        timer, now, calls, times = ResendTimer(random.Random(seed)), 1.0, [], []
        for _ in range(200):
            now += rng.expovariate(2.0)
            name = rng.choice(["sent", "sent", "resent", "refused", "acknowledged", "acknowledged", "stop", "reset"])
            number, waiting = rng.randrange(50), rng.random() < 0.7
            arguments = {"sent": (now, number), "resent": (now,), "acknowledged": (now, number, waiting)}.get(name, ())
            getattr(timer, name)(*arguments)
            calls.append([name, now, number, waiting])
            times.append(timer.at)
        yield dict(seed=seed, calls=calls, times=struct.pack("<200d", *times))


def messages() -> Iterator[Vector]:
    samples = {name: message for name, message in build().items() if encode(message)[0][6] < 32}
    for message in samples.values():
        yield dict(frames=[bytes(frame) for frame in encode(message)], most=1 << 32, code="", structure="")
    mutator = Mutator(1, {**samples, "ThreadReady": samples["Welcome"]})
    for _ in range(MESSAGES):
        frames = [bytes(frame) for frame in mutator.mutate()]
        yield dict(frames=frames, most=MAX_BYTES, **verdicts_on(frames))


def verdicts_on(frames: list[bytes]) -> dict[str, str]:
    """The refusal codes of the message, and of the structure of a Submit without codings; "" for none."""
    try:
        message = decode_as(KINDS, frames, MAX_BYTES, True)
    except ProtocolError as error:
        return dict(code=error.code.value, structure="")
    try:
        if isinstance(message, m.Submit) and not message.codings:
            SegmentBatchReader(message)
    except ProtocolError as error:
        return dict(code="", structure=error.code.value)
    return dict(code="", structure="")


def submits(rng: np.random.Generator) -> Iterator[Vector]:
    for case in range(SUBMITS):
        width = int(rng.choice([1, 3, 40, 3000]))
        found = [segment(rng, width, masks=bool(rng.random() < 0.3)) for _ in range(rng.integers(1, 6))]
        packed = [pack_segment(one) for one in found]
        frames = [bytes(frame) for frame in encode(join_submit(7 + case, case, packed))]
        yield dict(first=7 + case, want=case, segments=[numbers_of(one) for one in found], frames=frames)


def segment(rng: np.random.Generator, width: int, masks: bool) -> Segment:
    steps, end = int(rng.integers(1, 40)), int(rng.integers(4))
    rows, ended = steps + (end != 1), end in (1, 2)
    versions = np.sort(rng.integers(1, [2, 5][rng.integers(2)], steps)).astype(np.uint64)
    return Segment(
        rng.normal(size=(rows, width)).astype(np.float32), rng.integers(0, 3, steps), rng.normal(size=steps).astype(np.float32),
        rng.normal(size=steps).astype(np.float32), versions, rng.random((rows, 3)) < 0.5 if masks else None, 5,
        int(rng.integers(2**63)), int(rng.integers(9)), end == 1, end == 2, end == 3, 1.5 if ended else None,
        steps + 3 if ended else None,
    )  # fmt: skip


def numbers_of(one: Segment) -> Vector:
    mixed = one.versions.min() != one.versions.max()
    flags = one.terminated | one.truncated << 1 | one.capped << 2 | (one.episode_return is not None) << 3 | bool(mixed) << 4
    columns = [one.observations, one.actions, one.rewards, one.log_probs, one.versions if mixed else one.versions[:0]]
    columns += [] if one.masks is None else [one.masks]
    return dict(
        generation=one.generation, episode=one.episode_id, index=one.segment_index, oldest=int(one.versions.min()),
        total=one.episode_return or 0.0, length=one.episode_length or 0, steps=one.steps, flags=int(flags),
        layout=pack_segment(one).layout, columns=[column.tobytes() for column in columns],
    )  # fmt: skip


def updates(rng: np.random.Generator) -> Iterator[Vector]:
    for _ in range(UPDATES):
        tensors = [TensorSpec(f"t{i}", (int(rng.integers(1, [5, 200, 3000][rng.integers(3)])),), exact=bool(rng.random() < 0.3))
                   for i in range(rng.integers(1, 5))]  # fmt: skip
        if rng.random() < 0.4:
            tensors += [TensorSpec("k", (3,), "int64"), TensorSpec("h", (2,), "float16")]
        others, dtype = other_tensors(tensors), WireDtype(int(rng.integers(3)))
        division, chain = division_of(dtype, tuple(tensors)), []
        steps: tuple[int, ...] = ()
        flat = rng.normal(size=division.size).astype(np.float32) * np.float32(10 ** rng.uniform(-3, 2))
        if dtype is WireDtype.GRID:
            steps = choose_steps(division.rounded(flat), None, (), division.sizes, noise=0.5)
        share = rng.choice([0.0, 0.05, 0.4, 1.0])
        for version in range(3, 6):
            rounded = flat
            if dtype is not WireDtype.FP32:
                parts = round_to(dtype, division.rounded(flat), steps, division.sizes), division.exact(flat)
                rounded = np.ascontiguousarray(division.joined(*parts), np.float32)
            rest = b"".join(rng.integers(0, 99, t.size).astype(t.dtype).tobytes() for t in others)
            rest += bytes(other_bytes(others) - len(rest)) if others else b""
            chain.append(PolicySnapshot(7, version, digest(rounded, rest), rounded, rest))
            change = rng.normal(size=flat.size) * 10 ** rng.uniform(-6, -1) * (rng.random(flat.size) < share)
            flat = (flat + change).astype(np.float32)
        options = EncodingOptions(dtype, int(rng.integers(2)), tuple(tensors))
        names = [[t.name, list(t.shape), t.dtype, t.exact] for t in tensors]
        one, two, three = chain
        for held, new, before in ((None, one, None), (one, two, None), (two, three, one if rng.random() < 0.7 else None)):
            try:
                header, payload = encode_update(b"12345678", held, new, options, before=before)
            except WeightsError:
                continue
            for head, body in ((bytes(header), bytes(payload)), damaged(rng, bytes(header), bytes(payload))):
                try:
                    got, reason = apply_update(WeightsHeader.unpack(head), body, held, tensors, before=before), ""
                except WeightsError as error:
                    got, reason = None, error.reason
                yield dict(header=head, payload=body, held=state_of(held), before=state_of(before), tensors=names, reason=reason,
                           after=state_of(got))  # fmt: skip


def damaged(rng: np.random.Generator, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
    body = bytearray(payload)
    match rng.integers(3):
        case 0 if body:
            body[rng.integers(len(body))] ^= 1 << int(rng.integers(8))
        case 1 if body:
            del body[rng.integers(len(body)) :]
        case _:
            body += b"\0\1"
    check = xxhash.xxh3_64_intdigest(bytes(body))
    try:
        head = dataclasses.replace(WeightsHeader.unpack(header), payload_bytes=len(body), payload_hash=check).pack()
        return head, bytes(body)
    except ProtocolError:  # longer than any payload of so many elements
        return header, payload


def state_of(snapshot: PolicySnapshot | None) -> Vector:
    if snapshot is None:
        return {}
    return dict(generation=snapshot.generation, version=snapshot.version, digest=snapshot.digest, flat=snapshot.flat.tobytes(),
                others=bytes(snapshot.others))  # fmt: skip


def policies(rng: np.random.Generator) -> Iterator[Vector]:
    steps = 20
    for _ in range(POLICIES):
        discrete, looks_up = bool(rng.random() < 0.5), bool(rng.random() < 0.3)
        n = int(rng.integers(1, 9)) if rng.random() < 0.8 else 60
        seen: Any = BoxSpace((int(rng.integers(1, 30)),))
        if looks_up:
            seen = DiscreteSpace(int(rng.integers(2, 20)), start=int(rng.integers(-3, 3)))
        acts: Any = BoxSpace((n,), low=-1.5, high=[2.0, 7.5][rng.integers(2)])
        if discrete:
            acts = DiscreteSpace(n, start=int(rng.integers(-2, 3)))
        head = (["categorical", "q_values"] if discrete else ["gaussian", "squashed_gaussian"])[rng.integers(2)]
        choices: dict[str, dict[str, Any]] = {
            "gaussian": {"squash": ["clip", "tanh"][rng.integers(2)]},
            "squashed_gaussian": {"log_std_min": -5.0, "log_std_max": 1.0},
            "q_values": {"epsilon_ladder": 7.0} if rng.random() < 0.5 else {},
        }
        layers: list[Any] = [] if looks_up or rng.random() < 0.6 else [Normalise()]
        for _ in range(rng.integers(3)):
            name = ["tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity"][rng.integers(7)]
            layers += [Dense(units=int(rng.integers(1, 80))), ActivationLayer(function=name)]
        if recurrent := bool(rng.random() < 0.3):
            layers.append(GRU(units=int(rng.integers(1, 40))))
        spec = layers_spec(seen, acts, HeadParameters(head=head, **choices.get(head, {})), layers)
        flat = (rng.normal(size=spec.size) * 0.2).astype(np.float32)
        views = spec.views(flat)
        if "epsilon" in views:
            views["epsilon"][:] = 0.3
        snapshot = PolicySnapshot(1, 2, digest(flat), flat)
        policy: Any = build_layers(spec, snapshot)
        if looks_up:
            rows: Any = rng.integers(seen.start, seen.start + seen.n, steps)
            sent = (rows - seen.start).astype(np.int64).tobytes()
        else:
            rows = (rng.normal(size=(steps, *seen.shape)) * 3).astype(np.float32)
            sent = rows.tobytes()
        masks = None
        if discrete and rng.random() < 0.5:
            masks = rng.random((steps, n)) < 0.6
            masks[np.arange(steps), rng.integers(0, n, steps)] = True
        explore, seed = bool(rng.random() < 0.7), int(rng.integers(2**40))
        source, state, chosen = RandomSource(seed, 0.37), None, []
        for t in range(steps):
            row, mask = rows[t], None if masks is None else masks[t]
            if recurrent:
                raw, act, log_prob, _, state = policy.step(row, mask, source, explore, state)
            else:
                raw, act, log_prob = policy.act(row, mask, source, explore)
            chosen.append((raw, act, log_prob))
        raws, took, log_probs = zip(*chosen, strict=True)
        yield dict(
            spec=spec_to_document(spec), state=state_of(snapshot), rows=sent, masks=b"" if masks is None else masks.tobytes(),
            explore=explore, words=words_of(seed), place=0.37,
            raws=np.array(raws, np.int64 if discrete else np.float32).tobytes(),
            acts=b"" if discrete else np.array(took, np.float64).tobytes(), log_probs=np.array(log_probs, np.float64).tobytes(),
            outputs=outputs_of(policy, rows).tobytes(), exact=exact_outputs(spec, flat, rows).tobytes(),
        )  # fmt: skip


def outputs_of(policy: Any, rows: Any) -> Any:
    """The outputs ``[T, n]`` of a policy's network in numpy for the observations of one episode, float32."""
    carried = RecurrentState()
    carried.before = carried.after = getattr(policy, "_zero", np.zeros(0, np.float32))
    forward, outputs = policy._network.bind(carried), []
    for row in rows:
        outputs.append(forward(row).copy())
        carried.before = carried.after
    return np.array(outputs)


def sessions() -> Iterator[Vector]:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from simulation.recorded_sessions import recorded_sessions

    return recorded_sessions()


def framed(frames: list[bytes]) -> bytes:
    """Frames as one input of a fuzzer: the number of frames, their sizes in 4 bytes each, and their bytes."""
    return struct.pack(f"<B{len(frames)}I", len(frames), *map(len, frames)) + b"".join(frames)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rooms = dict(
        hashes=hashes(random.Random(1)), randoms=randoms(random.Random(2)), messages=messages(),
        submits=submits(np.random.default_rng(3)), timers=timers(random.Random(6)),
        updates=updates(np.random.default_rng(4)), policies=policies(np.random.default_rng(5)),
        sessions=sessions(),
    )  # fmt: skip
    found = {name: list(cases) for name, cases in rooms.items()}
    for name, cases in found.items():
        (folder / name).write_bytes(msgpack.packb(cases, use_bin_type=True))
    corpora = {
        "message": [framed(case["frames"]) for case in found["messages"][:200]],
        "submit": [framed(case["frames"]) for case in found["submits"]],
        "update": [framed([case["header"], case["payload"], case["held"].get("flat", b"")]) for case in found["updates"][:200]],
        "spec": [msgpack.packb(case["spec"], use_bin_type=True) for case in found["policies"]],
        "config": [b'{"client_id":"c","algorithm_name":"PPO","train_server_address":"tcp://127.0.0.1:1",'
                   b'"algorithm_parameters":{"input_size":4,"act_dim":2}}'],
    }  # fmt: skip
    for name, inputs in corpora.items():
        (folder / "corpus" / name).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / "corpus" / name / str(number)).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
