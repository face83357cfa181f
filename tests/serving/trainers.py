"""Trainers and their clients for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rl4sys_zmq.serving import DataStoreBase, TrainerClient, TrainerConfig, TrainerServer
from rl4sys_zmq.testing.addresses import TransportUnderTest

WAIT_S = 10.0


def config_at(transport: TransportUnderTest, **options: Any) -> TrainerConfig:
    """Return a configuration with fresh addresses."""
    return TrainerConfig(transport.address(), transport.address(), **options)


@contextmanager
def trainer_at(
    transport: TransportUnderTest, *arguments: Any, stores: Mapping[str, DataStoreBase], **options: Any
) -> Iterator[TrainerServer]:
    """Run a trainer with these stores. The options are those of its configuration."""
    with TrainerServer(config_at(transport, **options), *arguments) as server:
        for name, store in stores.items():
            server.register_data_store(name, store)
        server.start(threaded=True)
        yield server


def transition(number: float, shape: tuple[int, ...] = (3,), **changes: Any) -> dict[str, Any]:
    """Return a transition whose observations, of this shape, and reward are its number."""
    observation = np.full(shape, number, np.float32)
    return {
        "observations": observation,
        "actions": np.int64(1),
        "rewards": np.float32(number),
        "next_observations": observation + 1,
        "terminated": False,
        **changes,
    }


def join(server: TrainerServer, name: str, *args: Any, **options: Any) -> TrainerClient:
    """Return a client of a running server. The client raises its errors."""
    config = options.pop("config", server.config)
    return TrainerClient(name, server.address, config, *args, **{"timeout_ms": WAIT_S * 1000, "raises": True, **options})
