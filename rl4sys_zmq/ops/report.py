"""A learner's status report as text: a table of its clients, and all of it for a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.errors import restart_command
from rl4sys_zmq.liveness import HEARTBEAT_S, WORKER_SILENCE_S
from rl4sys_zmq.logs import printable
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.messages import Verdict

MAX_ACTORS_SHOWN = 20
LEAST_NAME = 8
QUIET_S = 2 * HEARTBEAT_S
"""Time without a message after which an actor counts as silent, in seconds."""

MAX_LIBRARIES = 4
BUSY_S = 5.0
NODE_CHARS = 8
"""Number of characters of a Ray node's id that are shown."""


def report_lines(report: Mapping[str, Any], now_unix_s: float, width: int | None = None) -> list[str]:
    """Return the lines about a learner or a relay, tables with at most `width` characters. Problems are marked with ``!!``."""
    lines = list(_relay_lines(report)) if report.get("relay") else _learner_lines(report, now_unix_s, width)
    return [printable(line) for line in lines]


def _learner_lines(report: Mapping[str, Any], now_unix_s: float, width: int | None) -> list[str]:
    lines = [f"learner at {report['address']}, process {report['pid']}, up {span_text(report['uptime_s'])}", _versions(report)]
    lines += _whole(report)
    for client_id, client in sorted(report["clients"].items()):
        lines += ["", *_client_lines(client_id, client, now_unix_s, width)]
    return lines if report["clients"] else [*lines, "no clients yet"]


def _relay_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"relay at {report['address']}, process {report['pid']}, up {span_text(report['uptime_s'])}"
    yield f"version {report['version']}, this command {package_version()}"
    upstream = report["upstream"]
    heard = "no answer so far" if upstream["silent_s"] is None else f"last answer {span_text(upstream['silent_s'])} ago"
    yield f"upstream {upstream['address']}: {upstream['state']}, {heard}"
    if upstream["state"] == "lost" or upstream["problem"]:
        yield f"!! the upstream does not answer; the children use another relay or the learner: {upstream['problem']}"
    yield f"children: {report['children']:,}"
    yield from _security_lines(report)
    if refused := _named(report["counters"], "refused."):
        yield f"messages refused: {refused}"
    if wrong := _named(report["counters"], "weights_refused."):
        yield f"!! updates refused: {wrong}"
    for client_id, client in sorted(report["clients"].items()):
        held = f"{client['history_versions']:,} versions, {byte_text(client['history_bytes'])}"
        yield f"{client_id}: version {client['version']:,}, {client['children']:,} children, {held}"
        if client["error"]:
            yield f"  !! {client['error']}"
    if not report["clients"]:
        yield "no child asks for a client"


def _versions(report: Mapping[str, Any]) -> str:
    """Return a line with the versions of the learner and of this command, and the forms and other versions of its actors."""
    theirs, ours = report.get("version", "unknown"), package_version()
    text = f"version {theirs}, this command {ours}"
    live = [actor for client in report["clients"].values() for actor in client["actors"].values() if actor["live"]]
    same = f"rl4sys_zmq {theirs}"
    libraries = Counter(actor.get("library") or "unknown" for actor in live)
    libraries.pop(same, None)
    named = sorted((name.removeprefix(f"{same} "), name, count) for name, count in libraries.items())
    other = ", ".join(f"{count:,} {'of ' * (form == name)}{form}" for form, name, count in named[:MAX_LIBRARIES])
    return text + (f", actors: {other}" if other else "")


def conservation_error(client: Mapping[str, Any]) -> str:
    """Return an error if the number of accepted segments of a client is not the sum over all verdicts, else "".

    The sum is not checked while the client does not run, or resumes from a checkpoint.
    """
    if client["state"] != "running" or client.get("resuming") or "accepted" not in client:
        return ""
    parts = _disposed(client)
    total = sum(parts.values())
    if client["accepted"] == total:
        return ""
    summands = " + ".join(f"{name} {count:,}" for name, count in parts.items())
    return f"accepted {client['accepted']:,}, but {summands} = {total:,}"


def _disposed(client: Mapping[str, Any]) -> dict[str, int]:
    verdicts = client["verdicts"]
    names = [name for name in Verdict.FINAL if name not in Verdict.RARE or verdicts.get(name)]
    return {
        **{name: verdicts[name] for name in names},
        "pending": client["pending"],
        "rolled_back": client.get("rolled_back", 0),
    }


