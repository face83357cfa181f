"""The kinds of policies by name: what ships, what a program registers, and what installed distributions bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, overload

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import Registry, load_object
from rl4sys_zmq.policies.base import Policy, PolicyFactory
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["POLICIES", "PolicyEntry", "build_policy", "register_policy", "require_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One kind of policy as the registry holds it.

    Attributes:
        name: the kind, as `PolicySpec.kind` has it.
        factory: builds a policy of this kind, or ``"package.module:attribute"`` of what does, which is imported when the first
            is built. It raises ConfigError for a spec that it cannot build, and must not write to the snapshot.
        summary: one line of documentation.
        check: validates a spec of this kind, its document above all, and raises ConfigError; None: any will do. An agent calls
            it when it joins, before there are weights to build a policy from.
    """

    name: str
    factory: PolicyFactory | str
    summary: str = ""
    check: Callable[[PolicySpec], object] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "kind")

    def load(self) -> PolicyFactory:
        """Return the factory; a string is imported now.

        Raises:
            ConfigError: when it cannot be imported.
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
"""All kinds. To add one to this package: a module with its entry, and its line here."""


@overload
def register_policy(entry: PolicyEntry, /) -> None: ...


@overload
def register_policy(kind: str, factory: PolicyFactory, /) -> None: ...


def register_policy(entry: PolicyEntry | str, factory: PolicyFactory | None = None, /) -> None:
    """Make a kind of policy available in this process; registering the same again changes nothing.

    Args:
        entry: everything about it; or the kind.
        factory: with a kind, what builds a policy from a `PolicySpec` and a `PolicySnapshot`.

    Raises:
        ConfigError: when the kind is taken; when a kind is given without a factory, or an entry with one.
    """
    if isinstance(entry, str) and factory is not None:
        entry = PolicyEntry(name=entry, factory=factory)
    elif isinstance(entry, str) or factory is not None:
        raise ConfigError("register_policy takes a PolicyEntry, or a kind and a factory", key="kind")
    POLICIES.add(entry, replace=False)


def require_policy(kind: str) -> PolicyEntry:
    """Return the entry of a kind.

    Raises:
        ConfigError: when this process lacks it; the message says how it gets it.
    """
    if not POLICIES.has(kind):
        raise ConfigError(
            f"this process lacks the policy kind {kind!r} (it has: {', '.join(POLICIES.names())}); install the distribution that "
            "brings it, name its module in plugins (--plugin MODULE), or call register_policy before the agent is made",
            key="kind",
        )
    return POLICIES.get(kind)


def build_policy(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that `spec` describes, over the buffer of `snapshot`; only small derived things are computed.

    Raises:
        ConfigError: when the snapshot has another size than the spec, or the kind is not registered here.
    """
    return require_policy(spec.kind).load()(spec, snapshot)
