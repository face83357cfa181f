"""Operators' commands on the files of a learner that is not running."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import ClientRow, JournalPage
from rl4sys_zmq.errors import ConfigError, JournalError, RunDirectoryError
from rl4sys_zmq.learner.gateway.operator import (
    COMMANDS,
    DROP_ACTOR,
    FORGET,
    GIVE_UP,
    LAST_ROW,
    PARAMETERS_CHANGED,
    RESTART,
    SET,
    set_done,
    unknown_name_error,
)
from rl4sys_zmq.learner.gateway.restored import GIVEN_UP, restore_configuration
from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest, CheckpointStore
from rl4sys_zmq.learner.run.resume import CHECKPOINTS, JOURNAL, newest_manifest, open_journal
from rl4sys_zmq.learner.run.stored_policies import BestPolicyFolder
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire.messages import OperatorCommand, OperatorCommandDone

COMMIT_S = 30.0
LOOK_S = 0.1
PAGE_BYTES = 16 << 20


def command_on_directory(run_dir: Path, command: OperatorCommand) -> OperatorCommandDone:
    """Carry out an operator's command on a run directory, and return the result. The change is then on the disk."""
    if command.command == RESTART:
        raise ConfigError(
            f"no learner runs on {run_dir}, so there is nothing to restart; start a learner on this directory instead, which "
            "continues every client from its newest checkpoint",
            key="command",
        )
    if command.command not in COMMANDS:
        raise unknown_name_error("command", command.command, COMMANDS)
    with _OfflineCommandExecutor(run_dir) as executor:
        done = executor.carry_out(command)
    _note(run_dir, command, done)
    return done