def _whole(report: Mapping[str, Any]) -> Iterator[str]:
    if journal := report.get("journal"):
        limit = f" of {byte_text(journal['max_bytes'])}" if journal["max_bytes"] else ""
        kind = "on disk" if journal["durable"] else "in memory: untrained data is lost when the process ends"
        used = (
            f", {byte_text(journal['used_bytes'])}{limit} used, {journal['queued_items']:,} queued" if journal["durable"] else ""
        )
        yield f"journal {kind}{used}"
        if journal["error"]:
            yield f"!! journal: {journal['error']}"
        if journal["damaged"]:
            yield f"!! journal: {journal['damaged']:,} damaged entries"
        if lost := journal.get("lost", 0):
            yield f"!! journal: {lost:,} acknowledged segments were missing at the start (accept-loss)"
        if rescued := journal.get("rescued", 0):
            yield f"!! journal: its file was deleted, moved or replaced {rescued:,} times, and written again"
    yield from _security_lines(report)
    inference = report.get("inference", {})
    if calls := inference.get("counters", {}).get("calls"):
        yield f"inference at {inference['address']}: {calls:,} calls in {inference['counters']['jobs']:,} batches"
    for relay in report.get("relays", ()):
        followed = ", ".join(f"{client} {count:,}" for client, count in sorted(relay["children"].items()))
        mark = "" if relay["live"] else "!! "
        host = f" (on {relay['host']})" if relay.get("host") else ""
        yield f"{mark}relay at {relay['address']}{host}: last request {span_text(relay['silent_s'])} ago; children: {followed}"
    if refused := _named(report["counters"], "refused."):
        yield f"messages refused: {refused}"


def _security_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about warnings, keys and the access list."""
    security = report.get("security")
    for warning in (*report.get("warnings", ()), *(security or {}).get("warnings", ())):
        yield f"!! {warning}"
    if security is not None:
        denied = _named(security, "denied.")
        yield f"security: {security['listed']:,} keys listed" + (f"; denied: {denied}" if denied else "")
        if security["problem"]:
            yield f"!! the list of users on disk is not in force: {security['problem']}"
        if not security["alive"]:
            yield "!! the check of keys has stopped, so no peer can connect: restart the learner"
    elif "security" in report:
        yield "security: no keys; any peer that reaches the port has all rights"


def _named(counters: Mapping[str, Any], prefix: str) -> str:
    named = ((k.removeprefix(prefix), v) for k, v in sorted(counters.items()) if k.startswith(prefix) and v)
    return ", ".join(f"{count:,} {name}" for name, count in named)


def _client_lines(client_id: str, client: Mapping[str, Any], now_unix_s: float, width: int | None) -> Iterator[str]:
    (row,) = client_rows({"clients": {client_id: client}})
    state = row.state + (" (resuming)" if client.get("resuming") else "")
    age = span_text(max(0.0, now_unix_s - client["generation"] / 1000))  # a generation is the Unix time in ms
    yield f"{client_id}: {state}, {row.algorithm}, version {row.version:,}, generation {age} old"
    if row.error:
        yield f"  !! {row.error}" + (f"; to restart it: {restart_command(client_id)}" if row.state == "failed" else "")
    if broken := conservation_error(client):
        yield f"  !! SEGMENTS ARE UNACCOUNTED FOR: {broken}"
    named = row.cells()
    yield "  " + "  ".join(f"{name} {named[name]}" for name in ("return", "reward/step", "episodes"))
    yield f"  steps {row.steps:,}  steps/s {row.steps_per_s:,.0f}  lag {row.policy_lag:.2f}"
    yield from _evaluation_lines(client)
    if overridden := client.get("scalars", {}).get("charts/overridden_steps"):
        yield f"  overridden steps {overridden:,.0f}"
    parts = _disposed(client)
    yield f"  accepted {client['accepted']:,}: " + "  ".join(f"{name} {count:,}" for name, count in parts.items())
    verdicts = client["verdicts"]
    queue = f"queue {client['queued']:,} ({byte_text(client['queued_bytes'])})"
    yield f"  refused {verdicts['refused']:,}  duplicate {verdicts['duplicate']:,}  gap {client['gap']:,}  {queue}"
    yield from _worker_lines(client)
    saved = client["checkpoint"]
    if saved["number"]:
        yield f"  checkpoint {saved['number']:,}: version {saved['version']:,}, {span_text(saved['age_s'])} ago"
    else:
        yield "  no checkpoint yet"
    if saved["error"]:
        yield f"  !! checkpoint: {saved['error']}"
    for name, alarm in sorted(client.get("alarms", {}).items()):
        age = span_text(max(0.0, now_unix_s - alarm["last_unix_s"]))
        yield f"  !! alarm {name}: {alarm['count']:,}, the last one {age} ago: {alarm['text']}"
    if client["actors"]:
        yield from _actor_lines(client["actors"], client["actors_total"], width)


def _evaluation_lines(client: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about returns without exploration: of evaluated versions, and of actors with ``explore: false``."""
    if found := client.get("evaluator"):
        results = [("evaluation", found["mean_return"], found["version"]), ("best", found["best_return"], found["best_version"])]
        known = [f"{name} {value:.1f} (version {version:,})" for name, value, version in results if version is not None]
        skipped = [f"skipped {found['skipped']:,}"] if found["skipped"] else []
        yield "  " + "  ".join([*(known or ["evaluation: no result yet"]), *skipped])
        if found["busy_s"] >= BUSY_S:
            yield f"  an evaluation has run for {span_text(found['busy_s'])}"
    if found := client.get("evaluation"):
        count, version = found["episodes"], found["version"]
        yield f"  actors without exploration {found['mean_return']:.1f} (to version {version:,})  episodes {count:,}"


