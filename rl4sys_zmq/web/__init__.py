"""The page for operators, its metrics and its probes, as a process that asks learners over ZeroMQ. The extra ``web`` has it."""
