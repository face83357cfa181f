"""The figures of learners in the text format of Prometheus: the table `FIGURES`, and `metrics_text`.

Names follow the conventions of Prometheus. What a return to a checkpoint lowers, such as the number of steps, is a gauge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.web.health import is_up

if TYPE_CHECKING:
    from rl4sys_zmq.web.watcher import LearnerSnapshot

COUNTER, GAUGE = "counter", "gauge"
MAX_LABELS = 100
"""The largest number of values of a label that a learner's code chooses, such as the tag of a training figure."""
STATES = ("starting", "running", "failed")

Samples = Iterable[tuple[tuple[str, ...], object]]
"""The further labels of each sample, and its value. A value that is no finite number is left out."""
Reader = Callable[[Any], Samples]
"""A function that returns the samples in a part of a learner's report."""


class Figure(NamedTuple):
    """One exported figure. `labels` are those beyond the labels of its part."""

    name: str
    kind: str
    help: str
    read: Reader
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in queries. One of OpenTelemetry's names begins with its own prefix."""
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


def _at(*keys: str) -> Reader:
    return lambda document: [((), _part(document, *keys))]


def _fails(*keys: str) -> Reader:
    return lambda document: [((), error != "") for error in [_part(document, *keys)] if isinstance(error, str)]


def _each(*keys: str) -> Reader:
    return lambda document: [((key,), value) for key, value in _items(document, *keys)]


def _codes(prefix: str) -> Reader:
    return lambda document: [((str(code),), _part(document, "counters", f"{prefix}{code}")) for code in RefusalReason]


def _states(client: Any) -> Samples:
    return [((state,), _part(client, "state") == state) for state in STATES]


def _denied(report: Any) -> Samples:
    yield (), sum(_number(value) or 0 for key, value in _items(report, "security") if key.startswith("denied."))


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


UP = (Figure("up", GAUGE, "1 if the learner has answered in the last 5 s; if not, it has no other figures", _at()),)

LEARNER = (
    Figure("info", GAUGE, "1, with the version of the library", lambda r: [((str(_part(r, "version")),), 1)], ("version",)),
    Figure("uptime_seconds", GAUGE, "Time since the learner started", _at("uptime_s")),
    Figure("problems", GAUGE, "Lines with !! in the learner's status", _problems),
    Figure("messages_refused", COUNTER, "Messages refused, by code", _codes("refused."), ("code",)),
    Figure("connections_denied", COUNTER, "Connections denied by keys or by the list of users", _denied),
    Figure("journal_used_bytes", GAUGE, "Segments in the journal", _at("journal", "used_bytes")),
    Figure("journal_limit_bytes", GAUGE, "The option journal_max_bytes", _at("journal", "max_bytes")),
    Figure("journal_queued_bytes", GAUGE, "Waiting for the journal's disk", _at("journal", "queued_bytes")),
    Figure("journal_failing", GAUGE, "1 while the journal's disk fails", _fails("journal", "error")),
)

CLIENT = (
    Figure("client_state", GAUGE, "1 for the client's state, else 0", _states, ("state",)),
    Figure("segments_accepted", COUNTER, "Segments acknowledged", _at("accepted")),
    Figure("segments", GAUGE, "Segments by verdict, over all restarts", _each("verdicts"), ("verdict",)),
    Figure("segments_pending", GAUGE, "Segments accepted and not yet used", _at("pending")),
    Figure("segments_lost", COUNTER, "Segments acknowledged earlier, and lost", _at("gap")),
    Figure("segments_refused", COUNTER, "Segments refused individually, by code", _codes("items_refused."), ("code",)),
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
    Figure("credit_steps", GAUGE, "Steps that the learner thread can use, beyond those sent to it", _at("credit_steps")),
    Figure("stalled_seconds", GAUGE, "Time without progress although progress is possible", _at("stalled_s")),
    Figure("checkpoint_age_seconds", GAUGE, "Time since the newest checkpoint was written or loaded", _at("checkpoint", "age_s")),
    Figure("checkpoint_failing", GAUGE, "1 if the last checkpoint could not be written", _fails("checkpoint", "error")),
    Figure("worker_restarts", COUNTER, "Restarts of the learner thread", _at("restarts")),
    Figure("worker_crashes", COUNTER, "Ends of the client's process that nobody asked for", _at("worker", "crashes")),
    Figure("alarms", COUNTER, "Alarms", lambda c: [((n,), _part(a, "count")) for n, a in _items(c, "alarms")], ("alarm",)),
    Figure("actors", GAUGE, "Actors on record, by whether they have a session", _actors, ("state",)),
)

