"""Trainers and their clients for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4sys_zmq.serving import TrainerClient, TrainerConfig, TrainerServer
from rl4sys_zmq.testing.addresses import TransportUnderTest

WAIT_S = 10.0


def config_at(transport: TransportUnderTest, **options: Any) -> TrainerConfig:
    """Return a configuration with fresh addresses."""
    return TrainerConfig(transport.address(), transport.address(), **options)


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
