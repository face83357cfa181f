"""The words of the package and its tests: replaced terms do not come back, and docstrings begin as the style guide requires."""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "rl4sys_zmq").rglob("*.py"))
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)

REPLACED = {
    "crew": "thread pool, LeaderFollowerPool",
    "dice": "rng",
    "feeder": "dispatcher",
    "ledger": "journal",
    "mend": "correct, remedy",
    "roster": "client registry",
    "shelf": "store ingest",
    "tenancy": "environment lease",
    "whoever": "any peer, the caller that",
}
"""Private words, and the standard term for each of them."""

QUESTIONS = ("How", "If", "See", "What", "When", "Where", "Whether", "Which", "Who", "Why")
"""A docstring names a thing, or says in the imperative what a function does. It begins with none of these words."""


def texts(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a module and of everything that it defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


@pytest.mark.parametrize("path", [*MODULES, *SCRIPTS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_replaced_words_do_not_come_back(path: Path) -> None:
    source = path.read_text()
    found = list(texts(source)) if path.suffix == ".py" else list(enumerate(source.splitlines(), 1))
    pattern = re.compile(rf"\b({'|'.join(REPLACED)})s?\b", re.IGNORECASE)
    faults = [(line, match[0], REPLACED[match[1].lower()]) for line, text in found for match in pattern.finditer(text)]
    assert not faults, "each with its line and the term to use"


@pytest.mark.parametrize("path", [*MODULES, *SCRIPTS, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_docstring_names_the_thing_or_says_what_to_do(path: Path) -> None:
    faults = [
        (name, text.splitlines()[0])
        for name, text in docstrings(ast.parse(path.read_text()))
        if text.split(maxsplit=1)[0].rstrip(",:") in QUESTIONS
    ]
    assert not faults


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_a_page_end_before_column_120(path: Path) -> None:
    fenced, faults = False, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith(("```", ":::"))
        if len(line) > 120 and not fenced and not line.startswith("|"):
            faults.append((number, len(line)))
    assert not faults


ENTRY = re.compile(r"^ +((?:[A-Za-z_.]+, )*[A-Za-z_.]+): ", re.MULTILINE)
CLASSES = {node.name for source in MODULES for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("source", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_docstrings_name_exceptions_that_exist(source: Path) -> None:
    unknown = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "Raises:" in (text := ast.get_docstring(node) or ""):
            section = text.split("Raises:", 1)[1].split("\n\n", 1)[0]
            names = {name for line in ENTRY.findall(section) for name in line.split(", ")}
            unknown |= {n for n in names if n.lstrip("_")[:1].isupper() and n not in CLASSES and not hasattr(builtins, n)}
    assert not unknown


NAME = re.compile(r"`(_?[A-Z]\w*[a-z]\w*)[`.(]")
FOREIGN = {
    *("ActionClientEnv", "False", "FrozenDict", "GrayscaleObservation", "None", "ReadWriteOncePod"),
    *("BroadcastServer", "DefaultActionConfig", "GymWrapper", "Producer", "ReqRepServer", "ResizeObservation", "True"),
    "VirtualEnvironment",
}
"""Names on the pages that other libraries or Python define."""


def test_pages_name_classes_that_exist() -> None:
    known = set(FOREIGN)
    for source in [*MODULES, *SCRIPTS, *TESTS]:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef):
                known.add(node.name)
            elif isinstance(node, ast.Name):
                known.add(node.id)
            elif isinstance(node, ast.alias):
                known.add(node.name.rpartition(".")[2])
            elif isinstance(node, ast.Attribute):
                known.add(node.attr)
    pages = [*PAGES, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
    named = {(page.name, name) for page in pages for name in NAME.findall(page.read_text())}
    unknown = sorted((page, name) for page, name in named if name not in known)
    assert not unknown
