"""The ``.npz`` file of a saved `TrajectoryBuffer`. Nothing is pickled."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import StoreFileError
from rl4sys_zmq.replay.ring import Ids
from rl4sys_zmq.values import DTYPES

FORMAT = 1
_META, _DATA = "meta/", "data/"
_COUNTS = ("capacity", "begin", "min_trajectory_length")


@dataclass(frozen=True, slots=True, eq=False)
class SavedTrajectories:
    """The steps and trajectories of a `TrajectoryBuffer`, as a file has them."""

    capacity: int
    begin: int  # number of the oldest step
    min_trajectory_length: int
    starts: Ids  # numbers of the steps that begin a trajectory, ascending
    ended: bool  # True if the last trajectory has ended
    data: dict[str, NDArray[Any]]  # for each value of a step, by path, an array ``[N, ...]`` of all ``N`` steps


def write_npz(path: str | os.PathLike[str], saved: SavedTrajectories) -> None:
    """Write a saved `TrajectoryBuffer` to a file. An existing file is replaced only when the disk has the whole new file."""
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    meta = {_META + f.name: np.asarray(getattr(saved, f.name)) for f in fields(saved) if f.name != "data"}
    data = {_DATA + leaf: block for leaf, block in saved.data.items()}
    try:
        with fresh.open("wb") as file:
            np.savez(file, **{_META + "format": np.asarray(FORMAT)}, **meta, **data)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
    except OSError as exc:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise StoreFileError(target, f"cannot be written: {exc.strerror or exc}") from exc


def read_npz(path: str | os.PathLike[str]) -> SavedTrajectories:
    """Read a file that `write_npz` wrote."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = dict(file)
        if int(arrays.pop(_META + "format")) != FORMAT:
            raise ValueError("it has another format")
        counts = {name: int(arrays.pop(_META + name)) for name in _COUNTS}
        ended = bool(arrays.pop(_META + "ended"))
        starts = arrays.pop(_META + "starts").astype(np.int64, casting="safe")
        data = {name.removeprefix(_DATA): block for name, block in arrays.items()}
        saved = SavedTrajectories(**counts, ended=ended, starts=starts, data=data)
        _check(saved)
    except OSError as exc:
        raise StoreFileError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as exc:
        raise StoreFileError(path, f"is not a saved trajectory buffer, or is damaged ({exc!s:.200})") from exc
    return saved


def _check(saved: SavedTrajectories) -> None:
    sizes = {len(block) for block in saved.data.values()}
    if len(sizes) > 1 or max(sizes, default=0) > saved.capacity:
        raise ValueError("its columns differ in length, or are longer than the capacity")
    if saved.begin < 0 or saved.min_trajectory_length < 1 or saved.starts.ndim != 1:
        raise ValueError("its counters are impossible")
    if any(block.dtype.str not in DTYPES for block in saved.data.values()):
        raise ValueError("a column does not hold numbers")
