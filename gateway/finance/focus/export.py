"""An export of the ledger: its lines, a charge period at a time, and what is known of them.

`Export` holds no more than the sums of one charge period. It counts what passes through, so that a
manifest can say what the file holds, and a digest of the ledger's sums, which is the same for every
profile, format and form of names.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import sqlalchemy as sa

from gateway.finance.focus import ledger_sums, row_map
from gateway.finance.focus.charges import Charge
from gateway.finance.focus.committed import Coverage
from gateway.finance.focus.errors import BadOrder
from gateway.finance.focus.inputs import LateUsage, PendingSum, UsageSum
from gateway.finance.focus.invoices import PeriodClose, Spread
from gateway.finance.focus.ledger_sums import Counted, Wanted
from gateway.finance.focus.meters import GPU_METER
from gateway.finance.focus.order import (
    DAY_US,
    ExportOrder,
    Parties,
    Profile,
    billing_months,
    billing_period,
)
from gateway.finance.focus.profiles import Line, Teller, teller
from gateway.finance.focus.pseudonyms import Names
from gateway.finance.focus.source import FinanceSource
from gateway.finance.focus.version_1_4 import PeriodRow
from gateway.ledger.periods import month_of

_canonical = msgspec.json.Encoder(order="deterministic").encode


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums of an export's lines, picodollars and counts."""

    rows: int = 0
    billed_pico_usd: int = 0
    effective_pico_usd: int = 0
    contracted_pico_usd: int = 0
    list_pico_usd: int = 0
    requests: int = 0
    unpriced_attempts: int = 0
    unknown_attempts: int = 0
    exposure_pico_usd: int = 0

    def add(self, line: Line) -> None:
        """Count a line."""
        costs, evidence = line.costs, line.charge.evidence
        self.rows += 1
        self.billed_pico_usd += costs.billed_pico_usd
        self.effective_pico_usd += costs.effective_pico_usd
        self.contracted_pico_usd += costs.contracted_pico_usd
        self.list_pico_usd += costs.list_pico_usd
        self.requests += evidence.requests
        self.unpriced_attempts += evidence.unpriced_attempts
        self.unknown_attempts += evidence.unknown_attempts
        self.exposure_pico_usd += evidence.exposure_pico_usd


