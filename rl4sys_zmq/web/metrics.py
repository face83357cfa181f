"""The figures of learners in the text format of Prometheus: the table `FIGURES`, and `metrics_text`.

Names follow the conventions of Prometheus. What a return to a checkpoint lowers, such as the number of steps, is a gauge. A
counter that begins again at 0 with a learner is a counter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.web.health import is_up

if TYPE_CHECKING:
    from rl4sys_zmq.web.watcher import LearnerSnapshot

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
MAX_LABELS = 100
"""The largest number of values of a label that a learner's code chooses, such as the tag of a training figure."""
STATES = ("starting", "running", "failed")

Samples = Iterable[tuple[tuple[str, ...], object]]
"""The further labels of each sample, and its value. A value that is no finite number is left out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One exported figure.

    Attributes:
        name: Name without the prefix ``rl4sys_`` and the suffix of a counter. A name of OpenTelemetry begins with its own.
        kind: One of `COUNTER`, `GAUGE` and `HISTOGRAM`.
        help: Meaning, without a full stop.
        read: Function that returns the samples in a part of a learner's report.
        labels: Names of the labels beyond those of the part.
    """

    name: str
    kind: str
    help: str
    read: Callable[[Any], Samples]
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in queries. A histogram has it with the suffixes ``_bucket`` and ``_count``."""
        name = self.name if self.name.startswith(("process_", "system_")) else f"rl4sys_{self.name}"
        return name + "_total" if self.kind == COUNTER else name


def _part(document: object, *keys: str) -> Any:
    """Return what lies under the keys. Return None if a part is absent, or if it is not a mapping."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _items(document: object, *keys: str, most: int | None = MAX_LABELS) -> list[tuple[str, Any]]:
    """Return the first items of the mapping under the keys, sorted by their name."""
    part = _part(document, *keys)
    items = ((str(key), value) for key, value in part.items()) if isinstance(part, Mapping) else ()
    return sorted(items, key=lambda item: item[0])[:most]


def _at(*keys: str) -> Callable[[Any], Samples]:
    return lambda document: [((), _part(document, *keys))]


def _given(*keys: str) -> Callable[[Any], Samples]:
    """Read 1 if there is a text under the keys, and 0 if it is empty."""
    return lambda document: [((), int(bool(text))) for text in [_part(document, *keys)] if isinstance(text, str)]


def _each(*keys: str) -> Callable[[Any], Samples]:
    return lambda document: [((key,), value) for key, value in _items(document, *keys)]


def _codes(prefix: str) -> Callable[[Any], Samples]:
    return lambda document: [((str(code),), _part(document, "counters", f"{prefix}{code}")) for code in RefusalReason]


def _sum(prefix: str, *keys: str) -> Callable[[Any], Samples]:
    return lambda document: [((), sum(_number(value) or 0 for key, value in _items(document, *keys) if key.startswith(prefix)))]


def _version(report: Any) -> Samples:
    return [((str(_part(report, "version")),), 1)]


def _states(client: Any) -> Samples:
    return [((state,), int(_part(client, "state") == state)) for state in STATES]


def _alarms(client: Any) -> Samples:
    return [((name,), _part(alarm, "count")) for name, alarm in _items(client, "alarms")]


def _problems(report: Any) -> Samples:
    try:
        yield (), sum(line.lstrip().startswith("!! ") for line in report_lines(report, time.time()))
    except (LookupError, TypeError, ValueError, AttributeError):
        yield (), 1  # the report is that of another version, and cannot be read


def _actors(client: Any) -> Samples:
    live, total = (_number(_part(client, key)) for key in ("actors_live", "actors_total"))
    if live is not None and total is not None:
        yield ("live",), live
        yield ("gone",), total - live


def _lags(client: Any) -> Samples:
    """Read the steps by their lag, as cumulative counts. The label is the greatest lag of the bucket, or ``+Inf``."""
    ranges = {name.partition("-")[0]: (name, steps) for name, steps in _items(client, "policy_lags")}
    total = 0.0
    for _, (name, steps) in sorted((int(first), found) for first, found in ranges.items() if first.isdecimal()):
        total += _number(steps) or 0
        if (bound := name.rpartition("-")[2]).isdecimal():
            yield (bound,), total
    yield ("+Inf",), total


