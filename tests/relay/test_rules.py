"""Tests of the learner's choice of a relay for each actor: the rules of the configuration, and the spread of the actors."""

from collections import Counter
from typing import Any

import pytest

from rl4sys_zmq.config import AgentConfig, LearnerConfig, RelayAddress, RelayConfig, RelayRule
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway.relays import MAX_CHOICES, MAX_SHOWN, RelayDirectory
from rl4sys_zmq.liveness import RELAY_SHOWN_S
from rl4sys_zmq.wire.messages import FollowWeights

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.mark.parametrize(
    ("rule", "actor_id", "host", "serves"),
    [
        ({}, "a", "", True),
        ({"networks": ["10.1.0.0/16"]}, "a", "10.1.2.3", True),
        ({"networks": ["10.1.0.0/16"]}, "a", "::ffff:10.1.2.3", True),
        ({"networks": ["10.1.0.0/16"]}, "a", "10.2.0.1", False),
        ({"networks": ["10.1.0.0/16"]}, "a", "", False),
        ({"networks": ["10.1.0.0/16"]}, "a", "nonsense", False),
        ({"networks": "fd00::/8"}, "a", "fd00::1", True),
        ({"actors": ["edge-*"]}, "edge-7", "", True),
        ({"actors": "edge-?"}, "edge-77", "10.1.2.3", False),
        ({"networks": ["10.1.0.0/16"], "actors": ["edge-*"]}, "edge-7", "10.9.0.1", True),
    ],
)
def test_a_rule_names_actors_or_networks(rule: dict[str, Any], actor_id: str, host: str, serves: bool) -> None:
    assert RelayRule(address="host:1", **rule).serves(actor_id, host) is serves


def test_actors_spread_over_relays_and_those_that_a_rule_names_come_first() -> None:
    rules = [RelayRule(address=f"relay-{n}:1") for n in range(6)]
    named = RelayRule(address="near:1", key=KEY, actors=("edge-*",))
    directory = RelayDirectory([*rules, named])
    counts = Counter(directory.choose(f"actor-{n}", "")[0][0] for n in range(600))
    assert len(counts) == 6 and min(counts.values()) > 60
    assert directory.choose("actor-1", "") == directory.choose("actor-1", "") and len(directory.choose("a", "")) == MAX_CHOICES
    assert directory.choose("edge-1", "")[0] == ["tcp://near:1", KEY]
    assert RelayDirectory([named]).choose("other", "") == []


def test_the_learner_remembers_relays_for_a_while_and_not_too_many() -> None:
    directory = RelayDirectory([])
    directory.note_request("", "", FollowWeights("lab"), 0.0)  # the request of an actor, not of a relay
    for n in range(MAX_SHOWN + 10):
        directory.note_request("hub", "10.0.0.1", FollowWeights("lab", f"tcp://relay:{n + 1}", n), float(n))
    shown = directory.report(float(MAX_SHOWN + 9))
    newest = {"address": f"tcp://relay:{MAX_SHOWN + 10}", "user": "hub", "host": "10.0.0.1", "silent_s": 0.0, "live": True}
    assert len(shown) == MAX_SHOWN and shown[-1] == {**newest, "children": {"lab": MAX_SHOWN + 9}}
    assert not shown[0]["live"] and directory.report(2 * RELAY_SHOWN_S + MAX_SHOWN) == []


def test_a_client_that_a_relay_has_dropped_is_no_longer_shown() -> None:
    directory = RelayDirectory([])
    for second in range(60):
        for client in ("lab", "shop") if second < 10 else ("lab",):
            directory.note_request("hub", "10.0.0.1", FollowWeights(client, "tcp://relay:1", 5), float(second))
    (shown,) = directory.report(60.0)
    assert shown["children"] == {"lab": 5}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"relays": "host:1"}, "relays"),
        ({"relays": [{"key": KEY}]}, "relays"),
        ({"relays": ["host"]}, "relays.address"),
        ({"relays": [{"address": "host:1", "key": "short"}]}, "relays.key"),
        ({"relays": [{"address": "host:1", "networks": ["10.0.0.0/40"]}]}, "relays.networks"),
        ({"relays": [{"address": "host:1", "actors": [7]}]}, "relays.actors"),
        ({"relays": [{"address": "host:1", "network": []}]}, "relays.network"),
        ({"relays": ["host:1"], "keys": "keys"}, "relays[0].key"),
    ],
)
def test_a_wrong_list_of_relays_is_refused_by_its_key(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LearnerConfig.from_mapping(given)
    assert caught.value.key == key


def test_relays_survive_the_way_through_json() -> None:
    rules = [{"address": "host:1", "key": KEY, "networks": ["10.1.2.3/16"], "actors": ["edge-*"]}, "tcp://other:2"]
    config = LearnerConfig.from_mapping({"relays": rules})
    assert LearnerConfig.from_mapping(config.to_json()) == config and config.relays[0].networks == ("10.1.0.0/16",)
    agent = AgentConfig.from_mapping({"client_id": "lab", "relays": ["host:1", {"address": "b:2", "key": KEY}]})
    assert AgentConfig.from_mapping(agent.to_json()) == agent
    assert agent.relays == (RelayAddress(address="host:1"), RelayAddress(address="b:2", key=KEY))
    assert AgentConfig(client_id="lab").relays is None


def test_a_relay_that_others_can_reach_needs_keys() -> None:
    with pytest.raises(ConfigError, match="--keys"):
        RelayConfig(upstream="host:1", bind="tcp://0.0.0.0:0")
    assert RelayConfig(upstream="host:1", bind="tcp://0.0.0.0:0", insecure=True).upstream == "tcp://host:1"


def test_relays_on_two_machines_with_one_address_are_two_relays() -> None:
    directory = RelayDirectory([])
    for host, children in (("10.0.0.1", 40), ("10.0.0.2", 3)):
        directory.note_request("hub", host, FollowWeights("lab", "tcp://0.0.0.0:50061", children), 0.0)
    shown = [(relay["host"], relay["children"]) for relay in directory.report(1.0)]
    assert shown == [("10.0.0.1", {"lab": 40}), ("10.0.0.2", {"lab": 3})]
