"""Tests of the predictions: each formula against a slow twin, and the rules for all of them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import raising

from rl4sys_zmq.capacity.constants import RECORDED, FanoutCost, ReceivingCost, fit_fanout, fit_ingress
from rl4sys_zmq.capacity.resources import HOW_TO, ResourceLoad, first_limit, gradient_s, predict, propose
from rl4sys_zmq.capacity.workload import PlannedTraining, Traffic, Workload
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway import gateway
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

COSTS = replace(
    RECORDED,
    ingress=ReceivingCost(message_s=1e-4, segment_s=1e-5, byte_s=1e-9),
    gateway=ReceivingCost(message_s=5e-5, segment_s=0.0, byte_s=0.0),
    processor=ReceivingCost(message_s=1e-4, segment_s=1e-5, byte_s=2e-9),
    trainer=ReceivingCost(message_s=2e-5, segment_s=1e-6, byte_s=0.0),
    durable={
        "normal": ReceivingCost(message_s=1e-4, segment_s=1e-5, byte_s=2e-9),
        "always": ReceivingCost(message_s=1e-4, segment_s=1e-5, byte_s=4e-9),
    },
    commit_s=1e-2,
    fanout=FanoutCost(version_s=1e-3, actor_s=1e-4, model_byte_s=1e-9, sent_byte_s=2e-9),
    encode_byte_s=3e-9,
    diff_ratio=2.0,
    gradient_s=1e-3,
    gradient_unit_s=1e-9,
    all_reduce_s=4e-3,
    crypt_message_s=1e-5,
    crypt_byte_s=1e-9,
    connection_bytes=60e3,
    session_bytes=10e3,
    learner_bytes=100e6,
)
LOAD = Workload(actors=10, steps_per_s=100.0, model_bytes=40_000, segment_steps=10, publish_per_s=2.0, bandwidth_bits_s=1e9)


def of(name: str, load: Workload = LOAD) -> ResourceLoad:
    return next(row for row in predict(load, COSTS) if row.name == name)


def test_the_traffic_of_a_load() -> None:
    flow = Traffic(LOAD, COSTS.diff_ratio)
    assert (flow.steps_s, flow.segments_s, flow.messages_s) == (1000.0, 100.0, 100.0)
    assert flow.segment_bytes == 64 + 11 * 32 + 10 * (8 + 8)
    assert flow.data_bytes_s == 100 * flow.segment_bytes + 100 * 140
    assert flow.heartbeats_s == 0.0, "they send more often than once a second"
    assert (flow.versions_s, flow.updates_s, flow.update_bytes) == (2.0, 20.0, 128 + 20_000)
    assert flow.sent_bytes_s == 20 * (128 + 20_000) + (10 + 100) * 120
    assert Traffic(replace(LOAD, weights_level=0), 2.0).update_bytes == 128 + 40_000
    assert Traffic(replace(LOAD, steps_per_s=0.0), 2.0).heartbeats_s == 10.0
    assert Traffic(replace(LOAD, segments_per_message=4), 2.0).messages_s == 25.0


def test_a_segment_has_the_predicted_size() -> None:
    """The formula agrees with the size of a real message."""
    pytest.importorskip("torch")
    from rl4sys_zmq.capacity.harness import SMALL, body_bytes

    for steps, size, batch in ((10, 4, 1), (10, 4, 16), (200, 64, 4)):
        kind = replace(SMALL, steps=steps, observation_space=BoxSpace((size,)), action_space=DiscreteSpace(4))
        load = replace(
            LOAD, actors=1, steps_per_s=steps * batch, observation_bytes=4 * size, segment_steps=steps, segments_per_message=batch
        )
        assert Traffic(load, 1.0).data_bytes_s == pytest.approx(sum(body_bytes(kind, batch)), rel=0.12)


def test_the_interpreter_and_the_threads() -> None:
    flow = Traffic(LOAD, 2.0)
    took = sum(1e-4 + 1e-5 + (flow.segment_bytes + 140) * 1e-9 for _ in range(100))
    assert of("interpreter (ingress)").used == pytest.approx(took)
    assert of("gateway thread").used == pytest.approx(100 * 5e-5)
    keyed = of("interpreter (ingress)", replace(LOAD, keys=True))
    assert keyed.used == pytest.approx(took + 100 * 1e-5 + flow.received_bytes_s * 1e-9)
    resting = replace(LOAD, steps_per_s=0.0)
    assert of("interpreter (ingress)", resting).used == pytest.approx(10 * 5e-5), "heartbeats alone"


def test_training() -> None:
    training = PlannedTraining(algorithm="PPO", gradients_per_step=10 / 100, minibatch=100)
    load = replace(LOAD, training=training, clients=2)
    each = 1e-3 + 10_000 * 100 * 1e-9
    assert gradient_s(load, COSTS) == pytest.approx(each)
    data = (100 * 2e-5 + 100 * 1e-6) / 2
    encoding = 2.0 * 40_000 * 3e-9
    assert of("learner thread (each)", load).used == pytest.approx(data + 1000 / 2 * 0.1 * each + encoding)
    shared = replace(load, training=replace(training, learners=2))
    assert gradient_s(shared, COSTS) == pytest.approx(1e-3 + 10_000 * 50 * 1e-9 + 4e-3)


def test_weights() -> None:
    each = 1e-3 + 40_000 * 1e-9 + 10 * (1e-4 + (128 + 20_000) * 2e-9) + 40_000 * 3e-9
    assert of("fan-out of weights").used == pytest.approx(2 * each)
    whole = 1e-3 + 40_000 * 1e-9 + 10 * (1e-4 + (128 + 40_000) * 2e-9)
    assert of("fan-out of weights", replace(LOAD, weights_level=0)).used == pytest.approx(2 * whole)
    assert of("network, sent").used == pytest.approx(8 * 1.05 * Traffic(LOAD, 2.0).sent_bytes_s)


def test_the_journal() -> None:
    flow = Traffic(LOAD, 2.0)
    for fsync, byte_s in (("normal", 2e-9), ("always", 4e-9)):
        used = of("journal", replace(LOAD, fsync=fsync)).used
        assert used == pytest.approx(100 * 1e-4 + 100 * 1e-5 + flow.data_bytes_s * byte_s)
    assert of("journal's disk").used == pytest.approx(flow.data_bytes_s * 10 * 3 * 2)
    assert "up to 100 commits/s" in of("journal").detail, "as many as messages or as the disk can"
    assert not {"journal", "journal's disk"} & {row.name for row in predict(replace(LOAD, journal=False), COSTS)}


def test_memory() -> None:
    flow = Traffic(LOAD, 2.0)
    client = 64 * 40_000 + 32 * flow.update_bytes + flow.data_bytes_s
    assert of("memory").used == pytest.approx(100e6 + 10 * 70e3 + client)
    training = PlannedTraining(algorithm="DQN", gradients_per_step=0.25, minibatch=100, replay_steps=1000)
    trained = of("memory", replace(LOAD, training=training)).used
    assert trained == pytest.approx(100e6 + 10 * 70e3 + client + 8 * 40_000 + 2 * 32 * 1000)
    assert of("open files").used == 2 * 10 + 64 + 256


def test_the_limits_are_those_of_the_learner() -> None:
    from rl4sys_zmq.capacity import resources

    assert resources.PUB_QUEUE == gateway.PUB_HWM


@given(st.floats(0.1, 1e4), st.integers(1, 10_000), st.integers(4, 1 << 27), st.floats(1.0, 8.0))
def test_more_load_is_never_less(steps_per_s: float, actors: int, model_bytes: int, factor: float) -> None:
    load = replace(LOAD, steps_per_s=steps_per_s, actors=actors, model_bytes=model_bytes, publish_per_s=1.0)
    more = replace(load, steps_per_s=factor * steps_per_s, publish_per_s=factor)
    for before, after in zip(predict(load, COSTS), predict(more, COSTS), strict=True):
        assert before.name == after.name
        assert after.share >= before.share * (1 - 1e-9) or before.name in ("gateway thread", "interpreter (ingress)")
        assert math.isfinite(after.share) and after.share >= 0


def test_the_first_limit_is_the_highest_load() -> None:
    rows = predict(LOAD, COSTS)
    assert first_limit(rows).share == max(row.share for row in rows)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"actors": 0}, "actors"),
        ({"steps_per_s": -1.0}, "steps_per_s"),
        ({"steps_per_s": math.nan}, "steps_per_s"),
        ({"segment_steps": 0}, "segment_steps"),
        ({"clients": 11}, "clients"),
    ],
)
def test_a_load_that_cannot_be(wrong: dict[str, Any], key: str) -> None:
    with raising(ConfigError, key=key):
        replace(LOAD, **wrong)


@given(st.floats(1e-6, 1e-3), st.floats(1e-7, 1e-4), st.floats(1e-11, 1e-8))
def test_costs_are_found_again(message_s: float, segment_s: float, byte_s: float) -> None:
    cost = ReceivingCost(message_s=message_s, segment_s=segment_s, byte_s=byte_s)
    points = [(1.0, 1.0, 500.0), (1.0, 64.0, 25_000.0), (1.0, 16.0, 155_000.0), (1.0, 1.0, 1e6)]
    found = fit_ingress(points, [cost.seconds(*point) for point in points])
    for point in points:
        assert found.seconds(*point) == pytest.approx(cost.seconds(*point), rel=1e-6)


def test_costs_are_never_negative() -> None:
    """Noise can make a larger message faster than a smaller one."""
    points = [(1.0, 1.0, 500.0), (1.0, 64.0, 25_000.0), (1.0, 1.0, 1e6)]
    found = fit_ingress(points, [3e-4, 2e-4, 9e-4])
    assert min(found.message_s, found.segment_s, found.byte_s) >= 0
    rng = np.random.default_rng(1)
    sizes = [(50e3, 1.0), (50e3, 8.0), (1e6, 1.0), (1e6, 8.0)]
    for _ in range(100):
        weights = fit_fanout(sizes, rng.uniform(1e-4, 1e-2, 4).tolist())
        assert min(weights.version_s, weights.actor_s, weights.model_byte_s, weights.sent_byte_s) >= 0


def texts(load: Workload) -> list[str]:
    return [f"{p.resource}: {p.text}" for p in propose(load, COSTS, predict(load, COSTS))]


def test_a_small_load_needs_nothing() -> None:
    assert texts(LOAD) == []


def test_many_small_messages_share_messages_first() -> None:
    found = texts(replace(LOAD, actors=200, steps_per_s=600.0))
    first = next(text for text in found if text.startswith("interpreter (ingress): "))
    assert first.startswith("interpreter (ingress): send_frequency 4 "), found


def test_a_wide_fan_out_gets_relays() -> None:
    wide = replace(LOAD, actors=400, steps_per_s=0.1, publish_per_s=20.0)
    (relays, *_) = texts(wide)
    assert "relays with" in relays


def test_long_gradient_steps_are_shared_and_short_ones_are_not() -> None:
    training = PlannedTraining(algorithm="PPO", gradients_per_step=0.02, minibatch=256)
    heavy = replace(LOAD, training=training, model_bytes=4_000_000)
    assert any("learners " in text for text in texts(heavy))
    light = replace(LOAD, training=replace(training, gradients_per_step=1.0), model_bytes=4_000)
    assert any("more processes do not help" in text for text in texts(light))


def test_every_proposal_names_a_known_part() -> None:
    training = PlannedTraining(algorithm="PPO", gradients_per_step=1.0, minibatch=64)
    huge = replace(LOAD, actors=5000, steps_per_s=1000.0, clients=4, publish_per_s=50.0, training=training, bandwidth_bits_s=1e6)
    rows = predict(replace(huge, descriptors=1024, memory_bytes=1 << 20), COSTS)
    found = propose(huge, COSTS, rows)
    assert {row.name for row in rows if row.share > 0.7} == {proposal.resource for proposal in found}
    assert {proposal.needs for proposal in found} <= {"", *HOW_TO}
