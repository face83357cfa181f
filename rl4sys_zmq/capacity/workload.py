"""A planned load of a learner, and the messages and bytes per second that follow from it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rl4sys_zmq.config.options import check_fields, integer, nullable, number, option
from rl4sys_zmq.errors import config_error
from rl4sys_zmq.liveness import BEACON_S, HEARTBEAT_S

SEGMENT_HEAD_BYTES = 64
STEP_BYTES = 8
"""The columns of a step beside observation and action: reward and log-probability."""
MESSAGE_BYTES = 140
"""The prefix, header, layouts and digests of a message with segments."""
SMALL_MESSAGE_BYTES = 120
"""A heartbeat, an acknowledgement or a beacon, with its frames."""
UPDATE_HEAD_BYTES = 128
"""The topic, header and digest of an update of the weights."""

_COUNT = integer(1, 1 << 62)
_RATE, _ABOVE_0 = number(0, sys.float_info.max), number(0, sys.float_info.max, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """The planned training of one client: the number and the size of its gradient steps."""

    algorithm: str  # for the output
    # gradient steps for each environment step. PPO: epochs / minibatch. DQN: gradient steps / train frequency
    gradients_per_step: float
    minibatch: int  # rows of a gradient step
    replay_steps: int = 0  # transitions in memory. 0 without a replay
    learners: int = 1  # processes that share each gradient step


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A planned load: actors, the data that they send, the weights that they receive, and the limits of the machine.

    Raises:
        ConfigError: If a number is out of range.
    """

    actors: int = option(_COUNT, required=True)  # of all clients together
    steps_per_s: float = option(_RATE, required=True)  # environment steps per second of each actor
    model_bytes: int = option(integer(4, 1 << 62), required=True)  # size of a policy's weights in float32
    observation_bytes: int = option(_COUNT, 32)
    action_bytes: int = 8
    segment_steps: int = option(_COUNT, 128)
    segments_per_message: int = option(_COUNT, 1)
    publish_per_s: float = option(_RATE, 1.0)  # versions of the weights per second that each client publishes
    weights_level: int = 1  # the option of this name, as `fsync`, `journal_max_bytes` and `checkpoint_every_s`
    clients: int = option(_COUNT, 1)
    journal: bool = True  # True if the learner records accepted segments on disk
    fsync: str = "normal"
    journal_max_bytes: int = option(_COUNT, 4 << 30)
    checkpoint_every_s: float = option(_ABOVE_0, 10.0)
    keys: bool = False  # True if connections are encrypted
    training: PlannedTraining | None = None  # the gradient steps of a client; None to leave training out
    cores: int = option(_COUNT, 2)
    memory_bytes: int = option(_COUNT, 8 << 30)  # memory that the learner can use
    descriptors: int = option(_COUNT, 20_000)  # largest number of open files of the learner's process
    bandwidth_bits_s: float | None = nullable(_ABOVE_0)  # of the learner's network link in each direction; None: left out

    def __post_init__(self) -> None:
        check_fields(self)
        if self.clients > self.actors:
            raise config_error("clients", f"{self.clients} clients share {self.actors} actors; expected at least one actor each")


class Traffic:
    """The messages and bytes per second that a learner receives and sends under a workload, for all clients together.

    `diff_ratio` is the size of the weights divided by the size of a diff between two versions.
    """

    def __init__(self, load: Workload, diff_ratio: float) -> None:
        n = load.segment_steps
        self.segment_bytes = SEGMENT_HEAD_BYTES + (n + 1) * load.observation_bytes + n * (load.action_bytes + STEP_BYTES)
        self.steps_s = load.actors * load.steps_per_s
        self.segments_s = self.steps_s / n
        self.messages_s = self.segments_s / load.segments_per_message  # with segments
        # an actor sends a heartbeat when it has sent nothing else for `HEARTBEAT_S`
        self.heartbeats_s = max(0.0, load.actors / HEARTBEAT_S - self.messages_s)
        self.data_bytes_s = self.segments_s * self.segment_bytes + self.messages_s * MESSAGE_BYTES
        self.received_bytes_s = self.data_bytes_s + self.heartbeats_s * SMALL_MESSAGE_BYTES
        self.versions_s = load.publish_per_s * load.clients  # of all clients' weights
        self.update_bytes = UPDATE_HEAD_BYTES + load.model_bytes / (diff_ratio if load.weights_level else 1.0)
        self.updates_s = load.publish_per_s * load.actors  # to all actors together
        beacons_s, acks_s = load.actors / BEACON_S, self.messages_s + self.heartbeats_s
        self.sent_bytes_s = self.updates_s * self.update_bytes + (beacons_s + acks_s) * SMALL_MESSAGE_BYTES
