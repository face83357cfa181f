"""The command ``rl4sys-learner deadletter``: lists, shows and removes the dead letters of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import ConfigError, ProtocolError, RunDirectoryError
from rl4sys_zmq.learner.run.deadletters import StoredDeadLetter, list_letters, read_letter
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.report import byte_text, cut_name
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import decode, read_submit
from rl4sys_zmq.wire.frames import MAX_BODY_FRAMES
from rl4sys_zmq.wire.messages import Submit

MAX_LETTER_BYTES = 1 << 28
MAX_SEGMENTS_SHOWN = 16
NAME_CHARS = 16
_LENGTH = struct.Struct("<I")
_COLUMNS = ("rewards", "log_probs", "versions", "masks")


def print_letters(run: Path, client_id: str | None, *, as_json: bool) -> None:
    """Print a list of a run's dead letters, oldest first."""
    letters, undescribed = _letters(run, client_id)
    if as_json:
        print_line(json.dumps([{"n": n, **_plain(letter)} for n, letter in letters], indent=2))
        return
    if letters:
        names = [(cut_name(letter.client_id, NAME_CHARS), cut_name(letter.actor_id, NAME_CHARS)) for _, letter in letters]
        widths = [max(map(len, column)) for column in zip(("client", "actor"), *names, strict=True)]
        print_line(f"{'n':>4}  {'when (UTC)':<19}  {'client':<{widths[0]}}  {'actor':<{widths[1]}}  {'seq':>6}  {'bytes':>7}")
        for (n, letter), (client, actor) in zip(letters, names, strict=True):
            line = f"{n:>4}  {_when(letter)}  {client:<{widths[0]}}  {actor:<{widths[1]}}  {letter.seq:>6}"
            print_line(printable(f"{line}  {byte_text(letter.nbytes):>7}"))
            print_line(printable(f"{'':>4}  {letter.reason}"))
        print_line(f"to print one: rl4sys-learner deadletter {run} --show N")
    else:
        print_line("no dead letters" + (f" of client {client_id}" if client_id is not None else ""))
    if undescribed:
        print_line(f"{len(undescribed)} more without a readable description; to print one: --show PATH, such as {undescribed[0]}")


def show_letter(run: Path, which: str, client_id: str | None, *, as_json: bool) -> None:
    letters, _ = _letters(run, client_id)
    letter: StoredDeadLetter | None
    if which.isascii() and which.isdigit():
        letter = dict(letters).get(int(which))
        if letter is None:
            raise ConfigError(f"--show {which}: there are {len(letters)} letters, counted from 1", key="show")
        path = letter.path
    else:
        path = Path(which)
        path = path.with_suffix(".msg") if path.suffix == ".json" else path
        letter = next((other for _, other in letters if other.path.resolve() == path.resolve()), None)
    about = _plain(letter) if letter is not None else {"path": str(path)}
    segments, problem = _content(path)
    if as_json:
        print_line(json.dumps({**about, "problem": problem, "segments": segments}, indent=2, default=str))
        return
    print_line(printable(f"file       {path}"))
    if letter is not None:
        print_line(printable(f"client     {letter.client_id}, actor {letter.actor_id}, origin {letter.origin}, seq {letter.seq}"))
        print_line(f"when       {_when(letter)} UTC, {byte_text(letter.nbytes)}")
        print_line(printable(f"reason     {letter.reason}"))
    if problem:
        print_line(printable(f"damaged    {problem}"))
    for segment in segments:
        for line in _segment_lines(segment):
            print_line(printable(line))


def clear_letters(run: Path, client_id: str | None) -> None:
    """Remove all dead letters of a run, or those of one client."""
    letters, undescribed = _letters(run, client_id)
    paths = [letter.path for _, letter in letters] + (undescribed if client_id is None else [])
    try:
        for path in paths:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
    except OSError as exc:
        raise RunDirectoryError(f"{run}/dead cannot be changed: {exc.strerror}") from exc
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for day in {path.parent for path in paths}:
        if day.name < today:  # a running learner may be writing into today's folder
            with contextlib.suppress(OSError):
                day.rmdir()
    print_line(f"removed {len(paths):,} letter{'' if len(paths) == 1 else 's'}")


def _letters(run: Path, client_id: str | None) -> tuple[list[tuple[int, StoredDeadLetter]], list[Path]]:
    """Return the dead letters of one client, or of all, and the paths of dead letters without a description.

    The numbers count the letters of all clients from 1, oldest first.
    """
    if not run.is_dir():
        raise RunDirectoryError(f"{run} is not a run directory; give the --run-dir of `rl4sys-learner serve`")
    dead = run / "dead"
    letters = list_letters(dead)
    known = {letter.path for letter in letters}
    undescribed = sorted(path for path in dead.glob("*/*.msg") if path not in known)
    return [(n, letter) for n, letter in enumerate(letters, 1) if client_id in (None, letter.client_id)], undescribed