@dataclass(slots=True, kw_only=True)
class Export:
    """Lines of one order, to be taken once with `pieces`.

    Attributes:
        order: Checked.
        parties: Who stands on it.
        names: How names are written.
        source: What finance knows beyond the ledger.
        totals: Of the lines taken so far.
        price_versions: Of the lines taken so far.
    """

    order: ExportOrder
    parties: Parties
    names: Names
    source: FinanceSource
    totals: Totals = field(default_factory=Totals)
    price_versions: set[str] = field(default_factory=set)
    _replaced: frozenset[tuple[str, int]] = frozenset()
    _digest: _Digest = field(default_factory=hashlib.sha256)
    _updated_us: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what invoices cannot be spread over."""
        order = self.order
        if order.profile is Profile.RECONCILED:
            bounds = (order.from_us, order.to_us)
            if any(bound != billing_period(bound)[0] for bound in bounds):
                raise BadOrder(
                    "the profile reconciled spreads invoices over whole months; "
                    "the range must begin and end with a month (UTC)"
                )

    def pieces(self, connection: sa.Connection) -> Iterator[list[Line]]:
        """Lines, a charge period at a time, then those that do not come from the ledger.

        Args:
            connection: In one transaction until the last piece is taken.
        """
        self._replaced = self.source.replaced(self.order.from_us, self.order.to_us)
        spread = self._spread(connection)
        cover = self._coverage(connection)
        tell = teller(self.order.profile, parties=self.parties, names=self.names, spread=spread)
        for start_us, end_us in ledger_sums.periods(connection, self.order):
            yield self._told(self._period(connection, start_us, end_us, cover), tell)
        for charges, digested in self._late(connection, cover, self.order):
            self._digest.update(digested)
            yield self._told(charges, tell)
        yield self._told(list(self.source.charges(self.order.from_us, self.order.to_us)), tell)
        yield self._told([row_map.adjustment(one) for one in spread.left()], tell)

    @property
    def ledger_digest(self) -> str:
        """SHA-256 of the sums taken so far, in hexadecimal digits."""
        return self._digest.hexdigest()

    def billing_periods(self) -> list[PeriodRow]:
        """A row per billing period and issuer of the lines taken."""
        closed = {
            billing_period(one.billing_us)[0]: one
            for one in self.source.closes(self.order.from_us, self.order.to_us)
        }
        return [
            _period_row(start_us, issuer, updated_us, closed.get(start_us))
            for (start_us, issuer), updated_us in sorted(self._updated_us.items())
        ]

    def _spread(self, connection: sa.Connection) -> Spread:
        """What invoices bill, counted over all charges before the first one is told."""
        order = self.order
        if order.profile is not Profile.RECONCILED:
            return Spread()
        spread = Spread.of(self.source.allocations(order.from_us, order.to_us))
        cover = self._coverage(connection)
        for start_us, end_us in ledger_sums.periods(connection, order):
            for found in self._kept(self._usage(connection, start_us, end_us)):
                for charge in cover.usage(found):
                    spread.count(charge)
        for charges, _ in self._late(connection, cover, order):
            for charge in charges:
                spread.count(charge)
        for charge in self.source.charges(order.from_us, order.to_us):
            spread.count(charge)
        return spread

    def _coverage(self, connection: sa.Connection) -> Coverage:
        """What commitments pay, without what they paid earlier on the day the range begins in."""
        order = self.order
        cover = self.source.coverage(order.from_us, order.to_us)
        day_us = order.from_us - order.from_us % DAY_US
        if cover.parts and day_us < order.from_us:
            earlier = msgspec.structs.replace(order, from_us=day_us, to_us=order.from_us)
            for start_us, end_us in ledger_sums.periods(connection, earlier):
                for found in self._usage(connection, start_us, end_us):
                    collections.deque(cover.usage(found), maxlen=0)
            collections.deque(self._late(connection, cover, earlier), maxlen=0)
        return cover

    def _wanted(self, counted: Counted = Counted.IN_TIME, period: str = "") -> Wanted:
        return Wanted(with_keys=self.order.with_keys, counted=counted, period=period)

    def _usage(self, connection: sa.Connection, start_us: int, end_us: int) -> list[UsageSum]:
        return ledger_sums.usage_sums(connection, start_us, end_us, self._wanted())

    def _kept(self, used: Iterable[UsageSum]) -> Iterator[UsageSum]:
        """Without machine time that is told as shares of what the machine cost."""
        for one in used:
            is_machine = one.meter == GPU_METER
            if not is_machine or (one.resource.deployment, one.start_us) not in self._replaced:
                yield one

    def _period(
        self, connection: sa.Connection, start_us: int, end_us: int, cover: Coverage
    ) -> list[Charge]:
        used = self._usage(connection, start_us, end_us)
        waiting = ledger_sums.pending_sums(connection, start_us, end_us, self._wanted())
        self._digest_of(used, waiting)
        paid = [charge for found in self._kept(used) for charge in cover.usage(found)]
        return [*paid, *map(row_map.pending, waiting)]

    def _late(
        self, connection: sa.Connection, cover: Coverage, order: ExportOrder
    ) -> Iterator[tuple[list[Charge], bytes]]:
        """What came when its month was closed, by charge period, with what it adds to the digest.

        It is billed in the months of the range whose first instant lies in it.
        """
        for month_us in billing_months(order.from_us, order.to_us):
            period = month_of(month_us)
            for start_us, end_us in ledger_sums.late_periods(connection, period, order.grain_us):
                late = self._wanted(Counted.LATE, period)
                replaced = self._wanted(Counted.REPLACED, period)
                used = ledger_sums.usage_sums(connection, start_us, end_us, late)
                waiting = ledger_sums.pending_sums(connection, start_us, end_us, late)
                back = ledger_sums.pending_sums(connection, start_us, end_us, replaced)
                taken = [LateUsage(usage=one, billing_us=month_us) for one in used]
                charges = [
                    *(charge for one in taken for charge in cover.late(one)),
                    *(row_map.late_pending(one, month_us) for one in waiting),
                    *(row_map.late_pending(one, month_us, is_taken_back=True) for one in back),
                ]
                yield charges, _canonical([period, used, waiting, back]) + b"\n"

    def _digest_of(self, used: Sequence[UsageSum], waiting: Sequence[PendingSum]) -> None:
        for one in (*used, *waiting):
            self._digest.update(_canonical(one) + b"\n")

    def _told(self, charges: Sequence[Charge], tell: Teller) -> list[Line]:
        lines = [tell(charge) for charge in charges]
        for line in lines:
            self.totals.add(line)
            version = line.charge.evidence.price_version
            if version:
                self.price_versions.add(version)
            key = (billing_period(line.charge.billing_us)[0], line.issuer)
            self._updated_us[key] = max(self._updated_us.get(key, 0), line.charge.end_us)
        return lines


def _period_row(
    start_us: int, issuer: str, updated_us: int, close: PeriodClose | None
) -> PeriodRow:
    return PeriodRow(
        start_us=start_us,
        issuer=issuer,
        is_closed=close is not None,
        updated_us=updated_us if close is None else close.closed_us,
    )
