"""Actors that connect, send one segment and disconnect, ten thousand times."""

import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest
from harness.keys import KeyRing
from kit import play, segment_with, until

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.security.keys import UserKeys
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Bye, Heartbeat, Message, Refused, Welcome

from .conftest import PATIENCE_S, SOAK, Child, Report, StartLearner, Tier, check_learner_law, descriptors, join, resident_kib
from .siege import Attacker, hello
from .zmtp import Peer

NAMES = 64
GROWTH_KIB = 1024
SIZES = {"plain": (300, 10_000), "curve": (100, 2_000)}


class Churner:
    """Actors by name. Each submits one segment per connection."""

    def __init__(self, address: str, rng: random.Random, keys: UserKeys | None, *, fresh: bool) -> None:
        self._address, self._rng, self._keys, self._fresh = address, rng, keys, fresh
        self._known: dict[str, tuple[int, int]] = {}  # the incarnation and the next sequence number of each name
        self._count = 0
        self.starts = self.gap = 0  # higher incarnations, and segments of streams that were discarded after their lease

    def once(self) -> None:
        """Connect, join, submit one segment, wait for its ack, and disconnect: with BYE, without it, or with a reset."""
        self._count += 1
        name = f"churn-{self._count if self._fresh else self._rng.randrange(NAMES)}"
        incarnation, seq = self._known.get(name, (1, 0))
        peer = Peer(self._address) if self._keys is None else Attacker(self._address, self._keys)
        try:
            peer.send(encode(hello(name, incarnation, first_seq=seq, previously_welcomed=seq > 0)))
            welcome = self._until(peer, Welcome)
            assert welcome.received == seq and welcome.gap in (0, seq), welcome
            self.gap += welcome.gap
            peer.send(encode(join_submit(seq, 0, [pack_segment(segment(welcome.generation))])))
            while self._until(peer, Ack).received <= seq:
                pass
            says_bye = self._rng.random() < 0.5
            if says_bye:
                peer.send(encode(Bye()))
                peer.send(encode(Heartbeat(0)))
                while isinstance(said := _heard(peer), Ack):
                    pass
                # The BYE was processed before the heartbeat was refused. Else the learner could refuse the next start: the
                # actor would still be live.
                assert isinstance(said, Refused) and said.code == RefusalReason.NO_SESSION.value, said
        finally:
            resets = self._rng.random() < 0.2
            if isinstance(peer, Peer):
                peer.close(reset=resets)
            else:
                peer.close()
        if not self._fresh:
            self._known[name] = (incarnation + 1, 0) if says_bye else (incarnation, seq + 1)
            self.starts += says_bye

    @staticmethod
    def _until(peer: Peer | Attacker, kind: type[Any]) -> Any:
        while not isinstance(said := _heard(peer), kind):
            assert not isinstance(said, Refused), said
        return said


def _heard(peer: Peer | Attacker) -> Message:
    if isinstance(peer, Peer):
        return decode(peer.hear())
    message = peer.listen(PATIENCE_S)
    assert message is not None
    return message


def segment(generation: int) -> Segment:
    return segment_with(1, generation=generation, episode_return=0.0, episode_length=1)


@pytest.mark.parametrize("names", ["the same names", "new names"] if SOAK else ["the same names"])
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("security", ["plain", "curve"])
def test_actors_that_come_and_go(
    tier: Tier, security: str, names: str, seed: int, report: Report, learner: StartLearner, tmp_path: Path
) -> None:
    fresh = names == "new names"
    cycles = tier.size(*SIZES[security], least=1000)
    warm_up = cycles // 2 if tier.long else 150  # tables and free lists reach their size
    # The batches are so large that no segment is trained: versions, which are kept, would grow with the number of connections.
    config: dict[str, Any] = {"max_actors": 100_000, "lease_s": 0.5}
    keys, options = None, {}
    if security == "curve":
        ring = KeyRing(tmp_path / "keys")
        ring.allow("lab")
        ring.write()
        keys, options = ring.client("lab"), {"keys": ring.file("lab")}
        config["keys"] = str(ring.folder)
    process, address = learner(config=config, forgetful=True, steps_per_update=64, rollout_length=1)
    churner = Churner(address, random.Random(seed), keys, fresh=fresh)
    with join(address, **options) as agent:
        play(agent, 1)
        agent.flush(PATIENCE_S)
        quiet = descriptors(process.pid)
        for _ in range(warm_up):
            churner.once()
        sizes_kib = [resident_kib(process.pid)]
        began = time.monotonic()
        for _ in range(2):
            for _ in range(cycles // 2):
                churner.once()
            sizes_kib.append(resident_kib(process.pid))
        took = time.monotonic() - began
        until(lambda: descriptors(process.pid) <= quiet, "the learner's descriptors")
        version = process.ask("status")["clients"]["lab"]["version"]
        for _ in range(64):  # pending segments keep the entry of their actor
            play(agent, 1)
        agent.wait_version(version + 1, PATIENCE_S)
        agent.flush(PATIENCE_S)
        actors = until(lambda: _only(process, agent.actor_id), "the table of actors")
        # A leak grows in both halves. A peak of connections that end late, under load, raises the size once.
        halves = [after - before for before, after in itertools.pairwise(sizes_kib)]
        grown = 2 * min(halves)
        client = process.ask("status")["clients"]["lab"]
    report(
        cycles=cycles,
        starts=churner.starts,
        gap=churner.gap,
        per_second=round(cycles / took),
        descriptors=quiet,
        actors_left=actors,
        halves_kib=halves,
        bytes_per_cycle=round(1024 * grown / cycles),
    )
    assert client["gap"] == client["rolled_back"] == churner.gap
    assert client["accepted"] == 1 + warm_up + cycles + 64 + churner.gap
    check_learner_law(client)
    if not fresh:
        assert grown < GROWTH_KIB


def _only(process: Child, actor_id: str) -> int:
    """Return 1 if the learner knows this actor only, else 0."""
    actors = process.ask("status")["clients"]["lab"]["actors"]
    return len(actors) if list(actors) == [actor_id] else 0
