"""A month of machines for people: a table for terminals, CSV, and JSON with amounts as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import cast

import msgspec

from gateway.clock import from_microseconds
from gateway.finance.machines.messages import (
    BreakEvenCard,
    IdlePolicy,
    MachineHour,
    MachineShare,
    MachinesReport,
    MachineSummary,
    RateKind,
    UnitCost,
)
from gateway.ledger.report_csv import neutralised
from pricing.money import PICO_PER_USD, format_usd

_PICO, _PICO_PER_MTOK = "_pico_usd", "_pico_usd_per_mtok"
_PICO_PER_HOUR = "_pico_usd_per_hour"
_EXACT = ("gpu_usd_per_hour", "usd_per_hour")
_PER_CENT = 100
_SECOND_US = 1_000_000
_HOUR_S = 3_600
REST_NAMES: Mapping[RateKind, str] = {
    RateKind.ACTUAL: "idle",
    RateKind.STANDARD: "variance from the standard rate",
    RateKind.MARGINAL: "not recovered at the marginal rate",
}
"""What the row of the rest is called at each rate."""
NO_TEAM = "no team"
SLICE_NAME = "idle of its slice"
"""What the row is called of what a team left idle of its own slice."""


def machines_document(report: MachinesReport) -> dict[str, object]:
    """As JSON: amounts in picodollars with their decimal text, instants as ISO 8601 too."""
    return cast("dict[str, object]", _document(cast("object", msgspec.to_builtins(report))))


def _document(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_document(one) for one in cast("Sequence[object]", value)]
    if not isinstance(value, dict):
        return value
    made: dict[str, object] = {}
    for name, one in cast("Mapping[str, object]", value).items():
        if isinstance(one, int) and name.endswith(_PICO):
            made[f"{name.removesuffix(_PICO)}_usd"] = format_usd(one)
        elif isinstance(one, int) and name.endswith(_PICO_PER_MTOK):
            made[f"{name.removesuffix(_PICO_PER_MTOK)}_usd_per_mtok"] = format_usd(one)
        elif isinstance(one, int) and name.endswith(_PICO_PER_HOUR):
            made[f"{name.removesuffix(_PICO_PER_HOUR)}_usd_per_hour"] = format_usd(one)
        elif isinstance(one, str) and name in _EXACT:
            made |= {name: usd_text(one), f"{name}_exact": one}
            continue
        elif isinstance(one, int) and name in ("start_us", "until_us", "as_of_us"):
            made[name.replace("_us", "_at")] = from_microseconds(one).isoformat()
        made[name] = _document(one)
    return made


def down_text(machine: MachineSummary) -> str:
    """How long a server that is watched did not answer; empty where nobody looked."""
    return "" if machine.down_us is None else f"down {hours_text(machine.down_us)}"


def usd_text(exact: str) -> str:
    """An exact decimal or fraction in USD as a decimal, rounded to the picodollar."""
    return format_usd(round(Fraction(exact) * PICO_PER_USD))


def rate_text(machine: MachineSummary) -> str:
    """What an hour of a machine costs, and what of where that is worked out of facts."""
    rate = (
        f"{machine.gpus} \N{MULTIPLICATION SIGN} {usd_text(machine.gpu_usd_per_hour)} USD per hour"
    )
    parts = ", ".join(f"{one.what} {usd_text(one.usd_per_hour)}" for one in machine.parts)
    return f"{rate} ({parts})" if parts else rate


def hours_text(time_us: int) -> str:
    """Hours, minutes and seconds, cut to whole seconds: `12:05:59`."""
    seconds = time_us // _SECOND_US
    return f"{seconds // _HOUR_S}:{seconds % _HOUR_S // 60:02d}:{seconds % 60:02d}"


def share_name(share: MachineShare, rate: RateKind) -> str:
    """Whose row it is, in words."""
    if share.is_rest:
        return REST_NAMES[rate]
    if share.is_slice:
        return f"{share.team}, {SLICE_NAME}"
    return "/".join(one for one in (share.team or NO_TEAM, share.project) if one)


def idle_text(machine: MachineSummary) -> str:
    """Who bears a machine's idle time, where somebody does; else empty."""
    if machine.idle is IdlePolicy.RESERVED:
        own = ", ".join(f"{one.fraction} of {one.team}" for one in machine.slices)
        return f"slices: {own}"
    return "idle time by use" if machine.idle is IdlePolicy.BY_USE else ""


def unit_text(unit: UnitCost) -> str:
    """A sentence about what a million tokens cost."""
    if unit.effective_pico_usd_per_mtok is None or unit.busy_pico_usd_per_mtok is None:
        return f"{unit.pool}: no tokens"
    nominal = " (nominal rate)" if unit.is_nominal else ""
    whole, busy = unit.effective_pico_usd_per_mtok, unit.busy_pico_usd_per_mtok
    return (
        f"{unit.pool}: {format_usd(whole)} USD per million tokens, idle time and running included;"
        f" {format_usd(busy)} for busy time alone{nominal}"
    )


