"""The commands ``rl4sys-learner`` and ``rl4sys-actor``. Only this subpackage prints, configures logging and handles signals.

`learner` and `actor` are the two groups of commands with their options; each command is implemented in a module of its own, which
is imported when it runs. `app`, `signals` and `progress` are shared.
"""
