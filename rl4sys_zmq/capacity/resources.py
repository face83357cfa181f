"""The load of each resource of a learner, and changes for loads that one process can hardly carry or not at all.

These are pure functions of a workload and of measured constants. A load is the needed amount divided by the available amount.
1.0 is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rl4sys_zmq.capacity.constants import Constants
from rl4sys_zmq.capacity.workload import Traffic, Workload
from rl4sys_zmq.delivery.credit import CREDIT_BYTES
from rl4sys_zmq.delivery.weight_history import RING_BYTES, RING_ITEMS

PUB_QUEUE = 32
"""Number of updates that wait at most for a slow actor. Actors share the memory of an update."""
TRAINING_COPIES = 8
"""Memory of training in sizes of the policy: policy and value network, each with gradients and two moments of Adam."""
CHECKPOINTS_KEPT = 3
"""Intervals of checkpoints for which the journal keeps data: two complete ones, and the one in progress."""
JOURNAL_HEADROOM = 2
"""From half of the journal's size on, the learner requests a checkpoint each second."""
DESCRIPTORS_PER_ACTOR, OTHER_DESCRIPTORS = 2, 64 + 256
PACKET_OVERHEAD = 1.05
"""Bytes on the network for each byte of a message: headers of TCP, IP and Ethernet."""
THREADS = 1.0
"""One thread can use one second of a core per second."""

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


@dataclass(frozen=True, slots=True)
class ResourceLoad:
    """The load of one resource: the amount that is `used` and the `limit`, both in `unit`. `detail` has more numbers as text.

    The default is the time of one thread, in seconds per second.
    """

    name: str
    used: float
    limit: float = THREADS
    unit: str = "s/s"
    detail: str = ""

    @property
    def share(self) -> float:
        """The load: `used` divided by `limit`. 1.0 is the limit."""
        return self.used / self.limit


