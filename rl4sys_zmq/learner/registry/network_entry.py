"""The description of a kind of network, and the requirements of an algorithm for its policy. This module imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.layer import Layer
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import load_factory
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec, Space

if TYPE_CHECKING:
    from torch import nn

    from rl4sys_zmq.algorithms.networks.interface import ActorCriticNetwork, ReplayNetwork, SequenceNetwork

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequirements:
    """The requirements of an algorithm for the policy that it trains.

    Attributes:
        algorithm: The name of the algorithm, for error messages.
        observation_space: The space of the policy's observations.
        action_space: The space of the policy's actions.
        head: The meaning of the network's outputs.
        normalise_observations: True if the policy standardises observations by the tensors ``obs_mean`` and ``obs_scale``.
    """

    algorithm: str
    observation_space: ObservationSpace
    action_space: Space
    head: HeadParameters
    normalise_observations: bool = False


NetworkPlan = Callable[[Any, PolicyRequirements], PolicySpec]
"""A callable that returns the specification of a policy of a kind: ``plan(options, requirements) -> PolicySpec``.

The options are an instance of `NetworkEntry.options`. It builds no network, and raises ConfigError if the kind does not fit the
spaces.
"""

ActorCriticFactory = Callable[[Any, PolicySpec], "ActorCriticNetwork"]
"""A callable that builds the networks of an actor-critic: ``factory(options, spec) -> ActorCriticNetwork``.

The specification is that of the plan. All parameters are zero.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShape:
    """The numbers of inputs and outputs of the networks of a replay algorithm, such as DQN or SAC.

    Attributes:
        outputs: The number of outputs of each network, by its index. Network 0 has the most.
        actions: The number of elements of an action that each network gets beside an observation; 0 for no action.
        extras: The number of parameters that follow those of the layers of network 0.
    """

    outputs: tuple[int, ...]
    actions: int = 0
    extras: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The hidden layers of all networks of an algorithm. A dense layer with the outputs follows in each network.

    Attributes:
        shared: The first layers, which all networks share.
        own: Further layers. Each network of a replay algorithm has its own. Their inputs are the outputs of the shared layers,
            and the action. In an actor-critic with `values`, policy and values share them, too.
        values: The hidden layers of the value network of an actor-critic, which follow the layers of the policy. None for a
            separate value network with the same layers as the policy.
        normalises: False if observations are never standardised, whatever the algorithm wants.
        value_gradient: False if the values do not train the shared layers where both networks are trained together.
        sequence_length: The largest number of steps of a sequence in training; None for whole segments.
    """

    shared: Sequence[Layer] = ()
    own: Sequence[Layer] = ()
    values: Sequence[Layer] | None = None
    normalises: bool = True
    value_gradient: bool = True
    sequence_length: int | None = None


ReplayFactory = Callable[[Any, ObservationSpace, ReplayShape], "ReplayNetwork"]
"""A callable that builds networks: ``factory(options, observation_space, shape) -> ReplayNetwork``. All parameters are zero."""

SequenceFactory = Callable[[Any, ObservationSpace, int], "SequenceNetwork"]
"""A callable that builds a network: ``factory(options, observation_space, outputs) -> SequenceNetwork``. All parameters are 0."""

ModuleBuilder = Callable[[Any, BoxSpace, int], "nn.Module"]
"""A callable that builds a torch module: ``build(options, observation_space, outputs) -> module``.

The module computes outputs ``[N, outputs]`` from observations ``[N, *obs]``, float32. Its random initial values come from torch's
generator, which is seeded before the call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEntry:
    """One kind of network, such as ``mlp``, in the registry of kinds.

    The import of a module that creates an entry must be fast and must not import torch. So a factory can be given as a path
    ``"package.module:attribute"``. A factory is empty if the kind has no such form.

    Attributes:
        name: The name of the kind, as users write it in ``network: {kind: NAME}``.
        options: The dataclass of the kind's options, declared with `rl4sys_zmq.config.options.option`. Each has a default.
        plan: The function that returns the specification of a policy with such a network.
        actor_critic: The factory of the policy and value networks of actor-critics such as PPO.
        replay: The factory of the networks of replay algorithms such as DQN and SAC.
        sequence_replay: The factory of the recurrent networks of those replay algorithms that train on sequences, such as DQN.
        linear_output: True if the last two tensors of the policy's network are the weight and the bias of a linear output layer.
            DQN needs such a layer for dueling and for quantiles.
        summary: One line of documentation.
        reference: The source of the network: authors, year and title. Empty if not declared.
        extra: The optional dependency group of this package that the factories need, such as ``learner``; empty if none.
    """

    name: str
    options: type[Any]
    plan: NetworkPlan
    actor_critic: ActorCriticFactory | str = ""
    replay: ReplayFactory | str = ""
    sequence_replay: SequenceFactory | str = ""
    linear_output: bool = False
    summary: str = ""
    reference: str = ""
    extra: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "network.kind")

    def serves(self, *forms: str) -> bool:
        """Return True if the kind has one of these forms: ``onpolicy``, ``offpolicy``, ``sequences``; without arguments, any.

        They are `actor_critic`, `replay` and `sequence_replay`. The first two are the names of the kinds of algorithms.
        """
        factories = {"onpolicy": self.actor_critic, "offpolicy": self.replay, "sequences": self.sequence_replay}
        return any(factories[form] != "" for form in forms or factories)

    def load(self, factory: Callable[..., T] | str) -> Callable[..., T]:
        """Return a factory of this entry. If the factory is given as a path, import it.

        Raises:
            ConfigError: If the factory is empty, or cannot be imported.
        """
        owner, key = f"the network kind {self.name!r}", "algorithm_parameters.network"
        if factory == "":
            raise ConfigError(f"{owner} has no such form in torch", key=key)
        return load_factory(factory, owner, key, self.extra)


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """A kind of network with its options, an instance of `NetworkEntry.options`."""

    entry: NetworkEntry
    options: Any

    def actor_critic(self, spec: PolicySpec) -> ActorCriticNetwork:
        """Build the networks of an actor-critic for a policy that `plan` has described."""
        return self.entry.load(self.entry.actor_critic)(self.options, spec)

    def replay(self, observation_space: ObservationSpace, shape: ReplayShape) -> ReplayNetwork:
        """Build networks of a replay algorithm."""
        return self.entry.load(self.entry.replay)(self.options, observation_space, shape)

    def sequence_replay(self, observation_space: ObservationSpace, outputs: int) -> SequenceNetwork:
        """Build the recurrent network of a replay algorithm."""
        return self.entry.load(self.entry.sequence_replay)(self.options, observation_space, outputs)
