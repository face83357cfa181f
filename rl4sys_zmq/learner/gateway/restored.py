"""The settings of a client saved by an earlier run, compared with the values in the learner's configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl4sys_zmq.config import ClientConfig, LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway.admission import SPACES, ClientSettings, resolve_settings
from rl4sys_zmq.learner.gateway.parameters import (
    LEARNING_KEYS,
    ParameterChanges,
    algorithm_parameters,
    by_name,
    change_text,
    changes_between,
    effective_parameters,
    merged,
    parameters_shown,
)
from rl4sys_zmq.learner.registry import ALGORITHMS, AlgorithmEntry
from rl4sys_zmq.learner.registry.like import LIKE
from rl4sys_zmq.wire.messages import Hello

GIVEN_UP = "given_up"
"""The key of the saved settings that is true if an operator has given up segments while no learner ran."""

SAVED_FIELDS = ("algorithm_name", *SPACES, "weights")
"""The saved settings that a HELLO has in the same form. `resolve_settings` reads both."""

ANOTHER = "give the client another name, or start another run with --resume never"


@dataclass(frozen=True, slots=True)
class RestoredClient:
    """A client from an earlier run.

    Attributes:
        settings: The settings of the client from this start on.
        changes: The parameters that this start changes, because the learner's file has new values.
        kept: The parameters that this start does not change although the learner's file has other values, by name: a list
            ``[value in force, value in the file]``.
    """

    settings: ClientSettings
    changes: ParameterChanges
    kept: ParameterChanges

    def notes(self) -> list[str]:
        """Return up to two lines for the operator about `changes` and `kept`."""
        name = self.settings.client_id
        lines = [f"client {name}: {change_text(self.changes)} (the learner's file)"] if self.changes else []
        if self.kept:
            differing = ", ".join(
                f"{key} {ours!r} (the learner's file has {theirs!r})" for key, (ours, theirs) in self.kept.items()
            )
            lines.append(
                f"client {name} keeps {differing}; a new value in the client's entry changes it, or "
                f"rl4sys-learner client ADDRESS {name} set"
            )
        return lines


def restore_configuration(config: LearnerConfig, client_id: str, known: Mapping[str, Any]) -> RestoredClient:
    """Return the settings with which a client continues after a restart of the learner.

    The client's entry in the configuration takes precedence over the saved settings (`known`), and these over the learner's
    defaults. There is an exception: if the entry's value of a parameter is the same as at the last start, the saved value
    applies, because an operator can have changed it since.
    """
    entry = config.clients.get(client_id, ClientConfig())
    spaces = {key: read(known[key]) for key, read in SPACES.items()}
    for key, value in {"algorithm_name": known["algorithm_name"], **spaces}.items():
        ours = getattr(entry, key)
        if ours is not None and ours != value:
            raise ConfigError(
                f"{key} of client {client_id!r} is {ours!r} in the configuration, but {value!r} in the run directory; {ANOTHER}",
                key=key,
            )
    kind = ALGORITHMS.get(known["algorithm_name"])
    own = {key: value for key, value in entry.algorithm_parameters.items() if key in (*LEARNING_KEYS, "seed")}
    earlier = known["file_parameters"]
    before = merged(kind, known["parameters"], known["changed"])
    like = entry.algorithm_parameters.get(LIKE, before.get(LIKE))
    of_file = by_name(kind, {key: value for key, value in entry.algorithm_parameters.items() if key not in own}, like)
    saved = by_name(kind, before, like)
    edited = {name: value for name, value in of_file.items() if earlier.get(name, saved.get(name)) != value}
    defaults = replace(config, algorithms={})  # the section `algorithms` applies to new clients only
    given = {**known["parameters"], "seed": known["seed"]}
    hello = Hello(client_id, "", 0, 0, 0, 0, algorithm_parameters=given, **{key: known[key] for key in SAVED_FIELDS})
    settings = resolve_settings(defaults, hello, replace(entry, algorithm_parameters=own))
    settings = replace(
        settings,
        algorithm_type=entry.type or known["algorithm_type"],
        changed=merged(kind, known["changed"], edited, like=like),
        file_parameters={**earlier, **of_file},
    )
    try:
        after = effective_parameters(kind, settings.in_force)
    except ConfigError as exc:
        if edited:
            raise ConfigError(f"client {client_id!r}: {exc}", key=exc.key) from exc
        return RestoredClient(settings, {}, {})  # the learner thread will report it
    changes = changes_between(parameters_shown(kind, before), after)
    _check_policy(kind, settings, before, changes)
    shown = after if like is None else by_name(kind, settings.in_force, like)
    in_force = {**shown, **{key: getattr(settings, key) for key in LEARNING_KEYS}}
    of_entry = {key: value for key in LEARNING_KEYS if (value := getattr(entry, key)) is not None}
    in_file = {**by_name(kind, config.algorithms.get(settings.algorithm_name, {}), like), **of_file, **own, **of_entry}
    kept = {name: [in_force[name], value] for name, value in in_file.items() if in_force.get(name, value) != value}
    return RestoredClient(settings, changes, kept)


def _check_policy(kind: AlgorithmEntry, settings: ClientSettings, before: Mapping[str, Any], changes: ParameterChanges) -> None:
    """Check that the changed parameters describe the same policy as before."""
    fixed = {name: pair for name, pair in changes.items() if name not in kind.changeable}
    if not fixed:
        return
    spaces = settings.observation_space, settings.action_space
    was, now = (kind.planned(*spaces, algorithm_parameters(values)) for values in (before, settings.in_force))
    if was != now:
        raise ConfigError(
            f"{change_text(fixed)} of client {settings.client_id!r} makes another policy, with which the saved state cannot be "
            f"used; restore the earlier value, {ANOTHER}",
            key=f"algorithm_parameters.{next(iter(fixed))}",
        )
