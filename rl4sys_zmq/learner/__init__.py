"""The learner: one gateway thread, one learner thread per client, one recorder.

- `Learner`: start it, ask it, close it. `LearnerConfig`: what it is told.
- `Algorithm`, `AlgorithmEntry`, `register_algorithm`: bring your own learning rule.

`gateway` owns the network sockets; `registry` founds, fails and restarts clients; `client` is what the gateway knows of a
client; `thread` runs an algorithm behind a pipeline; `admission` decides who may join; `publisher` keeps recent weights;
`recorder` writes the run directory.
"""

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.learner.algorithms import Algorithm, AlgorithmEntry, register_algorithm
from rl4sys_zmq.learner.learner import Learner

__all__ = ["Algorithm", "AlgorithmEntry", "Learner", "LearnerConfig", "register_algorithm"]
