"""The learning algorithms: `onpolicy` and `offpolicy` ones, those of `libraries`, and their `networks`.

The learner finds them by `rl4sys_zmq.learner.registry`, whose names are here too: a program that adds an algorithm needs this
package only.
"""

from rl4sys_zmq.learner import registry
from rl4sys_zmq.learner.registry import *  # noqa: F403 - all names of that package, and no others

__all__ = registry.__all__
