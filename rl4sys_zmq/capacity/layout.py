"""Proposals for a load that one learner process cannot carry, or can hardly carry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rl4sys_zmq.capacity.constants import Constants
from rl4sys_zmq.capacity.resources import ResourceLoad, fanout, gradient_s, ingress, journal, learner_thread
from rl4sys_zmq.capacity.workload import Workload, traffic

COMFORTABLE = 0.7
"""The load above which a proposal is made. Above it, queues grow at each burst."""
MAX_LEARNERS = 16
MAX_SEGMENTS = 64
"""Largest number of segments that an actor puts into one message."""

HOW_TO = {
    "engine": "rl4sys-learner serve --engine process: each client is trained in a process of its own",
    "learners": "learners: N in the entry of a client: N processes share each of its gradient steps",
    "relay": "rl4sys-learner relay: a process that passes weights on to a part of the actors",
}
"""The parts of a layout of several processes, and how each of them is set up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    resource: str  # name of the resource, as in `ResourceLoad.name`
    text: str  # the change, for people
    needs: str = ""  # the key of `HOW_TO` that says how to set it up; empty if there is none


def propose(load: Workload, costs: Constants, rows: Sequence[ResourceLoad]) -> list[Proposal]:
    """Return changes for each resource whose load is above 70 %, the highest load first. Empty if one process is enough.

    `rows` are the loads that `predict` returned for the workload and the constants.
    """
    loaded = [row for row in sorted(rows, key=lambda row: row.share, reverse=True) if row.share > COMFORTABLE]
    return [Proposal(resource=row.name, text=text, needs=needs) for row in loaded for text, needs in _changes(row, load, costs)]


def _changes(row: ResourceLoad, load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield the `text` and `needs` of each proposal for a resource."""
    enough = row.used / COMFORTABLE
    match row.name:
        case "interpreter (ingress)" | "gateway thread":
            yield from _fewer_messages(row, load, costs)
            if load.clients > 1 or load.training is not None:
                yield f"engine process: {load.clients} training process{'es' * (load.clients > 1)} beside the gateway", "engine"
            yield _more_processes(row, load)
        case "learner thread (each)":
            yield from _ranks(load, costs)
        case "fan-out of weights" | "network, sent":
            yield from _relays(row, load, costs)
            slower = COMFORTABLE * load.publish_per_s / row.share
            yield f"at most {slower:.2g} versions of the weights a second (publish_every_updates)", ""
        case "journal":
            yield from _fewer_messages(row, load, costs)
            yield _more_processes(row, load)
        case "journal's disk":
            fits = load.checkpoint_every_s / row.share * COMFORTABLE
            yield f"journal_max_bytes of {enough / 1e9:,.1f} GB, or checkpoint_every_s of {fits:.2g}", ""
        case "open files":
            yield f"a hard limit of {math.ceil(enough):,} open files (ulimit -Hn)", ""
        case "memory":
            yield f"{enough / 1e9:,.1f} GB of memory", ""
            yield _more_processes(row, load)
        case "processor cores":
            yield f"{math.ceil(enough)} cores for the learner", ""
        case _:
            yield "compression: zstd for large observations, longer segments, or a faster link", ""


def _fewer_messages(row: ResourceLoad, load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield a larger number of segments in a message, if that is a remedy."""
    for count in (4, 16, MAX_SEGMENTS):
        if count <= load.segments_per_message:
            continue
        other = replace(load, segments_per_message=count)
        flow = traffic(other, costs.diff_ratio)
        measure = journal(other, flow, costs) if row.name == "journal" else ingress(other, flow, costs)
        if measure is not None and measure.share <= COMFORTABLE:
            yield f"send_frequency {count} at the actors: {count} segments in a message take {measure.share:.0%}", ""
            return


def _more_processes(row: ResourceLoad, load: Workload) -> tuple[str, str]:
    """Return the number of separate learners that divide the clients, or the actors of one client, among them."""
    count = math.ceil(row.share / COMFORTABLE)
    if count <= load.clients:
        return f"{count} learner processes, each with a part of the {load.clients} clients", ""
    return f"less data for each client: one process carries {1 / row.share:.2g} of this load, and a client cannot be divided", ""


def _ranks(load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield the smallest number of processes that share the gradient steps and are enough, or the reason that none is."""
    training = load.training
    if training is None:
        return
    alone = gradient_s(load, costs)
    for count in range(2, MAX_LEARNERS + 1):
        other = replace(load, training=replace(training, learners=count))
        share = learner_thread(other, traffic(other, costs.diff_ratio), costs).share
        if share <= COMFORTABLE:
            took = f"a gradient step of {1e3 * alone:.1f} ms takes {1e3 * gradient_s(other, costs):.1f} ms"
            yield f"learners {count}: {took}", "learners"
            return
    yield (
        f"larger minibatches or fewer epochs: a gradient step takes {1e3 * alone:.1f} ms, and a sum over processes "
        f"{1e3 * costs.all_reduce_s:.1f} ms, so more processes do not help",
        "",
    )


def _relays(row: ResourceLoad, load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield the number of relays below the learner that divide its actors. Each version is sent once to each relay."""
    everyone = math.ceil(load.actors / load.clients)
    for count in range(2, max(3, everyone)):
        below = math.ceil(everyone / count)
        widest = max(count, below)
        flow = traffic(load, costs.diff_ratio)
        other = replace(load, actors=max(load.clients, widest * load.clients))
        ratio = widest * load.clients / load.actors
        share = fanout(other, flow, costs).share if row.name == "fan-out of weights" else row.share * ratio
        if share <= COMFORTABLE:
            sent = f"the learner sends {count} copies of a version instead of {everyone}"
            yield f"{count} relays with {below} actors each: {sent}", "relay"
            return
