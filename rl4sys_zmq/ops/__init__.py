"""Tools for operators: status of a learner, diagnosis of connections, and learning curves. Nothing here prints.

- `status`: requests for a learner's status and its clients as rows; `report`: the whole status as text.
- `doctor`: the diagnosis of a connection in stages; `requests`: a message to a
  learner and its reply.
- `curves`: learning curves from a run's log.
"""
