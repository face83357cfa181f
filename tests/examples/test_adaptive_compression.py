"""The example of adaptive compression in a short form: its link, its model of the link, and a training with a comparison."""

import json
import os
from pathlib import Path
from typing import Any

import adaptive_compression
import numpy as np
import pytest
from adaptive_zstd import bandwidth, data, methods, sockets, view, virtual
from kit import open_agent

from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

USUAL_S = np.full(len(data.LEVELS), 0.001)


def constant(rate: float, seconds: float = 0.2) -> bandwidth.Profile:
    return bandwidth.profile("constant", seconds, rate, rate, 1.0, np.random.default_rng(0))


@pytest.fixture(scope="module")
def blocks() -> list[bytes]:
    return data.make_blocks(6, seed=0)


@pytest.fixture(scope="module")
def costs(blocks: list[bytes]) -> data.Costs:
    return data.Costs.measure(blocks)


def alike(size: float, took_s: float) -> data.Costs:
    """Return the costs of blocks that are all the same at every level."""
    return data.Costs(np.full((1, len(data.LEVELS)), size), np.full((1, len(data.LEVELS)), took_s))


def test_data_that_do_not_compress_pass_at_the_bandwidth_at_most() -> None:
    goodput = sockets.run(constant(2e6), [os.urandom(data.BLOCK)], USUAL_S, methods.fixed(0))
    assert 0 < goodput <= 2e6


def test_a_stopped_link_delivers_nothing_and_does_not_hang(blocks: list[bytes]) -> None:
    for choose in (methods.fixed(0), methods.queue_rule()):
        assert sockets.run(constant(1e-9), blocks, USUAL_S, choose) == 0


def test_blocks_have_the_same_size_are_repeatable_and_all_differ(blocks: list[bytes]) -> None:
    many = data.make_blocks(40, seed=3)
    assert {len(block) for block in many} == {data.BLOCK}
    assert len(set(many)) == 40
    assert data.make_blocks(6, seed=0) == blocks


def test_the_estimates_tell_text_from_random_bytes() -> None:
    ratio, entropy = data.sample(b"the same words again and again " * 5000)
    assert ratio > 10
    assert entropy < 4
    ratio, entropy = data.sample(os.urandom(data.BLOCK))
    assert ratio < 1.01
    assert entropy > 7.5


def test_ten_profiles_have_bandwidths_and_one_stalls() -> None:
    profiles = bandwidth.profiles(1.0)
    assert len(profiles) == 10
    assert all(len(found) == round(1.0 / bandwidth.GRID_S) and (found >= 0).all() for found in profiles.values())
    assert [name for name, found in profiles.items() if not found.all()] == ["stalls"]
    with pytest.raises(ValueError, match="no kind of profile"):
        bandwidth.profile("square", 1.0, 1.0, 2.0, 1.0, np.random.default_rng(0))


def test_the_throughput_says_how_long_the_socket_was_full() -> None:
    seen = view.View()
    seen.sends.extend((3e4, 0.01 * k, 0.01 * k + 1e-6) for k in range(8))
    rate, blocked = seen.throughput()
    assert rate == pytest.approx(3e6 * 8 / 7, rel=1e-3)
    assert blocked < 0.001
    seen.sends.extend((3e4, 0.03 * k, 0.03 * (k + 1)) for k in range(8))
    assert seen.throughput() == pytest.approx((1e6, 1.0))
    assert len(seen.observation((2.0, 6.0))) == view.FEATURES


@pytest.mark.parametrize("action", [0, len(data.LEVELS) - 1])
def test_the_virtual_link_is_the_slower_of_the_link_and_the_processor(action: int) -> None:
    """All blocks cost the same. Once the buffers are full, each block takes the longer of both times."""
    size, took_s = 5e4, 0.004
    for rate, slowness, expected_s in (
        (1e6, 1.0, size / 1e6),
        (1e9, 1.0, took_s + 2e-4),
        (1e9, 3.0, 3 * took_s + 2e-4),
    ):
        link = constant(rate, seconds=20.0)
        sender = virtual.VirtualSender(alike(size, took_s), link, virtual.Machine(np.full(len(link), slowness), overhead_s=2e-4))
        times = []
        for _ in range(60):
            sender.send(0, action)
            times.append(sender.now_s)
        assert np.allclose(np.diff(times[20:]), expected_s, rtol=0.02)
        assert sender.delivered() <= rate * sender.now_s / size


