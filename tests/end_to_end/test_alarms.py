"""Alarms of a learner thread appear in the status, in log.jsonl, in the Python log, on the actors and in the commands."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained, until

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, fake_spec


class Stuck(FakeAlgorithm):
    """A fake algorithm whose updates change no weight. Its learning rate is 0 if an update takes an even number of steps."""

    def numbers_to_check(self) -> list[Any]:
        return [np.zeros(3, np.float32)]

    def update(self, *, partial: bool = False) -> Any:
        metrics = super().update(partial=partial)
        rate = 0.0 if self.parameters.steps_per_update % 2 == 0 else 1e-3
        return None if metrics is None else {**metrics, "charts/learning_rate": rate}


register_algorithm("STUCK", lambda _, __, given, seed: Stuck(fake_spec(), FakeParameters(**dict[str, Any](given)), seed))


def test_updates_that_change_nothing_are_an_alarm_in_the_status(inproc_lab: Any) -> None:
    learner = inproc_lab.learner()
    for client_id, steps in (("stuck", 5), ("resting", 6)):
        agent = inproc_lab.agent(learner, client_id, algorithm_name="STUCK", algorithm_parameters={"steps_per_update": steps})
        for _ in range(3):
            inproc_lab.episode(agent, steps)
        drained(learner, agent, client_id=client_id)
    status = learner.status()
    stuck, resting = status["clients"]["stuck"], status["clients"]["resting"]
    assert stuck["verdicts"]["trained"] == resting["verdicts"]["trained"] == 3
    alarm = stuck["alarms"]["update_changes_nothing"]
    count = alarm["count"]
    assert 1 <= count <= 3 and alarm["text"].startswith(f"update {count} changed no weight, although"), "one for each update"
    assert any(f"alarm update_changes_nothing: {count}" in line for line in report_lines(status, time.time()))
    assert resting["alarms"] == {}, "its learning rate is 0"


def test_an_alarm_is_seen_everywhere(inproc_lab: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rl4sys_zmq")
    learner = inproc_lab.learner(run_dir=tmp_path / "run")
    agent = inproc_lab.agent(learner, algorithm_name="PICKY", rollout_length=4)
    another = inproc_lab.agent(learner, algorithm_name="PICKY", rollout_length=4)
    assert agent.stats()["alarms"] == {} and learner.status()["clients"]["lab"]["alarms"] == {}
    for _ in range(30):
        inproc_lab.episode(agent, 3)
        inproc_lab.episode(agent, 4)
    agent.flush(20.0)
    for one in (agent, another):
        until(lambda one=one: one.stats()["alarms"] == {"segment_quarantined": 30}, "the actor's alarms")  # type: ignore[misc]
    status = learner.status()
    alarm = status["clients"]["lab"]["alarms"]["segment_quarantined"]
    assert alarm["count"] == 30 and "three steps" in alarm["text"] and alarm["first_unix_s"] <= alarm["last_unix_s"]
    (line,) = [line for line in report_lines(status, time.time()) if "alarm segment_quarantined: 30" in line]
    assert line.startswith("  !! ") and "three steps" in line
    learner.close()
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    said = [e for e in events if e["event"] == "alarm"]
    assert [(e["client_id"], e["alarm"]) for e in said] == [("lab", "segment_quarantined")], "one line, not thirty"
    assert [r for r in caplog.records if "alarm segment_quarantined" in r.getMessage()], "the Python log"
