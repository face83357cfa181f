"""The commands ``rl4sys-learner`` and ``rl4sys-actor``: the only room that prints, configures logging or handles signals.

- `app`: what both share: exit codes, one line per failure, missing extras. `signals`: how Ctrl-C and SIGTERM end a command.
- `learner`, `actor`: the two groups of commands and their options; what a command does is in a module of its own.
- `progress`: a live table on a terminal, plain lines elsewhere. `rundir`: which directory a run gets.
"""
