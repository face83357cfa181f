"""The engine ray without Ray: its options, its resources, the packets of its driver, and what is said when Ray is missing."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from rl4sys_zmq.config import LearnerConfig, ResourcesConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.engines.ray_resources import nodes_text, placement_problem, ray_amounts
from rl4sys_zmq.learner.engines.registry import check_engines

NODES = [
    {"host": "10.0.0.1", "resources": {"CPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0, "object_store_memory": 1e8}},
    {"host": "10.0.0.2", "resources": {"CPU": 2.0, "GPU": 1.0, "edge": 4.0}},
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resources": {}}, "resources: the engine thread does not reserve resources"),
        ({"clients": {"a": {"resources": {}}, "b": {"engine": "ray"}}}, "clients.a.resources: the engine thread does not"),
        ({"ray_address": "auto"}, "ray_address: no client has the engine ray"),
    ],
)
def test_options_of_ray_without_the_engine_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_engines(LearnerConfig.from_mapping(options))
    check_engines(LearnerConfig.from_mapping({**options, "engine": "ray"}))


def test_amounts_have_rays_names_and_zeros_are_left_out() -> None:
    assert ray_amounts(ResourcesConfig()) == {"CPU": 1.0}
    resources = ResourcesConfig(cpus=0, gpus=0.5, memory=7, custom={"edge": 2})
    assert ray_amounts(resources) == {"GPU": 0.5, "memory": 7.0, "edge": 2.0}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"CPU": 8.0}, ""),
        ({"CPU": 2.0, "edge": 4.0}, ""),
        ({"CPU": 3.0, "edge": 1.0}, "no node of the Ray cluster has {CPU: 3, edge: 1}; there is 10.0.0.1 {CPU: 8"),
        ({"far": 1.0}, "no node of the Ray cluster has {far: 1}"),
    ],
)
def test_a_worker_must_fit_on_one_node(wanted: dict[str, float], problem: str) -> None:
    found = placement_problem(wanted, NODES)
    assert problem in found and bool(problem) == bool(found)


def test_nodes_are_named_with_what_they_have() -> None:
    assert nodes_text(NODES) == "10.0.0.1 {CPU: 8, memory: 1000000000}, 10.0.0.2 {CPU: 2, GPU: 1, edge: 4}"
    assert nodes_text([]) == "no node"


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    config = LearnerConfig(bind="inproc://no-ray", run_dir=None, engine="ray")
    with pytest.raises(ConfigError, match=re.escape("pip install 'rl4sys-zmq[ray]'")), Learner(config):
        pytest.fail("it has started")
