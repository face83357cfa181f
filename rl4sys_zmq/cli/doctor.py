"""The command ``rl4sys-learner doctor``: finds out why an actor cannot reach its learner."""

from __future__ import annotations

from pathlib import Path

from rl4sys_zmq.cli.app import FAILED, print_line
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.doctor import STAGES, diagnose
from rl4sys_zmq.security import read_user_keys

WIDTH = max(map(len, STAGES))


def doctor(address: str, keys: Path | None, config_path: Path | None, timeout_s: float) -> int:
    """Test the connection in stages, print a line for each, and return the exit code: 1 if a stage fails."""
    document = read_mapping(config_path) if config_path is not None else {}
    # Check the address as an actor does. The configuration may have another address, which is not used.
    config = AgentConfig.from_mapping({"client_id": "doctor", **document}, source=str(config_path or ""), server_address=address)
    if config_path is not None and "client_id" not in document:
        raise ConfigError(
            "client_id is missing; an actor sends it, so add it to the file", key="client_id", source=str(config_path)
        )
    file = keys or config.keys
    ours = read_user_keys(file)[1] if file is not None else None
    code = 0
    for result in diagnose(config.address, keys=ours, config=config if config_path is not None else None, timeout_s=timeout_s):
        print_line(printable(f"{result.stage:<{WIDTH}}  {result.state:<7}  {result.text}".rstrip()))
        if result.remedy:
            print_line(printable(f"{'':<{WIDTH}}           {result.remedy}"))
        code = FAILED if result.state == "FAIL" else code
    return code
