"""The reference pages list every option, code, command, key and counter that the code has."""

import ast
import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rl4sys_zmq
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.config import (
    AlarmsConfig,
    ClientConfig,
    DemonstrationsConfig,
    EvaluationConfig,
    LearnerConfig,
    RelayConfig,
    RelayRule,
    ResourcesConfig,
)
from rl4sys_zmq.config.section import WeightsConfig
from rl4sys_zmq.errors import CallRefusalReason, RefusalReason
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = Path(rl4sys_zmq.__file__).parent

sys.path.insert(0, str(DOCS / "_ext"))
tables: Any = importlib.import_module("tables")

COUNTS_BY_VARIABLE = {
    ("actor/segments.py", "reason"),
    ("learner/run/record_thread.py", "counter"),
    ("serving/trainer_client.py", "name"),
}
"""Places that count under a name from the caller. The literals of the callers are found separately."""


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "reference/metrics.md").read_text()


def listed(page: str, heading: str = "") -> set[str]:
    """Return the names in the first column of the tables, of one section or of the whole page."""
    section = re.split(r"^#+ ", page.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0] if heading else page
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def counted() -> Iterator[tuple[str, str]]:
    """Yield each place that increases a counter: the file, and the counter's name, with ``*`` for its variable parts."""
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith("testing/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner = ast.unparse(node.func.value)
                if (node.func.attr == "add" and re.search(r"(counters|dropped)$", owner)) or node.func.attr == "_count":
                    for name in names(node.args[0]):
                        if (where, name) not in COUNTS_BY_VARIABLE:
                            yield where, name


def names(expression: ast.expr) -> Iterator[str]:
    match expression:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=other):
            yield from names(body)
            yield from names(other)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
        case _:
            yield ast.unparse(expression)


def test_every_counter_is_on_the_page(page: str) -> None:
    known = listed(page)
    found = list(counted())
    assert len(found) > 100
    for where, name in found:
        fits = re.compile(re.escape(name).replace(r"\*", r"[\w.]+"))
        assert any(fits.fullmatch(entry) for entry in known), f"{where} counts {name!r}, which docs/reference/metrics.md lacks"


def test_every_training_figure_is_on_the_page(page: str) -> None:
    known = listed(page, "## Training figures")
    found = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"(charts|dist|eval|losses)/\w+", node.value)
    }
    assert found == known


def test_every_key_of_status_and_stats_is_on_the_page(page: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    register_algorithm("PAGE", FakeAlgorithm.factory(steps_per_update=8))
    address = f"ipc://{tmp_path}/learner"
    config = AgentConfig(
        client_id="page", algorithm_name="PAGE", input_size=2, act_dim=2, train_server_address=address, spool=tmp_path / "spool"
    )
    with Learner(LearnerConfig(bind=address, run_dir=tmp_path / "run")) as learner, RL4SysAgent(config=config) as agent:
        traj: Any = None
        for _ in range(8):
            traj, action = agent.request_for_action(traj, [0.0, 1.0])
            agent.add_to_trajectory(traj, action)
            action.update_reward(1.0)
        agent.mark_end_of_trajectory(traj, action)
        agent.wait_version(1, timeout_s=20)
        stats, status = agent.stats(), learner.status()
    client = status["clients"]["page"]
    (actor,) = client["actors"].values()
    assert set(status) == listed(page, "## The learner")
    assert set(client) == listed(page, "### Clients")
    assert set(actor) == listed(page, "### Actors of a client")
    assert set(status["journal"]) == listed(page, "### The journal")
    assert set(stats) == listed(page, "## An actor")
    assert set(stats["spool"]) <= listed(page, "### The spool")


def test_every_exported_figure_is_on_the_page(page: str) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra web)")
    from rl4sys_zmq.web.metrics import FIGURES

    assert "```{generated} figures rl4sys_zmq.web.metrics:FIGURES\n```" in page
    made = tables.generate("figures", "rl4sys_zmq.web.metrics:FIGURES")
    assert "| `rl4sys_segments_accepted_total` | counter | `learner`, `client` | Segments acknowledged |" in made
    assert len(made.splitlines()) == 2 + sum(len(figures) for _, figures in FIGURES)


