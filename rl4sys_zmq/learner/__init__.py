"""The learner: one gateway thread, one learner thread per client, one recorder.

- `Learner` is the object that you start, query and close. `LearnerConfig` is its configuration.
- `Algorithm`, `AlgorithmEntry` and `register_algorithm` add an algorithm of your own.

The main modules: `gateway` has the network sockets, and `core` makes its decisions. `endpoint` handles the messages of actors,
and `admission` their configuration. `client_registry` creates, fails and restarts clients; `client` is the gateway's state of
one client, and `client_report` its part of the status. `dispatcher` sends segments to the learner threads.

`learner_thread` and `train_loop` run an algorithm in a thread. `building` starts it, `publishing` sends its weights as policy
versions, and `checkpointing` loads and saves it. `placement` moves it to its device, and `rank_group` starts the processes that
train with it (the option ``learners``).

`relays` chooses the relays for an actor. `recorder` writes the run directory.
"""

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.learner.learner import Learner
from rl4sys_zmq.learner.registry import Algorithm, AlgorithmEntry, register_algorithm

__all__ = ["Algorithm", "AlgorithmEntry", "Learner", "LearnerConfig", "register_algorithm"]
