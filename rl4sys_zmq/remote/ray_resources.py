"""The resources that a client needs and those of the nodes of a Ray cluster, under Ray's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rl4sys_zmq.config import ResourcesConfig

BUILT_IN = ("CPU", "GPU", "memory")
"""The resources that Ray itself defines. Their amounts are arguments of their own in Ray's interface."""


def ray_amounts(resources: ResourcesConfig) -> dict[str, float]:
    """Return the amounts that are reserved for a worker, without those of 0."""
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory or 0), **resources.custom}
    return {name: amount for name, amount in amounts.items() if amount}


def placement_problem(wanted: Mapping[str, float], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return a text if a worker fits on no node, even if nothing else ran there; else an empty text."""
    nodes = list(nodes)
    for node in nodes:
        if all(amount <= node["resources"].get(name, 0.0) for name, amount in wanted.items()):
            return ""
    return f"no node of the Ray cluster has {amounts_text(wanted)}; there is {nodes_text(nodes)}"


def nodes_text(nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return nodes and their resources as text, such as ``10.0.0.5 {CPU: 8, edge: 1}``."""

    def text(node: Mapping[str, Any]) -> str:
        kept = {k: v for k, v in node["resources"].items() if k != "object_store_memory" and not k.startswith("node:")}
        return f"{node['host']} {amounts_text(kept)}"

    return ", ".join(map(text, nodes)) or "no node"


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Return amounts of resources as text, such as ``{CPU: 2, GPU: 0.5}``: first those that Ray defines, then by name."""
    ordered = sorted(amounts.items(), key=lambda item: (item[0] not in BUILT_IN, item[0]))
    return f"{{{', '.join(f'{name}: {amount:.12g}' for name, amount in ordered)}}}"
