"""Measuring: baselines and ours in the same process layout, in interleaved pairs. The scripts in ``benchmarks/`` call it."""
