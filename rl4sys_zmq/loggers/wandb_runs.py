"""The logger ``wandb``. W&B's environment variables apply, such as ``WANDB_MODE=offline`` and ``WANDB_PROJECT``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import wandb

from rl4sys_zmq.loggers.client_runs import PROJECT, ClientRuns

STEP = "steps"
"""The axis of all figures. W&B's own step must not decrease, as the steps of a client do after a rollback."""


class WandbRuns(ClientRuns[Any]):
    """A W&B run for each client, in a group for the learner's run. Its files are in the run directory, if there is one."""

    def _begin(self, client_id: str, title: str) -> Any:
        info = self._info
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=title,
            group=info.name,
            id=f"{info.run_id}-{sha256(client_id.encode()).hexdigest()[:12]}",
            dir=os.environ.get("WANDB_DIR") or (str(info.run_dir) if info.run_dir is not None else None),
            config={"commit": info.commit, "learner": dict(info.config)},
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        run.define_metric("*", step_metric=STEP)
        return run

    def _configure(self, run: Any, values: Mapping[str, Any]) -> None:
        run.config.update(dict(values), allow_val_change=True)

    def _log(self, run: Any, step: int, values: Mapping[str, float], at_unix_s: float) -> None:
        run.log({**values, STEP: step, "_timestamp": at_unix_s})

    def _note(self, run: Any, name: str, text: str) -> None:
        run.summary[f"{name}.last"] = text

    def _keep(self, run: Any, path: Path) -> None:
        artefact = wandb.Artifact(f"{run.id}-policy", type="model")
        artefact.add_dir(str(path))
        run.log_artifact(artefact, aliases=[path.name, "latest"])

    def _finish(self, run: Any) -> None:
        run.finish()
