"""Tests of a relay's core without sockets: the messages that it passes on, those that it refuses, and its state."""

from typing import Any, ClassVar

import pytest

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.liveness import FOLLOW_AGAIN_S, RELAY_CLIENT_S
from rl4sys_zmq.relay.core import CLIENT_MESSAGES_PER_S, CUT_AFTER
from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, WireDtype, apply_update, is_tag_of
from rl4sys_zmq.wire import encode, tensors_from_document
from rl4sys_zmq.wire.messages import (
    FetchWeights,
    FollowWeights,
    Heartbeat,
    Refused,
    StatusReply,
    StatusRequest,
    WeightsReply,
    WeightsSource,
)

from .conftest import POLICY, SIZES, TAG_KEY, Rig, Upstream, access, user

FOLLOW = FollowWeights("lab")


def joined(upstream: Upstream, rig: Rig | None = None, key: str | None = None) -> Rig:
    """Return a relay that has the versions of the upstream, and one child."""
    rig = rig or Rig()
    assert rig.child(FOLLOW, key=key) == []
    rig.upstream(upstream.source())
    rig.upstream(upstream.reply())
    assert isinstance(rig.sent[-1][1], WeightsSource)
    return rig


@pytest.fixture
def rig(upstream: Upstream) -> Rig:
    return joined(upstream)


def code_of(answers: list[Any]) -> str:
    (refused,) = answers
    assert isinstance(refused, Refused)
    return refused.code


def test_the_first_child_of_a_client_makes_the_relay_follow_it_once(upstream: Upstream) -> None:
    rig = Rig()
    assert rig.child(FOLLOW) == rig.child(FOLLOW, b"other") == []
    assert [type(m) for m in rig.asked] == [FollowWeights]
    rig.upstream(upstream.source())
    assert rig.listens == ["tcp://*:5"] and rig.topics == {b"B" + upstream.topic, b"W" + upstream.topic}
    assert isinstance(rig.asked[-1], FetchWeights) and rig.asked[-1].client_id == "lab"
    rig.upstream(upstream.reply())
    assert {peer for peer, _ in rig.sent} == {b"child", b"other"}
    (answer,) = rig.child(FOLLOW, b"third")
    assert isinstance(answer, WeightsSource) and (answer.version, answer.policy_id) == (0, POLICY)
    assert answer.topic != upstream.topic and len(rig.asked) == 2
    assert rig.client()["children"] == 3


def test_updates_go_onward_unchanged_and_beacons_when_their_version_is_held(upstream: Upstream, rig: Rig) -> None:
    for _ in range(3):
        topic, *frames = upstream.publish()
        ((onward, passed),) = rig.hears([topic, *frames])
        assert passed == frames and onward[:1] == b"W" and onward != topic
        assert is_tag_of(bytes(passed[2]), TAG_KEY, POLICY, upstream.states[-1])
    topic, *beacon = upstream.beacon()
    ((onward, passed),) = rig.hears([topic, *beacon])
    assert passed == beacon and onward[:1] == b"B"
    missed = upstream.publish()
    assert rig.hears(upstream.beacon()) == []  # the relay first fetches the lost version that the beacon names
    assert isinstance(rig.asked[-1], FetchWeights) and rig.asked[-1].held_version == 3
    assert len(rig.hears(missed)) == 1 and len(rig.hears(upstream.beacon())) == 1


