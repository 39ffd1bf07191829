"""Drift by provider and day, and hours of machines, as pages draw them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.books.run_view import WHOLE_MONTH, run_page
from gateway.dashboard.finance.machines import Place, machines_page
from gateway.finance.bill_messages import (
    AccountCoverage,
    Difference,
    ReconciliationRun,
    Tolerances,
)
from gateway.finance.machines.messages import MachineHour, MachinesReport, RateKind

USD = 10**12
DAYS = st.sampled_from(["", *(f"2026-02-{day:02}" for day in range(1, 29))])
HOUR_US = 3_600_000_000


def difference(account: str, day: str, amount: int) -> Difference:
    return Difference(
        account=account, day=day, model="m", meter="input", tier="", kind="tax",
        metered_units=None, billed_units=None, ledger_pico_usd=0, billed_pico_usd=amount,
        amount_pico_usd=amount, sentence="", proposal_id=None,
    )  # fmt: skip


def run(*differences: Difference, accounts: tuple[str, ...] = ("a", "b")) -> ReconciliationRun:
    return ReconciliationRun(
        run_id=1, at_us=0, actor="ann", month="2026-02", state="read", ledger_pico_usd=0,
        adjusted_pico_usd=0, billed_pico_usd=0, differences=differences,
        accounts=tuple(
            AccountCoverage(
                account=name, state="read", metered_units=0, billed_units=0, ledger_pico_usd=0,
                adjusted_pico_usd=0, billed_pico_usd=0, outside_pico_usd=0,
            )
            for name in accounts
        ),
        tolerances=msgspec.convert({}, Tolerances),
    )  # fmt: skip


def test_drift_is_shaded_in_thirds_of_the_largest_by_its_sign() -> None:
    found = run(
        difference("a", "2026-02-01", 9 * USD), difference("a", "2026-02-02", 4 * USD),
        difference("a", "2026-02-03", -3 * USD), difference("b", "2026-02-04", -9 * USD),
        difference("b", "2026-02-05", 1), difference("b", "2026-02-05", -1),
        difference("b", "", 2 * USD),
    )  # fmt: skip
    [a, b] = run_page(found, kind="", account="").heat
    assert [one.css for one in a.cells[:4]] == ["heat-3", "heat-2", "cool-1", ""]
    assert [one.css for one in b.cells[3:6]] == ["cool-3", "", ""]
    assert b.cells[4].amount is not None, "differences that cancel out are still there"
    assert b.cells[5].amount is None
    assert (b.whole.css, b.whole.day) == ("heat-1", WHOLE_MONTH)
    assert [one.total.exact for one in (a, b)] == ["10", "-7"]
    assert len(a.cells) == 28


@given(st.lists(st.tuples(st.sampled_from("abc"), DAYS, st.integers(-(10**15), 10**15))))
def test_a_cell_leads_to_the_differences_that_it_adds_up(found: list[tuple[str, str, int]]) -> None:
    whole = run(*(difference(*one) for one in found))
    for row in run_page(whole, kind="", account="").heat:
        for cell in [*row.cells, row.whole]:
            behind = run_page(whole, kind="", account=row.account, day=cell.day)
            assert (cell.amount is None) == (not behind.lines)
            assert (cell.css == "") == (
                sum(one[2] for one in found if (one[0], one[1] or WHOLE_MONTH)
                    == (row.account, cell.day)) == 0
            )  # fmt: skip


def hour(machine: str, day: int, busy: float, up: float = 24) -> MachineHour:
    return MachineHour(
        machine=machine, start_us=day * 24 * HOUR_US, up_us=int(up * HOUR_US),
        busy_us=int(busy * HOUR_US), idle_us=int((up - busy) * HOUR_US), cost_pico_usd=0,
        busy_pico_usd=0, idle_pico_usd=0,
    )  # fmt: skip


def test_hours_of_machines_are_added_up_by_day() -> None:
    report = MachinesReport(
        month="1970-01", rate=RateKind.ACTUAL, as_of_us=0, is_closed=False, is_restricted=False,
        cost_pico_usd=0, machines=(), shares=(), units=(), hours=(), gaps=(), break_even=(),
        days=(hour("x", 0, 6), hour("y", 0, 12.5), hour("x", 1, 0, up=3)),
    )  # fmt: skip
    figure = machines_page(report, Place(month="1970-01", rate=RateKind.ACTUAL)).use
    assert (figure["kind"], figure["unit"]) == ("areas", "hours")
    assert figure["labels"] == ["1970-01-01", "1970-01-02"]
    busy, idle = figure["series"]
    assert (busy["name"], busy["texts"], busy["values"]) == ("busy", ["18.5", "0.0"], [18.5, 0.0])
    assert (idle["name"], idle["texts"], idle["values"]) == ("idle", ["29.5", "3.0"], [29.5, 3.0])
