"""The command ``rl4sys-learner client``, which sends an operator's command for one client.

The command goes to a running learner, or is carried out in the run directory of a learner that does not run.
"""

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
    """The learner and the client to which an operator's command applies.

    Attributes:
        address: The address of a running learner, or the path of a run directory.
        client_id: The name of the client, a policy with its learner.
    """

    address: str
    client_id: str

    def message(self, command: str, *, actor_id: str = "", values: Sequence[str] = ()) -> OperatorCommand:
        """Return the wire message that sends an operator's command, such as ``set``, for this client."""
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
        """The path of the run directory, or None if `address` is not a directory."""
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
    """Send an operator's command to a learner, or carry it out in the run directory of a stopped one, and print the result."""
    if target.run_dir is not None:
        from rl4sys_zmq.learner.gateway.offline import command_on_directory

        done = command_on_directory(target.run_dir, message)
    else:
        ours = read_user_keys(keys)[1] if keys is not None else None
        done = request_command(target.address, message, timeout_s, ours)
    print_line(json.dumps(done.figures, sort_keys=True) if as_json else done.text)
