"""An actor that continues while its learner is killed: ``python kill_actor.py '{"address": ..., "trace": ..., ...}'``.

It records each segment in its trace before the agent receives it, and again when the durable mark covers it. Lines on its
standard input are commands. ``stop`` ends the episodes, delivers everything, records the last counters and ends the process.
"""

import json
import logging
import os
import random
import sys
import threading
import time
from typing import Any

import numpy as np
from harness.children import SPARE
from harness.stepped_clock import step_clock
from harness.trace import TraceWriter

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

LAW_EVERY_S = 0.2
JOIN_S = 60.0
MOST_STEPS = 4


class ActionSelector:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._rng = random.Random(options["seed"])
        self._trace = TraceWriter(options["trace"], client=options["client"])
        self._names: list[str] = []
        self._acked = 0
        self._version = -1
        self._latencies: list[float] = []
        self._law_at = 0.0
        self.stopping = threading.Event()
        self._spooled = "spool" in options.get("config", {})
        if self._spooled:
            self._watch_spool()
        config = AgentConfig(
            client_id=options["client"],
            actor_id=options.get("actor_id"),
            algorithm_name=options.get("algorithm", f"RECORD_{options['client'].upper()}"),
            algorithm_parameters=options.get("parameters", {}),
            observation_space=BoxSpace((4,)),
            action_space=DiscreteSpace(2),
            train_server_address=options["address"],
            connect_timeout_s=JOIN_S,
            wait_timeout_s=JOIN_S,
            seed=options["seed"],
            **options.get("config", {}),
        )
        self.agent = RL4SysAgent(config=config)
        put = self.agent._parts.outbox.put

        def noted_put(segment: Any) -> None:
            name = f"{segment.episode_id:x}.{segment.segment_index}"
            self._names.append(name)
            self._trace.submitted(name)
            put(segment)

        self.agent._parts.outbox.put = noted_put  # type: ignore[method-assign]
        self._trace.note("joined", generation=self.agent.generation)

    def _watch_spool(self) -> None:
        """Record the segments that the spool has written to its file. From then on, no fault may lose them."""
        from rl4sys_zmq.actor.io.spool import Spool

        put, given = Spool.put, 0

        def noted_put(spool: Spool, segments: Any) -> None:
            nonlocal given
            put(spool, segments)
            given += len(segments)
            if not spool.memory_items and given > self._acked:
                self._trace.kept(self._names[self._acked : given])
                self._acked = given

        setattr(Spool, "put", noted_put)  # noqa: B010 a method cannot be assigned to

    def run(self) -> None:
        period_s, due = 1.0 / self._options["rate"], time.monotonic()
        while not self.stopping.is_set():
            if self.agent.stats()["in_actor"] < self._options["max_queued"]:
                self._episode()
            self._note_acks()
            self._note_law()
            due = max(due + period_s, time.monotonic() - 0.1)
            self.stopping.wait(max(0.0, due - time.monotonic()))
        self._finish()

    def _episode(self) -> None:
        traj = action = None
        try:
            for step in range(self._rng.randint(1, MOST_STEPS)):
                traj, action = self.agent.request_for_action(traj, np.full(4, step, dtype=np.float32))
                action.update_reward(1.0)
                self.agent.add_to_trajectory(traj, action)
        except LearnerUnavailable:  # raised only with overflow: wait
            self._trace.note("waited_too_long")
        if traj is not None and action is not None:
            began = time.perf_counter()
            self.agent.mark_end_of_trajectory(traj, action)
            self._latencies.append(time.perf_counter() - began)

    def _note_acks(self) -> None:
        stats = self.agent.stats()
        durable = 0 if self._spooled or stats["in_doubt"] else stats["durable"]  # after a doubt the numbers begin anew
        if durable > self._acked:
            self._trace.acked(self._names[self._acked : durable])
            self._acked = durable
        version, digest = self.agent.version, self.agent.digest
        if version != self._version and version == self.agent.version:
            self._version = version
            self._trace.note("version", version=version, digest=digest)

    def _note_law(self, *, last: bool = False) -> None:
        """Record the counters when they agree. They can disagree for a moment, because the I/O thread changes them."""
        now = time.monotonic()
        if now < self._law_at and not last:
            return
        self._law_at = now + LAW_EVERY_S
        for _ in range(200):
            stats = self.agent.stats()
            parts = ("dropped_at_source", "in_actor", "refused", "accepted", "in_doubt")
            if stats["submitted"] == sum(stats[part] for part in parts):
                break
            time.sleep(0.001)  # `stopping` can be set, and waiting on it would then not yield to other threads
        self._trace.law("actor", stats, client=self._options["client"])

    def _finish(self) -> None:
        self.agent.flush(JOIN_S)
        self._note_acks()
        self._note_law(last=True)
        ms = 1e3 * np.array(self._latencies or [0.0])
        quantiles = {f"p{q}_ms": round(float(np.percentile(ms, q)), 4) for q in (50, 99, 99.9, 100)}
        self._trace.note("done", stats=self.agent.stats(), submits=len(self._latencies), **quantiles)
        self.agent.close()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(levelname)s %(message)s")
    if SPARE in os.environ and not sys.stdin.readline():
        return 0
    step_clock(json.loads(sys.argv[1]).get("clock_s", 0.0))
    acting: list[ActionSelector] = []
    stop_early = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                stop_early.set()
                for each in acting:
                    each.stopping.set()
        if not stop_early.is_set():
            os._exit(3)  # the parent process is gone

    threading.Thread(target=listen, daemon=True).start()
    acting.append(ActionSelector(json.loads(sys.argv[1])))
    if stop_early.is_set():
        acting[0].stopping.set()
    acting[0].run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
