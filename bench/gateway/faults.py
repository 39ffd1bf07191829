"""How the benchmark fails: one sentence for the person who ran it."""

from __future__ import annotations


class BenchFault(Exception):
    """The benchmark cannot go on, or what it proves does not hold; the message is all one sees."""
