"""From a description and weights to a policy."""

from __future__ import annotations

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.base import Policy, PolicyFactory
from rl4sys_zmq.policies.categorical import CategoricalPolicy, QValuePolicy
from rl4sys_zmq.policies.gaussian import GaussianPolicy
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["build_policy", "register_policy"]


def build_policy(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """The policy that `spec` describes, over the buffer of `snapshot`; only small derived things are computed.

    Raises:
        ConfigError: when the snapshot has another size than the spec, or nobody registered the spec's kind.
    """
    factory = _FACTORIES.get(spec.kind)
    if factory is None:
        raise ConfigError(f"no policy of kind {spec.kind!r} is registered here; call register_policy first", key="kind")
    return factory(spec, snapshot)


def register_policy(kind: str, factory: PolicyFactory) -> None:
    """Lets `build_policy` build specs of this `kind` with `factory`. Registering the same pair again changes nothing.

    Raises:
        ConfigError: when another factory has the name.
    """
    if _FACTORIES.setdefault(kind, factory) is not factory:
        raise ConfigError(f"a policy of kind {kind!r} is registered already", key="kind")


def _mlp(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    tensors = spec.views(snapshot.flat)
    if spec.head == "gaussian":
        return GaussianPolicy.of(spec, snapshot, tensors)
    if spec.head == "q_values":
        return QValuePolicy.of(spec, snapshot, tensors)
    return CategoricalPolicy.of(spec, snapshot, tensors)


_FACTORIES: dict[str, PolicyFactory] = {"mlp": _mlp}
