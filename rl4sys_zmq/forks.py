"""The functions that objects call in a forked child, such as one that gives up the lock of a file of the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_calls: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def call_in_child(owner: T, call: Callable[[T], None]) -> None:
    """Call `call` with `owner` in each child that this process forks from now on, as long as `owner` exists.

    Use a function that does not refer to `owner`, such as a method of its class. An owner has one such function.
    """
    _calls[owner] = call


def _call_all() -> None:
    for owner, call in list(_calls.items()):
        call(owner)


os.register_at_fork(after_in_child=_call_all)
