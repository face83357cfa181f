"""Tools to test with, for users' own transports, policies and deployments as much as for ours.

- `check_transport`: the contract of a transport, clause by clause (`CHECKS`).
- `fresh_address`, `TransportUnderTest`; `rl4sys_zmq.testing.plugin`: the pytest fixture `transport`.
- `ChaosProxy` with `Faults`: a bad TCP network; `ChaosFrames`: a bad link without a network.
- `FakeAlgorithm`, `FakeFactory`, `FakeParameters`, `fake_spec`, `fake_weights`: learning without learning, without torch.
"""

from rl4sys_zmq.testing.addresses import TransportUnderTest, fresh_address
from rl4sys_zmq.testing.chaos import ChaosProxy, Faults
from rl4sys_zmq.testing.chaos_frames import ChaosFrames
from rl4sys_zmq.testing.check_transport import CHECKS, check_transport
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeFactory, FakeParameters, fake_spec, fake_weights

__all__ = [
    "CHECKS",
    "ChaosFrames",
    "ChaosProxy",
    "FakeAlgorithm",
    "FakeFactory",
    "FakeParameters",
    "Faults",
    "TransportUnderTest",
    "check_transport",
    "fake_spec",
    "fake_weights",
    "fresh_address",
]
