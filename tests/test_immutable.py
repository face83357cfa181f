"""Classes made by `immutable` behave as dataclasses with ``frozen=True, slots=True``."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from rl4sys_zmq.immutable import immutable, immutable_object


@immutable
class Ours:
    KIND: ClassVar[int] = 7
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)
    secret: bytes = field(default=b"", repr=False)
    ignored: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    KIND: ClassVar[int] = 7
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)
    secret: bytes = field(default=b"", repr=False)
    ignored: int = field(default=0, compare=False)


@immutable
class Doubled:
    a: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", 2 * self.a)


@immutable
class Empty:
    pass


@immutable_object
class Identity:
    a: int


@pytest.mark.parametrize("given", [{"a": 1}, {"a": 1, "b": "x", "c": [3], "secret": b"s", "ignored": 5}])
def test_it_has_the_fields_the_text_and_the_equality_of_a_dataclass(given: dict[str, Any]) -> None:
    ours: Any = Ours(**given)
    theirs: Any = Theirs(**given)
    assert asdict(ours) == asdict(theirs) and [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours") and "secret" not in repr(ours)
    assert ours == Ours(**given) != Ours(**{**given, "a": 2}) and ours == replace(ours, ignored=9)
    assert ours != theirs and Ours.__match_args__ == Theirs.__match_args__ and Ours.KIND == 7


def test_nothing_can_be_changed_added_or_deleted() -> None:
    ours = Ours(1)
    for name in ("a", "new"):
        with pytest.raises(FrozenInstanceError):
            setattr(ours, name, 2)
    with pytest.raises(FrozenInstanceError):
        del ours.a
    assert ours.a == 1 and not hasattr(ours, "__dict__")


def test_wrong_arguments_are_errors_and_defaults_are_not_shared() -> None:
    for call in (lambda: Ours(), lambda: Ours(1, d=2), lambda: Empty(1)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call()
    assert Ours(1).c is not Ours(1).c and Doubled(2).a == 4 and Empty() == Empty()


def test_equal_instances_have_equal_hashes() -> None:
    one, other = Ours(1, c=(1,)), Ours(1, c=(1,), ignored=3)  # type: ignore[arg-type]
    assert hash(one) == hash(other) and len({one, other, Doubled(1), Doubled(1), Empty(), Empty()}) == 3
    first, second = Identity(1), Identity(1)
    assert first != second and len({first, second}) == 2


def test_copies_are_equal() -> None:
    ours = Ours(1, c=[2], secret=b"s")
    for again in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert again == ours and again.secret == b"s"
