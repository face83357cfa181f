"""The rate at which trajectories reach an algorithm, in environment steps per second, beside a bare ROUTER loop or a bare file.

    python benchmarks/ingress.py
    python benchmarks/ingress.py --what durable --pairs 9 --json benchmarks/results/durable.json

- ingress: payloads P1, P2, P3 of ``bench.ingress``: our learner with a journal in memory and an algorithm that
  only counts; beside it a thread that reads the same bytes, in as many frames, from a ROUTER and looks at none of them. The
  senders are other processes, have their messages ready, and are as many on both sides.
- durable: P1 with ``journal: sqlite, fsync: always``; beside it a loop that appends the same bytes to a file, with an
  ``fdatasync`` after as many trajectories as a commit of ours had.
- coding: what an actor's ``compression: zstd`` and ``image_codec`` save and cost.

Ours and the baseline run in turn; a ratio is the median of the pairs' ratios, with the least and the greatest.
"""

from bench.measurements import script

if __name__ == "__main__":
    script(__doc__, ["ingress", "durable", "coding"], print)
