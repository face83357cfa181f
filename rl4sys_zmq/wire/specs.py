"""Policy specs as documents for message headers, and back. The blob of a spec (such as an ONNX graph) is sent as the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from rl4sys_zmq.errors import ConfigError, ProtocolError, RefusalReason
from rl4sys_zmq.values import (
    MAX_BLOB_BYTES,
    ColumnSpec,
    PolicySpec,
    TensorSpec,
    observation_space_from,
    space_from,
    space_to_json,
)
from rl4sys_zmq.values.policy import FLOAT32
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.wire.messages import Frame

MAX_TENSORS = 4096
_KEYS = {"observation_space": dict, "action_space": dict, "kind": str, "document": dict, "tensors": list, "columns": list}
_BLOB = "blob"


def spec_to_document(spec: PolicySpec) -> dict[str, Any]:
    """Return a policy spec as a document of JSON values.

    In place of the blob (bytes such as an ONNX graph), the document has the blob's length and digest.
    """
    form: dict[str, Any] = {
        "observation_space": space_to_json(spec.observation_space),
        "action_space": space_to_json(spec.action_space),
        "kind": spec.kind,
        "document": dict(spec.document),
        "tensors": [[t.name, list(t.shape), *_how(t)] for t in spec.tensors],
        "columns": [[c.name, list(c.shape), c.dtype, c.per] for c in spec.columns],
    }
    return {**form, _BLOB: [len(spec.blob), blob_digest(spec.blob)]} if spec.blob else form


def spec_body(spec: PolicySpec) -> tuple[Frame, ...]:
    """Return the body of a message with this policy spec: one frame with the spec's blob, or no frame if the blob is empty."""
    return (spec.blob,) if spec.blob else ()


def blob_digest(blob: Frame) -> str:
    """Return the xxh3-128 of a policy spec's blob, hexadecimal; empty for an empty blob."""
    return xxhash.xxh3_128_hexdigest(blob) if len(blob) else ""


def spec_from_document(form: dict[str, Any], body: Sequence[Frame] = (), held: PolicySpec | None = None) -> PolicySpec:
    """Return the policy spec that a received document and body describe.

    The function that builds the policy checks `PolicySpec.document` and the blob later.

    Args:
        form: The document, as `spec_to_document` returns it.
        body: The body, as `spec_body` returns it.
        held: A spec whose blob is used if the body was left out.

    Raises:
        ProtocolError: If document or body do not have these forms.
    """
    if _BLOB in form and not body and held is not None:
        body = spec_body(held)
    if set(form) - {_BLOB} != set(_KEYS) or any(type(form[k]) is not kind for k, kind in _KEYS.items()):
        raise ProtocolError(RefusalReason.SPEC, f"not a policy spec: {form!r:.120}")
    tensors = tensors_from_document(form["tensors"])
    try:
        return PolicySpec(
            observation_space_from(form["observation_space"]),
            space_from(form["action_space"]),
            form["kind"],
            form["document"],
            tensors,
            blob=_blob(form.get(_BLOB, [0, ""]), body),
            columns=tuple(ColumnSpec(_string(name), _sizes(shape), dtype, per) for name, shape, dtype, per in form["columns"]),
        )
    except (ConfigError, TypeError, ValueError) as exc:
        raise ProtocolError(RefusalReason.SPEC, f"not a policy spec: {exc}") from exc


def tensors_from_document(form: list[Any]) -> tuple[TensorSpec, ...]:
    """Return the tensors of a policy from a list of lists ``[name, shape, dtype, exact]``, whose last two can be left out.

    Raises:
        ProtocolError: If the list does not have this form, or has more than 4096 entries.
    """
    try:
        if len(form) > MAX_TENSORS:
            raise ValueError(f"{len(form)} tensors; the limit is {MAX_TENSORS}")
        return tuple(_tensor(*tensor) for tensor in form)
    except (ConfigError, TypeError, ValueError) as exc:
        raise ProtocolError(RefusalReason.SPEC, f"not a policy spec: {exc}") from exc


def _how(tensor: TensorSpec) -> list[str | bool]:
    if tensor.exact:
        return [tensor.dtype, True]
    return [tensor.dtype] if tensor.dtype != FLOAT32 else []


def _tensor(name: object, shape: object, dtype: object = FLOAT32, exact: object = False) -> TensorSpec:
    if type(exact) is not bool:
        raise TypeError(f"{exact!r:.80} is not true or false")
    return TensorSpec(_string(name), _sizes(shape), _string(dtype), exact)


def _blob(announced: object, body: Sequence[Frame]) -> bytes:
    if type(announced) is not list or list(map(type, announced)) != [int, str]:
        raise TypeError(f"{announced!r:.80} is not the length and the digest of a blob")
    size, digest = announced
    if size > MAX_BLOB_BYTES:
        raise ValueError(f"a blob of {size} bytes; the limit is {MAX_BLOB_BYTES}")
    received = [len(frame) for frame in body]
    if received != ([size] if size else []):
        raise ValueError(f"frames of {received} bytes; expected a blob of {size}")
    if any(blob_digest(frame) != digest for frame in body):
        raise ValueError("the digest of the blob does not match the received bytes")
    return b"".join(body)


def _string(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is not a name")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    if type(value) is not list or len(value) > MAX_DIMENSIONS or any(type(n) is not int or n < 1 for n in value):
        raise TypeError(f"{value!r:.80} is not a list of sizes")
    return tuple(value)