def break_even_text(card: BreakEvenCard) -> str:
    """A sentence about where a machine costs what a vendor would."""
    beside = f"{card.pool} beside {card.deployment}"
    if card.fault:
        return f"{beside}: not compared, {card.fault}"
    hourly = f"{format_usd(card.machine_pico_usd_per_hour)} USD per paid hour"
    nominal = " (nominal rate)" if card.is_nominal else ""
    if card.break_even_tokens_per_hour is None:
        return f"{beside}: the same use is free there, the machine costs {hourly}{nominal}"
    return (
        f"{beside}: {hourly}{nominal} break even at {card.break_even_tokens_per_hour:,} tokens an"
        f" hour of this mix; there were {card.tokens_per_hour:,}{_reached(card)}"
    )


def _reached(card: BreakEvenCard) -> str:
    """How far from the break-even the use is, and how busy the machine would be there."""
    parts = [] if card.break_even_percent is None else [f", {card.break_even_percent} % of it"]
    if card.break_even_use_percent is not None:
        parts.append(f"; at its speed it would be busy {card.break_even_use_percent} % of the time")
        if Decimal(card.break_even_use_percent) > _PER_CENT:
            parts.append(", which it cannot")
    return "".join(parts)


def as_table(report: MachinesReport) -> str:
    """For a terminal."""
    lines: list[str] = []
    if not report.is_restricted:
        lines += _table(
            ("machine", "paid", "busy", "use", "cost USD", "of it idle"),
            [
                (
                    one.machine + (" (nominal)" if one.is_nominal else ""),
                    hours_text(one.up_us),
                    hours_text(one.busy_us),
                    "" if one.utilisation_percent is None else f"{one.utilisation_percent} %",
                    format_usd(one.cost_pico_usd),
                    format_usd(one.idle_pico_usd),
                )
                for one in report.machines
            ],
        )
        lines += [f"{one.machine}: {rate_text(one)}" for one in report.machines if one.parts]
        lines += [f"{one.machine}: {down_text(one)}" for one in report.machines if one.down_us]
        lines.append("")
    lines += _table(
        ("pool", "who", "used", "share", f"{report.rate.value} USD", "booked USD"),
        [
            (
                one.pool,
                share_name(one, report.rate),
                hours_text(one.used_us),
                one.ratio,
                format_usd(one.cost_pico_usd) + (" (nominal)" if one.is_nominal else ""),
                format_usd(one.booked_pico_usd),
            )
            for one in report.shares
        ],
    )
    if report.hours:
        lines.append("")
        lines += _table(("hour (UTC)", "machine", "paid", "busy", "cost USD"), _hours(report.hours))
    lines += ["", f"total {format_usd(report.cost_pico_usd)} USD"]
    lines += [unit_text(unit) for unit in report.units]
    lines += [break_even_text(card) for card in report.break_even]
    lines += [f"not complete: {gap}" for gap in report.gaps]
    return "\n".join(lines) + "\n"


SHARE_COLUMNS = (
    "month",
    "pool",
    "team",
    "project",
    "deployment",
    "is_rest",
    "is_nominal",
    "rate",
    "used_us",
    "borne_us",
    "attempts",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "cost_usd",
    "booked_usd",
    "marginal_usd",
    "standard_usd",
    "actual_usd",
    "ratio",
    "is_slice",
)


def as_csv(report: MachinesReport) -> str:
    """The shares as CSV (RFC 4180), safe against formulas."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(SHARE_COLUMNS)
    for one in report.shares:
        writer.writerow(
            [
                report.month,
                *(neutralised(text) for text in (one.pool, one.team, one.project, one.deployment)),
                str(one.is_rest).lower(),
                str(one.is_nominal).lower(),
                report.rate.value,
                one.used_us,
                one.borne_us,
                one.attempts,
                one.input_tokens,
                one.cached_input_tokens,
                one.output_tokens,
                *(
                    format_usd(amount)
                    for amount in (
                        one.cost_pico_usd,
                        one.booked_pico_usd,
                        one.marginal_pico_usd,
                        one.standard_pico_usd,
                        one.actual_pico_usd,
                    )
                ),
                one.ratio,
                str(one.is_slice).lower(),
            ]
        )
    return out.getvalue()


def _hours(hours: Iterable[MachineHour]) -> list[tuple[str, ...]]:
    return [
        (
            f"{from_microseconds(one.start_us):%Y-%m-%d %H:%M}",
            one.machine,
            hours_text(one.up_us),
            hours_text(one.busy_us),
            format_usd(one.cost_pico_usd),
        )
        for one in hours
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    texts = 2 if head[1] == "who" or head[1] == "machine" else 1
    return [
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
