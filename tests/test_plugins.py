"""Registries: the sources of entries, their precedence, and a broken entry, which fails alone."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit import open_agent, raising

from rl4sys_zmq import AgentConfig, RL4SysAgent, plugins
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.cli.learner import main as learner_command
from rl4sys_zmq.config.options import number, option
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import AlgorithmEntry, Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.gateway.static_check import check_buildable
from rl4sys_zmq.plugins import Registry, import_plugins
from rl4sys_zmq.policies import POLICIES, PolicyEntry, register_policy
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space, TensorSpec


@dataclass(frozen=True)
class Thing:
    name: str
    note: str = ""


SHIPPED = Thing("SHIPPED")
OUTSIDE = Thing("outside")
MISNAMED = Thing("other")
HERE = "thing_module"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry[Thing]:
    """Return a registry of one shipped entry and six entry points: one works, two have taken names, and three are broken."""
    loads: list[str] = []

    def load(point: EntryPoint) -> Any:
        loads.append(point.name)
        if point.value == "raises:X":
            raise RuntimeError("no good")
        return {"outside:X": OUTSIDE, "misnamed:X": MISNAMED, "wrong:X": 5, "second:X": Thing("OUTSIDE")}[point.value]

    points = [
        EntryPoint("outside", "outside:X", "things"),
        EntryPoint("Outside", "second:X", "things"),
        EntryPoint("shipped", "outside:X", "things"),
        EntryPoint("raises", "raises:X", "things"),
        EntryPoint("wrong", "wrong:X", "things"),
        EntryPoint("misnamed", "misnamed:X", "things"),
    ]
    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "things" else [])
    monkeypatch.setattr("rl4sys_zmq.plugins.load_object", lambda target: SHIPPED)
    made = Registry(Thing, {"SHIPPED": "a:B"}, noun="thing", group="things", key="thing", fold=str.upper)
    made.loads = loads  # type: ignore[attr-defined]
    return made


def test_entries_come_from_three_places_and_are_loaded_once(registry: Registry[Thing]) -> None:
    assert registry.names() == ["MISNAMED", "OUTSIDE", "RAISES", "SHIPPED", "WRONG"]
    assert registry.loads == []  # type: ignore[attr-defined]
    assert registry.get("shipped") is SHIPPED
    assert registry.get("Outside") is registry.get("OUTSIDE") is OUTSIDE
    assert registry.loads == ["outside"]  # type: ignore[attr-defined]
    mine = Thing("mine")
    registry.add(mine, replace=False)
    registry.add(mine, replace=False)
    assert registry.get("MINE") is mine
    with pytest.raises(ConfigError, match="'MINE' is registered already"):
        registry.add(Thing("Mine", "another"), replace=False)
    with pytest.raises(ConfigError, match="'SHIPPED' is registered already"):
        registry.add(Thing("shipped"), replace=False)
    registry.add(Thing("shipped", "mine"), replace=True)
    assert registry.get("SHIPPED").note == "mine"


def test_what_is_broken_fails_alone_and_is_listed(registry: Registry[Thing]) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"'RAISES' cannot be loaded .*RuntimeError: no good; repair or uninstall"):
            registry.get("raises")
    assert registry.loads == ["raises"]  # type: ignore[attr-defined]
    faults = registry.faults()
    assert registry.faults() == faults
    assert len(faults) == 5
    for words in (
        "'SHIPPED' of",
        "'OUTSIDE' of",
        "'RAISES' cannot",
        "it is a int, not a Thing",
        "its entry has the name 'other'",
    ):
        assert any(words in fault for fault in faults), words
    assert registry.get("outside") is OUTSIDE
    with pytest.raises(ConfigError, match=r"unknown thing 'outsid'; valid: .*did you mean 'OUTSIDE'"):
        registry.get("outsid")


def test_a_registration_is_an_entry_or_a_name_with_a_factory() -> None:
    for register, entry in (
        (register_algorithm, AlgorithmEntry(name="X", factory=FakeAlgorithm.factory())),
        (register_policy, PolicyEntry(name="x", factory="a:b")),
    ):
        with pytest.raises(ConfigError):
            register("X")  # type: ignore[call-overload]
        with pytest.raises(ConfigError):
            register(entry, len)  # type: ignore[call-overload]
    for name in ("", "a/b", " a"):
        with pytest.raises(ConfigError):
            AlgorithmEntry(name=name, factory="a:b")
        with pytest.raises(ConfigError):
            PolicyEntry(name=name, factory="a:b")


def test_an_entry_whose_factory_cannot_be_imported_says_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm X cannot be loaded from unknown_name_error:X .*: pip install 'rl4sys-zmq\[learner\]'"
    ):
        AlgorithmEntry(name="X", factory="unknown_name_error:X", extra="learner").load()
    with pytest.raises(ConfigError, match="policy kind 'x' cannot be loaded from unknown_name_error:X"):
        PolicyEntry(name="x", factory="unknown_name_error:X").load()


def test_configurations_name_plugins(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{HERE}.py").write_text(
        "from rl4sys_zmq.learner import register_algorithm\nfrom rl4sys_zmq.testing import FakeAlgorithm\n"
        "register_algorithm('FROM_A_PLUGIN', FakeAlgorithm.factory())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_imported", {})  # so that later learners of this process do not import it
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None, plugins=[HERE])):  # type: ignore[arg-type]
        assert ALGORITHMS.has("from_a_plugin")
    for bad in (5, [5], ["a-b"], ["a..b"], [""]):
        with pytest.raises(ConfigError, match="plugins: expected a list of Python modules"):
            LearnerConfig(plugins=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="plugin 'no_such_module' cannot be imported: ModuleNotFoundError"):
        RL4SysAgent(config=AgentConfig(client_id="a", plugins=["no_such_module"]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"add its folder to PYTHONPATH$"):
        import_plugins(["no_such_module"])


def test_a_plugin_where_python_does_not_look_is_found_for_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/aside_by_file.py").touch()
    (tmp_path / "aside_by_folder").mkdir()
    (tmp_path / "actor.json").write_text('{"client_id": "a", "plugins": ["aside_by_folder.inner"]}')
    with pytest.raises(ConfigError, match=r"folder of beside/aside_by_file: start with PYTHONPATH=beside$"):
        import_plugins(["aside_by_file"], "beside/learner.yaml")
    with pytest.raises(ConfigError, match=r"folder of aside_by_folder: start with PYTHONPATH=.$"):
        RL4SysAgent("actor.json")
    for given in ("beside/aside_by_file.py", "beside/aside_by_file"):
        with pytest.raises(ConfigError, match=r"give the module's name, aside_by_file, and start with PYTHONPATH=beside$"):
            import_plugins([given])


@dataclass(frozen=True)
class _Refusing:
    rate: float = option(number(0.0, 10.0), 1.0, doc="a number that the plug-in checks itself")

    def __post_init__(self) -> None:
        if self.rate > 5.0:
            raise ValueError("a rate above 5")


def _raising(*_: object) -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("entry", "rate", "said"),
    [
        ({"parameters": _Refusing, "plan": _raising}, 7.0, "RAISING refuses its parameters: ValueError: a rate above 5"),
        ({"parameters": _Refusing, "plan": _raising}, 1.0, "RAISING cannot plan its policy: KeyError: 'lost'"),
        ({}, 1.0, "RAISING cannot be built: KeyError: 'lost'"),
    ],
)
def test_an_exception_of_a_plugin_is_one_line_of_config_check(
    entry: dict[str, Any], rate: float, said: str, tmp_path: Path
) -> None:
    register_algorithm(AlgorithmEntry(name="RAISING", factory=_raising, **entry))
    box, actions = {"type": "Box", "shape": [2]}, {"type": "Discrete", "n": 2}
    given = {"algorithm_name": "RAISING", "algorithm_parameters": {"rate": rate}}
    client = {**given, "observation_space": box, "action_space": actions}
    (tmp_path / "learner.json").write_text(json.dumps({"clients": {"x": client}}))
    found = CliRunner().invoke(learner_command, ["config", "check", str(tmp_path / "learner.json")])
    assert (found.exit_code, len(found.output.splitlines())) == (2, 1), found.output
    assert f"clients.x: {said}" in found.output or f"clients.x.algorithm_parameters: {said}" in found.output
    if entry:
        with pytest.raises(ConfigError, match=re.escape(said.partition(": ")[2])):
            check_buildable(LearnerConfig.from_mapping({"clients": {"x": client}}))


def _odd(observations: ObservationSpace, actions: Space, parameters: object, seed: int) -> FakeAlgorithm:
    return FakeAlgorithm(PolicySpec(observations, actions, "odd-kind", {}, (TensorSpec("w", (1,)),)), FakeParameters(), seed)


def test_a_kind_that_the_actor_lacks_ends_its_constructor_at_once() -> None:
    register_algorithm("ODD", _odd)
    assert not POLICIES.has("odd-kind")
    words = r"the policy kind 'odd-kind' is not registered in this process \(registered: .*layers"
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner, raising(ConfigError, words, key="kind"):
        open_agent(learner, linger_ms=5_000, algorithm_name="ODD")


def test_a_learner_without_inference_ends_the_constructor_of_an_actor_that_asks_it() -> None:
    register_algorithm("PLAIN", FakeAlgorithm.factory())
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner:
        assert learner.inference_address == ""
        assert learner.status()["inference"] == {}
        with raising(ConfigError, key="inference"):
            open_agent(learner, linger_ms=5_000, algorithm_name="PLAIN", inference="remote")


@pytest.mark.parametrize("threads", [None, 1])
def test_torchs_threads_are_the_programs_unless_the_learner_is_told(threads: int | None) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found: list[int] = []
        fake = FakeAlgorithm.factory()

        def make(*given: Any) -> FakeAlgorithm:
            found.append(torch.get_num_threads())
            return fake(*given)

        register_algorithm("THREADS", make)
        with Learner(LearnerConfig(bind="inproc://*", run_dir=None, torch_threads=threads)) as learner:
            open_agent(learner, linger_ms=5_000, algorithm_name="THREADS").close()
        assert found == [threads or 2]
    finally:
        torch.set_num_threads(before)
