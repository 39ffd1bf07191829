"""The switch between versions of FOCUS."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.finance.focus import version_1_2, version_1_4
from gateway.finance.focus.columns import Column
from gateway.finance.focus.order import FocusVersion

COST_AND_USAGE: Mapping[FocusVersion, tuple[Column, ...]] = MappingProxyType(
    {
        FocusVersion.V1_2: version_1_2.COST_AND_USAGE,
        FocusVersion.V1_4: version_1_4.COST_AND_USAGE,
    }
)
"""Columns of Cost and Usage by version."""
