"""The registry of policy kinds, which maps the name of a kind, such as ``layers``, to the function that builds such policies.

A kind can be built in, registered by the program, or provided by an installed distribution (entry point).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import Policy
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import Registry, load_factory
from rl4sys_zmq.policies.base import PolicyFactory
from rl4sys_zmq.policies.column_policy import ExtraColumnPolicy
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.arrays import without_float_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One kind of policy, such as ``layers``, in the registry of kinds.

    Attributes:
        name: The name of the kind, as in `PolicySpec.kind`.
        factory: The function that builds a policy of this kind, or the function's path ``"package.module:attribute"``. A path
            is imported when a policy is built. The function raises ConfigError for a spec from which it cannot build a policy.
            It must not write to the `PolicySnapshot` that it gets.
        summary: One line of documentation.
        check: A function that validates a spec of this kind and raises ConfigError. None accepts any spec. An agent calls it
            in the handshake, before it has the weights.
    """

    name: str
    factory: PolicyFactory | str
    summary: str = ""
    check: Callable[[PolicySpec], object] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "kind")

    def load(self) -> PolicyFactory:
        """Return the factory function. If `factory` is a path, import the function.

        Raises:
            ConfigError: If the function cannot be imported.
        """
        return load_factory(self.factory, f"policy kind {self.name!r}", "kind")


POLICIES = Registry(
    PolicyEntry,
    {
        "layers": "rl4sys_zmq.policies.layer_policy:ENTRY",
        "linear_bandit": "rl4sys_zmq.policies.linear_bandit:ENTRY",
        "onnx": "rl4sys_zmq.policies.onnx_policy:ENTRY",
    },
    noun="policy kind",
    group="rl4sys_zmq.policies",
    key="kind",
)
"""The registry of all policy kinds. To add a built-in kind, add a module with its `PolicyEntry`, and a line to this dict."""


@overload
def register_policy(entry: PolicyEntry, /) -> None: ...


@overload
def register_policy(kind: str, factory: PolicyFactory, /) -> None: ...


def register_policy(entry: PolicyEntry | str, factory: PolicyFactory | None = None, /) -> None:
    """Make a kind of policy available in this process. A second call with the same entry changes nothing.

    Args:
        entry: A `PolicyEntry`, or the name of the kind.
        factory: Only with a name: the function that builds a policy from a `PolicySpec` and a `PolicySnapshot`.

    Raises:
        ConfigError: If the name is already registered for another entry, if a name is given without a factory, or if a
            `PolicyEntry` is given with a factory.
    """
    if isinstance(entry, str) and factory is not None:
        entry = PolicyEntry(name=entry, factory=factory)
    elif isinstance(entry, str) or factory is not None:
        raise ConfigError("register_policy expects a PolicyEntry alone, or a kind and a factory", key="kind")
    POLICIES.add(entry, replace=False)


def require_policy(kind: str) -> PolicyEntry:
    """Return the registry entry of a kind of policy.

    Args:
        kind: The name of the kind.

    Raises:
        ConfigError: If the kind is not registered in this process. The message names the remedies.
    """
    if not POLICIES.has(kind):
        raise ConfigError(
            f"the policy kind {kind!r} is not registered in this process (registered: {', '.join(POLICIES.names())}); install "
            "the distribution that has it, name its module in plugins (--plugin MODULE), or call register_policy before the "
            "agent is created",
            key="kind",
        )
    return POLICIES.get(kind)


@without_float_errors
def build_policy(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that `spec` describes, with the weights in `snapshot`. The policy can use views of the weights.

    Args:
        spec: The description of the policy.
        snapshot: The weights.

    Raises:
        ConfigError: If the kind is not registered in this process, if a package that the kind needs is not installed, if the
            snapshot and the spec differ in size, if the spec has extra columns and the policy is not an `ExtraColumnPolicy`, or
            the reverse.
    """
    policy = require_policy(spec.kind).load()(spec, snapshot)
    if isinstance(policy, ExtraColumnPolicy) != bool(spec.columns):
        names = ", ".join(column.name for column in spec.columns)
        problem = f"does not record the extra columns {names}" if names else "records extra columns, and its spec has none"
        expected = "the policy must be an ExtraColumnPolicy exactly if PolicySpec.columns is not empty"
        raise ConfigError(f"a policy of kind {spec.kind!r} {problem}; {expected}", key="columns")
    return policy
