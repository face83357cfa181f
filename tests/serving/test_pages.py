"""Each field, class and error that the pages about serving name exists."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from kit import python

from rl4sys_zmq import errors, serving
from rl4sys_zmq.serving import ActionConfig
from rl4sys_zmq.serving import data as stores

DOCS = Path(__file__).parents[2] / "docs/howto"
NOT_OURS = {
    *("ActionClientEnv", "BroadcastServer", "DefaultActionConfig", "Exception", "FrozenDict", "GymWrapper", "None", "Producer"),
    *("Caller", "ReqRepServer", "Server", "VirtualEnvironment"),
}
"""Names in the pages that do not belong to this part of the package."""


def test_every_field_of_the_configuration_is_described() -> None:
    page = (DOCS / "action.md").read_text()
    section = page[page.index("## The configuration") : page.index("## What is promised")]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for field in dataclasses.fields(ActionConfig):
        assert any(f"`{field.name}`" in row.split(" | ")[0] for row in rows), field.name


def test_every_class_that_the_pages_name_exists() -> None:
    known = {*serving.__all__, *errors.__all__, *stores.__all__, *NOT_OURS}
    for name in ("action.md", "migration_agentlace.md", "migration_multiserverrl.md"):
        text = re.sub(r"```.*?```", "", (DOCS / name).read_text(), flags=re.DOTALL)
        for found in re.findall(r"`([A-Z][a-z]+[A-Za-z]*)\b", text):
            assert found in known, (name, found)


def test_a_module_is_an_attribute_without_a_further_import() -> None:
    """As in agentlace's page, which imports the library alone."""
    code = "import rl4sys_zmq.serving as a; assert len(a.data.ReplayBuffer(capacity=2)) == 0 and a.action.ActionConfig"
    python("-c", code)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        serving.nothing  # noqa: B018


def test_every_class_of_serving_that_agentlace_has_is_on_the_migration_page() -> None:
    page = (DOCS / "migration_agentlace.md").read_text()
    theirs = {
        *("ActionClient", "ActionConfig", "ActionServer", "InferenceClient", "InferenceServer", "TrainerClient", "TrainerConfig"),
        *(
            "TrainerServer",
            "TrainerSMInterface",
            "GymEnvServerWrapper",
            "GymEnvClient",
            "GymEnvClientWrapper",
            "DataStoreBase",
            "QueuedDataStore",
        ),
        *("ReplayBuffer", "ReplayBufferDataStore", "MemoryEfficientReplayBufferDataStore"),
        *("TrajectoryBuffer", "TrajectoryBufferDataStore", "make_default_trajectory_buffer"),
        *("DataShape", "LatestSampler", "SequenceSampler", "FutureSampler", "mat_to_jpeg", "jpeg_to_mat"),
    }
    assert theirs <= set(serving.__all__)
    for name in theirs:
        assert f"`{name}" in page, name
