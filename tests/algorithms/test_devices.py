"""Tests of a client's device: the error for a wrong one names the available ones, and a GPU computes what the CPU computes."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import LearnerConfig
from rl4sys_zmq.learner.run.state_tree import pack_state, unpack_state
from rl4sys_zmq.values import Segment

torch = pytest.importorskip("torch")

from rl4sys_zmq.learner.registry.compute import Compute, find_devices  # noqa: E402

from .test_changes import CASES, make, played, train  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")


def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_a_device_that_does_not_exist_is_refused_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 0)
    with pytest.raises(ConfigError, match=r"device: expected cuda:0, but torch .* finds no GPU") as caught:
        find_devices("cuda")
    assert caught.value.key == "device"
    fake_gpus(monkeypatch, 2)
    with pytest.raises(ConfigError, match=r"expected cuda:5, but torch .* finds cuda:0, cuda:1; use one of them, cpu or auto"):
        find_devices("cuda:5")
    with pytest.raises(ConfigError, match="expected cuda:1 to cuda:2 for 2 ranks, but"):
        find_devices("cuda:1", 2)


def test_auto_takes_a_gpu_for_each_rank_or_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus(monkeypatch, 2)
    assert find_devices("auto", 2) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert find_devices("auto", 3) == [torch.device("cpu")] * 3
    assert find_devices("cuda:1") == [torch.device("cuda", 1)]
    fake_gpus(monkeypatch, 0)
    assert find_devices("auto") == find_devices("cpu") == [torch.device("cpu")]


@pytest.mark.parametrize("value", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", 0, "cuda:0 "])
def test_a_malformed_device_is_refused(value: Any) -> None:
    for config in (ClientConfig, LearnerConfig):
        with pytest.raises(ConfigError, match="device: expected 'auto', 'cpu', 'cuda', or 'cuda:N'"):
            config.from_mapping({"device": value})


def test_a_clients_device_and_threads_override_the_learners() -> None:
    clients = {"a": ClientConfig(device="cpu", torch_threads=3, learners=2), "b": ClientConfig()}
    config = LearnerConfig(clients=clients, device="auto", torch_threads=1)
    a, b = config.client("a"), config.client("b")
    assert (a.device, a.torch_threads, a.learners) == ("cpu", 3, 2)
    assert (b.device, b.torch_threads, b.learners) == ("auto", 1, 1)


def trained(algorithm: Any, segments: list[Segment]) -> Any:
    train(algorithm, segments)
    return np.concatenate([array.reshape(-1) for array in algorithm.numbers_to_check()])


def on_a_gpu(case: str) -> Any:
    algorithm = make(case)
    algorithm.place(Compute(device=torch.device("cuda", 0)))
    return algorithm


@pytest.mark.parametrize("case", CASES)
def test_placing_on_the_cpu_changes_no_bit(case: str) -> None:
    plain, placed, segments = make(case), make(case), played(make(case), 20)
    placed.place(Compute(device=torch.device("cpu")))
    assert trained(plain, segments).tobytes() == trained(placed, segments).tobytes()


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_learns_what_the_cpu_learns(case: str) -> None:
    segments = played(make(case), 20)
    atol = 1e-4 if case in ("PPO", "IMPALA", "DQN") else 1e-3
    np.testing.assert_allclose(trained(on_a_gpu(case), segments), trained(make(case), segments), atol=atol)


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_a_gpu_continues_on_the_cpu_and_back(case: str) -> None:
    gpu, cpu, again, segments = on_a_gpu(case), make(case), on_a_gpu(case), played(make(case), 20)
    trained(gpu, segments[:8])
    cpu.load(unpack_state(*pack_state(gpu.state())))
    again.load(unpack_state(*pack_state(cpu.state())))
    weights = [trained(algorithm, segments[8:]) for algorithm in (gpu, cpu, again)]
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-4 if case in ("PPO", "IMPALA", "DQN") else 1e-3)
    assert weights[2].tobytes() == weights[0].tobytes()
