"""The receiver of the learner's weights: it applies verified diffs from a PUB socket, and fetches missing versions."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.io.relay_link import RelayLink, relays_told
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import (
    ConfigError,
    HandshakeRefused,
    LearnerUnavailable,
    ProtocolError,
    RefusalReason,
    RL4SysError,
    TransportError,
    WeightsError,
)
from rl4sys_zmq.interfaces import ConnectingSocket
from rl4sys_zmq.liveness import (
    BEACON_TOPIC,
    FETCH_RETRY_S,
    PUBLISHER_SILENCE_S,
    RELAY_WAIT_S,
    WEIGHTS_TOPIC,
    SilenceTimer,
    jittered,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, RandomSource, build_policy, local_only_reason, require_policy
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.transports import MAX_FRAME_BYTES, Address, Frame, Poller
from rl4sys_zmq.transports.network import Keys, SocketFactory
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.weights import TAG_KEY_BYTES, TRAILER_BYTES, WeightsHeader, apply_update, is_tag_of
from rl4sys_zmq.wire import decode, spec_from_document
from rl4sys_zmq.wire.messages import Beacon, FetchWeights, Message, Refused, WeightsReply, WeightsSource, Welcome

log = get_logger(__name__)

HWM = 64
PREVIOUS_KEPT = 2
MAX_WEIGHT_BYTES = MAX_FRAME_BYTES - TRAILER_BYTES
"""The largest size of weights: what fits into a frame."""
RELAY_FRAME_SLACK_BYTES = 1 << 16
"""The number of bytes by which a frame from a relay can be larger than the policy's weights."""


