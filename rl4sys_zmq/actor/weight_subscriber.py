"""Following the learner's policy: diffs from the PUB, verified and applied; whatever is missing, fetched."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable

from rl4sys_zmq.actor.remote import RemotePolicy
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, HandshakeRefused, ProtocolError, Refusal, RL4SysError, WeightsError
from rl4sys_zmq.policies import Policy, build_policy, require_policy
from rl4sys_zmq.transports import MAX_FRAME_BYTES, Address, Frame
from rl4sys_zmq.transports.network import Connection, ConnectionPoller, Keys, Network
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.weights import WeightsHeader, apply_update
from rl4sys_zmq.wire import decode, spec_from_document
from rl4sys_zmq.wire.messages import Beacon, Fetch, Weights, Welcome

__all__ = ["WeightSubscriber"]

log = logging.getLogger(__name__)

WEIGHTS_TOPIC, BEACON_TOPIC = b"W", b"B"
FETCH_RETRY_S = 1.0
HWM = 64
PREVIOUS_KEPT = 2
SILENT_S = 5.0
"""A PUB that has said nothing for so long, though it says a beacon each second, is dialled again."""
MAX_PARAMETERS = MAX_FRAME_BYTES // 4
"""No larger state fits into a frame; a few bytes could announce one all the same, and have it allocated."""


class WeightSubscriber:
    """Holds the newest verified policy. Used in the I/O thread; only `policy` and `spec` are read elsewhere.

    The order that leaves no hole: subscribe first, then ask for what is newer than what is held, then apply what comes on
    the PUB if it fits on top. A diff that does not fit, a digest that does not verify, and a beacon that speaks of a version
    that never came all lead to another fetch. A new version is a new policy over a new buffer; until it verifies, the
    current one acts. An actor whose learner acts for it hears of the version only.

    Attributes:
        policy: the current policy, None before the first snapshot.
        spec: what it is built from, None before the handshake.
        network: what makes its socket; set before `join`.
        alarms: how many alarms of each kind the learner has raised for this client, by its last beacon.
    """

    network: Network

    def __init__(
        self,
        learner: Address,
        keys: Keys | None,
        counters: Counters,
        rng: random.Random,
        fetch: Callable[[Fetch], None],
        swapped: Callable[[], None],
        acts: bool = True,
    ) -> None:
        """Makes a follower of nothing yet.

        Args:
            learner: the address that was dialled; its host stands in for the ``*`` of `Welcome.pub`.
            keys: to be known by; None for a learner without keys.
            counters: where it counts.
            rng: for the jitter of retries.
            fetch: sends a `Fetch` if there is a session, and returns in any case.
            swapped: called after each new policy.
            acts: False: weights are not wanted, only which version there is (`RemotePolicy`).
        """
        self.policy: Policy | None = None
        self.spec: PolicySpec | None = None
        self.alarms: dict[str, int] = {}
        self._learner, self._keys, self._counters, self._rng = learner, keys, counters, rng
        self._send_fetch, self._swapped, self._acts = fetch, swapped, acts
        self._welcome: Welcome | None = None
        self._previous: deque[Policy] = deque(maxlen=PREVIOUS_KEPT)
        self._rejected = (0, -1)
        self._pub: Address | None = None
        self._heard_at = 0.0
        self._sub: Connection | None = None
        self._poller: ConnectionPoller | None = None
        self._fetch_at = 0.0
        self._whole = False

    @property
    def held(self) -> tuple[int, int]:
        """The (generation, version) of the policy, (0, 0) without one."""
        return (self.policy.generation, self.policy.version) if self.policy is not None else (0, 0)

    @property
    def fetching(self) -> bool:
        """True while an answer to a fetch is awaited."""
        return bool(self._fetch_at)

    @property
    def next_deadline(self) -> float:
        """When `tick` wants to be called; infinity when nothing is missing."""
        return self._fetch_at or float("inf")

    def take_up(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        """Begins with a policy that was kept somewhere.

        Raises:
            RL4SysError: when this actor can't act by it.
        """
        self.policy, self.spec = build_policy(spec, snapshot), spec

    def inherit(self, other: WeightSubscriber) -> None:
        """Begins with what another one holds."""
        self.policy, self.spec = other.policy, other.spec

    def roll_back(self, bad: Policy) -> Policy | None:
        """Goes back to the version before `bad`, which is not taken up again; None when there is none. From any thread.

        When a newer one has come meanwhile, that stays.
        """
        if self.policy is not bad:
            return self.policy
        try:
            previous = self._previous.pop()
        except IndexError:
            return None
        self._rejected = bad.generation, bad.version
        self.policy = previous
        return previous

    def join(self, welcome: Welcome, poller: ConnectionPoller) -> None:
        """Follows the policy that a handshake named.

        Raises:
            ConfigError: when it is of a kind that this process lacks, or this actor asks the learner, which offers no inference.
            HandshakeRefused: when this actor cannot act by it for another reason.
        """
        try:
            spec = spec_from_document(welcome.spec)
            pub = Address.parse(welcome.pub)
        except (ProtocolError, RL4SysError) as exc:
            raise HandshakeRefused(Refusal.SPEC, f"its welcome cannot be used: {exc}", "spec") from exc
        if not self._acts and not welcome.inference:
            message = (
                "inference: remote, and the learner offers no inference; start it with inference: auto (--inference auto), "
                "or act locally (inference: local)"
            )
            raise ConfigError(message, key="inference")
        if self._acts:
            entry = require_policy(spec.kind)
            try:
                if entry.check is not None:
                    entry.check(spec)
            except ConfigError as exc:
                raise HandshakeRefused(Refusal.SPEC, f"its welcome cannot be used: {exc}", "spec") from exc
        if spec.size > MAX_PARAMETERS:
            reason = f"its policy has {spec.size} parameters; this side takes {MAX_PARAMETERS}"
            raise HandshakeRefused(Refusal.TOO_LARGE, reason, "spec")
        if self.spec is not None and (spec.observation_space, spec.action_space) != (
            self.spec.observation_space,
            self.spec.action_space,
        ):
            raise HandshakeRefused(Refusal.MISMATCH, "it came back with other spaces than before", "observation_space")
        if pub.host == "*":
            pub = Address("tcp", self._learner.host, pub.port)
        self.spec, self._welcome, self._pub = spec, welcome, pub
        if not self._acts:
            self._note(welcome.generation, welcome.version, welcome.digest)
        self._dial(welcome, pub, poller)

    def _dial(self, welcome: Welcome, pub: Address, poller: ConnectionPoller) -> None:
        self.leave()
        self._poller, self._heard_at = poller, time.monotonic()
        self._sub = self.network.sub(pub, hwm=HWM, keys=self._keys)
        self._sub.subscribe(BEACON_TOPIC + welcome.topic)
        poller.register(self._sub)
        if self._acts:
            self._sub.subscribe(WEIGHTS_TOPIC + welcome.topic)
            self._fetch()

    def leave(self) -> None:
        """Closes the SUB; the policy stays."""
        if self._sub is not None and self._poller is not None:
            self._poller.unregister(self._sub)
            self._sub.close()
            self._sub = None

    def read(self) -> bool:
        """Takes one message from the SUB; False when none is waiting."""
        if self._sub is None:
            return False
        try:
            frames = self._sub.recv()
            if frames is None:
                return False
            self._heard_at = time.monotonic()
            topic = bytes(frames[0][:1])
            if topic == WEIGHTS_TOPIC and len(frames) == 3:
                self._on_update(frames[1], frames[2])
            elif topic == BEACON_TOPIC:
                self._on_beacon(frames[1:])
        except ProtocolError as exc:
            self._counters.add(f"refused.{exc.code.value}")
        return True

    def on_fetched(self, message: Weights) -> None:
        """Takes the answer to a fetch.

        Raises:
            ProtocolError: when it is none.
        """
        if len(message.body) % 2 or not message.body:
            raise ProtocolError(Refusal.FRAMES, f"{len(message.body)} frames of weights; they come in pairs")
        for header, payload in zip(message.body[::2], message.body[1::2], strict=True):
            self._on_update(header, payload)

    def tick(self, now: float) -> None:
        """Asks again for what has not come; a PUB that is silent for too long is dialled again: it may be half open."""
        quiet = self._sub is not None and now - self._heard_at > SILENT_S
        if quiet and self._welcome is not None and self._pub is not None and self._poller is not None:
            self._counters.add("redials.weights")
            self._dial(self._welcome, self._pub, self._poller)
            return
        if self._fetch_at and now >= self._fetch_at:
            self._fetch(whole=self._whole)

    def _fetch(self, *, whole: bool = False) -> None:
        """Asks for what is newer than what is held (or for all of it), until it comes."""
        self._whole = whole
        self._fetch_at = time.monotonic() + FETCH_RETRY_S * self._rng.uniform(0.8, 1.2)
        self._counters.add("fetches")
        self._send_fetch(Fetch(*((0, 0) if whole else self.held)))

    def _on_update(self, header: Frame, payload: Frame) -> None:
        if self.spec is None or self._welcome is None:
            return
        head = WeightsHeader.unpack(header)
        if head.policy_id != self._welcome.policy_id or head.generation != self._welcome.generation:
            self._counters.add("weights_ignored")
            return
        held = self.policy.snapshot if self.policy is not None else None
        if held is not None and held.generation == head.generation and head.new_version <= held.version and not self._whole:
            if head.new_version == held.version:
                self._fetch_at = 0.0  # nothing was missing
            return
        if (head.generation, head.new_version) == self._rejected:
            self._fetch_at = 0.0
            return
        try:
            sizes = [tensor.size for tensor in self.spec.tensors]
            self._swap(apply_update(head, payload, held, sizes, before=self._before()))
        except WeightsError as exc:
            self._counters.add(f"weights_refused.{exc.reason}")
            if not self._fetch_at:
                self._fetch(whole=exc.reason != "gap")

    def _swap(self, snapshot: PolicySnapshot) -> None:
        assert self.spec is not None
        policy = build_policy(self.spec, snapshot)
        if self.policy is not None:
            self._previous.append(self.policy)
        self.policy = policy
        self._fetch_at, self._whole = 0.0, False
        self._counters.add("weights_applied")
        self._swapped()

    def saw(self, stamp: tuple[int, int]) -> None:
        """The learner has acted by this (generation, version), for an actor that acts by none of its own. From any thread."""
        policy = self.policy
        if isinstance(policy, RemotePolicy) and stamp[0] == policy.generation and stamp[1] > policy.version:
            self.policy = RemotePolicy(policy.spec, *stamp, 0)

    def _note(self, generation: int, version: int, digest: int) -> None:
        """Which version there is, for an actor that acts by none of its own."""
        assert self.spec is not None
        self.policy = RemotePolicy(self.spec, generation, version, digest)
        self._swapped()

    def _before(self) -> PolicySnapshot | None:
        """The snapshot that was held before the present one. From another thread the last of them may be taken away."""
        try:
            return self._previous[-1].snapshot
        except IndexError:
            return None

    def _on_beacon(self, frames: list[Frame]) -> None:
        beacon, policy = decode(frames), self.policy
        if isinstance(beacon, Beacon):
            self.alarms = {name: count for name, count in beacon.alarms.items() if type(count) is int and count > 0}
        if not isinstance(beacon, Beacon) or policy is None or self._welcome is None or self._fetch_at:
            return
        if beacon.generation != self._welcome.generation:
            return  # another life of the learner: its ROUTER will tell
        if not self._acts:
            if beacon.version != policy.version:
                self._note(beacon.generation, beacon.version, beacon.digest)
            return
        if (beacon.generation, beacon.version) == self._rejected:
            return  # the one that was rolled back; the next will do
        if policy.generation != beacon.generation or beacon.version > policy.version:
            self._counters.add("resyncs.beacon")
            self._fetch()
        elif beacon.version == policy.version and beacon.digest != policy.snapshot.digest:
            self._counters.add("resyncs.digest")
            self._fetch(whole=True)