LEARNER = (
    Figure("info", GAUGE, "Always 1, with the version of the learner's library", _version, ("version",)),
    Figure("uptime_seconds", GAUGE, "Time since the learner started", _at("uptime_s")),
    Figure("problems", GAUGE, "Lines with !! in the learner's status", _problems),
    Figure("messages_refused", COUNTER, "Messages refused, by code", _codes("refused."), ("code",)),
    Figure("replies_dropped", COUNTER, "Replies to slow or disconnected peers", _sum("replies_dropped.", "counters")),
    Figure("connections_denied", COUNTER, "Connections denied by keys or by the list of users", _sum("denied.", "security")),
    Figure("journal_used_bytes", GAUGE, "Segments in the journal", _at("journal", "used_bytes")),
    Figure("journal_limit_bytes", GAUGE, "The option journal_max_bytes", _at("journal", "max_bytes")),
    Figure("journal_queued_bytes", GAUGE, "Waiting for the journal's disk", _at("journal", "queued_bytes")),
    Figure("journal_failing", GAUGE, "1 while the journal's disk fails", _given("journal", "error")),
    Figure("journal_commits", COUNTER, "Transactions of the journal", _at("journal", "commits")),
    Figure("journal_failures", COUNTER, "Transactions of the journal that failed", _at("journal", "failures")),
    Figure("journal_commit_seconds", GAUGE, "Duration of the last transaction", _at("journal", "commit_s")),
    Figure("journal_damaged", COUNTER, "Damaged entries of the journal", _at("journal", "damaged")),
)
"""The figures of a learner's report."""

CLIENT = (
    Figure("client_state", GAUGE, "1 for the client's state, else 0", _states, ("state",)),
    Figure("segments_accepted", COUNTER, "Segments acknowledged", _at("accepted")),
    Figure("segments", GAUGE, "Segments by verdict, over all restarts", _each("verdicts"), ("verdict",)),
    Figure("segments_pending", GAUGE, "Segments accepted and not yet used", _at("pending")),
    Figure("segments_rolled_back", COUNTER, "Segments accepted, and later given up", _at("rolled_back")),
    Figure("segments_lost", COUNTER, "Segments acknowledged earlier, and lost", _at("gap")),
    Figure("segments_refused", COUNTER, "Segments refused individually, by code", _codes("items_refused."), ("code",)),
    Figure("queued_bytes", GAUGE, "Sent to the learner thread and not yet received", _at("queued_bytes")),
    Figure("steps", GAUGE, "Environment steps observed, over all restarts", _at("steps")),
    Figure("steps_per_second", GAUGE, "The same, over the learner thread's last 64 reports", _at("steps_per_s")),
    Figure("updates", GAUGE, "Updates done, over all restarts", _at("updates")),
    Figure("episodes", GAUGE, "Episodes with a known return, over all restarts", _at("episodes")),
    Figure("episode_return_mean", GAUGE, "Mean return of the last 100 episodes", _at("mean_return")),
    Figure("episode_length_mean", GAUGE, "Mean number of steps of the last 100 episodes", _at("mean_length")),
    Figure("reward_mean", GAUGE, "Mean reward of the last 10,000 steps", _at("mean_reward")),
    Figure("evaluation_return_mean", GAUGE, "Mean return of the actors that do not explore", _at("evaluation", "mean_return")),
    Figure("evaluator_return_mean", GAUGE, "Mean return of the last evaluation of a version", _at("evaluator", "mean_return")),
    Figure("training", GAUGE, "The last training figures, by their tag", _each("scalars"), ("tag",)),
    Figure("policy_version", GAUGE, "The newest version of the policy", _at("version")),
    Figure("policy_lag_versions", GAUGE, "Mean age of the data of the last update", _at("policy_lag")),
    Figure("step_lag_versions", HISTOGRAM, "Observed steps by the age of their policy on arrival", _lags),
    Figure("credit_steps", GAUGE, "Steps that the learner thread can use, beyond those sent to it", _at("credit_steps")),
    Figure("stalled_seconds", GAUGE, "Time without progress although progress is possible", _at("stalled_s")),
    Figure("checkpoint_age_seconds", GAUGE, "Time since the newest checkpoint was written or loaded", _at("checkpoint", "age_s")),
    Figure("checkpoint_duration_seconds", GAUGE, "Time that it took", _at("checkpoint", "duration_s")),
    Figure("checkpoint_failing", GAUGE, "1 if the last checkpoint could not be written", _given("checkpoint", "error")),
    Figure("worker_restarts", COUNTER, "Restarts of the learner thread", _at("restarts")),
    Figure("worker_crashes", COUNTER, "Ends of the client's process that nobody asked for", _at("worker", "crashes")),
    Figure("worker_silent_seconds", GAUGE, "Time since a sign of life of the client's process", _at("worker", "silent_s")),
    Figure("alarms", COUNTER, "Alarms by name", _alarms, ("alarm",)),
    Figure("actors", GAUGE, "Actors on record, by whether they have a session", _actors, ("state",)),
)
"""The figures of a client, with the label ``client``."""

