"""The loggers for W&B and MLflow, each with one run per client. Their libraries are imported only when a learner uses them."""
