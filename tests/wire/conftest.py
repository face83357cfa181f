"""One fixed message of each kind, for the golden vectors and the fuzzer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, space_to_json
from rl4sys_zmq.weights import PayloadEncoding, WeightsHeader
from rl4sys_zmq.wire import join_submit, pack_segment, spec_to_document
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire import thread_messages as t

GENERATION = 1_700_000_000_000
DIGEST = 0xFEDCBA9876543210
LEDGER = 0x0123456789ABCDEF
BOX, TWO = BoxSpace((2,), low=-1.0, high=1.0), DiscreteSpace(2)


@contextmanager
def refusal(code: RefusalReason) -> Iterator[None]:
    """Check that the block raises a `ProtocolError` with this code."""
    with pytest.raises(ProtocolError) as caught:
        yield
    assert caught.value.code is code


def segment(steps: int = 2, *, masks: bool = False, terminated: bool = True) -> Segment:
    """Return a small segment whose bytes are easy to recognise."""
    rows = steps + (not terminated)
    return Segment(
        np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) / 4,
        np.arange(steps, dtype=np.int64) % 2,
        np.ones(steps, np.float32),
        np.full(steps, -0.5, np.float32),
        np.full(steps, 3, np.uint64),
        np.ones((rows, 2), np.bool_) if masks else None,
        GENERATION,
        0x1122334455667788,
        0,
        terminated,
        False,
        False,
        float(steps) if terminated else None,
        steps if terminated else None,
    )


def update() -> tuple[bytes, bytes]:
    """Return a weights header and its payload."""
    payload = np.arange(4, dtype=np.float32).tobytes()
    header = WeightsHeader(
        b"\x01" + bytes(7), GENERATION, 3, 3, PayloadEncoding(min(int(c) for c in PayloadEncoding if not c.is_diff)), 4, 16, 1, 2
    )
    return header.pack(), payload


def build() -> dict[str, m.Message | t.ThreadMessage]:
    """Return the messages, by the names of their kinds."""
    box, two = space_to_json(BOX), space_to_json(TWO)
    spec = spec_to_document(mlp_spec(BOX, TWO, "categorical", (4,)))
    submit = join_submit(7, 64, [pack_segment(segment()), pack_segment(segment(1, masks=True, terminated=False))])
    policy_id = b"\x01" + bytes(7)
    verdicts = {"trained": 5, "stale": 1, "quarantined": 0, "refused": 1, "duplicate": 2}
    found: list[m.Message | t.ThreadMessage] = [
        m.Hello(
            "cart",
            "a1",
            9,
            7,
            GENERATION,
            3,
            "PPO",
            {"lr": 0.25},
            "onpolicy",
            box,
            two,
            True,
            "rl4sys_zmq 0.1.0",
            8,
            LEDGER,
            True,
        ),
        submit,
        m.Heartbeat(64),
        m.FetchWeights(GENERATION, 3),
        m.StatusRequest(7),
        m.FollowWeights("cart", "tcp://10.0.0.5:50061", 16, GENERATION),
        m.ActorReport("edge-1", 4121, 1.5, 1 << 28, 12, 0.25, 1 << 34, 1 << 33, 1 << 40, 1000.0, 2.5e6),
        m.Bye(),
        m.OperatorCommand("set", "cart", "a1", {"learning_rate": 0.001}),
        m.Welcome(
            policy_id,
            b"\x02" + bytes(7),
            LEDGER,
            2,
            GENERATION,
            3,
            DIGEST,
            spec,
            "tcp://*:5556",
            7,
            7,
            40,
            "PPO",
            "onpolicy",
            32,
            -1,
            "drop",
            1 << 26,
            1 << 20,
            1.0,
        ),
        m.Ack(GENERATION, 9, 8, 7, 5, 43, 64, 20, 1 << 20, 3, verdicts),
        m.Refused("gap", "", "segment 9 came, 8 is next", 8),
        m.WeightsReply(update()),
        m.StatusReply(
            {"clients": {"cart": {"state": "running", "mean_return": None}}},
            (b'{"next_record": 8, "records": [{"t": 1.5, "event": "client_ready", "client_id": "cart"}]}',),
        ),
        m.Beacon(GENERATION, 3, DIGEST, {"update_undone": 2}),
        m.WeightsSource("cart", policy_id, b"\x03" + bytes(7), GENERATION, 3, DIGEST, spec["tensors"], "tcp://*:5557"),
        m.OperatorCommandDone("a1 is dropped", {"pending": 2}),
        t.AssignClient(
            "cart",
            policy_id,
            GENERATION,
            "PPO",
            {"lr": 0.25},
            box,
            two,
            11,
            -1,
            "drop",
            1,
            1,
            10_000_000,
            "run/checkpoints/cart",
            60.0,
            LEDGER,
        ),
        t.DeliverSegments("a1", 8, 1, 2, (b"first", b"second")),
        t.StopThread(),
        t.ThreadReady(
            spec,
            "onpolicy",
            32,
            4,
            12,
            [["a1", 8, 7, verdicts]],
            verdicts,
            ["00000013"],
            (),
            640,
            5,
            2,
            [[1.5, 20], [2.0, 30]],
            ["cuda:0"],
        ),
        t.PolicyPublished(3, DIGEST, (np.arange(3, dtype="<f4").tobytes(), *update())),
        t.SegmentVerdicts("a1", 8, [[7, 9]], "quarantined", "rewards are not finite"),
        t.DataDemand(128, 12, 3),
        t.ThreadFailed("ValueError: no", "Traceback"),
        t.TrainingMetrics(128, 2, {"loss": 0.5}, [[10, 1.0, 10]], 3, [128, 0, 0, 0, 0, 0, 0, 0, 0]),
        t.SaveCheckpoint(5, True),
        t.StreamEnded("a1", 8),
        t.ChangeParameters({"learning_rate": 0.001}),
        t.ChangeWeightsLevel(1),
        t.CheckpointResult(5, 13, 3, [["a1", 8, 7]], 0.25, ""),
        t.QuarantinedSegment("a1", 8, 7, "rewards are not finite", (b"first", b"second")),
        t.OperatorAlarm("update_undone", "1 segment is quarantined", 2),
        t.GatewayAlive(41, 97),
        t.EndRemoteWorker(),
        t.CheckpointFound(12, 14, {"manifest.json": 700, "state.safetensors": 9000}, ["00000013"], True, "", (b"{}", b"R4TM")),
        t.CheckpointPartReply(12, "state.safetensors", 8 << 20, (b"part",)),
        t.CheckpointStored(14, True, ""),
        t.TrainingRecorded(3),
        t.WorkerAlive("node-7", 4711, 0.25, False, 40),
        t.WorkerLog("rl4sys_zmq.learner", 30, "client cart: a line"),
        t.FindCheckpoint(),
        t.FetchCheckpointPart(12, "state.safetensors", 8 << 20),
        t.RecordSegmentsInTraining(3, (b"", b"R4TM")),
        t.CheckpointPart(14, "state.safetensors", 4 << 20, False, (b"part",)),
    ]
    return {type(message).__name__: message for message in found}


@pytest.fixture
def samples() -> dict[str, m.Message | t.ThreadMessage]:
    """Return one message of each kind, by the name of its kind."""
    return build()


@pytest.fixture
def make_segment() -> Any:
    """Return the function that makes small segments."""
    return segment
