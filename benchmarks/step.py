"""The cost of acting: one step, import and memory, a control loop, collected environment steps; each beside its baseline.

    python benchmarks/step.py
    python benchmarks/step.py --what step footprint --pairs 9 --json benchmarks/results/step.json

- step: request, add and reward for an MLP 8-64-64-4 in a tight loop that sends all the time, and again with pauses in which the
  host computes; beside it a plain function that does the forward pass, sampling, log-probability and storing.
- recurrent: the same step with a recurrent policy, a GRU of 64 units; beside it that of the MLP.
- footprint: import seconds and resident memory of fresh processes; beside it ``import numpy, zmq, msgpack``. One more figure is
  the memory of an actor that has joined and acts.
- overhead: processor time over wall time of a 1 kHz loop with and without the actor; beside it the same loop with the plain
  function of ``step``, which pays for cold caches as the actor does.
- collect: environment steps per second of ``rl4sys-actor run`` into a learner that only counts; beside it bare ``env.step`` with
  random actions.

Ours and the baseline run in turn. A ratio is the median of the pairs' ratios, with the least and the greatest.
"""

from bench.measurements import script

if __name__ == "__main__":
    script(__doc__, ["step", "recurrent", "footprint", "overhead", "collect"], print)
