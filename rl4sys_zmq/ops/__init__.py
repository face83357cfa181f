"""Looking at a learner from outside: its status, and the curves of its runs. Nothing in here prints.

- `status`: asks a learner for its state, and turns the answer into rows for people.
- `curves`: reads a run's log, and draws learning curves.
"""
