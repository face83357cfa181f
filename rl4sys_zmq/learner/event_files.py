"""TensorBoard event files, written without TensorBoard's writer: one record per step, private, and bounded in size."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.record_series import RecordFormat, RecordSeries
from rl4sys_zmq.learner.thinning import Record
from rl4sys_zmq.names import folder_name

__all__ = ["EVENT_FILES", "TENSORBOARD", "EventFileFormat", "event_series"]

TENSORBOARD = "tensorboard"
"""The folder in a run directory that contains one folder per client, and nothing else."""

EVENT_FILES = "events.out.tfevents."
"""The prefix of event file names; TensorBoard looks for ``tfevents``."""

MAX_RECORD_BYTES = 1 << 26
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")


class EventFileFormat(RecordFormat):
    """TFRecords of TensorBoard's `Event`. The kind of a record is the list of its tags.

    Raises:
        ConfigError: If TensorBoard is not installed.
    """

    prefix = EVENT_FILES

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import masked_crc32c
        except ModuleNotFoundError as exc:
            raise ConfigError(f"a run directory needs the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
        self._event: Any = Event
        self._unreadable: Any = import_module("google.protobuf.message").DecodeError
        self._checksum: Any = masked_crc32c
        self.head = self.record(0.0, 0, {}, file_version="brain.Event:2")

    def record(self, wall_time_s: float, step: int, scalars: Mapping[str, float], **fields: Any) -> bytes:
        """Return one record of scalars."""
        event = self._event(wall_time=wall_time_s, step=step, **fields)
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        content: bytes = event.SerializeToString()
        length = _LENGTH.pack(len(content))
        checks = (_CHECKSUM.pack(self._checksum(data)) for data in (length, content))
        return length + next(checks) + content + next(checks)

    def read(self, file: BinaryIO) -> Iterator[Record]:
        """Yield the complete records."""
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
                yield Record("\n".join(value.tag for value in event.summary.value), start + rest)

    def dropped_record(self, dropped: Mapping[str, int]) -> bytes:
        """Return nothing: a gap in a curve is visible."""
        return b""


def event_series(run_dir: Path, client_id: str, form: EventFileFormat, max_bytes: int) -> RecordSeries:
    """Return the writer of one client's event files."""
    return RecordSeries(run_dir / TENSORBOARD / folder_name(client_id), form, max_bytes)
