"""Inference as a service, over each transport."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import raising

from rl4sys_zmq.errors import CallFailed, CallRefusalReason, CallRefused, CallTimeout, ConfigError, TransportError
from rl4sys_zmq.serving import BatchLimits, InferenceClient, InferenceServer, stack, unstack
from rl4sys_zmq.serving.inference import batched
from rl4sys_zmq.testing.check_transport import TransportUnderTest

WAIT_S = 10.0


@pytest.fixture
def server(transport: TransportUnderTest) -> Iterator[InferenceServer]:
    with InferenceServer(bind=transport.address()) as made:
        yield made


def test_the_usage_that_agentlace_documents(server: InferenceServer) -> None:
    def predict(payload: dict[str, Any]) -> dict[str, Any]:
        return {"prediction": "some_value", "of": payload["audio"]}

    server.register_interface("voice_reg", predict)
    server.register_interface("face_reg", predict)
    server.start(threaded=True)
    with InferenceClient(server.address) as client:
        assert client.interfaces() == server.interfaces() == {"voice_reg", "face_reg"}
        res = client.call("voice_reg", {"audio": "serialized_audio"})
    assert res == {"prediction": "some_value", "of": "serialized_audio"}


def test_clients_share_a_batch(server: InferenceServer) -> None:
    sizes: list[int] = []

    def double(payload: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(payload["obs"]))
        return {"act": payload["obs"] * 2, "names": [n.upper() for n in payload["name"]]}

    def ask(i: int) -> Any:
        with InferenceClient(server.address) as client:
            return client.call("double", {"obs": np.full(3, i, np.float32), "name": f"n{i}"}, timeout_s=60)

    server.register_interface("double", double, BatchLimits(max_size=8, max_wait_s=20.0))
    server.start(threaded=True)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert sizes == [8]
    for i, answer in enumerate(answers):
        assert np.array_equal(answer["act"], np.full(3, 2 * i, np.float32)) and answer["names"] == f"N{i}"


def test_requests_of_other_shapes_are_batched_apart(server: InferenceServer) -> None:
    shapes: list[tuple[int, ...]] = []

    def total(payload: Any) -> Any:
        shapes.append(payload.shape)
        return payload.sum(axis=1)

    server.register_interface("sum", total, BatchLimits(max_size=4, max_wait_s=20.0))
    server.start(threaded=True)
    with InferenceClient(server.address) as client:
        futures = [client.submit("sum", np.ones(size)) for size in (2, 3, 2, 3)]
        assert [f.result(WAIT_S) for f in futures] == [2.0, 3.0, 2.0, 3.0]
    assert sorted(shapes) == [(2, 2), (2, 3)]


def test_failures_have_names(server: InferenceServer) -> None:
    leave = threading.Event()
    server.register_interface("forgets", lambda payload: payload[:0], batch=True)
    server.register_interface("blocks", lambda payload: leave.wait(WAIT_S))
    server.start(threaded=True)
    with InferenceClient(server.address) as client:
        with raising(CallRefused, "its methods: blocks, forgets", code=CallRefusalReason.UNKNOWN):
            client.call("nope", 1)
        with pytest.raises(CallFailed, match="a batch of 1 needs as many"):
            client.call("forgets", 5)

        async def late() -> None:
            await client.acall("blocks", 1, timeout_s=0.1)

        with pytest.raises(CallTimeout):
            asyncio.run(late())
        with pytest.raises(CallTimeout):
            client.call("blocks", 1, timeout_s=0.1)
        leave.set()


def test_what_cannot_be_served() -> None:
    with pytest.raises(ConfigError, match="either port_num or bind"):
        InferenceServer()
    with pytest.raises(ConfigError, match="port: expected an integer"):
        InferenceServer(70_000)
    with pytest.raises(TransportError):
        InferenceServer(bind="nonsense")
    with pytest.raises(ConfigError, match="without keys"):
        InferenceServer(bind="tcp://*:0")
    with InferenceServer(0) as server:
        server.register_interface("one", abs)
        for name in ("one", "", "$hello", 5, b"m", "\ud800"):
            with pytest.raises(ConfigError):
                server.register_interface(name, abs)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="batching is 8"):
            server.register_interface("two", abs, batch=8)  # type: ignore[arg-type]
        assert server.interfaces() == {"one"}
    with pytest.raises(TransportError, match="has no port"):
        InferenceClient("localhost")


LEAVES = st.one_of(
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=3),
    st.none(),
    st.just(np.arange(6.0).reshape(2, 3)),
    st.just(["a", 1]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)


@given(TREES, st.integers(1, 4))
def test_stacking_is_undone(tree: Any, count: int) -> None:
    parts = unstack(stack([tree] * count), count)
    assert len(parts) == count
    for part in parts:
        np.testing.assert_equal(part, tree)


@pytest.mark.parametrize(
    ("payloads", "calls"),
    [
        ([{"a": np.zeros(3), "b": 1}, {"b": 2, "a": [1.0, 1.0, 1.0]}], 1),
        ([np.zeros(3), np.zeros(3, np.float32), np.zeros(4, np.float32)], 3),
        ([["a", 2], (1, 2), [1]], 3),
        ([{"a": (1, {})}, {"a": (2, {})}], 1),
    ],
)
def test_payloads_of_one_shape_are_one_call(payloads: list[Any], calls: int) -> None:
    sizes: list[int] = []

    def first_leaf(stacked: Any) -> Any:
        """Return the first leaf of a stacked tree. It has as many rows as the tree."""
        while isinstance(stacked, dict | tuple):
            stacked = next(iter(stacked.values() if isinstance(stacked, dict) else stacked))
        sizes.append(len(stacked))
        return stacked

    assert len(batched(first_leaf)(payloads)) == len(payloads) == sum(sizes)
    assert len(sizes) == calls
