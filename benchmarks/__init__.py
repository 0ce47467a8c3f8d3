"""Benchmarks: ratios against peers, measured in one run. ``python -m benchmarks`` prints every table."""
