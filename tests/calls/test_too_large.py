"""A call whose part is longer than the server takes is refused where it is made: the server would drop the connection."""

from __future__ import annotations

import numpy as np
import pytest

from rl4sys_zmq.calls import Client, Server
from rl4sys_zmq.errors import PayloadError
from rl4sys_zmq.testing.addresses import TransportUnderTest


def test_a_part_that_is_too_large_is_refused_before_and_after_the_greeting(transport: TransportUnderTest) -> None:
    with Server(transport.address(), name="test", max_frame_bytes=100_000) as server:
        server.register("size", lambda payload: payload.nbytes)
        server.start()
        with Client(server.address) as client:
            for _ in range(2):  # the first call waits for the greeting
                with pytest.raises(PayloadError, match=r"a part of 200000 bytes; the server takes at most 100000"):
                    client.call("size", np.zeros(200_000, np.uint8))
            with pytest.raises(PayloadError, match="at most 100000"):
                client.submit("size", np.zeros(200_000, np.uint8)).result(10.0)
            assert client.call("size", np.zeros(90_000, np.uint8)) == 90_000
