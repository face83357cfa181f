"""The learning algorithms (`onpolicy`, `offpolicy`, and those of other `libraries`) and their `networks`.

The learner finds algorithms through `rl4sys_zmq.learner.registry`. This package exports the names of that registry too, so a
program that adds an algorithm imports from here only.
"""

from rl4sys_zmq.learner import registry
from rl4sys_zmq.learner.registry import *  # noqa: F403 - all names of that package, and no others

__all__ = registry.__all__
