"""Both sides of a reconciliation as rows, and the cells in which they meet.

A cell is an account, a UTC day, a model and a meter. A bill that says less is compared where it is
specific enough: one row of a day without a model makes that day one cell, one row of a model
without a meter makes that model one cell. In a cell without a meter the units are tokens.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gateway.finance.sources.rows import TOKEN_METERS

_DATED = re.compile(r"[-@]v?\d{4}-?\d{2}-?\d{2}(-v\d+(:\d+)?)?$|-\d{4}$|-v\d+:\d+$", re.ASCII)
"""Ends of a model's name that say which snapshot it is: -2024-08-06, @20241022, -0613, -v1:0."""

CellKey = tuple[str, str]
"""Model and meter; both empty, or the meter alone, where the bill is coarser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What the ledger holds of one team: units and cost, both at least 0.

    Of `units`, `rates` tells how many were charged at which rate, in picodollars per unit.
    """

    account: str
    day: str
    model: str
    meter: str
    team: str
    project: str
    units: int
    cost_pico_usd: int
    rates: tuple[tuple[Fraction, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """An attempt whose bill is unknown; `exposure_pico_usd` is its upper bound."""

    account: str
    day: str
    model: str
    team: str
    project: str
    event_id: str
    exposure_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """A posted adjustment; `kind` is that of the bill's line that it answers."""

    account: str
    day: str
    model: str
    meter: str
    kind: str
    amount_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """A line of a bill; `fx_pico_usd` is the part of the amount that the currency makes."""

    account: str
    day: str
    model: str
    meter: str
    tier: str
    kind: str
    units: int | None
    amount_pico_usd: int
    fx_pico_usd: int
    line_id: int | None = None
    description: str = ""
    batch_id: int | None = None
    generation: str = ""
    """The vendor's id of a single generation, empty for sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An attempt of ours by the vendor's id of its generation.

    Attributes:
        account: Provider of the configuration.
        day: UTC.
        model: Model at the provider.
        generation: The vendor's id, empty where it gave none.
        event_id: Of the attempt, hexadecimal.
        units: Tokens of all meters.
        cost_pico_usd: What we booked.
        provider_cost_pico_usd: What the vendor told with the answer, None for nothing.
        is_unknown: Whether nothing is booked because the bill is unknown.
    """

    account: str
    day: str
    model: str
    generation: str
    event_id: str
    units: int
    cost_pico_usd: int
    provider_cost_pico_usd: int | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the vendor says was used, from a report without money."""

    account: str
    day: str
    model: str
    meter: str
    units: int


@dataclass(slots=True)
class Cell:
    """What both sides say of one model and meter on one day.

    Attributes:
        metered: The ledger's rows.
        adjusted: Posted true-ups.
        billed: Lines of usage.
        used: The vendor's counts.
    """

    metered: list[Metered] = field(default_factory=list[Metered])
    adjusted: list[Adjusted] = field(default_factory=list[Adjusted])
    billed: list[Billed] = field(default_factory=list[Billed])
    used: list[Used] = field(default_factory=list[Used])


def base_name(model: str) -> str:
    """A model's name without vendor and snapshot: `openai/gpt-4o-2024-08-06` is `gpt-4o`."""
    return _DATED.sub("", model.rpartition("/")[2].lower())


def namer(account: str, ours: Iterable[str], aliases: Mapping[str, str]) -> Callable[[str], str]:
    """A function that gives the ledger's name for a bill's.

    An exact name comes first, then an alias of the configuration, then the only model of ours with
    the same name but for vendor and snapshot; any other name stays as it is.

    Args:
        account: Whose bill.
        ours: Models of the account in the ledger.
        aliases: `account/name` to a model of ours.
    """
    known = set(ours)
    by_base: dict[str, set[str]] = defaultdict(set)
    for model in known:
        by_base[base_name(model)].add(model)

    def name(billed: str) -> str:
        if billed in known:
            return billed
        alias = aliases.get(f"{account}/{billed}")
        if alias is not None:
            return alias
        same = by_base.get(base_name(billed), set())
        return next(iter(same)) if len(same) == 1 else billed

    return name


def cells_of_day(
    metered: Sequence[Metered],
    adjusted: Sequence[Adjusted],
    billed: Sequence[Billed],
    used: Sequence[Used],
    name: Callable[[str], str],
) -> dict[CellKey, Cell]:
    """The cells of one account and day.

    Args:
        metered: The ledger's side.
        adjusted: Posted true-ups.
        billed: Lines of usage.
        used: Counts without money.
        name: What `namer` gave.
    """
    is_one = any(not line.model for line in billed)
    whole_models = {name(line.model) for line in billed if not line.meter}

    def key(model: str, meter: str) -> CellKey:
        if is_one or not model:
            return ("", "")
        return (model, "") if model in whole_models or not meter else (model, meter)

    cells: defaultdict[CellKey, Cell] = defaultdict(Cell)
    for row in metered:
        cells[key(row.model, row.meter)].metered.append(row)
    for posted in adjusted:
        cells[key(posted.model, posted.meter)].adjusted.append(posted)
    for line in billed:
        cells[key(name(line.model), line.meter)].billed.append(line)
    for count in used:
        cells[key(name(count.model), count.meter)].used.append(count)
    return dict(cells)


def metered_units(key: CellKey, cell: Cell) -> int:
    """What we counted; tokens where the cell has no meter."""
    return sum(row.units for row in cell.metered if key[1] or row.meter in TOKEN_METERS)


def billed_units(key: CellKey, cell: Cell, *, is_used_known: bool) -> int | None:
    """What the vendor counted, None when it did not say.

    Args:
        key: The cell.
        cell: Its sides.
        is_used_known: Whether a report of usage covers the day, so that no row means none.
    """
    if cell.billed and all(line.units is not None for line in cell.billed):
        return sum(line.units or 0 for line in cell.billed)
    if is_used_known:
        return sum(row.units for row in cell.used if key[1] or row.meter in TOKEN_METERS)
    # The bill covers the day and has no line here: nothing was used, says the vendor.
    return None if cell.billed else 0