ACTOR = (
    Figure("actor_live", GAUGE, "1 if the actor has a session now", _at("live")),
    Figure("actor_silent_seconds", GAUGE, "Time since the actor's last message", _at("silent_s")),
    Figure("actor_steps_accepted", COUNTER, "Steps in the actor's accepted segments", _at("accepted_steps")),
)

PROCESS = (
    Figure("process_memory_usage_bytes", GAUGE, "Resident memory of the process", _at("rss_bytes")),
    Figure("process_threads", GAUGE, "Threads of the process", _at("threads")),
    Figure("process_cpu_cores", GAUGE, "Processor cores that the process uses", _at("cpu")),
)

HOST = (
    Figure("system_cpu_utilization_ratio", GAUGE, "Share of the machine's processors in use", _at("host_cpu")),
    Figure("system_memory_limit_bytes", GAUGE, "Memory of the machine", _at("host_memory_bytes")),
    Figure("system_memory_free_bytes", GAUGE, "Memory of the machine that is available", _at("host_memory_free_bytes")),
    Figure("system_filesystem_free_bytes", GAUGE, "Free on the disk of the run directory", _at("disk_free_bytes")),
    Figure("system_network_sent_bytes_per_second", GAUGE, "Sent by the machine", _at("net_sent_bytes_s")),
    Figure("system_network_received_bytes_per_second", GAUGE, "Received by the machine", _at("net_received_bytes_s")),
)

FIGURES: tuple[tuple[tuple[str, ...], tuple[Figure, ...]], ...] = (
    (("learner",), UP),
    (("learner",), LEARNER),
    (("learner", "client"), CLIENT),
    (("learner", "client", "actor"), ACTOR),
    (("learner", "host", "role", "client", "name"), PROCESS),
    (("learner", "host"), HOST),
)
"""All figures in the order of the text, with the labels of the parts of the reports that they are read from."""


def metrics_text(snapshots: Sequence[LearnerSnapshot], *, actors: bool = False) -> bytes:
    """Return the figures of all learners in the text format of Prometheus.

    Args:
        snapshots: What is known of each learner.
        actors: True for the figures of each actor, whose number is not bounded.
    """
    all_parts = [dict[tuple[str, ...], object]() for _ in FIGURES]
    ups, learners, clients, each_actor, processes, hosts = all_parts
    for address, report, up in ((s.address, s.report, is_up(s, time.time())) for s in snapshots):
        ups[address,] = up
        if not up:
            continue
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
    return generate_latest(_Scrape(all_parts))


class _Scrape(Collector):
    """The parts of the reports for each entry of `FIGURES`, by their labels."""

    def __init__(self, all_parts: Sequence[Mapping[tuple[str, ...], object]]) -> None:
        self._all_parts = all_parts

    def collect(self) -> Iterator[Metric]:
        for (labels, figures), parts in zip(FIGURES, self._all_parts, strict=True):
            yield from (_family(figure, labels, parts) for figure in figures if parts)


def _family(figure: Figure, labels: tuple[str, ...], parts: Mapping[tuple[str, ...], object]) -> Metric:
    kind = CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily
    family = kind(figure.full_name, figure.help, labels=(*labels, *figure.labels))
    for key, part in parts.items():
        for extra, value in figure.read(part):
            if (number := _number(value)) is not None:
                family.add_metric([printable(text) for text in (*key, *extra)], number)
    return family


def _number(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None
