"""The formats of a run directory's log and of its TensorBoard event files.

The log is ``RUN/log.jsonl``, with one event per line, and its older parts are in ``RUN/log/``. TensorBoard's own writer is not
used, because it limits neither the size of its files nor the access of other users.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner.lags import LAG_LIMITS
from rl4sys_zmq.learner.run.record_series import FileSeriesFormat, FileSeriesRecord, RotatingFileWriter, list_parts
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.wire.thread_messages import TrainingMetrics

TENSORBOARD = "tensorboard"
"""The name of the folder in a run directory that contains one folder of event files per client, and nothing else."""

EVENT_FILES = "events.out.tfevents."
"""The beginning of the names of event files. TensorBoard looks for the word ``tfevents``."""

MAX_RECORD_BYTES = 1 << 26
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")


class TensorBoardFileFormat(FileSeriesFormat):
    """The format of TensorBoard's files of metrics: TFRecords, each with one `Event`. A record's kind is the set of its tags.

    Raises:
        ConfigError: If TensorBoard is not installed.
    """

    prefix = EVENT_FILES

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import HistogramProto
            from tensorboard.plugins.hparams import metadata, plugin_data_pb2
            from tensorboard.summary.writer.record_writer import masked_crc32c
        except ModuleNotFoundError as exc:
            raise ConfigError(f"a run directory needs the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
        self._event: Any = Event
        self._histogram_type: Any = HistogramProto
        self._hparams: Any = metadata
        self._hparams_types: Any = plugin_data_pb2
        self._restarted: Any = SessionLog(status=SessionLog.START)
        self._unreadable: Any = import_module("google.protobuf.message").DecodeError
        self._checksum: Any = masked_crc32c
        self.head = self.record(0.0, 0, {}, file_version="brain.Event:2")

    def record(
        self, wall_time_s: float, step: int, scalars: Mapping[str, float], lags: Sequence[int] = (), **fields: Any
    ) -> bytes:
        """Encode scalars as one event, in the file format TFRecord."""
        event = self._event(wall_time=wall_time_s, step=step, **fields)
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        if lags:
            event.summary.value.add(tag="dist/policy_lags").histo.CopyFrom(self._histogram(lags))
        return self._encode(event)

    def hyperparameters_record(self, wall_time_s: float, values: Mapping[str, Any]) -> bytes:
        """Encode hyperparameters for TensorBoard's HPARAMS tab. Of several such records of a client, the first is shown."""
        start = self._hparams_types.SessionStartInfo(start_time_secs=wall_time_s)
        for name, value in values.items():
            kind = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
            text = kind == "string" and not isinstance(value, str)
            setattr(start.hparams[name], f"{kind}_value", json.dumps(value) if text else value)
        data = self._hparams_types.HParamsPluginData(session_start_info=start)
        event = self._event(wall_time=wall_time_s)
        metadata, tensor = self._hparams.create_summary_metadata(data), self._hparams.NULL_TENSOR
        event.summary.value.add(tag=self._hparams.SESSION_START_INFO_TAG, metadata=metadata, tensor=tensor)
        return self._encode(event)

    def _encode(self, event: Any) -> bytes:
        content: bytes = event.SerializeToString()
        length = _LENGTH.pack(len(content))
        checks = (_CHECKSUM.pack(self._checksum(data)) for data in (length, content))
        return length + next(checks) + content + next(checks)

    def _histogram(self, lags: Sequence[int]) -> Any:
        """Return TensorBoard's histogram of policy lags, in versions, given the number of steps in each bucket."""
        values = (*LAG_LIMITS, 2 * LAG_LIMITS[-1])  # the largest lag stands for a bucket
        return self._histogram_type(
            min=0.0,
            max=max(value for value, count in zip(values, lags, strict=True) if count),
            num=sum(lags),
            sum=sum(value * count for value, count in zip(values, lags, strict=True)),
            sum_squares=sum(value * value * count for value, count in zip(values, lags, strict=True)),
            bucket_limit=[value + 0.5 for value in values],
            bucket=lags,
        )

    def restart_record(self, wall_time_s: float, step: int) -> bytes:
        """Encode a restart: TensorBoard hides earlier points beyond `step`, since training continues from there."""
        return self.record(wall_time_s, step + 1, {}, session_log=self._restarted)

    def read(self, file: BinaryIO) -> Iterator[FileSeriesRecord]:
        """Yield the complete records of a file. Stop at an incomplete record, and skip records that cannot be decoded."""
        while len(start := file.read(_LENGTH.size + _CHECKSUM.size)) == _LENGTH.size + _CHECKSUM.size:
            (size,) = _LENGTH.unpack_from(start)
            if size > MAX_RECORD_BYTES:
                return
            rest = file.read(size + _CHECKSUM.size)
            if len(rest) < size + _CHECKSUM.size:
                return
            try:
                event = self._event.FromString(rest[:size])
            except self._unreadable:
                continue
            if not event.file_version:
                kind = "\n".join(value.tag for value in event.summary.value)
                yield FileSeriesRecord(kind, start + rest, lasting=kind == self._hparams.SESSION_START_INFO_TAG)


def event_series(run_dir: Path, client_id: str, form: TensorBoardFileFormat, max_bytes: int) -> RotatingFileWriter:
    return RotatingFileWriter(_event_folder(run_dir / TENSORBOARD, client_id), form, max_bytes)


