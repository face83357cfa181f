"""The figures of a client's training, from the messages of its learner threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl4sys_zmq.learner.gateway.core_callbacks import Clock
from rl4sys_zmq.learner.lags import LAG_LIMITS, lag_report
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.policies import PolicyOrigin
from rl4sys_zmq.wire.thread_messages import ThreadReady, TrainingMetrics


class TrainingFigures:
    """The figures of a client's training. Means are over the last `RECENT_EPISODES` episodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags = [0] * (len(LAG_LIMITS) + 1)
        self._metrics = TrainingMetrics(0, 0, {}, [], 0, [])
        self._returns: deque[tuple[float, float]] = deque(maxlen=RECENT_EPISODES)
        self._evaluations: deque[tuple[int, float, int]] = deque(maxlen=RECENT_EPISODES)
        self._pace: deque[tuple[float, int]] = deque(maxlen=64)

    def continue_from(self, message: ThreadReady) -> None:
        """Continue with the totals of a new learner thread, which come from its checkpoint."""
        self._metrics = TrainingMetrics(message.steps, message.updates, self._metrics.scalars, [], message.episodes, [])
        self._returns.clear()
        self._returns.extend((total, length) for total, length in message.recent)
        self._pace.clear()

    def note(self, metrics: TrainingMetrics) -> None:
        """Record metrics that the learner thread has sent."""
        merged = {**self._metrics.scalars, **metrics.scalars}
        self._metrics = TrainingMetrics(metrics.step, metrics.update, merged, [], metrics.ended, [])
        if metrics.lags:
            self._lags = [before + new for before, new in zip(self._lags, metrics.lags, strict=True)]
        self._pace.append((self._clock.monotonic(), metrics.step))
        self._returns.extend((total, length) for _, total, length in metrics.episodes)
        self._evaluations.extend((version, total, length) for version, total, length in metrics.evaluations)

    def note_evaluation(self, scalars: Mapping[str, float]) -> int:
        """Add the figures of an evaluation of the policy to the scalars. Return the number of training episodes so far."""
        metrics = self._metrics
        self._metrics = replace(metrics, scalars={**metrics.scalars, **scalars})
        return metrics.ended

    def policy_origin(self, client_id: str, algorithm_name: str) -> PolicyOrigin:
        """Return the training that the newest policy version comes from."""
        return PolicyOrigin(
            client_id=client_id,
            algorithm_name=algorithm_name,
            updates=self._metrics.update,
            steps=self._metrics.step,
            saved_unix_s=self._clock.unix(),
            episodes=self._metrics.ended,
            mean_return=_mean([total for total, _ in self._returns]),
        )

    def report(self, now: float, evaluated: int) -> dict[str, Any]:
        """Return the part of the client's status about its training, as JSON."""
        metrics = self._metrics
        return {
            "updates": metrics.update,
            "steps": metrics.step,
            "steps_per_s": self._steps_per_s(now),
            "episodes": metrics.ended,
            "mean_return": _mean([total for total, _ in self._returns]),
            "mean_length": _mean([length for _, length in self._returns]),
            "mean_reward": metrics.scalars.get("charts/mean_reward"),
            "evaluation": self._evaluation_report(evaluated),
            "policy_lag": metrics.scalars.get("dist/policy_lag", 0.0),
            "policy_lags": lag_report(self._lags),
            "scalars": metrics.scalars,
        }

    def _evaluation_report(self, evaluated: int) -> dict[str, Any]:
        """Return the part about the episodes of actors with ``explore: false``; empty if there are none."""
        episodes = self._evaluations
        if not episodes:
            return {}
        return {
            "episodes": evaluated,
            "mean_return": _mean([total for _, total, _ in episodes]),
            "mean_length": _mean([length for _, _, length in episodes]),
            "version": max(version for version, _, _ in episodes),
        }

    def _steps_per_s(self, now: float) -> float:
        if len(self._pace) < 2:
            return 0.0
        (began, first), (_, last) = self._pace[0], self._pace[-1]
        return (last - first) / max(now - began, 1e-3)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