def ingress(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of the learner's Python interpreter, which its threads share, by arriving data, in seconds per second.

    `Constants.ingress` was measured at the highest possible rate, so a load of 1.0 is that rate.
    """
    used = costs.ingress.seconds(flow.messages_s, flow.segments_s, flow.data_bytes_s)
    used += flow.heartbeats_s * costs.gateway.message_s
    if load.keys:
        used += flow.messages_s * costs.crypt_message_s + flow.received_bytes_s * costs.crypt_byte_s
    detail = f"{flow.messages_s:,.0f} messages/s, {flow.segments_s:,.0f} segments/s, {flow.data_bytes_s / 1e6:,.1f} MB/s"
    return ResourceLoad("interpreter (ingress)", used, detail=detail)


def gateway_thread(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of the gateway thread by segments and heartbeats, in seconds of CPU time per second."""
    used = costs.gateway.seconds(flow.messages_s + flow.heartbeats_s, flow.segments_s, flow.data_bytes_s)
    detail = f"{flow.heartbeats_s:,.0f} heartbeats/s"
    return ResourceLoad("gateway thread", used, detail=detail)


def gradient_s(load: Workload, costs: Constants) -> float:
    """Return the time of one gradient step, in seconds. 0 without training."""
    training = load.training
    if training is None:
        return 0.0
    rows = training.minibatch / training.learners
    shared = costs.all_reduce_s if training.learners > 1 else 0.0
    return costs.gradient_s + load.model_bytes / 4 * rows * costs.gradient_unit_s + shared


def learner_thread(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of one learner thread, which takes data and trains. Each client has the same number of actors."""
    used = costs.trainer.seconds(flow.messages_s, flow.segments_s, flow.data_bytes_s) / load.clients
    detail = "no training given"
    if load.training is not None:
        gradients_s = flow.steps_s / load.clients * load.training.gradients_per_step
        used += gradients_s * gradient_s(load, costs)
        detail = f"{gradients_s:,.1f} gradient steps/s of {1e3 * gradient_s(load, costs):.2f} ms for {flow.steps_s:,.0f} steps/s"
    if load.weights_level:
        used += load.publish_per_s * load.model_bytes * costs.encode_byte_s
    return ResourceLoad("learner thread (each)", used, detail=detail)


def fanout(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of publishing weights: the share of the time in which an actor still lacks the newest version.

    At 1.0, each version is published as soon as all actors have the one before. With keys, each connection encrypts. The
    times were measured with the actors on the learner's machine, so actors on other machines leave more room.
    """
    each = costs.fanout.seconds(load.model_bytes, flow.update_bytes, load.actors / load.clients)
    if load.weights_level:
        each += load.model_bytes * costs.encode_byte_s
    used = flow.versions_s * each
    if load.keys:
        used += flow.updates_s * flow.update_bytes * costs.crypt_byte_s
    detail = f"{flow.updates_s:,.0f} messages/s of {flow.update_bytes / 1e3:,.1f} kB, {1e3 * each:.1f} ms to the last actor"
    return ResourceLoad("fan-out of weights", used, detail=detail)


def journal(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad | None:
    """Return the load of receiving data and writing it to the journal, in seconds per second, or None without a journal.

    Messages that arrive during a commit share the next commit, so commits do not limit the rate: there are at most
    ``1 / commit_s`` in a second. An acknowledgement waits for one or two commits.
    """
    if not load.journal:
        return None
    used = costs.durable[load.fsync].seconds(flow.messages_s, flow.segments_s, flow.data_bytes_s)
    commits_s = min(flow.messages_s, 1 / costs.commit_s) if costs.commit_s else flow.messages_s
    detail = f"{flow.data_bytes_s / 1e6:,.1f} MB/s, up to {commits_s:,.0f} commits/s, fsync {load.fsync}"
    return ResourceLoad("journal", used, detail=detail)


def journal_disk(load: Workload, flow: Traffic) -> ResourceLoad | None:
    """Return the load of the journal's file: the bytes that no checkpoint covers so far. Return None without a journal."""
    if not load.journal:
        return None
    kept = flow.data_bytes_s * load.checkpoint_every_s * CHECKPOINTS_KEPT
    detail = f"{kept / 1e6:,.0f} MB until a checkpoint covers them"
    return ResourceLoad("journal's disk", JOURNAL_HEADROOM * kept, load.journal_max_bytes, "bytes", detail)


def memory(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of the memory: the bytes that the learner uses when its queues are full."""
    items = min(RING_ITEMS, max(2, RING_BYTES // load.model_bytes)) if load.weights_level else 2
    history = items * load.model_bytes
    queues = PUB_QUEUE * flow.update_bytes + min(CREDIT_BYTES, flow.data_bytes_s / load.clients)
    training = load.training
    replay = 2 * load.observation_bytes * training.replay_steps if training is not None else 0
    trained = TRAINING_COPIES * load.model_bytes if training is not None else 0
    actors = load.actors * (costs.connection_bytes + costs.session_bytes)
    each = history + queues + trained + replay
    detail = f"{actors / 1e6:,.0f} MB for actors, {each / 1e6:,.0f} MB for each client"
    used = costs.learner_bytes + actors + load.clients * each
    return ResourceLoad("memory", used, load.memory_bytes, "bytes", detail)


def network(load: Workload, flow: Traffic) -> list[ResourceLoad]:
    """Return the load of the network link in both directions, or an empty list if its speed is not given."""
    if load.bandwidth_bits_s is None:
        return []
    rows = []
    for name, bytes_s in (("network, received", flow.received_bytes_s), ("network, sent", flow.sent_bytes_s)):
        used = 8 * PACKET_OVERHEAD * bytes_s
        rows.append(ResourceLoad(name, used, load.bandwidth_bits_s, "bit/s", f"{used / 1e6:,.1f} Mbit/s"))
    return rows


def processor(load: Workload, flow: Traffic, costs: Constants) -> ResourceLoad:
    """Return the load of the processor: the cores that all threads of the learner need, libzmq and journal included."""
    used = costs.processor.seconds(flow.messages_s + flow.heartbeats_s, flow.segments_s, flow.data_bytes_s)
    written = journal(load, flow, costs)
    if written is not None:
        used += max(0.0, written.used - costs.ingress.seconds(flow.messages_s, flow.segments_s, flow.data_bytes_s))
    data = costs.trainer.seconds(flow.messages_s, flow.segments_s, flow.data_bytes_s)
    used += load.clients * learner_thread(load, flow, costs).used - data
    used += flow.updates_s * (costs.fanout.actor_s + flow.update_bytes * costs.fanout.sent_byte_s)
    return ResourceLoad("processor cores", used, load.cores, "cores")


def descriptors(load: Workload) -> ResourceLoad:
    used = DESCRIPTORS_PER_ACTOR * load.actors + OTHER_DESCRIPTORS
    return ResourceLoad("open files", used, load.descriptors, "files")


def predict(load: Workload, costs: Constants) -> list[ResourceLoad]:
    """Return the load of every resource, in a fixed order. Resources that the workload leaves out are missing."""
    flow = Traffic(load, costs.diff_ratio)
    loads: list[ResourceLoad | None] = [
        ingress(load, flow, costs),
        gateway_thread(load, flow, costs),
        learner_thread(load, flow, costs),
        fanout(load, flow, costs),
        journal(load, flow, costs),
        journal_disk(load, flow),
        memory(load, flow, costs),
        *network(load, flow),
        processor(load, flow, costs),
        descriptors(load),
    ]
    return [row for row in loads if row is not None]


def first_limit(rows: Sequence[ResourceLoad]) -> ResourceLoad:
    """Return the resource with the highest load. A growing load exceeds the limit of this resource first."""
    return max(rows, key=lambda row: row.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    resource: str  # name of the resource, as in `ResourceLoad.name`
    text: str  # the change, for people
    needs: str = ""  # the key of `HOW_TO` that says how to set it up; empty if there is none


def propose(load: Workload, costs: Constants, rows: Sequence[ResourceLoad]) -> list[Proposal]:
    """Return proposed changes for each resource with a load above 70 %, the highest load first. `predict` returns `rows`."""
    loaded = [row for row in sorted(rows, key=lambda row: row.share, reverse=True) if row.share > COMFORTABLE]
    return [Proposal(resource=row.name, text=text, needs=needs) for row in loaded for text, needs in _changes(row, load, costs)]


def _changes(row: ResourceLoad, load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield changes that reduce the load of the resource `row`, each as the fields `text` and `needs` of a `Proposal`."""
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
    """Yield a proposal of more segments in each message, if the load is then at most 70 %."""
    for count in (4, 16, MAX_SEGMENTS):
        if count <= load.segments_per_message:
            continue
        other = replace(load, segments_per_message=count)
        flow = Traffic(other, costs.diff_ratio)
        measure = journal(other, flow, costs) if row.name == "journal" else ingress(other, flow, costs)
        if measure is not None and measure.share <= COMFORTABLE:
            yield f"send_frequency {count} at the actors: {count} segments in a message take {measure.share:.0%}", ""
            return


def _more_processes(row: ResourceLoad, load: Workload) -> tuple[str, str]:
    """Return a proposal: to divide the clients among several learners or, with too few clients, to send less data."""
    count = math.ceil(row.share / COMFORTABLE)
    if count <= load.clients:
        return f"{count} learner processes, each with a part of the {load.clients} clients", ""
    return f"less data for each client: one process carries {1 / row.share:.2g} of this load, and a client cannot be divided", ""


def _ranks(load: Workload, costs: Constants) -> Iterator[tuple[str, str]]:
    """Yield a proposal of the smallest sufficient number of ranks, or the reason why more ranks do not help."""
    training = load.training
    if training is None:
        return
    alone = gradient_s(load, costs)
    for count in range(2, MAX_LEARNERS + 1):
        other = replace(load, training=replace(training, learners=count))
        share = learner_thread(other, Traffic(other, costs.diff_ratio), costs).share
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
    """Yield a proposal of a number of relays among which the actors are divided. The learner sends only to the relays."""
    everyone = math.ceil(load.actors / load.clients)
    for count in range(2, max(3, everyone)):
        below = math.ceil(everyone / count)
        widest = max(count, below)
        flow = Traffic(load, costs.diff_ratio)
        other = replace(load, actors=max(load.clients, widest * load.clients))
        ratio = widest * load.clients / load.actors
        share = fanout(other, flow, costs).share if row.name == "fan-out of weights" else row.share * ratio
        if share <= COMFORTABLE:
            sent = f"the learner sends {count} copies of a version instead of {everyone}"
            yield f"{count} relays with {below} actors each: {sent}", "relay"
            return
