"""The settings with which a client continues, made from its saved settings and from the learner's file."""

from typing import Any

import pytest

from rl4sys_zmq import plugins
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.config import ClientConfig, LearnerConfig, WeightsConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway.admission import ClientSettings, require_match, resolve_configuration
from rl4sys_zmq.learner.gateway.restored import RestoredClient, restore_configuration
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


OWN: dict[str, Any] = {"max_policy_lag": 64, "on_lag": "correct", "pacing_lag": 2, "publish_every_updates": 10}
"""Values of the learner's own options."""


def test_the_learners_own_options_apply_after_a_resume() -> None:
    before = resolve_configuration(LearnerConfig(max_policy_lag=4, pacing_lag=0, publish_every_updates=1), hello())
    for options, expected in (
        (OWN, OWN),
        ({}, {"max_policy_lag": None, "on_lag": "drop", "pacing_lag": None, "publish_every_updates": None}),
    ):
        settings = resumed(before, **options, weights=WeightsConfig(wire_dtype="bf16")).settings
        assert {name: getattr(settings, name) for name in OWN} == expected
        assert settings.weights == WeightsConfig(wire_dtype="bf16", level="auto")
        before = settings


@pytest.mark.parametrize("by_actor", [True, False], ids=["actor", "entry"])
def test_what_an_actor_or_the_entry_sets_comes_before_the_learners_own_options(by_actor: bool) -> None:
    given: dict[str, Any] = {"max_policy_lag": 3, "on_lag": "drop", "pacing_lag": 5, "publish_every_updates": 7}
    theirs = hello(algorithm_parameters=given, weights={"wire_dtype": "grid"}) if by_actor else hello()
    entries = {} if by_actor else {"lab": ClientConfig(**given, weights=WeightsConfig(wire_dtype="grid"))}
    settings = resolve_configuration(LearnerConfig(clients=entries), theirs)
    for _ in range(2):
        again = resumed(settings, clients=entries, **OWN, weights=WeightsConfig(wire_dtype="bf16", level=0))
        settings = again.settings
        assert {name: getattr(settings, name) for name in OWN} == given
        assert settings.weights == WeightsConfig(wire_dtype="grid", level=0)
        assert again.notes() == []


def test_an_option_in_the_section_algorithms_that_has_no_effect_is_said() -> None:
    before = resolve_configuration(LearnerConfig(), hello())
    section = {"PPO": {"on_lag": "correct", "pacing_lag": 2}}
    again = resumed(before, algorithms=section, clients={"lab": ClientConfig(pacing_lag=3)})
    assert again.settings.on_lag == "drop" and again.kept == {"on_lag": ["drop", "correct"]}


@pytest.mark.parametrize("name", ["sb3:this:Class", "SB3:this:Class", "sb3:os:path"])
def test_only_the_configuration_names_a_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_object", lambda target: pytest.fail(f"{target} was imported"))
    known = len(ALGORITHMS._entries)
    with pytest.raises(ConfigError, match="only the learner's configuration can name a class") as caught:
        resolve_configuration(LearnerConfig(engine="process"), hello(algorithm_name=name))
    assert caught.value.key == "algorithm_name" and len(ALGORITHMS._entries) == known, "nothing is kept for a refused name"


@pytest.mark.parametrize(
    "options",
    [
        {"default_algorithm": "sb3:own_module:Class"},
        {"algorithms": {"sb3:own_module:Class": {}}},
        {"clients": {"other": ClientConfig(algorithm_name="sb3:own_module:Class")}},
    ],
)
def test_an_actor_can_choose_a_class_that_the_configuration_names(options: dict[str, Any]) -> None:
    import_entry = pytest.importorskip("rl4sys_zmq.algorithms.libraries.sb3_entries")
    settings = resolve_configuration(LearnerConfig(engine="process", **options), hello(algorithm_name="sb3:own_module:Class"))
    assert settings.kind.parameters is import_entry.UserClassParameters


def test_a_client_that_is_like_a_library_continues_with_its_values() -> None:
    given = {"like": "sb3", "n_steps": 64, "vf_coef": 0.25, "n_epochs": 4}
    entries = {"lab": ClientConfig(algorithm_parameters=given)}
    before = resolve_configuration(LearnerConfig(clients=entries), hello(algorithm_parameters={"like": "sb3", "n_epochs": 4}))
    again = resumed(before, clients=entries)
    assert (
        {key: again.settings.in_force[key] for key in given} == given
        and again.changes == {}
        and again.kept == {}
        and again.notes() == []
    )
    changed, changes = before.change({"vf_coef": 0.5, "clip_range": 0.1})
    assert changes == {"vf_coef": [0.5, 1.0], "clip_coef": [0.2, 0.1]}
    kept = resumed(changed, clients=entries)
    assert kept.settings.in_force["vf_coef"] == 0.5 and kept.kept == {"vf_coef": [0.5, 0.25]}
    edited = resumed(changed, clients={"lab": ClientConfig(algorithm_parameters={**given, "vf_coef": 1.0})})
    assert edited.changes == {"vf_coef": [1.0, 2.0]}
    last, changes = changed.change({"clip_coef": 0.3, "update_epochs": 8})  # our names replace those of the library
    assert changes == {"clip_coef": [0.1, 0.3], "update_epochs": [4, 8]}
    again = resumed(last, clients=entries)
    assert (again.settings.in_force["clip_coef"], again.changes) == (0.3, {})
    assert last.change({"clip_range": "lin_0.2", "total_timesteps": 9})[1]["clip_coef"] == [0.3, 0.2]


def test_an_actor_with_another_value_of_a_library_is_refused() -> None:
    given = {"like": "sb3", "n_steps": 64}
    settings = resolve_configuration(LearnerConfig(), hello(algorithm_parameters=given))
    require_match(settings, hello(algorithm_parameters=given))
    for other in ({**given, "n_steps": 32}, {**given, "like": "cleanrl"}):
        with pytest.raises(ConfigError, match="on the learner, but the actor has"):
            require_match(settings, hello(algorithm_parameters=other))