class _OfflineCommandExecutor(Resource):
    """The executor of operators' commands while no learner runs. The open journal keeps a learner from starting."""

    def __init__(self, run_dir: Path) -> None:
        if not (run_dir / JOURNAL).is_file():
            raise RunDirectoryError(f"{run_dir} is not a run directory: it has no {JOURNAL}; give a run directory or an address")
        self._run_dir, self._wakeup = run_dir, threading.Event()
        try:
            journal, restored = open_journal(LearnerConfig(run_dir=run_dir, fsync="always"), self._wakeup.set)
        except JournalError as exc:
            raise ConfigError(
                f"{exc}; if a learner runs on this directory, give the learner's address instead", key="address"
            ) from exc
        assert isinstance(journal, DiskJournal) and restored is not None  # since there is a run directory
        self._journal, self._restored = journal, restored

    def close(self) -> None:
        self._journal.stop()
        self._journal.join()

    def carry_out(self, command: OperatorCommand) -> OperatorCommandDone:
        client_id = command.client_id
        row = next((row for row in self._restored.clients if row.client_id == client_id), None)
        if row is None:
            raise unknown_name_error("client", client_id, [row.client_id for row in self._restored.clients])
        if command.command == SET:
            return self._set(row, command.values)
        store = CheckpointStore(self._run_dir / CHECKPOINTS / folder_name(client_id))
        newest = newest_manifest(store)
        streams = [s for s in self._restored.streams if s.client_id == client_id]
        if command.command == DROP_ACTOR:
            of_actor = [s for s in streams if s.actor_id == command.actor_id]
            if not of_actor:
                raise unknown_name_error("actor", command.actor_id, [s.actor_id for s in streams])
            figures = {"streams": len(of_actor), "pending": self._pending(client_id, newest, command.actor_id)}
            self._journal.retire_actor(client_id, command.actor_id)
            text = (
                f"actor {command.actor_id} of client {client_id} is dropped; it can join with any incarnation\n"
                f"{figures['pending']} of its segments are pending and will be trained on"
            )
        elif command.command == GIVE_UP:
            figures = {"given_up": self._pending(client_id, newest), "checkpoint": newest.number if newest is not None else 0}
            self._journal.drop_entries(client_id)
            self._journal.put_client(replace(row, settings={**row.settings, GIVEN_UP: True}))
            since = f"since checkpoint {figures['checkpoint']}" if newest is not None else "so far (there is no checkpoint)"
            text = (
                f"{figures['given_up']} segments that client {client_id} accepted {since} are given up\n"
                "the next start counts them as rolled back"
            )
        else:
            figures = {"accepted": row.accepted, "pending": self._pending(client_id, newest)}
            figures["actors"] = len({s.actor_id for s in streams})
            figures["checkpoints"] = len(store.abandon_after(0))
            self._abandon_best(client_id)
            self._journal.drop_client(client_id)
            text = (
                f"client {client_id} is forgotten; {figures['pending']} of its {figures['accepted']} accepted segments were "
                f"pending and are lost\n{figures['checkpoints']} checkpoints were put aside"
            )
        self._ask(client_id, LAST_ROW)
        return OperatorCommandDone(text, figures)

    def _set(self, row: ClientRow, values: Mapping[str, Any]) -> OperatorCommandDone:
        config = LearnerConfig(engine="process")  # nothing is trained here: any engine does that all algorithms can have
        settings, changes = restore_configuration(config, row.client_id, row.settings).settings.change(values)
        self._journal.put_client(replace(row, settings={**row.settings, **settings.to_json()}))
        self._ask(row.client_id, LAST_ROW)
        return set_done(row.client_id, changes, values)

    def _abandon_best(self, client_id: str) -> None:
        best = BestPolicyFolder(self._run_dir, client_id)
        try:
            best.abandon()
        except OSError as exc:
            raise RunDirectoryError(
                f"{best.policy} cannot be renamed: {exc.strerror}; the client is not forgotten: give yourself the right to "
                "write to the folder above it, and repeat the command"
            ) from exc

    def _pending(self, client_id: str, newest: CheckpointManifest | None, actor_id: str | None = None) -> int:
        """Return how many accepted segments of a client, or of one of its actors, are not in its newest checkpoint."""
        ours = newest is not None and newest.journal_id == self._restored.journal_id
        marks = {(m.actor_id, m.origin): m.next_seq for m in newest.marks} if newest is not None and ours else {}
        count, after, more = 0, 0, True
        while more:
            page = self._ask(client_id, after)
            for entry in page.entries:
                if actor_id in (None, entry.actor_id):
                    mark = marks.get((entry.actor_id, entry.origin), 0)
                    beyond = entry.end_seq - max(entry.first_seq, mark)
                    count += max(0, beyond - (entry.refused if mark <= entry.first_seq else 0))
            after, more = page.last_row, page.more
        return count

    def _ask(self, client_id: str, after_row: int) -> JournalPage:
        """Read a page of a client's entries in the journal. All earlier changes are then on the disk."""
        self._journal.read(client_id, 1, after_row, PAGE_BYTES)
        deadline = time.monotonic() + COMMIT_S
        while True:
            self._wakeup.wait(LOOK_S)
            self._wakeup.clear()
            for page in self._journal.committed():
                if isinstance(page, JournalPage):
                    return page
            self._journal.raise_if_dead()
            if time.monotonic() >= deadline:
                problem = self._journal.state().error or f"it did not answer within {COMMIT_S:g} s"
                raise JournalError(str(self._run_dir / JOURNAL), problem, "free space on its disk, and check its permissions")


def _note(run_dir: Path, command: OperatorCommand, done: OperatorCommandDone) -> None:
    """Append the event of a command to the run's log."""
    names = {GIVE_UP: "given_up", FORGET: "client_forgotten", DROP_ACTOR: "actor_dropped", SET: PARAMETERS_CHANGED}
    actor = {"actor_id": command.actor_id} if command.actor_id else {}
    event = {"t": round(time.time(), 3), "event": names[command.command], "client_id": command.client_id, **actor, **done.figures}
    try:
        with (run_dir / "log.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
    except OSError as exc:
        raise RunDirectoryError(f"the command is done, but {run_dir}/log.jsonl cannot be written: {exc.strerror}") from exc
