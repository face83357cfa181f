"""Tools for operators: status of a learner, diagnosis of connections, and learning curves. Nothing here prints."""
