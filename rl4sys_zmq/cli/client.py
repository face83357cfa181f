"""Operator commands for one client, sent to a running learner or carried out in the run directory of a stopped one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.ops.status import request_command
from rl4sys_zmq.security import read_user_keys
from rl4sys_zmq.wire.messages import OperatorCommand


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The learner and the client to which a command applies. `address` can be the path of a run directory."""

    address: str
    client_id: str

    def message(self, command: str, *, actor_id: str = "", values: Sequence[str] = ()) -> OperatorCommand:
        """Return the message of an operator's command, such as ``set``."""
        pairs = dict[str, Any]()
        for text in values:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise ConfigError(
                    f"{text!r} is not of the form NAME=VALUE, such as learning_rate=1e-3", key="algorithm_parameters"
                )
            if name in pairs:
                raise ConfigError(f"{name} is given twice", key=f"algorithm_parameters.{name}")
            pairs[name] = _value(name, value)
        return OperatorCommand(command, self.client_id, actor_id, pairs)

    @property
    def run_dir(self) -> Path | None:
        path = Path(self.address)
        return path if path.is_dir() else None


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError as exc:
        raise ConfigError(f"{name}: the value is nested too deeply", key=name) from exc


def run_command(target: CommandTarget, message: OperatorCommand, *, keys: Path | None, timeout_s: float, as_json: bool) -> None:
    """Carry out an operator's command, and print the result."""
    if target.run_dir is not None:
        from rl4sys_zmq.learner.gateway.offline import command_on_directory

        done = command_on_directory(target.run_dir, message)
    else:
        ours = read_user_keys(keys)[1] if keys is not None else None
        done = request_command(target.address, message, timeout_s, ours)
    print_line(json.dumps(done.figures, sort_keys=True) if as_json else done.text)
