"""Operators' commands in a running learner, and the removal of idle clients.

- ``restart``: Start a new learner thread for a client, which continues from the newest checkpoint.
- ``give-up-pending``: The same, but discard the segments accepted after that checkpoint.
- ``forget``: Remove a client with its data.
- ``drop-actor``: Close an actor's session, and release its name.
- ``set``: Change parameters of a client's algorithm.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl4sys_zmq.delivery.journal import JournalPage
from rl4sys_zmq.errors import CheckpointError, ClientFailed, ConfigError, ProtocolError, RefusalReason
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.learner.gateway.parameters import ParameterChanges, change_text
from rl4sys_zmq.learner.gateway.static_check import require_fraction
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.messages import OperatorCommand, OperatorCommandDone

if TYPE_CHECKING:
    from rl4sys_zmq.learner.gateway.core import LearnerCore

log = get_logger(__name__)

RESTART, GIVE_UP, FORGET, DROP_ACTOR, SET = "restart", "give-up-pending", "forget", "drop-actor", "set"
COMMANDS = (RESTART, GIVE_UP, FORGET, DROP_ACTOR, SET)

PARAMETERS_CHANGED = "parameters_changed"
"""The event that parameters of a client have changed. Its field ``by`` is ``operator`` or ``file``."""

FIRST_TOKEN = 1 << 32
"""The lowest token of a read request that only waits for a commit of the journal. Requests for data have lower tokens."""

LAST_ROW = 1 << 62
"""A row number above all rows of the journal. A read after it returns an empty page."""

MAX_RUNNING = 64
"""Largest number of commands in progress."""

NAMED = 10
"""Largest number of names that an error message lists."""

Steps = Generator[Callable[[], bool], None, OperatorCommandDone]
"""A generator that carries out one command. It yields each condition that it waits for, and returns the command's result."""


def set_done(client_id: str, changes: ParameterChanges, values: Mapping[str, Any]) -> OperatorCommandDone:
    """Return the reply to the command ``set``."""
    if not changes:
        return OperatorCommandDone(f"client {client_id} has these values already: {', '.join(values)}", {"changes": {}})
    text = f"client {client_id}: {change_text(changes)}\nin force from the next update on, and after a restart"
    return OperatorCommandDone(text, {"changes": changes})