@pytest.mark.parametrize("chunk_bytes", [1.0, 3e4])
def test_after_a_stall_the_virtual_link_carries_no_more_than_the_bandwidth(chunk_bytes: float) -> None:
    link = bandwidth.profile("stalls", 4.0, 1e6, 1e6, 1.0, np.random.default_rng(0))
    machine = virtual.Machine(np.ones(len(link)), jitter=0.2, pause_share=0.1, chunk_bytes=chunk_bytes)
    sender = virtual.VirtualSender(alike(3e4, 0.002), link, machine)
    while not sender.over():
        sender.send(0, 0)
        assert sender.delivered() * 3e4 <= 1e6 * sender.now_s
    sender.now_s = 4.0
    assert sender.delivered() == pytest.approx(3e6 / 3e4, abs=1.5)


def test_the_level_that_is_best_has_no_lead_over_itself() -> None:
    sizes, times_s = np.array([[6e4, 4e4]]), np.array([[0.001, 0.002]])
    costs = data.Costs(np.repeat(sizes, 3, axis=0), np.repeat(times_s, 3, axis=0))
    leads = []
    for action in (0, 1):
        link = constant(1e6, seconds=30.0)
        sender = virtual.VirtualSender(costs, link, virtual.Machine(np.ones(len(link))))
        leads.append(sum(sender.send(0, action) for _ in range(100)) / 100)
    assert leads[1] == pytest.approx(0.0, abs=0.01)
    assert leads[0] == pytest.approx(1 - 6 / 4, abs=0.01)


def test_it_trains_and_compares_and_later_compares_without_a_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    pytest.importorskip("torch")
    rates = {"constant": 4e6, "stopped": 1e-9}
    monkeypatch.setattr(
        adaptive_compression, "profiles", lambda seconds: {name: constant(rate, seconds) for name, rate in rates.items()}
    )
    policy, figures = tmp_path / "policy", tmp_path / "figures.json"
    words = ["--seconds", 0.1, "--blocks", 4, "--policy", policy, "--json", figures]
    for steps in (400, *[0] * 20):
        _, out, _ = call(adaptive_compression, *words, "--train-steps", steps, "--only", "const")
        if json.loads(figures.read_text())["constant"]["policy"] > 0:
            break  # on a busy machine, nothing may arrive in a tenth of a second
    else:
        pytest.fail("the policy sent nothing in any of the runs")
    assert "policy / best fixed" in out
    call(adaptive_compression, *words, "--train-steps", 0, "--only", "stop")
    table = json.loads(figures.read_text())
    assert list(table) == ["constant", "stopped"]
    assert not any(table["stopped"].values())


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--train-steps", "0"], ["--only", "no such profile"]])
def test_bad_options_are_refused(words: list[str], call: Any) -> None:
    with pytest.raises(SystemExit):
        call(adaptive_compression, *words)


def test_a_training_in_virtual_time_is_accepted_by_the_learner(blocks: list[bytes], costs: data.Costs) -> None:
    pytest.importorskip("torch")
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, shutdown_timeout_s=10.0, torch_threads=1)) as learner:
        spaces: dict[str, Any] = {
            "observation_space": BoxSpace((view.FEATURES,)),
            "action_space": DiscreteSpace(len(data.LEVELS)),
        }
        parameters = {"steps_per_update": 256}
        with open_agent(
            learner, linger_ms=5_000, algorithm_name="PPO", algorithm_parameters=parameters, overflow="wait", **spaces
        ) as agent:
            virtual.train(agent, blocks, costs, steps=600, seed=1)
            agent.flush(timeout_s=60)
            stats = agent.stats()
            assert stats["accepted"] == stats["submitted"] > 0
            assert stats["refused"] == 0
