"""A pytest plugin with the fixture `transport`, which runs a test over inproc, ipc and tcp.

Enable it in a ``conftest.py`` with ``pytest_plugins = ["rl4sys_zmq.testing.plugin"]``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rl4sys_zmq.testing.check_transport import TransportUnderTest


@pytest.fixture(params=["inproc", "ipc", "tcp"])
def transport(request: pytest.FixtureRequest) -> Iterator[TransportUnderTest]:
    """Yield a `TransportUnderTest`, and run the test once for each transport: inproc, ipc and tcp."""
    with TransportUnderTest(request.param) as under_test:
        yield under_test
