"""Benchmarks: each prints ratios against peers or the machine's limit, measured in the same run."""
