"""What may be asked of an export, and how a refusal reads."""

from __future__ import annotations

import pytest

from gateway.finance.focus.errors import BadOrder
from gateway.finance.focus.files import check_order
from gateway.finance.focus.order import (
    DAY_US,
    HOUR_US,
    ExportOrder,
    FileFormat,
    Grain,
    Profile,
    instant_us,
    month_of,
)
from tests.gateway.focus_samples import FROM_US, TO_US, make_export

WRONG_ORDERS = {
    "not the beginning of an hour": (
        {"from_us": FROM_US + 1},
        "is not the beginning of a UTC hour",
    ),
    "not the beginning of a day": (
        {"to_us": FROM_US + HOUR_US, "grain": Grain.DAY},
        "is not the beginning of a UTC day",
    ),
    "nothing between": ({"to_us": FROM_US}, "is not before"),
    "ages": ({"from_us": instant_us("1999-01-01")}, "ten years"),
}


@pytest.mark.parametrize(("changes", "reason"), WRONG_ORDERS.values(), ids=WRONG_ORDERS.keys())
def test_a_range_without_meaning_is_refused(changes, reason) -> None:
    order = ExportOrder(**({"from_us": FROM_US, "to_us": TO_US} | changes))
    with pytest.raises(BadOrder, match=reason):
        check_order(order, FileFormat.CSV)


def test_parquet_has_no_spreadsheet_mode() -> None:
    order = ExportOrder(from_us=FROM_US, to_us=TO_US, is_spreadsheet=True)
    with pytest.raises(BadOrder, match="is for CSV"):
        check_order(order, FileFormat.PARQUET)


def test_invoices_are_spread_over_whole_months_only() -> None:
    with pytest.raises(BadOrder, match="begin and end with a month"):
        make_export(profile=Profile.RECONCILED, to_us=TO_US - DAY_US)


@pytest.mark.parametrize("text", ["2026-13", "november", "9999-12", ""])
def test_what_is_no_month_is_refused(text) -> None:
    with pytest.raises(BadOrder, match="is no month"):
        month_of(text)


def test_a_month_is_a_calendar_month_also_in_december() -> None:
    assert month_of("2026-12")[1] == month_of("2027-01")[0] == instant_us("2027-01-01T01:00+01:00")
    with pytest.raises(BadOrder, match="no day or instant"):
        instant_us("yesterday")
