"""No exporter outlives its test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

EXPORTERS = ("OtelBatch", "spans")
"""Names of the threads that send spans begin so."""


@pytest.fixture(autouse=True)
def exporters_end() -> Iterator[None]:
    """Wait for the threads that a test left sending.

    A request goes on without them, and so would the next tests: but the library draws its pauses
    from the generator that hypothesis watches, which then takes a test's data for inconsistent.
    """
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(EXPORTERS):
            thread.join(30)
            assert not thread.is_alive(), thread.name
