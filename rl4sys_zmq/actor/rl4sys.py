"""The attributes of an agent that programs written for RL4Sys read."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import MutableMapping, Sized
from typing import TYPE_CHECKING, Any

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class KeywordLogger(_Adapter):
    """A logger whose methods accept keywords, such as ``info("sent", steps=3)``, and append them to the message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Append the keywords that are not arguments of `logging` to the message."""
        known = {key: kwargs.pop(key) for key in ("exc_info", "stack_info", "stacklevel", "extra") if key in kwargs}
        pairs = ", ".join(f"{key}={value}" for key, value in kwargs.items())
        return (f"{msg} ({pairs})" if pairs else msg), known


class RL4SysCompatibility:
    """A base class of agents with the attributes that programs written for RL4Sys read.

    The values are computed from the configuration and the policy at each access.

    Attributes:
        config: The agent's configuration.
        debug: True if the constructor's argument `debug` or the option `AgentConfig.debug` is True.
        logger: The logger of agents, ``rl4sys_zmq.actor``. Its methods accept keywords, which are appended to the message.
    """

    config: AgentConfig
    debug: bool
    logger = KeywordLogger(get_logger("rl4sys_zmq.actor"), {})

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the current policy."""

    @property
    @abstractmethod
    def spec(self) -> PolicySpec:
        """The description of the policy."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return a copy of this actor's counters and state."""

    @property
    def _trajectory_buffer(self) -> Sized:
        """The segments that wait for rewards or for an acknowledgement. Only ``len()`` is possible; RL4Sys has a list."""
        stats = self.stats()
        return range(stats["waiting_for_rewards"] + stats["in_actor"])

    @property
    def client_id(self) -> str:
        """The name of the client."""
        return self.config.client_id

    @property
    def algorithm_name(self) -> str | None:
        """The name of the algorithm in the configuration. None if the learner's configuration names it."""
        return self.config.algorithm_name

    @property
    def algorithm_parameters(self) -> dict[str, object]:
        """The algorithm's parameters in the configuration, as a new dict, with the policy's `input_size` and `act_dim`.

        There is no `input_size` if observations are dicts or tuples. Parameters that the learner's configuration sets are not
        in the dict.
        """
        observations = self.spec.observation_space
        sizes: dict[str, object] = {"act_dim": self.spec.outputs}
        if isinstance(observations, BoxSpace | DiscreteSpace):
            sizes["input_size"] = observations.size if isinstance(observations, BoxSpace) else observations.n
        return {**self.config.algorithm_parameters, **sizes}

    @property
    def algorithm_type(self) -> str | None:
        """The expected type of algorithm in the configuration: ``onpolicy`` or ``offpolicy``. None if any type is accepted."""
        return self.config.type

    @property
    def server_address(self) -> str:
        """The learner's address as in the configuration. `AgentConfig.address` is the same address as a URI."""
        return self.config.train_server_address

    @property
    def local_version(self) -> int:
        """Another name of `RL4SysAgent.version`.

        In RL4Sys, versions count the updates, and all actions of a trajectory have one version. In this library, versions count
        the publications (`publish_every_updates`), and each action has the version of the policy that chose it.
        """
        return self.version
