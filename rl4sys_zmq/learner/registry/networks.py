"""The registry of kinds of networks, and the parameter ``network``, which names a kind. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rl4sys_zmq.config.options import InvalidValue, mapping, parse_options
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.learner.registry.network_entry import NetworkChoice, NetworkEntry, PolicyRequirements
from rl4sys_zmq.plugins import Registry
from rl4sys_zmq.values import PolicySpec

NETWORKS = Registry(
    NetworkEntry,
    {
        "cnn": "rl4sys_zmq.algorithms.networks.cnn:ENTRY",
        "gru": "rl4sys_zmq.algorithms.networks.gru:ENTRY",
        "mlp": "rl4sys_zmq.algorithms.networks.mlp:ENTRY",
    },
    noun="network kind",
    group="rl4sys_zmq.networks",
    key="kind",
    fold=str.lower,
)
"""The registry of all kinds of networks. To add one to this package, write a module with its entry, and add its path here."""


@runtime_checkable
class NetworkParameters(Protocol):
    """The interface of an algorithm's parameters that choose a network."""

    @property
    def network_forms(self) -> tuple[str, ...]:
        """The forms of networks that the algorithm trains (`NetworkEntry.serves`)."""

    def chosen_network(self) -> NetworkChoice:
        """Return the kind of network and its options."""


_TRAINERS = {
    "onpolicy": "on-policy algorithms such as PPO",
    "offpolicy": "replay algorithms such as SAC",
    "sequences": "replay algorithms with sequences such as DQN",
}
"""The algorithms that train each form of networks, for error messages."""


def register_network(entry: NetworkEntry) -> None:
    """Make a kind of network available to the parameters of algorithms in this process.

    A second call with the same entry changes nothing.

    Raises:
        ConfigError: If another kind has the name.
    """
    NETWORKS.add(entry, replace=False)


def network_names(*forms: str) -> list[str]:
    """Return the names of the kinds with one of these forms (`NetworkEntry.serves`), sorted; not those that cannot be loaded."""
    return [name for name, entry in NETWORKS.loadable() if entry.serves(*forms)]


def network_option(value: object) -> dict[str, object]:
    """Check the value of the parameter ``network``, and return it as a dict: the name of the kind as ``kind``, and its options.

    A text stands for a kind with the defaults of its options. Options that are not given are not added.

    Raises:
        InvalidValue: If the value is neither a text nor a mapping with a ``kind``.
        ConfigError: If the kind is unknown, or an option is unknown or has an invalid value.
    """
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise InvalidValue("a kind of network such as mlp, or a mapping with the kind and its options, such as {kind: mlp}")
    options = mapping(value)
    entry = NETWORKS.get(str(options.pop("kind")))
    _options(entry, options)
    return {"kind": entry.name, **options}


def choose_network(
    network: Mapping[str, object] | None, short: Mapping[str, object | None], defaults: Mapping[str, object] | None = None
) -> NetworkChoice:
    """Return the network that the parameters of an algorithm choose.

    Args:
        network: The parameter ``network``, as `network_option` returns it; None for an MLP.
        short: Parameters that abbreviate options of an MLP, such as ``hidden_sizes``: values by name, None if not given.
        defaults: The algorithm's own defaults of options of an MLP; None for those of `MLPOptions`.

    Raises:
        ConfigError: If `network` and `short` have different values of one option, or if `short` has a value and the network is
            not an MLP.
    """
    given = dict(network or {"kind": "mlp"})
    entry = NETWORKS.get(str(given.pop("kind")))
    options = _options(entry, given)
    for name, value in short.items():
        if value is None:
            continue
        if entry.name != "mlp":
            raise parameter_error(
                name,
                f"{_text(value)} describes an MLP, but network has the kind {entry.name!r}; give the options of that kind "
                "inside network",
            )
        if options.setdefault(name, value) != value:
            raise parameter_error(
                name, f"{_text(value)} contradicts network.{name}, which is {_text(options[name])}; give one of them"
            )
    if entry.name == "mlp":
        options = {**(defaults or {}), **options}
    return NetworkChoice(entry, entry.options(**options))


def plan_policy(choice: NetworkChoice, requirements: PolicyRequirements, *forms: str) -> PolicySpec:
    """Return the specification of the policy of an algorithm with a chosen network.

    Args:
        choice: The network.
        requirements: The requirements of the algorithm.
        forms: The forms of networks that the algorithm can train (`NetworkEntry.serves`).

    Raises:
        ConfigError: If the algorithm cannot train the network, or the network does not fit the spaces.
    """
    check_trainable(choice, requirements.algorithm, *forms)
    return choice.entry.plan(choice.options, requirements)


def check_trainable(choice: NetworkChoice, algorithm: str, *forms: str) -> None:
    """Check that an algorithm that trains these `forms` of networks can train the chosen network.

    Raises:
        ConfigError: If the algorithm cannot train the network.
    """
    entry = choice.entry
    if entry.serves(*forms):
        return
    others = " and ".join(algorithms for form, algorithms in _TRAINERS.items() if entry.serves(form))
    raise parameter_error(
        "network",
        f"{algorithm} cannot train a network of kind {entry.name!r}; it can train "
        f"{', '.join(network_names(*forms))}" + (f"; {others} can train it" if others else ""),
    )


def _options(entry: NetworkEntry, given: Mapping[str, object]) -> dict[str, Any]:
    return dict(parse_options(entry.options, given, problem=f"a network of kind {entry.name!r} has no such option"))


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
