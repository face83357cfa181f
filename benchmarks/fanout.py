"""From an update to the actors, beside bare PUB and SUB with the same bytes; see ``bench.fanout``.

python benchmarks/fanout.py --pairs 5 --json benchmarks/results/fanout.json
"""

from bench.measurements import script

if __name__ == "__main__":
    script(__doc__, ["fanout"], print)