@pytest.mark.parametrize(
    "cls",
    [
        AgentConfig,
        AlarmsConfig,
        ClientConfig,
        DemonstrationsConfig,
        EvaluationConfig,
        LearnerConfig,
        RelayConfig,
        RelayRule,
        ResourcesConfig,
        WeightsConfig,
    ],
    ids=lambda cls: cls.__name__,
)
def test_every_option_has_a_row_with_what_it_accepts(cls: type[Any]) -> None:
    page = (DOCS / "reference/configuration.md").read_text()
    assert f"{{generated}} options {cls.__module__ if cls is WeightsConfig else 'rl4sys_zmq.config'}:{cls.__name__}\n" in page
    rows = {row.split("`")[1]: row.split(" | ") for row in tables.options(cls).splitlines()[2:]}
    assert set(rows) == {f.name for f in dataclasses.fields(cls) if f.name != "ignored"}
    for name, (_, accepts, meaning) in rows.items():
        assert re.search(r"..<br>(default .|required)", accepts) and len(meaning) > 5, name


def test_the_page_of_refusals_has_every_code() -> None:
    page = (DOCS / "reference/refusals.md").read_text()
    for cls in (RefusalReason, CallRefusalReason):
        assert f"{{generated}} codes rl4sys_zmq.errors:{cls.__name__}\n" in page
        assert len(tables.codes(cls).splitlines()) == len(cls) + 2


def test_every_algorithm_of_a_library_is_on_its_page_with_its_parameters() -> None:
    page = (DOCS / "reference/library_algorithms.md").read_text()
    for entry in (ALGORITHMS.get(name) for name in ALGORITHMS.names() if name.count(":") == 1):
        assert f"`{entry.name}`" in page and entry.parameters is not None
        assert f"{{generated}} parameters {entry.parameters.__module__}:{entry.parameters.__name__}\n" in page
        assert len(tables.parameters(entry.parameters).splitlines()) > 10


def test_every_table_of_another_library_is_on_a_page() -> None:
    text = "".join((DOCS / f"reference/{name}.md").read_text() for name in ("algorithms", "actor_critics"))
    for entry in map(ALGORITHMS.get, ALGORITHMS.names()):
        if not getattr(entry.parameters, "libraries", {}):
            continue
        assert entry.parameters is not None
        where = f"{entry.parameters.__module__}:{entry.parameters.__name__}"
        assert f"```{{generated}} like {where}\n```" in text
        made = tables.generate("like", where)
        for key, library in entry.parameters.libraries.items():
            assert f"**`like: {key}`** ({library.title})" in made
            for name in library.names:
                assert f"| `{name}` | " in made
    made = tables.generate("like", "rl4sys_zmq.algorithms.onpolicy.ppo_parameters:PPOParameters")
    assert (
        "| `n_epochs` | `10` | `update_epochs` |  |" in made
        and "| `n_steps` | `2048` | `steps_per_update`, `rollout_length` |" in made
    )


def test_every_command_has_a_section() -> None:
    from rl4sys_zmq.cli import actor, learner

    for group in (learner.main, actor.main):
        text = tables.commands(group)
        paths = [path for path, _ in tables.command_paths(group, group.name)]
        assert len(paths) >= 2
        for path in paths:
            assert f"## {path}\n" in text


def test_every_exit_code_is_on_the_page() -> None:
    from rl4sys_zmq.cli.app import ALARMS, FAILED, USAGE
    from rl4sys_zmq.cli.signals import INTERRUPTED

    page = (DOCS / "reference/exit_codes.md").read_text()
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == [str(code) for code in (0, FAILED, USAGE, ALARMS, INTERRUPTED)]


@pytest.mark.parametrize("module", tables.PUBLIC)
def test_every_public_name_is_in_the_python_reference(module: str) -> None:
    pytest.importorskip("torch")
    pages = "".join(path.read_text() for path in (DOCS / "reference/api").glob("*.md"))
    assert f"{{generated}} api {module}\n" in pages
    text = tables.api(module)
    for name in importlib.import_module(module).__all__:
        assert name.startswith("__") or re.search(rf"\b{name}\b", text), name


def test_the_table_of_action_masks_is_that_of_the_registry() -> None:
    text = (DOCS / "reference/algorithms.md").read_text()
    said = {
        row[0]: set(row[1].replace("`", "").split(", ")) for row in re.findall(r"^\| (yes|no) \| (.*) \|$", text, re.MULTILINE)
    }
    built_in = [ALGORITHMS.get(name) for name in ALGORITHMS._shipped]
    assert said == {
        "yes": {entry.name for entry in built_in if entry.takes_masks is True},
        "no": {entry.name for entry in built_in if entry.takes_masks is False},
    }
    assert not [entry.name for entry in built_in if entry.takes_masks is None]
