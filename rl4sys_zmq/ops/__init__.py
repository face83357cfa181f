"""Looking at a learner from outside: its status, why it can't be reached, and the curves of its runs. Nothing in here prints.

- `status`: asks a learner for its state, and turns the answer into rows; `report`: the whole of it in words.
- `doctor`: tries to reach a learner, stage by stage; `zmtp`: what answers at an address, by plain sockets;
  `asking`: a question to a learner and its answer.
- `curves`: reads a run's log, and draws learning curves.
"""
