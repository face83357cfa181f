"""The protocol between a process of a gate and its test: lines of JSON, with a reply to each command, until stdin ends."""

import json
import sys
from collections.abc import Callable
from typing import Any


def options() -> Any:
    return json.loads(sys.argv[1])


def say(value: Any) -> None:
    """Send a value to the test, as a line with a list of one item, which is never empty."""
    sys.stdout.write(json.dumps([value]) + "\n")
    sys.stdout.flush()


def obey(**commands: Callable[..., Any]) -> None:
    """Run commands and send their results until stdin ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        say(commands[name](*arguments))
