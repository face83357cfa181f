"""The base class of loggers that show each client of a learner as a run of its own."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from rl4sys_zmq.learner.run.history import GONE
from rl4sys_zmq.learner.run.log_files import CLIENT_READY
from rl4sys_zmq.learner.run.run_loggers import RunInfo

R = TypeVar("R")
PROJECT = "rl4sys"


class ClientRuns(ABC, Generic[R]):
    """A `RunLogger` with one run ``RUN/CLIENT`` for each client. ``R`` is the service's type of a run.

    Events without a client are left out.
    """

    def open(self, run: RunInfo) -> None:
        self._info = run
        self._runs: dict[str, R] = {}

    def scalars(self, client_id: str, step: int, values: Mapping[str, float], at_unix_s: float) -> None:
        self._log(self._run(client_id), step, values, at_unix_s)

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        client_id = fields.get("client_id")
        if not isinstance(client_id, str) or (client_id not in self._runs and name != CLIENT_READY):
            return
        run = self._run(client_id)
        if name == CLIENT_READY:
            self._configure(run, {"algorithm": fields["algorithm"], **fields["parameters"]})
        elif name == "parameters_changed":
            self._configure(run, {key: new for key, (_, new) in fields["changes"].items()})
        self._note(run, f"events/{name}", json.dumps({k: v for k, v in fields.items() if k != "client_id"}, default=str))
        if name in GONE:
            self._finish(self._runs.pop(client_id))

    def artefact(self, client_id: str, path: Path, at_unix_s: float) -> None:
        self._keep(self._run(client_id), path)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each is finished, also after an error
            while self._runs:
                stack.callback(self._finish, self._runs.popitem()[1])

    def _run(self, client_id: str) -> R:
        if client_id not in self._runs:
            self._runs[client_id] = self._begin(client_id, f"{self._info.name}/{client_id}")
        return self._runs[client_id]

    @abstractmethod
    def _begin(self, client_id: str, title: str) -> R:
        """Begin the run of a client, or continue it after a restart."""

    @abstractmethod
    def _configure(self, run: R, values: Mapping[str, Any]) -> None:
        """Record parameters of the algorithm: all of them, or those that have changed."""

    @abstractmethod
    def _log(self, run: R, step: int, values: Mapping[str, float], at_unix_s: float) -> None: ...

    @abstractmethod
    def _note(self, run: R, name: str, text: str) -> None: ...

    @abstractmethod
    def _keep(self, run: R, path: Path) -> None: ...

    @abstractmethod
    def _finish(self, run: R) -> None: ...
