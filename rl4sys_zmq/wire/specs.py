"""Policy specs as header documents."""

from __future__ import annotations

from typing import Any

from rl4sys_zmq.errors import ConfigError, ProtocolError, Refusal
from rl4sys_zmq.values import ColumnSpec, PolicySpec, TensorSpec, observation_space_from, space_from, space_to_json

__all__ = ["spec_from_document", "spec_to_document"]

MAX_DIMENSIONS = 8
MAX_TENSORS = 4096
_KEYS = {"observation_space": dict, "action_space": dict, "kind": str, "document": dict, "tensors": list, "columns": list}


def spec_to_document(spec: PolicySpec) -> dict[str, Any]:
    """Return the form in which a policy spec travels."""
    return {
        "observation_space": space_to_json(spec.observation_space),
        "action_space": space_to_json(spec.action_space),
        "kind": spec.kind,
        "document": dict(spec.document),
        "tensors": [[t.name, list(t.shape)] for t in spec.tensors],
        "columns": [[c.name, list(c.shape), c.dtype, c.per] for c in spec.columns],
    }


def spec_from_document(form: dict[str, Any]) -> PolicySpec:
    """Read the form that `spec_to_document` returns. The policy kind checks the inner document later.

    Raises:
        ProtocolError: If the form is not exactly this one.
    """
    if set(form) != set(_KEYS) or any(type(form[k]) is not kind for k, kind in _KEYS.items()):
        raise ProtocolError(Refusal.SPEC, f"not a policy spec: {form!r:.120}")
    try:
        if len(form["tensors"]) > MAX_TENSORS:
            raise ValueError(f"{len(form['tensors'])} tensors; the limit is {MAX_TENSORS}")
        tensors = tuple(TensorSpec(_string(name), _sizes(shape, MAX_DIMENSIONS)) for name, shape in form["tensors"])
        columns = tuple(
            ColumnSpec(_string(name), _sizes(shape, MAX_DIMENSIONS), dtype, per) for name, shape, dtype, per in form["columns"]
        )
        spaces = observation_space_from(form["observation_space"]), space_from(form["action_space"])
        return PolicySpec(*spaces, form["kind"], form["document"], tensors, columns)
    except (ConfigError, TypeError, ValueError) as exc:
        raise ProtocolError(Refusal.SPEC, f"not a policy spec: {exc}") from exc


def _string(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is not a name")
    return value


def _sizes(value: object, at_most: int) -> tuple[int, ...]:
    if type(value) is not list or len(value) > at_most or any(type(n) is not int or n < 1 for n in value):
        raise TypeError(f"{value!r:.80} is not a list of sizes")
    return tuple(value)