def _when(letter: StoredDeadLetter) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(letter.at_unix_s))
    except (OverflowError, ValueError, OSError):
        return f"{'?':<19}"


def _plain(letter: StoredDeadLetter) -> dict[str, object]:
    return {**asdict(letter), "path": str(letter.path)}


# ---- the content of a letter


def _content(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return summaries of the segments in a dead letter, and a problem with the file, or ""."""
    try:
        problem = _outline(path)
        if problem:
            return [], problem
        message = decode(read_letter(path))
        if not isinstance(message, Submit):
            return [], f"it contains a {type(message).__name__}, not a Submit"
        segments = read_submit(message)
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except (ProtocolError, ValueError) as exc:
        return [], str(exc)
    described: list[dict[str, Any]] = [
        {"problem": str(s)} if isinstance(s, ProtocolError) else _described(s) for s in segments[:MAX_SEGMENTS_SHOWN]
    ]
    hidden = len(segments) - len(described)
    return described, f"only the first {MAX_SEGMENTS_SHOWN} segments are shown, of {len(segments)}" if hidden else ""


def _outline(path: Path) -> str:
    """Check the frame lengths in a file. Return a problem of a damaged file, or ""."""
    if not path.is_file():
        raise OSError("no such file" if not path.exists() else "not a regular file")
    size = path.stat().st_size
    if size > MAX_LETTER_BYTES:
        return f"{size:,} bytes, more than a letter can have"
    at = frames = 0
    with path.open("rb") as file:
        while at < size:
            head = file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return f"cut short after {frames} frames"
            at += _LENGTH.size + _LENGTH.unpack(head)[0]
            frames += 1
            if at > size:
                return f"frame {frames} ends {at - size:,} bytes beyond the end of the file"
            if frames > MAX_BODY_FRAMES + 1:
                return f"more than {MAX_BODY_FRAMES + 1} frames"
            file.seek(at, os.SEEK_SET)
    return "" if frames else "empty"


def _described(segment: Segment) -> dict[str, Any]:
    how = "terminated" if segment.terminated else "truncated" if segment.truncated else "capped" if segment.capped else "cut"
    columns = [
        *_named("observations", segment.observation_leaves),
        *_named("actions", segment.action_leaves),
        *((name, getattr(segment, name)) for name in _COLUMNS),
        *segment.extras.items(),
        *segment.initial.items(),
    ]
    total = segment.episode_return
    return {
        "steps": segment.steps,
        "generation": segment.generation,
        "episode_id": segment.episode_id,
        "segment_index": segment.segment_index,
        "ended": how,
        "episode_return": total if total is None or math.isfinite(total) else str(total),  # JSON has no NaN
        "episode_length": segment.episode_length,
        "columns": {name: _column(column) for name, column in columns if column is not None},
    }


def _named(name: str, leaves: list[NDArray[Any]]) -> list[tuple[str, NDArray[Any]]]:
    """Return the arrays of observations or actions, each with a name: `name`, with an index if there are several arrays."""
    return [(name, leaves[0])] if len(leaves) == 1 else [(f"{name}[{n}]", leaf) for n, leaf in enumerate(leaves)]


def _column(column: NDArray[Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {"dtype": str(column.dtype), "shape": list(column.shape), "min": None, "max": None, "not_finite": 0}
    values: NDArray[Any] = column
    if column.dtype.kind == "f":
        finite = np.isfinite(column)
        summary["not_finite"] = int(column.size - np.count_nonzero(finite))
        values = column[finite]
    if values.size:
        summary["min"], summary["max"] = values.min().item(), values.max().item()
    return summary


def _segment_lines(segment: dict[str, Any]) -> Iterator[str]:
    if "problem" in segment:
        yield f"segment    cannot be read: {segment['problem']}"
        return
    yield f"segment    {segment['steps']:,} steps, {segment['ended']}, generation {segment['generation']}"
    total = f", return {segment['episode_return']}, length {segment['episode_length']}" if segment["episode_length"] else ""
    yield f"episode    {segment['episode_id']:016x}, part {segment['segment_index']}{total}"
    yield f"{'column':<13}{'dtype':<9}{'shape':<16}{'min':>12}{'max':>12}{'not finite':>12}"
    for name, c in segment["columns"].items():
        shape = "x".join(map(str, c["shape"]))
        yield f"{name:<13}{c['dtype']:<9}{shape:<16}{_number(c['min']):>12}{_number(c['max']):>12}{c['not_finite'] or '-':>12}"


def _number(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
