"""The registry of policy kinds: built-in ones, ones that a program registers, and ones of installed distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, overload

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import Registry, load_object
from rl4sys_zmq.policies.base import Policy, PolicyFactory
from rl4sys_zmq.policies.column_policy import ColumnPolicy
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["POLICIES", "PolicyEntry", "build_policy", "register_policy", "require_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One kind of policy in the registry.

    Attributes:
        name: The kind, as in `PolicySpec.kind`.
        factory: A function that builds a policy of this kind, or its path ``"package.module:attribute"``, which is imported
            when the first policy is built. It raises ConfigError for a spec that it cannot build, and must not write to the
            snapshot.
        summary: One line of documentation.
        check: Validates a spec of this kind, mainly its document, and raises ConfigError. None accepts any spec. An agent
            calls it when it joins, before it has weights to build a policy from.
    """

    name: str
    factory: PolicyFactory | str
    summary: str = ""
    check: Callable[[PolicySpec], object] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "kind")

    def load(self) -> PolicyFactory:
        """Return the factory. Import it if it is a path.

        Raises:
            ConfigError: If it cannot be imported.
        """
        if not isinstance(self.factory, str):
            return self.factory
        try:
            return cast(PolicyFactory, load_object(self.factory))
        except (ImportError, AttributeError) as exc:
            message = f"policy kind {self.name!r} cannot be loaded from {self.factory} ({exc}): install what it needs"
            raise ConfigError(message, key="kind") from exc


POLICIES = Registry(
    PolicyEntry,
    {"mlp": "rl4sys_zmq.policies.mlp:ENTRY"},
    noun="policy kind",
    group="rl4sys_zmq.policies",
    key="kind",
)
"""The registry of all kinds. To add one to this package, add a module with its entry, and a line here."""


@overload
def register_policy(entry: PolicyEntry, /) -> None: ...


@overload
def register_policy(kind: str, factory: PolicyFactory, /) -> None: ...


def register_policy(entry: PolicyEntry | str, factory: PolicyFactory | None = None, /) -> None:
    """Make a kind of policy available in this process. Registering the same entry again changes nothing.

    Args:
        entry: The entry, or the name of the kind.
        factory: With a name, the function that builds a policy from a `PolicySpec` and a `PolicySnapshot`.

    Raises:
        ConfigError: If the name is already registered, if `entry` is a name and there is no `factory`, or if `entry` is an entry
            and there is a `factory`.
    """
    if isinstance(entry, str) and factory is not None:
        entry = PolicyEntry(name=entry, factory=factory)
    elif isinstance(entry, str) or factory is not None:
        raise ConfigError("register_policy expects a PolicyEntry alone, or a kind and a factory", key="kind")
    POLICIES.add(entry, replace=False)


def require_policy(kind: str) -> PolicyEntry:
    """Return the entry of a kind.

    Raises:
        ConfigError: If this process does not have it. The message has the remedies.
    """
    if not POLICIES.has(kind):
        raise ConfigError(
            f"the policy kind {kind!r} is not registered in this process (registered: {', '.join(POLICIES.names())}); install "
            "the distribution that has it, name its module in plugins (--plugin MODULE), or call register_policy before the "
            "agent is created",
            key="kind",
        )
    return POLICIES.get(kind)


def build_policy(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that `spec` describes, over the buffer of `snapshot`. The weights are not copied.

    Raises:
        ConfigError: If the snapshot and the spec differ in size, the kind is not registered in this process, or the spec has
            extra columns and the policy records none, or the reverse.
    """
    policy = require_policy(spec.kind).load()(spec, snapshot)
    if isinstance(policy, ColumnPolicy) != bool(spec.columns):
        names = ", ".join(column.name for column in spec.columns)
        problem = f"does not record the extra columns {names}" if names else "records extra columns, and its spec has none"
        expected = "the policy must be a ColumnPolicy exactly if PolicySpec.columns is not empty"
        raise ConfigError(f"a policy of kind {spec.kind!r} {problem}; {expected}", key="columns")
    return policy
