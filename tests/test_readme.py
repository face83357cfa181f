"""The README and the how-to pages run: each Python block and each command unchanged, on a port of its own."""

import importlib
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from docs.player import play
from kit import free_port, python_blocks

ROOT = Path(__file__).parents[1]
LIMIT_S = 100.0


def blocks(name: str) -> list[str]:
    return python_blocks(ROOT / name)


def block_with(name: str, words: str) -> str:
    found = [b for b in blocks(name) if words in b]
    assert len(found) == 1, f"{len(found)} blocks of {name} have {words!r}"
    return found[0]


@pytest.fixture
def port() -> int:
    return free_port()


def execute(code: str, port: int, **names: Any) -> dict[str, Any]:
    namespace = {"__name__": "document", **names}
    exec(compile(code.replace("50051", str(port)), "document", "exec"), namespace)
    return namespace


def test_the_readmes_actor_and_learner_work_together(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    actor, learner = block_with("README.md", "room_c"), block_with("README.md", "runs/house")
    assert "30_001" in actor and "version=75" in learner
    actor, learner = actor.replace("30_001", "8_001"), learner.replace("version=75", "version=20")  # the same, a quarter as long
    assert len(actor.splitlines()) <= 15
    assert len(learner.splitlines()) <= 10
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(execute, learner, port)
        execute(actor, port)
        serving.result(LIMIT_S)
    assert re.search(r"version \d+ mean return -\d", capsys.readouterr().out)
    assert {p.name for p in (tmp_path / "runs/house").iterdir()} >= {"config.json", "log.jsonl", "tensorboard"}


def run_tests_of(document: str) -> int:
    count = 0
    for block in blocks(document):
        if "def test_" not in block:
            continue
        names = execute(block, 0)
        for name in [n for n in names if n.startswith("test_")]:
            names[name]()
            count += 1
    return count


@pytest.mark.parametrize(("document", "count"), [("howto/extend.md", 2), ("howto/testing.md", 1)])
def test_the_documents_tests_pass(document: str, count: int) -> None:
    assert run_tests_of(f"docs/{document}") == count


def test_the_engine_of_the_page_is_a_valid_entry() -> None:
    (block,) = blocks("docs/howto/engines.md")
    entry = execute(block, 0)["ENTRY"]
    assert entry.name == "mine" and {"start", "wait_ready", "close"} <= set(dir(entry.factory))


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_python_block_is_python() -> None:
    for page in pages():
        for block in blocks(str(page)):
            compile(block, str(page), "exec")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_links_between_documents_lead_somewhere() -> None:
    """The site's build checks the pages of docs, anchors included; this also checks the others, and needs no Sphinx."""
    for document in [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document} links to {target}"


def test_no_document_has_a_mark_of_an_unfinished_merge() -> None:
    for document in [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]:
        assert not re.search(r"^(<{7}|={7}$|>{7})", document.read_text(), re.MULTILINE), document


@pytest.mark.timeout(300)
def test_the_readmes_commands_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    played = play(ROOT / "README.md", tmp_path)
    assert "target reached" in played.output
    assert re.search(r"^keys +ok", played.output, re.MULTILINE)


def inline_commands() -> list[tuple[str, str]]:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
    found = [(page.name, span) for page in documents for span in re.findall(r"`([^`\n]+)`", page.read_text())]
    return [(name, span) for name, span in found if re.match(r"(rl4sys-(learner|actor)|make) \w", span)]


@pytest.mark.parametrize(("page", "command"), inline_commands())
def test_commands_within_the_text_exist(page: str, command: str) -> None:
    program, name, *options = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{name}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        return
    group = importlib.import_module(f"rl4sys_zmq.cli.{program.removeprefix('rl4sys-')}").main
    found = group.commands[name]
    try:
        found.make_context(name, options)
    except click.MissingParameter:  # the text names the command without its arguments
        assert not options


def test_make_demo_is_the_demo() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: venv .*\n\t\$\(VENV\)/bin/rl4sys-learner demo ", makefile, re.MULTILINE)


ALONE: dict[str, tuple[str, ...]] = {"docs/reference/bandit.md": (), "docs/howto/demonstrations.md": ("gymnasium",)}
"""Pages whose blocks need no learner, with the packages that they need beside an actor's."""

EXECUTED = {
    *ALONE,  # test_the_blocks_of_a_page_run
    "README.md",
    *("docs/howto/embed.md", "docs/howto/inference.md", "docs/howto/action.md"),  # tests/docs/test_howto.py
    *("docs/howto/extend.md", "docs/howto/testing.md"),  # run_tests_of
    "docs/howto/deploy.md",  # tests/docs/test_tutorials.py
    "docs/howto/engines.md",  # test_the_engine_of_the_page_is_a_valid_entry
    "docs/howto/libraries.md",  # tests/docs/test_howto.py
    "docs/howto/loggers.md",  # tests/docs/test_loggers.py
    "docs/howto/train.md",  # tests/docs/test_howto.py
    "docs/howto/plugins.md",  # tests/cli/test_plugins.py
    "docs/reference/networks.md",  # tests/algorithms/test_network_kinds.py
    *("docs/howto/environments.md", "docs/howto/migration_multiserverrl.md"),  # tests/serving/test_environments.py
    "docs/howto/serving_data.md",  # tests/serving/test_pages.py
    *(f"docs/tutorials/{name}.md" for name in ("first_policy", "embed", "trainer")),  # tests/docs/test_tutorials.py
}
NOT_EXECUTED = {
    "docs/howto/migration_agentlace.md": "one of its blocks imports agentlace, to show what changes",
    "docs/howto/spaces.md": "its block is one line of a host's loop",
}


def test_every_page_with_python_is_executed() -> None:
    with_blocks = {page.relative_to(ROOT).as_posix() for page in pages() if blocks(str(page))}
    assert with_blocks == EXECUTED | set(NOT_EXECUTED)


@pytest.mark.parametrize("page", ALONE)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ALONE[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