@pytest.mark.parametrize("frame", [1, 2])
def test_damaged_updates_are_not_passed_on_and_fetched_again(upstream: Upstream, rig: Rig, frame: int) -> None:
    frames = upstream.publish()
    damaged = bytearray(frames[frame])
    damaged[len(damaged) // 2] ^= 1
    assert rig.hears([*frames[:frame], bytes(damaged), *frames[frame + 1 :]]) == []
    assert rig.client()["version"] == 0
    for _ in range(2):
        rig.upstream(upstream.source())  # the version in the second reply was in the first: it is lost
    assert isinstance(rig.asked[-1], FetchWeights)
    rig.upstream(upstream.reply())
    assert rig.client()["digest"] == f"{upstream.states[-1].digest:016x}"
    assert len(rig.hears(upstream.publish())) == 1


def fetched(rig: Rig, held: PolicySnapshot | None, upstream: type[Upstream] = Upstream) -> tuple[WeightsReply, PolicySnapshot]:
    """Let a child that holds a version fetch the newest one, and apply the answer."""
    (answer,) = rig.child(FetchWeights(*((held.generation, held.version) if held is not None else (0, 0)), "lab"))
    assert isinstance(answer, WeightsReply)
    header, payload = answer.body
    return answer, apply_update(WeightsHeader.unpack(header), payload, held, tensors_from_document(upstream.tensors))


def test_fetches_are_answered_from_what_is_held(upstream: Upstream, rig: Rig) -> None:
    for _ in range(5):
        rig.hears(upstream.publish())
    for held in (None, upstream.states[2]):
        rig.now += 1.0
        answer, got = fetched(rig, held)
        assert (got.version, got.digest) == (5, upstream.states[5].digest)
        assert is_tag_of(answer.tags[0], TAG_KEY, POLICY, got)
    assert not [m for m in rig.asked[2:] if isinstance(m, FetchWeights)]


class ExactUpstream(Upstream):
    """An upstream that rounds one of its two tensors."""

    tensors: ClassVar[list[Any]] = [["w", [SIZES[0]]], ["b", [SIZES[1]], "float32", True]]
    writing: ClassVar[EncodingOptions] = EncodingOptions(WireDtype.BF16, tensors=tensors_from_document(tensors))


def test_tensors_that_are_not_rounded_go_onward_with_those_that_are() -> None:
    upstream = ExactUpstream()
    upstream.publish()
    rig = joined(upstream)
    for _ in range(3):
        assert len(rig.hears(upstream.publish())) == 1
    newest = upstream.states[-1]
    assert rig.client()["digest"] == f"{newest.digest:016x}"
    assert not newest.flat[: SIZES[0]].view("u4").astype("u2").any() and newest.flat[SIZES[0] :].view("u4").astype("u2").any()
    for held in (None, upstream.states[1]):
        rig.now += 1.0
        assert fetched(rig, held, ExactUpstream)[1].digest == newest.digest


def test_an_upstream_with_a_new_generation_is_followed_anew(upstream: Upstream, rig: Rig) -> None:
    rig.hears(upstream.publish())
    again = Upstream(generation=8, topic=b"new-topi")
    again.publish()
    assert rig.hears(again.beacon()) == []
    rig.upstream(again.source())
    assert rig.topics == {b"B" + again.topic, b"W" + again.topic} and rig.listens == ["tcp://*:5"]
    rig.upstream(again.reply())
    assert (rig.client()["generation"], rig.client()["version"]) == (8, 0)
    assert len(rig.hears(again.publish())) == 1
    assert rig.hears(upstream.publish()) == []


def test_a_silent_upstream_turns_the_children_away_until_it_answers(upstream: Upstream, rig: Rig) -> None:
    rig.tick(2.0)
    assert rig.core.counters.get("redials") == 0
    rig.tick(3.0, problem="its key is wrong")
    assert rig.redials == 1
    answers = rig.child(FOLLOW)
    assert code_of(answers) == RefusalReason.UPSTREAM and "its key is wrong" in answers[0].reason
    assert rig.core.report(rig.now)["upstream"]["state"] == "lost"
    rig.upstream(upstream.source())
    assert isinstance(rig.child(FOLLOW)[0], WeightsSource)


def test_children_that_wait_are_refused_with_the_upstreams_reason() -> None:
    rig = Rig()
    rig.child(FOLLOW)
    rig.child(FollowWeights("other"), b"other")
    rig.upstream(encode(Refused("identity", "lab", "this key is not for lab")))
    ((peer, refused),) = rig.sent
    assert peer == b"child" and isinstance(refused, Refused)
    assert (refused.code, refused.field) == (RefusalReason.UPSTREAM, "lab") and "not for lab" in refused.reason
    assert code_of(rig.child(FOLLOW)) == RefusalReason.UPSTREAM


def test_children_have_the_rights_of_their_keys(upstream: Upstream) -> None:
    users = (user("edge", "submit", "read_weights"), user("far", "relay"), user("sender", "submit"), user("ops", "admin"))
    rig = joined(upstream, Rig(access(*users, user("stranger", "read_weights", client_ids=["other"]))), key="edge")
    assert isinstance(rig.child(FOLLOW, b"far", "far")[0], WeightsSource)
    fetch = FetchWeights(0, 0, "lab")
    assert isinstance(rig.child(fetch, b"far", "far")[0], WeightsReply)
    for key, code in (("sender", "forbidden"), ("ops", "forbidden"), ("stranger", "identity"), ("nobody", "forbidden")):
        assert code_of(rig.child(FOLLOW, key.encode(), key)) == code_of(rig.child(fetch, key.encode(), key)) == code
    topic = b"W" + rig.child(FOLLOW, key="edge")[0].topic
    keys = ("edge", "far", "sender", "stranger")
    assert [rig.core.may_subscribe(topic, key) for key in keys] == [True, True, False, False]
    whole, rights = (rig.child(StatusRequest(), key.encode(), key)[0] for key in ("ops", "edge"))
    assert isinstance(whole, StatusReply) and isinstance(rights, StatusReply)
    assert "limited" not in whole.report
    assert (rights.report["limited"], rights.report["clients"]) == ("the key of edge does not have the role admin", {})
    rig.core.change_access(access(users[0]))
    assert rig.child(FOLLOW, key="edge")[0].topic != topic[1:]
    assert not rig.core.may_subscribe(topic, "edge")


def test_a_flood_is_dropped_and_its_connection_closed(upstream: Upstream) -> None:
    rig = joined(upstream, Rig(messages_per_s=10.0, max_clients=1))
    answered = sum(bool(rig.child(FOLLOW, b"flood")) for _ in range(CUT_AFTER + 100))
    assert answered == 2 * (10 + CLIENT_MESSAGES_PER_S) and rig.cuts == 1
    assert isinstance(rig.child(FOLLOW, b"good")[0], WeightsSource)


def test_limits_on_children_clients_and_messages(upstream: Upstream) -> None:
    rig = joined(upstream, Rig(max_children=2, max_clients=1))
    assert code_of(rig.child(FollowWeights("other"), b"second")) == "quota"
    assert code_of(rig.child(FOLLOW, b"third")) == "quota"
    assert code_of(rig.child(Heartbeat(5), b"second")) == "direction"
    rig.core.on_child(b"second", None, [b"junk"], rig.now)
    assert rig.core.counters.get("refused.magic") == 1
    rig.core.on_child(b"second", None, [bytes(1 << 15)], rig.now)
    assert rig.core.counters.get("refused.too_large") == 1


def test_what_no_child_asks_for_is_dropped(upstream: Upstream, rig: Rig) -> None:
    for _ in range(int(RELAY_CLIENT_S)):
        rig.upstream(upstream.source())
        rig.tick(1.0)
    assert rig.client()["children"] == 0 and rig.core.report(rig.now)["children"] == 0
    rig.tick(3.0)
    report = rig.core.report(rig.now)
    assert report["clients"] == {} and not rig.topics and report["upstream"]["state"] == "idle"


def test_what_an_upstream_must_not_send_is_counted(upstream: Upstream, rig: Rig) -> None:
    rig.upstream(encode(Heartbeat(1)))
    rig.upstream([b"junk"])
    rig.upstream(encode(WeightsReply((b"odd",))))
    rig.hears([b"B" + upstream.topic, b"junk"])
    counters = rig.core.counters
    assert [counters.get(f"refused.{code}") for code in ("direction", "magic", "frames")] == [1, 2, 1]
    assert rig.client()["version"] == 0


def test_children_wait_while_the_upstream_starts_the_client() -> None:
    rig, upstream = Rig(), Upstream()
    assert rig.child(FOLLOW) == []
    rig.upstream(encode(Refused("starting", "lab", "there are no weights of client 'lab' so far")))
    assert rig.child(FOLLOW) == [] and rig.client()["error"] == ""
    rig.now += FOLLOW_AGAIN_S
    asked = len(rig.asked)
    assert rig.child(FOLLOW, b"other") == [] and len(rig.asked) == asked + 1  # the relay sends its request again at once
    upstream.publish()
    rig.upstream(upstream.source())
    rig.upstream(upstream.reply())
    assert {peer for peer, message in rig.sent if isinstance(message, WeightsSource)} == {b"child", b"other"}


def test_a_child_that_needs_a_newer_generation_waits_for_it(upstream: Upstream, rig: Rig) -> None:
    rig.now += FOLLOW_AGAIN_S
    again = Upstream(generation=8)
    again.publish()
    assert rig.child(FollowWeights("lab", generation=8)) == []
    assert rig.asked[-1] == FollowWeights("lab", "", 1, 8)  # at once, and for the same generation
    assert isinstance(rig.child(FollowWeights("lab", generation=7), b"old")[0], WeightsSource)
    rig.upstream(again.source())
    rig.upstream(again.reply())
    peer, answer = rig.sent[-1]
    assert peer == b"child" and isinstance(answer, WeightsSource) and answer.generation == 8


def test_a_child_that_is_a_relay_is_told_that_it_must_wait() -> None:
    rig = Rig()
    assert code_of(rig.child(FollowWeights("lab", "tcp://10.0.0.5:50061", 3))) == RefusalReason.STARTING


def test_a_relay_feeds_another_one_with_as_many_clients_as_it_may_hold() -> None:
    upper, lower = Rig(), Rig()
    names = [f"client-{n}" for n in range(64)]
    sent = 0
    for step in range(4 * 20):
        for name in names if step % 4 == 0 else ():
            lower.child(FollowWeights(name))
        lower.tick(0.25)
        for request in lower.asked[sent:]:
            upper.child(request, b"lower")
        sent = len(lower.asked)
        upper.tick(0.25)
        upper.core.on_upstream(encode(Refused("starting", "", "")), upper.now)  # the learner is alive
        lower.core.on_upstream(encode(Refused("starting", "", "")), lower.now)
    counters = upper.core.counters
    assert counters.get("refused.quota") == 0 and upper.cuts == 0
    assert [upper.client(name)["children"] for name in names] == [1] * 64


def test_each_client_of_a_child_has_its_own_limit_on_fetches(upstream: Upstream, rig: Rig) -> None:
    fetches = [rig.child(FetchWeights(0, 0, "lab"), b"second") for _ in range(30)]
    assert 0 < sum(map(bool, fetches)) < 10
    rig.child(FollowWeights("other"))
    other = Upstream(topic=b"o-topics", client_id="other", policy=b"policy-2")
    other.publish()
    rig.upstream(other.source())
    rig.upstream(other.reply())
    assert isinstance(rig.child(FetchWeights(0, 0, "other"), b"second")[0], WeightsReply)


def test_many_new_subscribers_share_a_beacon(upstream: Upstream, rig: Rig) -> None:
    rig.hears(upstream.beacon())
    before = len(rig.published)
    for _ in range(100):
        assert rig.core.may_subscribe(rig.published[before - 1][0], None)
    rig.upstream(upstream.source())
    rig.tick(0.25)
    assert len(rig.published) == before + 1
