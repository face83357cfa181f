"""One of the command line programs, with the fake algorithm registered."""

import sys

from harness.talk import options

from rl4sys_zmq.cli import actor, learner, serve
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

given = options()
register_algorithm("FAKE", FakeAlgorithm.factory(**given.get("fake", {})))
serve.warm_up = lambda algorithm: None  # the fake algorithm does not need torch, which takes a second to load
sys.argv = [f"rl4sys-{given['command']}", *given["arguments"]]
{"actor": actor, "learner": learner}[given["command"]].main()