def _event_folder(parent: Path, client_id: str) -> Path:
    """Return the folder of a client. TensorBoard shows its name, so it is the client's own where that is a safe, free name."""
    safe = folder_name(client_id)
    present = set(os.listdir(parent)) if parent.is_dir() else set()
    plain = safe.partition("%~")[0]
    if plain != client_id or (safe != plain and safe in present):
        return parent / safe
    taken = any(name != plain and name.lower() == plain.lower() for name in present)
    return parent / (plain if not taken else safe if safe != plain else f"{plain}%~0")


LOG, LOG_FOLDER = "log.jsonl", "log"
LEARNER_STARTED = "learner_started"
"""The name of the event that a learner has opened its run directory. ``down_s`` is the time without a learner before."""

CLIENT_READY = "client_ready"
"""The name of the event that a learner thread is ready: ``checkpoint``, ``steps`` and ``episodes`` say where it continues."""
TRIES = 8
TAIL_BYTES = 1 << 18
_TIME = re.compile(rb'\{"t": ([0-9]+(?:\.[0-9]+)?),')
_START = re.compile(rb'\{"t": [0-9.e+-]+, "event": "([a-z_]+)"(?:, "client_id": ("(?:[^"\\]|\\.)*")(?:, "name": ("[^"]*"))?)?')


class JsonLineFormat(FileSeriesFormat):
    """The format of the log: one event per line, as a JSON object. The kind of a record is its event, its client and its name.

    All events but ``metrics`` and ``system`` are lasting.
    """

    suffix = ".jsonl"

    def read(self, file: BinaryIO) -> Iterator[FileSeriesRecord]:
        for line in file:
            match = _START.match(line)
            if match is not None and line.endswith(b"}\n"):
                event = match[1].decode()
                kind = b" ".join(filter(None, match.groups())).decode(errors="replace")
                yield FileSeriesRecord(kind, line, lasting=event not in ("metrics", "system"))


def log_series(run_dir: Path, max_bytes: int) -> RotatingFileWriter:
    return RotatingFileWriter(run_dir / LOG_FOLDER, JsonLineFormat(), max_bytes, active=run_dir / LOG)


def last_record_unix_s(run_dir: Path) -> float | None:
    """Return the Unix time of the newest complete record in ``log.jsonl``; None if there is none."""
    try:
        with (run_dir / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    times = (_TIME.match(line) for line in reversed(lines) if line.endswith(b"}\n"))
    return next((float(match[1]) for match in times if match is not None), None)


def metrics_record(client_id: str, metrics: TrainingMetrics, at_unix_s: float) -> dict[str, Any]:
    record = {
        "t": round(at_unix_s, 3),
        "event": "metrics",
        "client_id": client_id,
        "step": metrics.step,
        "update": metrics.update,
        "scalars": metrics.scalars,
        "episodes": metrics.episodes,
        "lags": metrics.lags,
    }
    return {**record, "evaluations": metrics.evaluations} if metrics.evaluations else record


def newest_records(run_dir: Path, max_bytes: int) -> Iterator[Any]:
    """Yield the newest records of a log, as many as `max_bytes` bytes have, oldest first. A line that is no JSON is None."""
    newest: list[list[bytes]] = []
    try:
        with contextlib.ExitStack() as stack:
            for file in reversed(_opened(run_dir, stack)):
                start = file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
                newest.append(file.read(max_bytes).splitlines(keepends=True)[bool(start) :])
                if (max_bytes := max_bytes - file.tell() + start) <= 0:
                    break
    except FileNotFoundError:
        return
    except OSError as exc:
        raise RunDirectoryError(f"{run_dir / LOG} cannot be read: {exc.strerror}") from exc
    for line in itertools.chain.from_iterable(reversed(newest)):
        if line.endswith(b"\n"):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def read_log(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield each event in the log of a run directory as a dict, oldest first. A learner can be writing it meanwhile."""
    path = run_dir / LOG
    try:
        with contextlib.ExitStack() as stack:
            for file in _opened(run_dir, stack):
                for line in file:
                    if line.endswith(b"\n"):  # the last line of a running learner may be incomplete
                        yield json.loads(line)
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be read: {exc.strerror}; is this a run directory?") from exc
    except (ValueError, RecursionError) as exc:
        raise RunDirectoryError(f"{path} is not a run's log: {exc}") from exc


def _opened(run_dir: Path, stack: contextlib.ExitStack) -> list[BinaryIO]:
    """Open all files of the log, and return them, oldest first. The caller's `stack` closes them."""
    # All are opened before the first is read: a learner can merge and remove files, but one that is open stays readable.
    for _ in range(TRIES):
        with contextlib.ExitStack() as trying, contextlib.suppress(FileNotFoundError):  # a learner has removed a part meanwhile
            newest: BinaryIO | None = None
            with contextlib.suppress(FileNotFoundError):  # it has become a part
                newest = trying.enter_context((run_dir / LOG).open("rb"))
            parts, _ = list_parts(run_dir / LOG_FOLDER, JsonLineFormat())
            files: list[BinaryIO] = [trying.enter_context(part.path.open("rb")) for part in parts]
            if newest is not None and not any(os.path.sameopenfile(file.fileno(), newest.fileno()) for file in files):
                if not os.path.samestat(os.fstat(newest.fileno()), os.stat(run_dir / LOG)):
                    continue  # a learner has renamed it
                files.append(newest)
            if files:
                stack.push(trying.pop_all())
                return files
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
