"""The size and the speed of diffs between versions of a small policy, beside XOR, byte shuffle and zstd-1; see ``bench.diffs``.

python benchmarks/weights.py --json benchmarks/results/weights.json
"""

from bench.measurements import script

if __name__ == "__main__":
    script(__doc__, ["weights"], print)
