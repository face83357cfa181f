"""Test tools for transports, algorithms, policies and data stores, both of this package and your own.

- `check_transport`: tests a transport (tcp, ipc, inproc) by the checks in `CHECKS`.
- `check_algorithm`: tests your own learning algorithm. `check_policy`: tests your own kind of policy.
- `check_data_store`: tests your own subclass of `rl4sys_zmq.serving.DataStoreBase`.
- `fresh_address`, `TransportUnderTest`: unused addresses for tests. `rl4sys_zmq.testing.plugin`: the pytest fixture `transport`.
- `ChaosProxy`, `NetworkFaults`: a TCP proxy that simulates an unreliable network.
- `hidden_velocities`: an environment that only policies with a memory can solve. The module needs gymnasium.
- `FakeAlgorithm`, `FakeFactory`, `FakeParameters`, `fake_spec`, `fake_weights`: an algorithm for tests that does not learn, and
  its parts.
"""

from rl4sys_zmq.testing.chaos import ChaosProxy, NetworkFaults
from rl4sys_zmq.testing.check_algorithm import check_algorithm
from rl4sys_zmq.testing.check_data_store import DataStoreUnderTest, check_data_store
from rl4sys_zmq.testing.check_policy import check_policy
from rl4sys_zmq.testing.check_transport import CHECKS, TransportUnderTest, check_transport, fresh_address
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeFactory, FakeParameters, fake_spec, fake_weights

__all__ = [
    "CHECKS",
    "ChaosProxy",
    "DataStoreUnderTest",
    "FakeAlgorithm",
    "FakeFactory",
    "FakeParameters",
    "NetworkFaults",
    "TransportUnderTest",
    "check_algorithm",
    "check_data_store",
    "check_policy",
    "check_transport",
    "fake_spec",
    "fake_weights",
    "fresh_address",
]
