"""A model of Stable-Baselines3 that never steps an environment: its construction, its policy's weights, and its state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from rl4sys_zmq.algorithms.libraries.adapter import ACTIVATION_LAYERS, LibraryAlgorithm, PublishedNetwork, network_layers
from rl4sys_zmq.algorithms.libraries.sb3_entries import Sb3Parameters
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import DiscreteSpace, feature_size
from rl4sys_zmq.values.action_layout import action_layout

_COUNTERS = ("num_timesteps", "_n_updates", "_n_calls", "exploration_rate", "_current_progress_remaining")

FIXED_ENTROPY_WEIGHT = "ent_coef_tensor"
"""The variable of SAC and TQC with a fixed entropy weight, which follows from the parameters."""
ENTROPY_OPTIMIZER = "ent_coef_optimizer"
"""The optimizer of SAC and TQC that learns the entropy weight. A model with a fixed one has none."""


class _SpacesOnly(VecEnv):
    """An environment that has only spaces, as a model of Stable-Baselines3 needs them. It cannot be stepped."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RL4SysError("this environment has only spaces; the steps come from actors")

    reset = step_async = step_wait = env_method = _refuse

    def close(self) -> None:
        """Do nothing."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._refuse()

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False]


class Sb3Adapter(LibraryAlgorithm):
    """The base class of algorithms that train with a *model*, an algorithm object of Stable-Baselines3.

    The model gets an observation as one float32 vector of features. Its discrete actions count from 0.
    """

    more_arguments: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of the library's class."""

    parameters: Sb3Parameters

    def __init__(self, cls: type[BaseAlgorithm], *arguments: Any) -> None:
        super().__init__(*arguments)
        with self._random.active(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # advice about environments and batch sizes
            self._model: Any = self._make_model(cls, arguments[-1])
        self._model.set_logger(Logger(None, []))
        published = self._published()
        self._spec = mlp_spec(
            self._observation_space, self._action_space, published.head, published.hidden_sizes, published.activation
        )
        self._spec.flatten(self.snapshot())  # a network that does not fit the spaces is refused here

    def _make_model(self, cls: type[BaseAlgorithm], seed: int) -> BaseAlgorithm:
        p = self.parameters
        features = spaces.Box(-np.inf, np.inf, (feature_size(self._observation_space),), np.float32)
        if isinstance(self._action_space, DiscreteSpace):
            actions: spaces.Space[Any] = spaces.Discrete(self._action_space.n)
        else:
            numbers = action_layout(self._action_space).numbers
            actions = spaces.Box(-1.0, 1.0, (numbers,), np.float32)  # its bounds have no effect on the training
        network = {
            "net_arch": list(p.hidden_sizes),
            "activation_fn": ACTIVATION_LAYERS[p.activation],
            **{name: getattr(p, name) for name in p.of_network},
        }
        arguments = {"policy_kwargs": network, "device": "cpu", **p.arguments(), **self.more_arguments}
        try:
            return cls("MlpPolicy", _SpacesOnly(1, features, actions), self._rate(), seed=seed % (1 << 32), **arguments)
        except (TypeError, ValueError, AssertionError) as exc:  # the library's checks of arguments
            raise ConfigError(f"{self._name} cannot be created: {exc}", key="algorithm_parameters") from exc

    def _rate(self) -> Any:
        """Return the learning rate: a number, or a function of the share of `total_steps` that remains, from 1 to 0."""
        first, last = self.parameters.learning_rate, self.parameters.learning_rate_final
        return first if last is None else lambda remaining: last + (first - last) * remaining

    def _published(self) -> PublishedNetwork:
        model, policy = self._model, self._model.policy
        if getattr(model, "use_sde", False):
            raise ConfigError(f"{self._name}: actors cannot explore with use_sde; leave it out", key="algorithm_parameters")
        if hasattr(policy, "action_net"):
            layers, activation = network_layers(policy.mlp_extractor.policy_net, policy.action_net)
            log_std = getattr(policy, "log_std", None)
            if log_std is None:
                return PublishedNetwork("categorical", layers, activation)
            return PublishedNetwork("gaussian", layers, activation, {"log_std": log_std})
        rate = getattr(model, "exploration_rate", 0.0) if model.num_timesteps else 1.0  # 1 until the training starts
        epsilon = {"epsilon": torch.tensor([rate], dtype=torch.float32, device="cpu")}
        if hasattr(policy, "actor"):
            return self._published_actor(policy.actor, epsilon)
        if hasattr(policy, "quantile_net"):
            layers, activation = network_layers(policy.quantile_net.quantile_net)
            return PublishedNetwork("q_values", layers, activation, epsilon, quantiles=model.n_quantiles)
        if hasattr(policy, "q_net"):
            return PublishedNetwork("q_values", *network_layers(policy.q_net.q_net), epsilon)
        raise ConfigError(
            f"{self._name}: a {type(policy).__name__} cannot be sent to actors; supported are policies like those of "
            f"{', '.join(name for name in ALGORITHMS.names() if name.startswith('sb3:'))}",
            key="algorithm_name",
        )

    def _published_actor(self, actor: Any, epsilon: Mapping[str, torch.Tensor]) -> PublishedNetwork:
        if not hasattr(actor, "latent_pi"):
            layers, activation = network_layers(*list(actor.mu)[:-1])  # the last layer is the tanh of the head
            noise = torch.tensor([getattr(self.parameters, "exploration_noise", 0.1)], dtype=torch.float32, device="cpu")
            return PublishedNetwork("deterministic", layers, activation, {"noise_std": noise, **epsilon})
        layers, activation = network_layers(actor.latent_pi, actor.mu)
        return PublishedNetwork("squashed_gaussian", layers, activation, beside=network_layers(actor.log_std)[0])

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Start the training from the weights of a policy. All quantiles of an output get the same weights."""
        model = self._model
        self._published().load(tensors)
        for name in ("q_net", "quantile_net", "actor"):
            if hasattr(model, f"{name}_target"):
                getattr(model, f"{name}_target").load_state_dict(getattr(model, name).state_dict())

    def _advance(self, steps: int) -> None:
        """Set the number of environment steps on which the schedules of the model depend."""
        model, total = self._model, self.parameters.total_steps
        model.num_timesteps = steps
        model._update_current_progress_remaining(min(steps, total), total)

    def _metrics(self) -> dict[str, float]:
        """Return the metrics that the model has logged since the last call, by TensorBoard tag."""
        logged = self._model.logger.name_to_value
        metrics = {_tag(name): float(value) for name, value in logged.items()}
        logged.clear()
        return {tag: value for tag, value in metrics.items() if np.isfinite(value) or "loss" in tag.rpartition("/")[2]}

    def change(self, parameters: Mapping[str, object]) -> None:
        self.parameters = p = read_parameters(type(self.parameters), parameters, algorithm=self._name)
        self._model.learning_rate = self._rate()
        self._model.lr_schedule = FloatSchedule(self._model.learning_rate)
        for name in p.changeable - p.ours:
            setattr(self._model, name, getattr(p, name))

    def _model_state(self) -> dict[str, Any]:
        model = self._model
        variables = [name for name in model._get_torch_save_params()[1] if name != FIXED_ENTROPY_WEIGHT]
        return {
            "model": copy.deepcopy(model.get_parameters()),
            "variables": {name: getattr(model, name).detach().clone() for name in variables},
            "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
            "random": self._random.state(),
        }

    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        """Restore a state that `_model_state` has returned. The options of the optimizers do not change.

        The state of an optimizer is ignored if the parameters now choose another kind of optimizer. If the parameters now begin
        or stop learning the entropy weight, it gets the value in the parameters.
        """
        model, states, ours = self._model, copy.deepcopy(dict(kept["model"])), self._model.get_parameters()
        if ENTROPY_OPTIMIZER not in ours:  # a resumed client has another ent_coef
            states.pop(ENTROPY_OPTIMIZER, None)
        elif ENTROPY_OPTIMIZER not in states:
            states[ENTROPY_OPTIMIZER] = ours[ENTROPY_OPTIMIZER]
        for name, own in ours.items():
            if _is_adam(own) is not _is_adam(states.get(name, own)):  # a resumed client has another use_rms_prop
                states[name] = own
            for theirs, options in zip(states.get(name, {}).get("param_groups", ()), own.get("param_groups", ()), strict=False):
                theirs.update({key: value for key, value in options.items() if key != "params"})
        try:
            model.set_parameters(states, exact_match=True, device="cpu")
        except (RuntimeError, ValueError) as exc:
            raise ConfigError(f"{self._name}: the state does not fit the network: {exc}"[:500]) from exc
        for name, value in kept["variables"].items():
            if (variable := getattr(model, name)) is not None:  # there is no logarithm of a weight that is not learned
                variable.data.copy_(value)
        for name, value in kept["counters"].items():
            setattr(model, name, value)
        self._random.load(kept["random"])

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        weights: list[NDArray[Any]] = []
        moments: list[NDArray[Any]] = []
        for name, state in self._model.get_parameters().items():
            tensors = _tensors(state)
            (moments if "optimizer" in name else weights).extend(t.detach().numpy().reshape(-1) for t in tensors)
        return [np.concatenate(weights), *moments]


def _is_adam(state: Mapping[str, Any]) -> bool:
    """Return True for the state of Adam, and False for that of RMSProp or of a network."""
    return "param_groups" in state and "betas" in state["param_groups"][0]


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree] if tree.is_floating_point() else []
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for child in children for tensor in _tensors(child)]


def _tag(name: str) -> str:
    if name == "rollout/exploration_rate":
        return "charts/epsilon"
    own = name.rpartition("/")[2]
    return f"charts/{own}" if own == "learning_rate" else f"losses/{own}"
