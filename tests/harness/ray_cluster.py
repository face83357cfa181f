"""A Ray cluster on this machine: a head, and nodes with the resource ``edge``, as processes of their own.

Run as a program, this module owns the cluster. It writes a line of JSON for each command, and ends with its stdin.
"""

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from harness.children import PYTHONPATH

STORE_BYTES = 80 * 1024 * 1024


class RayCluster:
    """A cluster whose nodes can be lost. Learners get the resource ``edge``, so that they avoid the head."""

    def __init__(self, nodes: int, *, edge: float, cpus: float = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_USAGE_STATS_ENABLED": "0"},
            text=True,
        )
        self.address: str = self._ask("head")
        self.nodes: list[str] = [self.add(edge=edge, cpus=cpus) for _ in range(nodes)]

    def add(self, *, edge: float, cpus: float = 1) -> str:
        node: str = self._ask("add", edge, cpus)
        return node

    def lose(self, node: str) -> None:
        """Kill the processes of a node without a shutdown."""
        self._ask("lose", node)

    def _ask(self, *command: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the cluster has ended"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def main() -> None:
    said, sys.stdout = sys.stdout, sys.stderr  # Ray prints on stdout
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: dict[str, Any] = {}
    try:
        for line in sys.stdin:
            match json.loads(line):
                case ["head"]:
                    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
                    answer = cluster.address
                case ["add", edge, cpus]:
                    node = cluster.add_node(num_cpus=cpus, resources={"edge": edge}, object_store_memory=STORE_BYTES)
                    nodes[answer := node.node_id] = node
                case ["lose", node_id]:
                    cluster.remove_node(nodes.pop(node_id), allow_graceful=False)
                    answer = node_id
            print(json.dumps(answer), file=said, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
