"""docs/explanation/wire.md names every message between peers and its fields; its worked example is the golden one.

The messages between a gateway and its workers are described by their docstrings.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire import rpc, trees
from rl4sys_zmq.wire import thread_messages as t

PAGE = Path(__file__).parents[2] / "docs/explanation/wire.md"
IN_PREFIX = {"first_seq", "count", "body", "digests", "checked"}


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


@pytest.mark.parametrize("cls", get_args(m.Message), ids=lambda c: c.__name__)
def test_every_message_is_described(page: str, cls: Any) -> None:
    lines = [line for line in page.splitlines() if line.startswith("|") and f"`{cls.__name__}`" in line]
    if cls is m.Beacon:
        assert any(f"kind {cls.KIND}" in line for line in lines)
    else:
        lines = [line for line in lines if line.startswith(f"| {cls.KIND} ")]
    assert lines
    for f in dataclasses.fields(cls):
        assert f.name in IN_PREFIX or any(re.search(rf"\b{f.name} ", line) for line in lines), f.name


@pytest.mark.parametrize("cls", get_args(t.ThreadMessage), ids=lambda c: c.__name__)
def test_every_message_between_threads_is_described_by_its_docstring(cls: Any) -> None:
    for f in dataclasses.fields(cls):
        assert re.search(rf"^ +(\w+, )*{f.name}(, \w+)*: ", cls.__doc__, re.MULTILINE), f.name


def test_every_dtype_is_described(page: str) -> None:
    assert " ".join(DTYPES) in page


@pytest.mark.parametrize(("kind", "cls"), [(rpc.CALL, rpc.Call), (rpc.REPLY, rpc.Reply), (rpc.PUBLICATION, rpc.Publication)])
def test_every_message_of_services_is_described_in_its_order(page: str, kind: int, cls: Any) -> None:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {kind} | `{cls.__name__}`")]
    places = [line_place.start() for name in cls._fields if (line_place := re.search(rf"\b{name} ", line))]
    assert len(places) == len(cls._fields)
    assert places == sorted(places)


def test_every_form_of_a_tree_is_described(page: str) -> None:
    section = page[page.index("## Calls") : page.index("## Limits")]
    forms = re.findall(r"^    (\{[a-z]: \[.*?\]\}) ", trees.__doc__, re.MULTILINE)
    assert len(forms) == 7
    for form in forms:
        assert f"| `{form}` |" in section


def test_the_worked_example_is_the_golden_one(page: str) -> None:
    golden = json.loads(Path(__file__).with_name("golden.json").read_text())
    example = page[page.index("## A worked example") :]
    (heartbeat,) = golden["Heartbeat"]["frames"]
    for part in (heartbeat[80:96], heartbeat[98:120]):
        assert re.sub(r"(..)(?=.)", r"\1 ", part) in example
    first, body = golden["Submit"]["frames"]
    assert f"{len(first) // 2} and {len(body) // 2} bytes" in example
    for row in range(5):
        assert re.sub(r"(..)(?=.)", r"\1 ", body[row * 32 : row * 32 + 32]) in example
