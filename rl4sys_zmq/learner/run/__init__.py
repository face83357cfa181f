"""The run directory: checkpoints, logs, dead letters and stored policies."""
