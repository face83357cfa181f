"""Remote inference, beside a bare REQ/REP server with the same forward pass; see ``bench.infer``.

python benchmarks/infer.py --pairs 5 --seconds 1 --json benchmarks/results/infer.json
"""

from bench.measurements import script

if __name__ == "__main__":
    script(__doc__, ["infer"], print)
