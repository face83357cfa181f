"""What a process of a gate and its test say to each other: JSON lines, an answer to each command, until stdin ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def options() -> Any:
    """What the test said at the start."""
    return json.loads(sys.argv[1])


def say(value: Any) -> None:
    """One line to the test; a list of one, which is never nothing."""
    sys.stdout.write(json.dumps([value]) + "\n")
    sys.stdout.flush()


def obey(**commands: Callable[..., Any]) -> None:
    """Answers commands until stdin ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        say(commands[name](*arguments))