ACTOR = (
    Figure("actor_live", GAUGE, "1 if the actor has a session now", _at("live")),
    Figure("actor_silent_seconds", GAUGE, "Time since the actor's last message", _at("silent_s")),
    Figure("actor_steps_accepted", COUNTER, "Steps in the actor's accepted segments", _at("accepted_steps")),
    Figure("actor_segments_pending", GAUGE, "Segments of the actor that are accepted and not yet used", _at("pending")),
)
"""The figures of an actor, with the label ``actor``, only on request."""

PROCESS = (
    Figure("process_memory_usage_bytes", GAUGE, "Resident memory of the process", _at("rss_bytes")),
    Figure("process_threads", GAUGE, "Threads of the process", _at("threads")),
    Figure("process_cpu_cores", GAUGE, "Processor cores that the process uses", _at("cpu")),
)
"""The figures of a learner's process and of its workers; on request, also of actors that report them."""

HOST = (
    Figure("system_cpu_utilization_ratio", GAUGE, "Share of the machine's processors in use", _at("host_cpu")),
    Figure("system_memory_limit_bytes", GAUGE, "Memory of the machine", _at("host_memory_bytes")),
    Figure("system_memory_free_bytes", GAUGE, "Memory of the machine that is available", _at("host_memory_free_bytes")),
    Figure("system_filesystem_free_bytes", GAUGE, "Free on the disk of the run directory", _at("disk_free_bytes")),
    Figure("system_network_sent_bytes_per_second", GAUGE, "Sent by the machine", _at("net_sent_bytes_s")),
    Figure("system_network_received_bytes_per_second", GAUGE, "Received by the machine", _at("net_received_bytes_s")),
)
"""The figures of a machine."""

UP = (
    Figure("up", GAUGE, "1 if the learner has answered in the last 5 s; if not, it has no other figures", lambda up: [((), up)]),
)
"""Whether a learner answers. What is read is this number itself."""

FIGURES: tuple[tuple[tuple[str, ...], tuple[Figure, ...]], ...] = (
    (("learner",), UP),
    (("learner",), LEARNER),
    (("learner", "client"), CLIENT),
    (("learner", "client", "actor"), ACTOR),
    (("learner", "host", "role", "client", "name"), PROCESS),
    (("learner", "host"), HOST),
)
"""All figures in the order of the text, with the labels of their parts."""


def metrics_text(snapshots: Sequence[LearnerSnapshot], *, actors: bool = False) -> bytes:
    """Return the figures of all learners in the text format of Prometheus.

    Args:
        snapshots: What is known of each learner.
        actors: True for the figures of each actor, whose number is not bounded.
    """
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshots, actors))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    """The source of the samples of one scrape: the parts of the reports for each entry of `FIGURES`, by their labels."""

    def __init__(self, snapshots: Sequence[LearnerSnapshot], actors: bool) -> None:
        self._parts: list[dict[tuple[str, ...], object]] = [{} for _ in FIGURES]
        for snapshot in snapshots:
            up = is_up(snapshot, time.time())
            self._parts[0][snapshot.address,] = int(up)
            if up:
                self._add(snapshot.address, snapshot.report, actors)

    def _add(self, address: str, report: object, actors: bool) -> None:
        _, learners, clients, each_actor, processes, hosts = self._parts
        learners[address,] = report
        for client_id, client in _items(report, "clients", most=None):
            clients[address, client_id] = client
            for actor_id, actor in _items(client, "actors", most=None) if actors else ():
                each_actor[address, client_id, actor_id] = actor
        records = _part(report, "system")
        for record in records if isinstance(records, list) else ():
            if actors or _part(record, "role") in ("learner", "worker"):
                host, role, client_id, name = (str(_part(record, key) or "") for key in ("host", "role", "client_id", "name"))
                processes[address, host, role, client_id, name] = record
                hosts.setdefault((address, host), record)

    def collect(self) -> Iterator[Metric]:
        for (labels, figures), parts in zip(FIGURES, self._parts, strict=True):
            yield from (_family(figure, labels, parts) for figure in figures if parts)


def _family(figure: Figure, labels: tuple[str, ...], parts: Mapping[tuple[str, ...], object]) -> Metric:
    names = (*labels, *figure.labels)
    if figure.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(figure.full_name, figure.help, labels=names)
        for key, part in parts.items():
            if buckets := [(bound, _number(steps) or 0.0) for (bound,), steps in figure.read(part)]:
                histogram.add_metric([printable(text) for text in key], buckets, sum_value=None)
        return histogram
    family = (CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily)(figure.full_name, figure.help, labels=names)
    for key, part in parts.items():
        for extra, value in figure.read(part):
            number = _number(value)
            if number is not None:
                family.add_metric([printable(text) for text in (*key, *extra)], number)
    return family


def _number(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None
