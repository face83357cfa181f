"""The commands ``rl4sys-learner`` and ``rl4sys-actor``.

Only this subpackage prints, configures logging and handles signals.

- `app`: exit codes, one-line error messages, and checks that optional packages are installed.
- `signals`: handling of Ctrl-C and SIGTERM.
- `learner`, `actor`: the two groups of commands and their options. Each command is implemented in a separate module.
- `progress`: a live table on a terminal, plain lines elsewhere.
- `rundir`: the choice of the directory of a run.
"""
