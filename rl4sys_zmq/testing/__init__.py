"""Test tools for transports, algorithms, policies and data stores, the package's own and yours.

- `check_transport`: the contract of a transport, clause by clause (`CHECKS`).
- `check_algorithm`, `check_policy`: the contracts of your own learning algorithm and of your own kind of policy.
- `check_data_store`: the contract of `rl4sys_zmq.serving.DataStoreBase`, for your own stores.
- `fresh_address`, `TransportUnderTest`: addresses for tests. `rl4sys_zmq.testing.plugin`: the pytest fixture `transport`.
- `ChaosProxy` with `Faults`: an unreliable TCP network.
- `FakeAlgorithm`, `FakeFactory`, `FakeParameters`, `fake_spec`, `fake_weights`: an algorithm that does not learn and needs no
  torch.
"""

from rl4sys_zmq.testing.addresses import TransportUnderTest, fresh_address
from rl4sys_zmq.testing.chaos import ChaosProxy, Faults
from rl4sys_zmq.testing.check_algorithm import check_algorithm
from rl4sys_zmq.testing.check_data_store import DataStore, check_data_store
from rl4sys_zmq.testing.check_policy import check_policy
from rl4sys_zmq.testing.check_transport import CHECKS, check_transport
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeFactory, FakeParameters, fake_spec, fake_weights

__all__ = [
    "CHECKS",
    "ChaosProxy",
    "DataStore",
    "FakeAlgorithm",
    "FakeFactory",
    "FakeParameters",
    "Faults",
    "TransportUnderTest",
    "check_algorithm",
    "check_data_store",
    "check_policy",
    "check_transport",
    "fake_spec",
    "fake_weights",
    "fresh_address",
]
