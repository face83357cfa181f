"""`rl4sys-learner relay`: every option of a relay can be given, and its connections have descriptors."""

import logging
from dataclasses import fields
from typing import Any

import pytest

from rl4sys_zmq.cli import servers as command
from rl4sys_zmq.cli.learner import main
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.memory_watch import available_bytes

from .conftest import invoke


class Started(Exception):
    """Raised instead of the start of a relay."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, limit: int = 1 << 20) -> tuple[RelayConfig, int]:
    """Return the configuration with which a command line starts a relay, and the number of open files that it requests."""
    seen: list[Any] = []

    def start(config: RelayConfig) -> None:
        seen.append(config)
        raise Started

    def raised(wanted: int) -> int:
        seen.append(wanted)
        return limit

    monkeypatch.setattr(command, "Relay", start)
    monkeypatch.setattr(command, "raise_descriptor_limit", raised)
    result = invoke(main, "relay", "host:50051", *arguments)
    assert isinstance(result.exception, Started), result.output
    wanted, config = seen
    return config, wanted


def test_every_option_of_a_relay_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "bind": "tcp://0.0.0.0:1",
        "pub": "tcp://0.0.0.0:2",
        "advertise": "hub",
        "upstream_keys": "hub.keys",
        "keys": "keys",
        "users": "users.toml",
        "max_clients": "5",
        "max_children": "7",
        "messages_per_s": "11.5",
        "max_memory": "64MiB",
    }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    config, wanted = run(monkeypatch, *words, "--insecure")
    default = RelayConfig(upstream="host:1")
    assert [field.name for field in fields(config) if getattr(config, field.name) == getattr(default, field.name)] == []
    assert (config.max_clients, config.max_children, config.messages_per_s) == (5, 7, 11.5)
    assert config.max_memory_bytes == 64 << 20 and wanted >= 2 * 7


def test_a_relay_has_a_memory_limit_and_descriptors_by_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, wanted = run(monkeypatch)
    assert config.max_memory_bytes == round(0.8 * available_bytes()) and wanted >= 2 * config.max_children
    assert run(monkeypatch, "--max-memory", "0")[0].max_memory_bytes is None
    with caplog.at_level(logging.WARNING):
        run(monkeypatch, limit=1024)
    assert "enough for 352 children" in caplog.text
