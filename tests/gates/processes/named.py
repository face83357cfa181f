"""A learner with a run directory and the fake algorithm. It reports its address, and answers commands."""

from __future__ import annotations

from harness.talk import obey, options, say

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

given = options()
register_algorithm("FAKE", FakeAlgorithm.factory(steps_per_update=8, rollout_length=8))
with Learner(LearnerConfig(bind=given["bind"], run_dir=given["run_dir"], **given.get("config", {}))) as learner:
    say({"address": learner.address})
    obey(status=learner.status, save=lambda: learner.save(timeout_s=60.0))
