"""The process that evaluates the policies of one client for a learner. Run as ``python -m`` with a file descriptor.

It reads one request per line from a socket, as JSON, and answers each with one line. It ends when the socket is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.child_process import begin_child, end_group_with_process
from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.ops.episodes import check_spaces, make_environment, play_episode
from rl4sys_zmq.plugins import import_plugins

NICENESS = 10


def answer(request: Mapping[str, Any], environments: dict[str, Any]) -> dict[str, Any]:
    """Play the episodes of a request. Return their returns and lengths, or the error."""
    try:
        with FrozenAgent(request["policy"], seed=request["seed"]) as agent:
            env_id = request["env"]["id"]
            if env_id not in environments:
                environments[env_id] = make_environment(request["env"])
            check_spaces(agent, environments[env_id], env_id)
            seeds = np.random.SeedSequence(request["seed"]).generate_state(request["episodes"])
            episodes = [play_episode(agent, environments[env_id], int(seed)) for seed in seeds]
            not_finite = agent.stats()["policies_not_finite"]
    except RL4SysError as exc:
        return {"error": str(exc)[:1000]}
    except Exception as exc:  # noqa: BLE001 - of the user's environment; the learner reports it
        broken = environments.pop(request["env"]["id"], None)  # the next request makes a new one
        if broken is not None:
            with suppress(Exception):
                broken.close()
        return {"error": f"the environment raised {type(exc).__name__}: {exc}"[:1000]}
    returns, lengths = [total for total, _ in episodes], [length for _, length in episodes]
    return {"returns": returns, "lengths": lengths, "not_finite": not_finite}


def main(argv: list[str] | None = None) -> int:
    begin_child(signal.SIGINT, signal.SIGTERM)  # the learner closes the socket to end this process
    _guard = end_group_with_process()
    os.nice(NICENESS)
    (fd,) = argv if argv is not None else sys.argv[1:]
    environments: dict[str, Any] = {}
    with socket.socket(fileno=int(fd)) as end, end.makefile("r", encoding="ascii", newline="\n") as lines:
        try:
            setup = json.loads(next(lines))
            sys.path[:] = setup["path"]
            import_plugins(tuple(setup["plugins"]))
            for line in lines:
                end.sendall(json.dumps(answer(json.loads(line), environments)).encode("ascii") + b"\n")
        except (StopIteration, ConnectionError):
            pass  # the learner has closed the socket
        finally:
            for env in environments.values():
                env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
