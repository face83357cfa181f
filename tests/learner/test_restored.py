"""The settings with which a client continues, made from its saved settings and from the learner's file."""

from __future__ import annotations

from typing import Any

import pytest

from rl4sys_zmq.config import ClientConfig, LearnerConfig
from rl4sys_zmq.learner.admission import ClientSettings, resolve_configuration
from rl4sys_zmq.learner.restored import RestoredClient, restore_configuration
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire.messages import Hello


def hello(**given: Any) -> Hello:
    """Return the HELLO of an actor of the client ``lab``."""
    spaces = {"observation_space": space_to_json(BoxSpace((4,))), "action_space": space_to_json(DiscreteSpace(2))}
    return Hello("lab", "a1", 0, 0, 0, 0, **{"algorithm_name": "PPO", **spaces, **given})


def resumed(before: ClientSettings, **options: Any) -> RestoredClient:
    """Return the client after a restart of the learner with these options."""
    return restore_configuration(LearnerConfig(**options), "lab", before.to_json())


@pytest.mark.parametrize("entries", [{}, {"lab": ClientConfig(engine="thread")}], ids=["of an actor", "of the file"])
def test_the_section_algorithms_changes_no_client_that_exists(entries: dict[str, ClientConfig]) -> None:
    before = resolve_configuration(LearnerConfig(clients=entries), hello())
    again = resumed(before, clients=entries, algorithms={"PPO": {"gamma": 0.5, "hidden_sizes": [8]}})
    assert not {"gamma", "hidden_sizes"} & again.settings.in_force.keys() and again.changes == {}
    assert again.kept == {"gamma": [0.99, 0.5], "hidden_sizes": [None, [8]]}
    assert again.notes()[0].startswith("client lab keeps gamma 0.99 (the learner's file has 0.5), ")


def test_the_section_algorithms_stays_in_force_where_it_was() -> None:
    section = {"PPO": {"gamma": 0.5}}
    before = resolve_configuration(LearnerConfig(algorithms=section), hello())
    for now in (section, {}):
        again = resumed(before, algorithms=now)
        assert again.settings.in_force["gamma"] == 0.5 and again.notes() == []


def test_new_values_in_the_entry_are_taken() -> None:
    before = resolve_configuration(LearnerConfig(), hello())
    again = resumed(
        before, algorithms={"PPO": {"gamma": 0.5}}, clients={"lab": ClientConfig(algorithm_parameters={"gamma": 0.7})}
    )
    assert again.settings.in_force["gamma"] == 0.7 and again.changes == {"gamma": [0.99, 0.7]} and again.kept == {}
