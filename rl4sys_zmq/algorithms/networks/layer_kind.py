"""Kinds of networks that are lists of layers. This module imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rl4sys_zmq.errors import config_error
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.learner.registry.network_entry import LayerPlan, NetworkEntry, PolicyRequirements, ReplayShape
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec
from rl4sys_zmq.values.observations import leaves_of

if TYPE_CHECKING:
    from rl4sys_zmq.algorithms.networks.flat_networks import MLPGroup
    from rl4sys_zmq.algorithms.networks.layer_networks import RecurrentNetworks, SharedLayerNetworks

MAX_IMAGE_WEIGHTS = 1_000_000
"""The largest number of weights of a first layer that gets a flattened image."""


LayerPlanner = Callable[[Any, ObservationSpace], LayerPlan]
"""``planner(options, observation_space) -> LayerPlan``. It raises ConfigError if the kind does not fit the space."""


def layer_network(
    name: str,
    options: type[Any],
    planner: LayerPlanner,
    *,
    recurrent: bool = False,
    check: Callable[[Any, PolicyRequirements], None] | None = None,
    summary: str = "",
    reference: str = "",
) -> NetworkEntry:
    """Return the entry of a kind of network that is a list of layers. Actors and learners need no further code for it.

    Args:
        name: The name of the kind, as users write it in ``network: {kind: NAME}``.
        options: The dataclass of the kind's options.
        planner: The function that returns the layers.
        recurrent: True if the last shared layer is recurrent.
        check: A function that raises ConfigError if the options do not fit the requirements of an algorithm.
        summary: One line of documentation.
        reference: The source of the network.
    """

    def plan(chosen: Any, requirements: PolicyRequirements) -> PolicySpec:
        if check is not None:
            check(chosen, requirements)
        r, layers = requirements, planner(chosen, requirements.observation_space)
        first = [Normalise()] if r.normalise_observations and layers.normalises else []
        return layers_spec(r.observation_space, r.action_space, r.head, [*first, *layers.shared, *layers.own])

    def actor_critic(chosen: Any, spec: PolicySpec) -> SharedLayerNetworks | MLPGroup:
        from rl4sys_zmq.algorithms.networks.layer_networks import actor_critic

        return actor_critic(planner(chosen, spec.observation_space), spec)

    def replay(chosen: Any, space: ObservationSpace, shape: ReplayShape) -> SharedLayerNetworks | MLPGroup:
        from rl4sys_zmq.algorithms.networks.layer_networks import replay

        return replay(planner(chosen, space), space, shape)

    def sequence_replay(chosen: Any, space: ObservationSpace, outputs: int) -> RecurrentNetworks:
        from rl4sys_zmq.algorithms.networks.layer_networks import RecurrentNetworks

        networks = replay(chosen, space, ReplayShape(outputs=(outputs,)))
        assert isinstance(networks, RecurrentNetworks)  # `recurrent` is True
        return networks

    return NetworkEntry(
        name=name,
        options=options,
        plan=plan,
        actor_critic=actor_critic,
        replay="" if recurrent else replay,
        sequence_replay=sequence_replay if recurrent else "",
        linear_output=True,
        summary=summary,
        reference=reference,
        extra="learner",
    )


def check_not_image(space: ObservationSpace, units: int, user: str) -> None:
    """Check that a network without convolutions does not get a large image.

    Args:
        space: The observation space. An image is a uint8 Box of at least two dimensions, also within a Dict or Tuple.
        units: The number of units of the first layer.
        user: The name of the algorithm or network, for the error message.

    Raises:
        ConfigError: If the first layer would have more than `MAX_IMAGE_WEIGHTS` weights for an image.
    """
    for leaf in leaves_of(space).spaces:
        if not isinstance(leaf, BoxSpace) or leaf.dtype != "|u1" or len(leaf.shape) < 2:
            continue
        if (weights := leaf.size * units) > MAX_IMAGE_WEIGHTS:
            raise config_error(
                "observation_space",
                f"{user} has no convolutions; it would flatten the image of shape {leaf.shape} to "
                f"{leaf.size:,} inputs, with {weights:,} weights in the first layer (limit {MAX_IMAGE_WEIGHTS:,}). Make the "
                "image smaller (gymnasium.wrappers.ResizeObservation, GrayscaleObservation), send features of it, or choose "
                "network: cnn, which the algorithms of this package can train",
            )
