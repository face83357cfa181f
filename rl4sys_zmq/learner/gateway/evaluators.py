"""The evaluators of all clients whose configuration asks for evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rl4sys_zmq.child_process import start_error_text
from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.learner.alarms import EVALUATION_FAILED
from rl4sys_zmq.learner.evaluation import PolicyEvaluator
from rl4sys_zmq.learner.gateway.client import ClientState
from rl4sys_zmq.learner.run.stored_policies import BestPolicyFolder, EvaluationRecord
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.thread_messages import TrainingMetrics

log = get_logger(__name__)


class PolicyEvaluators:
    """The `PolicyEvaluator` of each client with the option ``evaluation``. Other threads use only `threads`."""

    def __init__(
        self,
        config: LearnerConfig,
        sink: EventSink,
        find: Callable[[str], ClientState | None],
        call: Callable[[Callable[[], None]], object],
    ) -> None:
        self._config, self._sink, self._find, self._call = config, sink, find, call
        self._evaluators: dict[str, PolicyEvaluator] = {}
        self.threads: list[PolicyEvaluator] = []  # also those that are ending

    def publish(self, client: ClientState) -> None:
        """Offer a newly published version to the evaluator of the client, if its configuration asks for one."""
        entry = self._config.clients.get(client.client_id)
        if entry is None or entry.evaluation is None:
            return
        evaluator = self._evaluators.get(client.client_id)
        if evaluator is None:
            on_result, on_failure = (functools.partial(self._from_thread, f) for f in (self._on_result, self._on_failure))
            evaluator = PolicyEvaluator(client.client_id, entry.evaluation, self._config, on_result, on_failure)
            self._evaluators[client.client_id] = evaluator
            self.threads = [*(other for other in self.threads if other.alive), evaluator]
            try:
                evaluator.start()
            except RuntimeError as exc:
                self._on_failure(client.client_id, start_error_text(exc))
        evaluator.offer(client.stored_policy())

    def forget(self, client_id: str) -> None:
        """End the evaluation of a client that was removed, and put its best policy aside."""
        evaluator = self._evaluators.pop(client_id, None)
        if evaluator is not None:
            evaluator.forget()
        elif self._config.run_dir is not None:  # an earlier start of the learner can have kept one
            try:
                BestPolicyFolder(self._config.run_dir, client_id).abandon()
            except OSError as exc:
                log.error("client %s is forgotten, but its best policy cannot be renamed: %s", client_id, exc)

    def report(self, client_id: str) -> dict[str, Any]:
        """Return the part of a client's status about its evaluation; empty without one."""
        evaluator = self._evaluators.get(client_id)
        return evaluator.report() if evaluator is not None else {}

    def stop(self) -> None:
        """Ask all evaluators to end."""
        for evaluator in self.threads:
            evaluator.stop()

    def _from_thread(self, handle: Callable[..., None], *arguments: object) -> None:
        """Call `handle` with the arguments in the gateway thread; do nothing if the learner is closing."""
        with suppress(Closed):
            self._call(functools.partial(handle, *arguments))

    def _on_result(self, client_id: str, record: EvaluationRecord, kept: bool) -> None:
        scalars = {
            "eval/mean_return": record.mean_return,
            "eval/min_return": record.min_return,
            "eval/max_return": record.max_return,
            "eval/mean_length": record.mean_length,
            "eval/version": float(record.version),
        }
        client = self._find(client_id)
        ended = client.training.note_evaluation(scalars) if client is not None else 0
        self._sink.metrics(client_id, TrainingMetrics(record.steps, record.updates, scalars, [], ended, []))
        if kept:
            figures = {"version": record.version, "steps": record.steps, "mean_return": record.mean_return}
            self._sink.event("best_policy", client_id=client_id, generation=record.generation, **figures)

    def _on_failure(self, client_id: str, text: str) -> None:
        client = self._find(client_id)
        if client is not None:
            client.alarms.note(EVALUATION_FAILED, text)