def unknown_name_error(kind: str, name: str, known: Sequence[str]) -> ConfigError:
    """Return an error for an unknown name of a `kind` such as ``client``, with a list of up to `NAMED` valid names."""
    names = ", ".join(sorted(known)[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
    return ConfigError(f"there is no {kind} {name!r:.80}; known names: {names or 'none'}", key=f"{kind}_id")


@dataclass(slots=True)
class _RunningCommand:
    """An operator's command in progress. Its next step runs when the function `ready` returns True."""

    steps: Steps
    ready: Callable[[], bool]
    future: Future[OperatorCommandDone]


class OperatorCommandExecutor:
    """The executor of operators' commands. The object also removes idle clients. Only the gateway thread uses it.

    A command can wait for the journal or for a learner thread, so it continues over several calls of `turn`.
    """

    def __init__(self, core: LearnerCore) -> None:
        self._core = core
        self._running: list[_RunningCommand] = []
        self._tokens = itertools.count(FIRST_TOKEN)
        self._uncommitted: set[int] = set()

    def do(self, command: OperatorCommand) -> Future[OperatorCommandDone]:
        """Start an operator's command, and return a future for its result."""
        future: Future[OperatorCommandDone] = Future()
        if len(self._running) >= MAX_RUNNING:
            future.set_exception(ProtocolError(RefusalReason.QUOTA, f"{MAX_RUNNING} commands are in progress; try again later"))
            return future
        running = _RunningCommand(self._steps(command), lambda: True, future)
        if self._advance(running):
            self._running.append(running)
        return future

    def turn(self) -> None:
        """Continue each command whose condition has become true. Call this in each turn of the gateway's loop."""
        self._running = [running for running in self._running if not running.ready() or self._advance(running)]

    def on_page(self, page: JournalPage) -> bool:
        """Note that the journal has answered a command's request. Return False if another object requested this page."""
        if page.token < FIRST_TOKEN:
            return False
        self._uncommitted.discard(page.token)
        return True

    def close(self, error: Exception) -> None:
        """Stop all commands in progress. The futures of the commands get this error."""
        for running in self._running:
            running.steps.close()
            running.future.set_exception(error)
        self._running.clear()

    def _advance(self, running: _RunningCommand) -> bool:
        """Run the next step of a command. Return False if it has ended."""
        try:
            running.ready = next(running.steps)
            return True
        except StopIteration as end:
            running.future.set_result(end.value)
        except Exception as exc:  # noqa: BLE001 - handed to the caller
            running.future.set_exception(exc)
        return False

    def _steps(self, command: OperatorCommand) -> Steps:
        match command.command:
            case "restart" | "give-up-pending":
                return (yield from self._restart(command.client_id, give_up_pending=command.command == GIVE_UP))
            case "forget":
                return (yield from self._forget(command.client_id))
            case "drop-actor":
                return (yield from self._drop_actor(command.client_id, command.actor_id))
            case "set":
                return (yield from self._set(command.client_id, command.values))
        raise unknown_name_error("command", command.command, COMMANDS)

    def _until_committed(self, client_id: str) -> Callable[[], bool]:
        """Return a function that is True when the journal has committed all earlier changes of a client."""
        token = next(self._tokens)
        self._uncommitted.add(token)
        self._core.journal.read(client_id, token, LAST_ROW, 1)
        return lambda: token not in self._uncommitted

    def _client(self, client_id: str) -> ClientState:
        client = self._core.registry.get(client_id)
        if client is None:
            raise unknown_name_error("client", client_id, [c.client_id for c in self._core.registry])
        return client

    def _is_gone(self, client: ClientState) -> bool:
        return self._core.registry.get(client.client_id) is not client

    def _restart(self, client_id: str, *, give_up_pending: bool) -> Steps:
        core, client = self._core, self._client(client_id)
        before = client.books.rolled_back
        with core.registry.changing():
            rolled_back = core.registry.restart(client, give_up_pending=give_up_pending)
        core.actor_sessions.close_client_sessions(client, "the client was restarted; send HELLO again")
        core.sink.event("client_restarted", client_id=client_id, rolled_back=rolled_back, gives_up=give_up_pending)
        yield self._until_committed(client_id)
        # A worker that crashes gets a successor, which continues the restart.
        yield lambda: self._is_gone(client) or client.state is LearnerThreadState.FAILED or client.is_caught_up
        if self._is_gone(client):
            raise ConfigError(f"client {client_id!r} was forgotten during its restart", key="client_id")
        if client.state is LearnerThreadState.FAILED:
            raise ClientFailed(client_id, client.error)
        figures = {
            "generation": client.publishing.history.generation,
            "version": max(0, client.publishing.history.version),
            "checkpoint": client.checkpoints.newest.number,
            "fed_again": client.replay.segments,
            "rolled_back": max(0, client.books.rolled_back - before),
        }
        start = f"from checkpoint {figures['checkpoint']}" if figures["checkpoint"] else "without a checkpoint"
        text = (
            f"client {client_id} was restarted {start}, at version {figures['version']} of generation {figures['generation']}\n"
            f"{figures['fed_again']} segments are replayed to it, {figures['rolled_back']} are rolled back"
        )
        return OperatorCommandDone(text, figures)

    def _forget(self, client_id: str) -> Steps:
        core, client = self._core, self._client(client_id)
        figures = {"accepted": client.books.accepted, "pending": client.table.pending, "actors": len(client.table.current())}
        self._detach(client, "an operator removed this client; send HELLO again")
        if client.checkpoints.folder:
            count = core.callbacks.abandon_checkpoints(client_id, client.worker.handles, client.checkpoints.folder)
            yield count.done
            if error := count.exception():
                problem = f"the client could not be forgotten: {error}"
                with core.registry.changing():
                    core.registry.put_back(client, problem)
                raise CheckpointError(client.checkpoints.folder, problem)
            figures["checkpoints"] = count.result()
        core.journal.drop_client(client_id)
        yield self._until_committed(client_id)
        core.registry.release(client)
        core.counters.add("clients_forgotten")
        core.counters.add("segments_forgotten", figures["pending"])
        core.sink.event("client_forgotten", client_id=client_id, **figures)
        log.warning("client %s was forgotten, with %d pending segments", client_id, figures["pending"])
        text = (
            f"client {client_id} is forgotten; {figures['pending']} of its {figures['accepted']} accepted segments were pending "
            f"and are lost\nits {figures['actors']} actors can join again, which creates the client anew; "
            f"{figures.get('checkpoints', 0)} checkpoints were put aside"
        )
        return OperatorCommandDone(text, figures)

    def _drop_actor(self, client_id: str, actor_id: str) -> Steps:
        core, client = self._core, self._client(client_id)
        table = client.table
        streams = [stream for stream in table.all() if stream.actor_id == actor_id]
        if not streams:
            raise unknown_name_error("actor", actor_id, [stream.actor_id for stream in table.current()])
        live = [stream for stream in streams if table.is_live(stream)]
        for stream in live:
            core.actor_sessions.remove_actor(client, stream, "an operator dropped this actor; send HELLO again")
        figures = {"streams": len(streams), "live": len(live), "pending": sum(stream.pending for stream in streams)}
        table.retire(actor_id)
        core.journal.retire_actor(client_id, actor_id)
        core.dispatcher.expire(client, core.callbacks.monotonic())
        yield self._until_committed(client_id)
        core.counters.add("actors_dropped")
        core.sink.event("actor_dropped", client_id=client_id, actor_id=actor_id, **figures)
        was = "it was live and can join again" if live else "its place is free, and it can join with any incarnation"
        text = (
            f"actor {actor_id} of client {client_id} is dropped; {was}\n"
            f"{figures['pending']} of its segments are pending and will be trained on"
        )
        return OperatorCommandDone(text, figures)

    def _set(self, client_id: str, values: Mapping[str, Any]) -> Steps:
        core, client = self._core, self._client(client_id)
        yield lambda: self._is_gone(client) or client.known or client.state is not LearnerThreadState.STARTING
        client = self._client(client_id)  # the algorithm of a new client may have failed
        settings, changes = client.settings.change(values)
        require_fraction(settings.kind, settings.in_force, core.config.client(client_id).demonstrations)
        client.settings = settings
        core.journal.put_client(client.row())
        yield self._until_committed(client_id)
        self._client(client_id).use_parameters()
        if changes:
            core.counters.add("parameters_changed", len(changes))
            core.sink.event(PARAMETERS_CHANGED, client_id=client_id, changes=changes, by="operator")
        return set_done(client_id, changes, values)

    def expire(self, now: float) -> None:
        """Remove the clients without data that were idle for more than `idle_client_s`."""
        for client in self._core.registry:
            if client.is_expendable and now - client.busy_at > self._core.config.idle_client_s:
                self._remove_idle(client, now)

    def make_room(self, now: float) -> None:
        """Remove the client without data that was idle for the longest time, if the number of clients is at its limit."""
        idle = [client for client in self._core.registry if client.is_expendable] if self._core.registry.full else []
        if idle:
            self._remove_idle(min(idle, key=lambda client: client.busy_at), now)

    def _remove_idle(self, client: ClientState, now: float) -> None:
        self._detach(client, "the client was idle and was removed; send HELLO again")  # without a wait: nothing is to be saved
        if client.known:
            self._core.journal.drop_client(client.client_id)
        self._core.registry.release(client)
        self._core.counters.add("clients_expired")
        self._core.sink.event("client_expired", client_id=client.client_id, idle_s=round(now - client.busy_at, 3))

    def _detach(self, client: ClientState, reason: str) -> None:
        """Close the sessions of a client's actors, and end the client's learner thread. The name of the client stays reserved."""
        core = self._core
        with core.registry.changing():
            core.registry.detach(client)
        core.actor_sessions.close_client_sessions(client, reason)
        for peer in client.waiting:
            core.actor_sessions.refuse(peer, RefusalReason.NO_SESSION, reason)
        client.waiting.clear()
        client.checkpoints.give_up("the client was forgotten")
        core.callbacks.forget_policy(client.client_id)
        core.sink.forget(client.client_id)
