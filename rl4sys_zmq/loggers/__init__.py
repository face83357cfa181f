"""The loggers for W&B and MLflow, each with one run per client. Their libraries are imported only when a learner uses them."""

from rl4sys_zmq.learner.run.run_loggers import LoggerEntry

__all__ = ["MLFLOW", "WANDB"]

WANDB = LoggerEntry(name="wandb", factory="rl4sys_zmq.loggers.wandb_runs:WandbRuns", extra="wandb")
MLFLOW = LoggerEntry(name="mlflow", factory="rl4sys_zmq.loggers.mlflow_runs:MlflowRuns", extra="mlflow")