class PlaceholderPolicy:
    """The policy object of an actor without weights: the learner acts (``inference: remote``), or no policy has arrived yet."""

    def __init__(self, spec: PolicySpec, generation: int, version: int, digest: int) -> None:
        self.spec = spec
        self.snapshot = PolicySnapshot(generation, version, digest, np.empty(0, np.float32))
        self.generation, self.version = generation, version

    def act(self, observation: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Any:
        raise LearnerUnavailable("the learner", "an action: this actor has no policy of its own", 0.0)

    act_batch = act


class WeightSubscriber:
    """The receiver of an actor's weights, with the newest policy whose weights are verified.

    The I/O thread uses this object. Other threads read `policy` and `spec`, and can call `roll_back`, `was_rolled_back` and
    `saw`.

    After the handshake it subscribes to the learner's updates, and then fetches the weights that are newer than its own. In
    this order, no update is missed. The object fetches again if an update does not build on its version, if the digest of the
    new weights is wrong, or if a beacon names a version that did not arrive. Each version becomes a new policy over a new
    buffer, so that the current policy acts until the new one is verified.

    If there are relays, it takes updates from the first relay that answers, and verifies them by the tag. It leaves a relay
    that is silent, refuses, sends too much or a wrong tag, or lacks a version that the learner has announced over the actor's
    connection to the learner. If no relay serves it within `RELAY_WAIT_S` seconds, it uses the learner's PUB socket, and goes
    on trying the relays.
    """

    network: SocketFactory  # factory of the SUB socket. Set it before `join`

    def __init__(
        self,
        learner: Address,
        keys: Keys | None,
        counters: Counters,
        rng: random.Random,
        fetch: Callable[[FetchWeights], None],
        swapped: Callable[[], None],
        config: AgentConfig,
    ) -> None:
        self.policy: Policy | None = None
        self.spec: PolicySpec | None = None
        self.alarms: dict[str, int] = {}  # number of alarms of each kind that the learner's last beacon reports
        self._learner, self._keys, self._counters, self._rng = learner, keys, counters, rng
        self._send_fetch, self._swapped = fetch, swapped
        self._config, self._acts = config, config.inference != "remote"
        self._welcome: Welcome | None = None
        self._previous: deque[Policy] = deque(maxlen=PREVIOUS_KEPT)
        self._rejected: frozenset[tuple[int, int]] = frozenset()
        self._changing = threading.RLock()  # held while `policy` and `_previous` change together
        self._newest: deque[PolicySnapshot] = deque(maxlen=2)  # the last versions that arrived, also if they were rolled back
        self._pub: Address | None = None
        self._silence = SilenceTimer(PUBLISHER_SILENCE_S)
        self._sub: ConnectingSocket | None = None
        self._poller: Poller | None = None
        self._fetch_at = 0.0
        self._whole = False
        self._link = RelayLink(config.client_id, keys, counters, rng)
        self._learner_at = float("inf")

    @property
    def relay(self) -> str:
        """The address of the relay from which the weights come; empty if they come from the learner."""
        address = self._link.address if self._link.in_use else None
        return address.uri if address is not None else ""

    @property
    def held(self) -> tuple[int, int]:
        """The (generation, version) of the current policy; (0, 0) without a policy."""
        return (self.policy.generation, self.policy.version) if self.policy is not None else (0, 0)

    @property
    def fetching(self) -> bool:
        return bool(self._fetch_at)

    @property
    def next_deadline(self) -> float:
        return min(self._fetch_at or float("inf"), self._learner_at, self._link.next_deadline)

    def take_up(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        """Start with the policy that an earlier start of the actor saved in the policy cache."""
        self._check_configuration(spec)
        self.policy, self.spec = build_policy(spec, snapshot), spec
        self._newest.append(snapshot)

    def inherit(self, other: WeightSubscriber) -> None:
        """Start with the policy of `other`, the parent's subscriber, in a forked child."""
        self.policy, self.spec = other.policy, other.spec
        if self.policy is not None:
            self._newest.append(self.policy.snapshot)

    def renew_lock(self) -> None:
        self._changing = threading.RLock()

    def roll_back(self, bad: Policy) -> Policy | None:
        """Replace the current policy, if it is `bad`, by the version before. Return None if no earlier version is in memory."""
        with self._changing:
            if self.policy is not bad:  # a newer version has arrived
                return self.policy
            if not self._previous:
                return None
            previous = self._previous.pop()
            later = [stamp for stamp in self._rejected if stamp[0] >= bad.generation]
            self._rejected = frozenset([*later, (bad.generation, bad.version)])
            self.policy = previous
            return previous

    def was_rolled_back(self, policy: Policy) -> bool:
        """Return True if `roll_back` has replaced this policy. Any thread can call this method."""
        return (policy.generation, policy.version) in self._rejected

    def join(self, welcome: Welcome, poller: Poller) -> None:
        """Subscribe to the weights of the policy that the learner describes in the handshake, and fetch the newest."""
        try:
            spec = spec_from_document(welcome.spec, welcome.body, self.spec)
            pub = Address.parse(welcome.pub).seen_from(self._learner)
        except (ProtocolError, RL4SysError) as exc:
            raise HandshakeRefused(RefusalReason.SPEC, f"its Welcome message is invalid: {exc}", "spec") from exc
        if not self._acts and not welcome.inference:
            message = (
                "this actor has inference: remote, but the learner offers no inference; start the learner with inference: auto "
                "(--inference auto), or act locally (inference: local)"
            )
            raise ConfigError(message, key="inference")
        self._check_configuration(spec)
        if self._acts:
            entry = require_policy(spec.kind)
            try:
                if entry.check is not None:
                    entry.check(spec)
            except ConfigError as exc:
                raise HandshakeRefused(RefusalReason.SPEC, f"its Welcome message is invalid: {exc}", "spec") from exc
        if spec.nbytes > MAX_WEIGHT_BYTES:
            reason = f"its policy has {spec.nbytes} bytes of weights; this actor accepts at most {MAX_WEIGHT_BYTES}"
            raise HandshakeRefused(RefusalReason.TOO_LARGE, reason, "spec")
        last = self.spec if self.spec is not None else spec
        if (spec.observation_space, spec.action_space) != (last.observation_space, last.action_space):
            reason = "it now has other spaces than in the last session"
            raise HandshakeRefused(RefusalReason.MISMATCH, reason, "observation_space")
        if spec.columns != last.columns:
            reason = "its policy now has other extra columns than in the last session"
            raise HandshakeRefused(RefusalReason.MISMATCH, reason, "spec")
        self.spec, self._welcome, self._pub = spec, dataclasses.replace(welcome, body=()), pub  # the spec has the blob
        if not self._acts:
            self._note(welcome.generation, welcome.version, welcome.digest)
        self.leave()
        self._poller = poller
        relays = self._config.relays if self._config.relays is not None else relays_told(welcome.relays)
        can_verify = self._acts and len(welcome.tag_key) == TAG_KEY_BYTES
        self._link.use(relays if can_verify else (), welcome.generation)
        self._link.max_frame_bytes = min(MAX_FRAME_BYTES, spec.nbytes + RELAY_FRAME_SLACK_BYTES)
        now = time.monotonic()
        self._learner_at = now + RELAY_WAIT_S
        if not self._link.connect_next(self.network, poller, now):
            self._use_learner(always=True)

    def _check_configuration(self, spec: PolicySpec) -> None:
        self._config.check_images(spec.observation_space)
        if self._config.inference != "local" and (reason := local_only_reason(spec)):
            raise ConfigError(f"inference is {self._config.inference!r}, but {reason}", key="inference")

    def _use_learner(self, *, always: bool) -> None:
        """Take the weights from the learner. Fetch them now if `always`, or if the actor has no weights of this generation."""
        assert self._welcome is not None and self._pub is not None
        self._subscribe(self._pub, self._welcome.topic, self._keys)
        current = not self._whole and self.policy is not None and self.policy.generation == self._generation
        if self._acts and (always or not current):
            self._fetch(whole=self._whole)

    def _subscribe(self, pub: Address, topic: bytes, keys: Keys | None, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._unsubscribe()
        assert self._poller is not None
        self._learner_at = float("inf")
        self._silence.restart(time.monotonic())
        self._sub = self.network.sub(pub, hwm=HWM, max_frame_bytes=max_frame_bytes, keys=keys)
        self._sub.subscribe(BEACON_TOPIC + topic)
        self._poller.register(self._sub)
        if self._acts:
            self._sub.subscribe(WEIGHTS_TOPIC + topic)

    def _unsubscribe(self) -> None:
        if self._sub is not None and self._poller is not None:
            self._poller.unregister(self._sub)
            self._sub.close()
            self._sub = None

    def leave(self) -> None:
        """Close the sockets for weights at the end of a session. The current policy stays in use."""
        self._unsubscribe()
        self._link.use(())  # until the next handshake, no relay is tried again
        self._learner_at = float("inf")

    def receive_one(self) -> bool:
        """Receive and process one message from a relay or from the SUB socket. Return False if none is waiting."""
        now, relayed = time.monotonic(), True
        try:
            message = self._link.receive()
            if message is not None:
                self._on_relay_message(message, now)
                return True
            relayed = self._link.in_use
            frames = self._sub.recv() if self._sub is not None else None
            if frames is None:
                relayed = False
                return False
            self._on_publication(frames, now)
        except ProtocolError as exc:
            self._counters.add(f"refused.{exc.code.value}")
        finally:
            if relayed:
                self._link.received(1, now)
        return True

    def _on_publication(self, frames: list[Frame], now: float) -> None:
        self._silence.restart(now)
        topic = bytes(frames[0][:1])
        if topic == WEIGHTS_TOPIC and len(frames) in (3, 4):
            tag = bytes(frames[3]) if len(frames) == 4 else b""
            self._on_update(frames[1], frames[2], tag, relayed=self._link.in_use)
        elif topic == BEACON_TOPIC:
            self._on_beacon(frames[1:])

    def on_fetched(self, message: WeightsReply, *, relayed: bool = False) -> None:
        """Process the answer to a fetch, one or more updates of the weights. With `relayed`, a relay has sent it."""
        if len(message.body) % 2 or not message.body:
            raise ProtocolError(RefusalReason.FRAMES, f"{len(message.body)} frames of weights; expected pairs of them")
        updates = zip(message.body[::2], message.body[1::2], strict=True)
        for place, (header, payload) in enumerate(updates):
            tag = message.tags[place] if place < len(message.tags) else b""
            self._on_update(header, payload, tag if isinstance(tag, bytes) else b"", relayed=relayed)
            if relayed and not self._link.in_use:
                return  # the relay was left

    def _on_relay_message(self, message: Message, now: float) -> None:
        if isinstance(message, WeightsSource):
            self._on_source(message, now)
        elif isinstance(message, WeightsReply) and self._link.in_use:
            self.on_fetched(message, relayed=True)
        elif isinstance(message, Refused) and message.code != RefusalReason.STARTING:
            self._leave_relay("refused", f"it refuses: {message.reason:.200}", now)

    def _on_source(self, source: WeightsSource, now: float) -> None:
        """Take the weights from the relay that sent `source`, if the relay has this policy in this generation."""
        welcome, address = self._welcome, self._link.address
        if welcome is None or address is None or source.client_id != self._config.client_id:
            return
        if (source.policy_id, source.generation) != (welcome.policy_id, welcome.generation):
            return
        if not self._link.answered(source, now) and self._link.in_use:
            return
        try:
            pub = Address.parse(source.pub).seen_from(address)
            if pub.scheme != address.scheme:
                raise TransportError(f"its PUB socket at {pub.uri} has another transport than {address.uri}")
            self._subscribe(pub, source.topic, self._link.keys, self._link.max_frame_bytes)
        except TransportError as exc:
            self._leave_relay("address", f"its answer is invalid: {exc}", now)
            return
        self._link.mark_in_use(now)
        held = self._base
        current = held is not None and held.generation == source.generation and held.version >= source.version
        if not current or self._whole:
            self._fetch(whole=self._whole)
        else:
            self._fetch_at = 0.0

    def _leave_relay(self, reason: str, problem: str, now: float) -> None:
        """Leave the relay, for the next one or, if none is left, for the learner's PUB socket."""
        self._counters.add(f"relays_left.{reason}")
        address, in_use = self._link.address, self._link.in_use
        level = logging.WARNING if self._sub is None or in_use else logging.INFO  # quiet while it only tries it again
        log.log(level, "%s: leaves the relay at %s: %s", self._config.client_id, address.uri if address else "?", problem)
        assert self._poller is not None
        self._link.leave(reason, now)
        if in_use:
            self._unsubscribe()
            self._fetch_at, self._learner_at = 0.0, now + RELAY_WAIT_S
        if not self._link.connect_next(self.network, self._poller, now) and self._sub is None:
            self._use_learner(always=False)

    @property
    def _generation(self) -> int:
        """The generation that the learner has named in the handshake; 0 before the handshake."""
        return self._welcome.generation if self._welcome is not None else 0

    def on_learner_beacon(self, beacon: Beacon) -> None:
        """Compare the relay's weights with the learner's beacon, which came over the actor's connection to the learner."""
        self._note_alarms(beacon)
        policy = self.policy
        if not self._link.in_use or beacon.generation != self._generation:
            return
        if (beacon.generation, beacon.version) in self._rejected:
            return
        now, version = time.monotonic(), policy.version if policy is not None and policy.generation == beacon.generation else -1
        self._link.announced(beacon.version, version, now)
        if beacon.version == version and policy is not None and policy.snapshot.digest != beacon.digest:
            self._whole = True
            self._leave_relay("digest", f"the weights of version {version} are not the learner's", now)

    def tick(self, now: float) -> None:
        """Repeat an unanswered fetch, replace a silent PUB socket, and leave or retry relays."""
        self._link.tick(now)
        fault = self._link.fault(now)
        if fault is None and self._link.in_use and self._silence.expired(now):
            fault = "no_beacons", "it publishes nothing"
        if fault is not None:
            self._leave_relay(*fault, now)
        elif self._poller is not None and self._link.retry_due(now):
            self._link.connect_next(self.network, self._poller, now)
        if now >= self._learner_at:
            self._use_learner(always=False)
        if self._sub is not None and not self._link.in_use and self._silence.expired(now):
            self._counters.add("redials.weights")
            self._use_learner(always=True)
            return
        if self._fetch_at and now >= self._fetch_at:
            self._fetch(whole=self._whole)

    def _fetch(self, *, whole: bool = False) -> None:
        """Request the updates since the current version, or with `whole` the complete weights. `tick` repeats the request."""
        self._whole = whole
        self._fetch_at = time.monotonic() + jittered(FETCH_RETRY_S, self._rng)
        self._counters.add("fetches")
        base = None if whole else self._base
        held = (base.generation, base.version) if base is not None else (0, 0)
        if self._link.in_use:
            self._link.fetch(held)
        else:
            self._send_fetch(FetchWeights(*held))

    def _on_update(self, header: Frame, payload: Frame, tag: bytes, *, relayed: bool) -> None:
        """Apply an update, and use the new version. An update from a relay (`relayed`) must have the right tag."""
        if self.spec is None or self._welcome is None:
            return
        head = WeightsHeader.unpack(header)
        if head.policy_id != self._welcome.policy_id or head.generation != self._welcome.generation:
            self._counters.add("weights_ignored")
            return
        held = self._base
        if held is not None and held.generation == head.generation and head.new_version <= held.version and not self._whole:
            if head.new_version == held.version:
                self._fetch_at = 0.0  # the policy was current
            return
        if (head.generation, head.new_version) in self._rejected:
            self._fetch_at = 0.0
            return
        try:
            spec, before = self.spec, self._newest[0] if len(self._newest) > 1 else None
            new = apply_update(head, payload, held, spec.tensors, before=before)
            if relayed and not is_tag_of(tag, self._welcome.tag_key, head.policy_id, new):
                self._on_wrong_tag(tag, new.version)
                return
            self._swap(new)
        except WeightsError as exc:
            self._counters.add(f"weights_refused.{exc.reason}")
            if not self._fetch_at:
                self._fetch(whole=exc.reason != "gap")

    def _on_wrong_tag(self, tag: bytes, version: int) -> None:
        """Refuse a version from a relay. If its tag is wrong, leave the relay; if its tag is missing, fetch again."""
        self._counters.add("weights_refused.tag")
        if tag:
            self._whole = True
            self._leave_relay("tag", f"the weights of version {version} are not the learner's", time.monotonic())
        elif not self._fetch_at:
            self._fetch()

    def _swap(self, snapshot: PolicySnapshot) -> None:
        assert self.spec is not None
        policy = build_policy(self.spec, snapshot)
        with self._changing:
            if self.policy is not None:
                self._previous.append(self.policy)
            self.policy = policy
        self._newest.append(snapshot)
        self._fetch_at, self._whole = 0.0, False
        self._counters.add("weights_applied")
        if self._link.in_use:
            self._link.received(-1, time.monotonic())
        self._swapped()

    def saw(self, stamp: tuple[int, int]) -> None:
        """Record `stamp`, the (generation, version) with which the learner chose an action. Any thread can call this method."""
        policy = self.policy
        if isinstance(policy, PlaceholderPolicy) and stamp[0] == policy.generation and stamp[1] > policy.version:
            self.policy = PlaceholderPolicy(policy.spec, *stamp, 0)

    def _note(self, generation: int, version: int, digest: int) -> None:
        """Record the newest version that the learner announces, for an actor that acts without weights of its own."""
        assert self.spec is not None
        self.policy = PlaceholderPolicy(self.spec, generation, version, digest)
        self._swapped()

    @property
    def _base(self) -> PolicySnapshot | None:
        """The newest weights that have arrived, rolled back or not. The learner's next diff applies to them."""
        return self._newest[-1] if self._newest else None

    def _note_alarms(self, beacon: Beacon) -> None:
        self.alarms = {name: count for name, count in beacon.alarms.items() if type(count) is int and count > 0}

    def _on_beacon(self, frames: list[Frame]) -> None:
        beacon, policy = decode(frames), self.policy
        if not isinstance(beacon, Beacon):
            return
        if not self._link.in_use:
            self._note_alarms(beacon)
        if self._fetch_at or beacon.generation != self._generation:
            return  # with another generation, the session over the ROUTER will report it
        if not self._acts:
            if policy is None or beacon.version != policy.version:
                self._note(beacon.generation, beacon.version, beacon.digest)
            return
        if (beacon.generation, beacon.version) in self._rejected:
            return  # this version was rolled back: wait for the next one
        if policy is None or policy.generation != beacon.generation or beacon.version > policy.version:
            self._counters.add("resyncs.beacon")
            self._fetch()
        elif not self._link.in_use and beacon.version == policy.version and beacon.digest != policy.snapshot.digest:
            self._counters.add("resyncs.digest")
            self._fetch(whole=True)
