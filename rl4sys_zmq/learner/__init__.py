"""The learner: one gateway thread, one learner thread per client, one recorder.

- `Learner` is the object that you start, query and close. `LearnerConfig` is its configuration.
- `Algorithm`, `AlgorithmEntry` and `register_algorithm` add an algorithm of your own.

The rooms: `gateway` has the network sockets, the sessions of actors and the clients. `engines` start the workers, in which
`training` runs an algorithm, with `ranks` for several processes. `run` has the run directory, `evaluation` the evaluators.
"""

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.learner.learner import Learner
from rl4sys_zmq.learner.registry import Algorithm, AlgorithmEntry, register_algorithm

__all__ = ["Algorithm", "AlgorithmEntry", "Learner", "LearnerConfig", "register_algorithm"]
