"""A gRPC server that takes trajectories with one protobuf message per step, as RL4Sys's protocol does, and counts the steps.

    python benchmarks/peers/grpc_per_step.py --seconds 3 --senders 1

Columns of a step: observation float32[8] and action as bytes, reward, log-probability, done, version. The server reads every
step's arrays back. One RPC carries one trajectory of 200 steps (payload P1 of ``ingress.py``). Needs ``grpcio`` and ``protobuf``.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from counted import steps_per_s
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

STEPS, FEATURES = 200, 8
METHOD = "/peer.Trainer/SendTrajectory"
F = descriptor_pb2.FieldDescriptorProto


def messages() -> tuple[Any, Any]:
    """The classes of a step and of a trajectory, made without a compiler."""
    file = descriptor_pb2.FileDescriptorProto(name="peer.proto", package="peer", syntax="proto3")
    step = file.message_type.add(name="Step")
    fields = (("obs", F.TYPE_BYTES), ("act", F.TYPE_BYTES), ("rew", F.TYPE_FLOAT), ("logp", F.TYPE_FLOAT), ("done", F.TYPE_BOOL))
    for number, (name, kind) in enumerate((*fields, ("version", F.TYPE_INT64)), 1):
        step.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    trajectory = file.message_type.add(name="Trajectory")
    trajectory.field.add(name="client", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    trajectory.field.add(name="steps", number=2, type=F.TYPE_MESSAGE, type_name=".peer.Step", label=F.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(f"peer.{n}")) for n in ("Step", "Trajectory"))


def send(port: int, seconds: float) -> None:
    """A sender: builds every message from numpy rows, as an actor would."""
    step_class, trajectory_class = messages()
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((STEPS, FEATURES)).astype(np.float32)
    act = rng.integers(0, 4, STEPS)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD, request_serializer=lambda m: m.SerializeToString(), response_deserializer=bytes)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            trajectory = trajectory_class(client="lab")
            for t in range(STEPS):
                trajectory.steps.append(
                    step_class(obs=obs[t].tobytes(), act=act[t].tobytes(), rew=0.5, logp=-0.7, done=t == STEPS - 1, version=3)
                )
            call(trajectory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--senders", type=int, default=1)
    options = parser.parse_args()
    _, trajectory_class = messages()
    taken = [0]

    def handle(trajectory: Any, _: Any) -> bytes:
        for step in trajectory.steps:
            np.frombuffer(step.obs, dtype=np.float32), np.frombuffer(step.act, dtype=np.int64)
        taken[0] += len(trajectory.steps)
        return b"ok"

    handler = grpc.unary_unary_rpc_method_handler(handle, request_deserializer=trajectory_class.FromString)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer.Trainer", {"SendTrajectory": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    rate = steps_per_s(taken, send, port, options.senders, options.seconds)
    server.stop(None)
    print(json.dumps({"peer": "gRPC, protobuf per step", "senders": options.senders, "steps_per_s": round(rate)}))


if __name__ == "__main__":
    main()
