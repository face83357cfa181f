"""Tools for operators: status of a learner, diagnosis of connections, and learning curves. Nothing here prints.

- `status`: requests for the status of a learner, and a table of its clients.
- `report`: the whole status as text.
- `doctor`: a diagnosis of the connection between an actor and a learner, in stages.
- `requests`: a message to a learner and its reply.
- `curves`: learning curves from a run's log.
- `recorded_actor`: an actor without a policy that sends recorded segments.
"""