def worker_text(client: Mapping[str, Any]) -> str:
    """Return what trains a client as text, such as ``engine ray, process 42 on edge-1, node 1a2b3c4d, 2 ranks``."""
    worker = client.get("worker", {})
    parts = [f"engine {worker.get('engine', '-')}"]
    if "pid" in worker or "node" in worker:
        host = f" on {worker['host']}" if worker.get("host") else ""
        parts.append(f"process {worker.get('pid') or 'starting'}{host}")
    if worker.get("node"):
        parts.append(f"node {worker['node'][:NODE_CHARS]}")
    if worker.get("busy_s", 0.0) >= BUSY_S:
        parts.append(f"busy for {span_text(worker['busy_s'])}")
    devices = worker.get("devices", [])
    if len(devices) > 1:
        parts.append(f"{len(devices)} ranks")
    if devices and set(devices) != {"cpu"}:
        parts.append(f"device {', '.join(devices)}")
    if client.get("restarts"):
        parts.append(f"{client['restarts']:,} restarts")
    return ", ".join(parts)


def _worker_lines(client: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about what trains a client. There is no line for a thread on the CPU that has not been restarted."""
    worker = client.get("worker", {})
    text = worker_text(client)
    if text != "engine thread" and worker:
        yield f"  {text}"
    if worker.get("waiting"):
        yield f"  !! it waits: {worker['waiting']}"
    if worker.get("silent_s", 0.0) >= WORKER_SILENCE_S:
        yield f"  !! the process has given no sign of life for {span_text(worker['silent_s'])}: is it stopped?"
    if crashes := worker.get("crashes"):
        pause = f"; another one starts in {span_text(worker['restart_in_s'])}" if "restart_in_s" in worker else ""
        yield f"  !! {crashes:,} crashes, the last one: {worker['last_crash']}{pause}"


def _actor_lines(actors: Mapping[str, Any], total: int, width: int | None) -> list[str]:
    """Return a table of the actors: first those that are not connected, then silent ones, each group by name."""
    numbers = ("received", "durable", "trained", "checkpointed", "credit_steps")
    order = sorted(actors.items(), key=lambda item: (item[1]["live"], item[1]["silent_s"] < QUIET_S, item[0]))
    rows: list[tuple[str, ...]] = [("actor", "live", "silent", "received", "durable", "trained", "saved", "credit", "from")]
    for actor_id, actor in order[:MAX_ACTORS_SHOWN]:
        counts = (count_text(actor[name]) for name in numbers)
        live = "yes" if actor["live"] else "no"
        rows.append((printable(actor_id), live, span_text(actor["silent_s"]), *counts, str(actor.get("address", ""))))
    columns = [list(column) for column in zip(*rows, strict=True)]
    if not any(columns[-1][1:]) or (width is not None and _table_width(columns) > width):
        columns.pop()  # the names of actors have the hosts
    if width is not None and (over := _table_width(columns) - width) > 0:
        room = max(LEAST_NAME, max(map(len, columns[0])) - over)
        columns[0] = [cut_name(name, room) for name in columns[0]]
    for place, column in enumerate(columns):
        most = max(map(len, column))
        column[:] = [cell.ljust(most) if place in (0, 1, 8) else cell.rjust(most) for cell in column]
    lines = [f"  {'  '.join(row)}".rstrip() for row in zip(*columns, strict=True)]
    hidden, shown = total - MAX_ACTORS_SHOWN, "all" if total == len(actors) else len(actors)
    return [*lines, f"  and {hidden:,} more (--json shows {shown})"] if hidden > 0 else lines


def _table_width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns)


def cut_name(name: str, most: int) -> str:
    """Return a name with an ellipsis instead of its middle, so that it has at most `most` characters."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}\u2026{name[len(name) - end :]}"


def count_text(count: int) -> str:
    """Return a count as a text of at most 8 characters, such as ``12,345`` or ``1.2 M``."""
    if count < 1_000_000:
        return f"{count:,}"
    thousands = min((len(str(count)) - 1) // 3, 6)
    return f"{count / 1000**thousands:.1f} {' kMGTPE'[thousands]}"


def span_text(seconds: float) -> str:
    """Return a time span as text, such as ``5 min``."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def byte_text(count: int) -> str:
    """Return a number of bytes as text, such as ``1.5 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


# ---- the table of clients


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatusRow:
    """The main metrics of one client in a status report."""

    client_id: str
    state: str
    algorithm: str
    episodes: int
    mean_return: float | None  # over the last 100 episodes. None before the first has ended
    # per step, over the last 10,000 steps. None before the first data, and if the learner does not report it
    mean_reward: float | None
    steps: int
    steps_per_s: float
    version: int
    updates: int
    policy_lag: float
    pending: int  # in segments, as `unfit` and `stale`
    actors: int  # the number of actors that are connected now
    unfit: int  # refused or quarantined
    stale: int
    error: str

    def cells(self) -> dict[str, str]:
        """Return the metrics as texts, by heading. While the client starts, those of its training are ``-``."""
        trained = {
            "episodes": f"{self.episodes:,}",
            "return": "-" if self.mean_return is None else f"{self.mean_return:.1f}",
            "reward/step": "-" if self.mean_reward is None else f"{self.mean_reward:.3g}",
            "steps": f"{self.steps:,}",
            "steps/s": f"{self.steps_per_s:,.0f}",
            "version": f"{self.version:,}" if self.version >= 0 else "-",
            "lag": f"{self.policy_lag:.2f}",
        }
        return {
            "client": self.client_id,
            "state": self.state,
            "algorithm": self.algorithm,
            **(dict.fromkeys(trained, "-") if self.state.startswith("starting") else trained),
            "queue": f"{self.pending:,}",
            "actors": f"{self.actors:,}",
            "unfit/stale": f"{self.unfit:,}/{self.stale:,}",
        }

    def lines(self) -> list[str]:
        """Return the metrics as short lines, for a narrow terminal."""
        named = [f"{name} {cell}" for name, cell in self.cells().items()]
        figures = ["  " + "   ".join(named[first:end]) for first, end in ((3, 6), (6, 10), (10, 13))]
        return [f"{self.client_id}: {self.state}, {self.algorithm}", *figures]

    def line(self) -> str:
        """Return the most important metrics, a state other than ``running``, and the error as one line."""
        cells = self.cells()
        state = f"state {self.state}, " if self.state != "running" else ""
        unused = f", unfit/stale {cells['unfit/stale']}" if self.unfit or self.stale else ""
        pace = f"{cells['steps']} steps, {cells['steps/s']}/s, version {cells['version']}"
        error = f"; {self.error}" if self.error else ""
        means = f"return {cells['return']}, reward/step {cells['reward/step']}"
        return f"{self.client_id}: {state}{means}, {pace}{unused}{error}"


REPORTED_FIELDS = (
    *("algorithm", "error", "version", "updates", "policy_lag", "pending"),
    *("episodes", "mean_return", "steps", "steps_per_s"),
)
"""The fields of `ClientStatusRow` that a report has under the same names."""


def client_rows(report: Mapping[str, Any]) -> list[ClientStatusRow]:
    return [_row(name, client) for name, client in sorted(report["clients"].items())]


def _row(name: str, client: Mapping[str, Any]) -> ClientStatusRow:
    verdicts, state, scalars = client["verdicts"], client["state"], client.get("scalars", {})
    if state == "starting" and "clone/progress" in scalars:
        state = f"starting (clones {scalars['clone/progress']:.0%}, loss {scalars['clone/loss']:.3g})"
    return ClientStatusRow(
        client_id=name,
        state=state,
        mean_reward=client.get("mean_reward"),
        actors=client["actors_live"],
        unfit=verdicts["refused"] + verdicts["quarantined"],
        stale=verdicts["stale"],
        **{field: client[field] for field in REPORTED_FIELDS},
    )
