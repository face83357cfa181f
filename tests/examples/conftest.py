"""Fixtures for the tests of programs."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

Call = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs the `main` of a module with arguments, and returns its exit code, stdout and stderr."""

    def run(module: Any, *words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
        return module.main(), *capsys.readouterr()

    return run
