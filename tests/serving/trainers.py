"""Trainers and their clients for tests."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rl4sys_zmq.serving import DataStoreBase, TrainerClient, TrainerConfig, TrainerServer
from rl4sys_zmq.testing.check_transport import TransportUnderTest

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


class ListStore(DataStoreBase):
    """A custom store, whose items are a list.

    Attributes:
        starts: The items before which there was a gap.
        full: While it is true, no item is accepted.
    """

    def __init__(self, check: Callable[[Any], None] = lambda data: None) -> None:
        super().__init__(10_000)
        self.held: list[Any] = []
        self.starts: list[Any] = []
        self.full = self.apart = False
        self._check = check

    def insert(self, data: Any) -> None:
        if self.full:
            raise OSError("no space left")
        self._check(data)
        if self.apart:
            self.starts.append(data)
        self.held.append(data)
        self.apart = False

    def gap(self) -> None:
        self.apart = True

    def latest_data_id(self) -> int:
        return len(self.held) - 1

    def get_latest_data(self, from_id: int) -> list[Any]:
        return self.held[from_id + 1 :]

    def __len__(self) -> int:
        return len(self.held)
