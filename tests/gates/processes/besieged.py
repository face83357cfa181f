"""A learner with a run directory, and so much memory left, when it begins to serve."""

from __future__ import annotations

import resource
from pathlib import Path

from talk import obey, options, say

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

given = options()
register_algorithm("SIEGE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
with Learner(LearnerConfig(bind=given["bind"], run_dir=given["run_dir"])) as learner:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + given["spare_bytes"],) * 2)
    say({"address": learner.address})
    obey(status=learner.status)
