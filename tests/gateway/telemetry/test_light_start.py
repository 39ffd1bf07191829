"""Neither the Prometheus nor the OpenTelemetry library is loaded before somebody needs it."""

from __future__ import annotations

import pytest

from tests.style.test_packages import loaded_by

HEAVY = {"prometheus_client", "opentelemetry", "requests"}


@pytest.mark.parametrize("module", ["gateway.process.worker", "gateway.process.supervisor"])
@pytest.mark.slow
def test_processes_start_without_the_libraries(module):
    assert loaded_by(module) & HEAVY == set()
