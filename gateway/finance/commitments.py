"""Commitments and prepaid credits: recorded, corrected, drawn down by the rules of `pricing`.

A recording is a row that is never changed; a correction or withdrawal is a further row of the same
name. Each counts from the first open month on at the earliest, so a closed month stays as it was.
Usage is what the ledger booked, by UTC day and deployment; what came when its month was closed is
drawn on the first day of the month that it is counted in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple, cast

import sqlalchemy as sa

from gateway.clock import from_microseconds, to_microseconds
from gateway.finance.commitment_messages import (
    DAYS_MAX,
    CommitmentDay,
    CommitmentStanding,
    RecordCommitment,
    RecordReply,
    WithdrawCommitment,
)
from gateway.finance.errors import NotFound, Refused
from gateway.finance.fx import FxRate, FxRates, parse_rates
from gateway.finance.messages import PICO_USD_MAX
from gateway.ledger import schema
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import commitment
from gateway.ledger.grains import DAY_US
from gateway.ledger.periods import closed_through, late_in, late_of, next_month
from pricing.commitments import CommitmentKind, Draws, Pledge, RunOut, Term, draw_down, run_out
from pricing.errors import InvalidAmount
from pricing.money import format_usd, parse_usd

DAYS_SHOWN_MAX = 400
_FIRST_DAY, _LAST_DAY = date(2000, 1, 1), date(2999, 12, 31)
"""Every day since the first one of any commitment is gone through, each time it is asked."""
_USD = "USD"
_NO_RUN_OUT = RunOut(pace_pico_usd=0, on=None, early=None, late=None, percent=None)


class Recording(NamedTuple):
    """A row of the table, in the order of its columns."""

    number: int
    at_us: int
    actor: str
    name: str
    revision: int
    kind: str
    provider: str
    deployments: Sequence[str]
    currency: str
    amount: str
    amount_pico_usd: int
    rate_day: str
    rate_source: str
    first_day: str
    last_day: str
    counts_from: str
    invoice: str
    reason: str
    is_withdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A commitment with all of its recordings, oldest first."""

    recordings: tuple[Recording, ...]

    @property
    def first(self) -> Recording:
        """What was recorded first."""
        return self.recordings[0]

    @property
    def last(self) -> Recording:
        """What holds now."""
        return self.recordings[-1]

    @property
    def pledge(self) -> Pledge:
        """As the rules of drawing take it."""
        return Pledge(
            number=self.first.number,
            kind=CommitmentKind(self.first.kind),
            terms=tuple(_term(one) for one in self.recordings),
        )


def record(connection: sa.Connection, order: RecordCommitment, *, now_us: int) -> RecordReply:
    """Record a commitment, or correct it.

    Args:
        connection: In a write transaction.
        order: What was bought.
        now_us: Microseconds since the epoch.

    Raises:
        Refused: It means nothing, or contradicts what stands there and is no correction.
        NoRate: Its currency has no exchange rate on its first day.
        UnreadableSource: The rates file cannot be read.
    """
    first, last = _checked_days(order)
    amount_pico_usd, rate = _in_dollars(order, first)
    take(connection, Lock.AUDIT)  # two recordings of one name come one after the other
    open_from = _open_from(connection)
    known = next((one for one in load(connection) if one.first.name == order.name), None)
    if known is not None and _is_same(known.last, order):
        return _reply(known.last, is_new=False)
    if known is None and order.is_correction:
        raise NotFound(f"there is no commitment {order.name!r} to correct")
    if known is not None:
        _check_correction(known, order, open_from)
    begins = first if known is None else min(first, date.fromisoformat(known.first.counts_from))
    counts_from = max(begins, open_from)
    if last < counts_from:
        raise Refused(
            f"{order.name} ends on {last}, in a month that is closed; record it as an adjustment"
        )
    row = {
        "at_us": now_us,
        "actor": order.actor,
        "name": order.name,
        "revision": 1 if known is None else known.last.revision + 1,
        "kind": order.kind.value,
        "provider": order.provider,
        "deployments": sorted(set(order.deployments)),
        "currency": order.currency,
        "amount": order.amount,
        "amount_pico_usd": amount_pico_usd,
        "rate_day": rate.day.isoformat(),
        "rate_source": rate.source,
        "first_day": order.first_day,
        "last_day": order.last_day,
        "counts_from": counts_from.isoformat(),
        "invoice": order.invoice,
        "reason": order.reason,
        "is_withdrawn": False,
    }
    action = "commitment.record" if known is None else "commitment.correct"
    return _reply(_insert(connection, row, action=action), is_new=True)


def withdraw(connection: sa.Connection, order: WithdrawCommitment, *, now_us: int) -> RecordReply:
    """Let a commitment draw nothing from the first open month on; twice changes nothing.

    Raises:
        NotFound: There is none of that name.
    """
    take(connection, Lock.AUDIT)
    known = next((one for one in load(connection) if one.first.name == order.name), None)
    if known is None:
        raise NotFound(f"there is no commitment {order.name!r}")
    if known.last.is_withdrawn:
        return _reply(known.last, is_new=False)
    row = known.last._asdict()
    del row["number"]
    row |= {
        "at_us": now_us,
        "actor": order.actor,
        "revision": known.last.revision + 1,
        "counts_from": max(
            _open_from(connection), date.fromisoformat(known.first.counts_from)
        ).isoformat(),
        "reason": order.reason,
        "is_withdrawn": True,
    }
    return _reply(_insert(connection, row, action="commitment.withdraw"), is_new=True)


def load(connection: sa.Connection) -> list[Bought]:
    """Every commitment, in the order of recording."""
    rows = connection.execute(sa.select(commitment).order_by(commitment.c.id)).all()
    by_name: dict[str, list[Recording]] = {}
    for row in cast("Iterable[Sequence[object]]", rows):
        recording = Recording(*row)  # pyright: ignore[reportArgumentType]
        by_name.setdefault(recording.name, []).append(recording)
    return [Bought(recordings=tuple(found)) for found in by_name.values()]


def drawn(connection: sa.Connection, bought: Sequence[Bought], *, until: date) -> Draws:
    """What was drawn from commitments until the end of a day."""
    starts = [date.fromisoformat(one.first_day) for b in bought for one in b.recordings]
    if not starts or min(starts) > until:
        return Draws(
            drawn={one.first.number: {} for one in bought},
            unused={one.first.number: {} for one in bought},
            left=dict.fromkeys((one.first.number for one in bought), 0),
        )
    usage = _usage(connection, min(starts), until)
    return draw_down([one.pledge for one in bought], usage, until=until)


def standings(connection: sa.Connection, *, now_us: int) -> tuple[CommitmentStanding, ...]:
    """Where every commitment stands at the end of yesterday (UTC)."""
    bought = load(connection)
    yesterday = from_microseconds(now_us).date() - timedelta(days=1)
    draws = drawn(connection, bought, until=yesterday)
    return tuple(_standing(one, draws, yesterday) for one in bought)


def _standing(one: Bought, draws: Draws, yesterday: date) -> CommitmentStanding:
    last, number = one.last, one.first.number
    term = _term(last)
    days = _days(one, draws, yesterday)
    spent = sum(draws.drawn[number].values())
    unused = sum(draws.unused[number].values())
    left = 0 if last.is_withdrawn else max(term.amount_pico_usd - spent - unused, 0)
    ending = _NO_RUN_OUT
    state = _state(term, left, yesterday)
    if state == "open" and CommitmentKind(last.kind) is not CommitmentKind.THROUGHPUT:
        history = [day.drawn_pico_usd for day in days]
        ending = run_out(left, history, last_seen=yesterday, last_day=term.last_day)
    return CommitmentStanding(
        name=last.name,
        revision=last.revision,
        kind=CommitmentKind(last.kind),
        state=state,
        provider=last.provider,
        deployments=tuple(last.deployments),
        currency=last.currency,
        amount=last.amount,
        amount_pico_usd=term.amount_pico_usd,
        first_day=last.first_day,
        last_day=last.last_day,
        counts_from=last.counts_from,
        invoice=last.invoice,
        recorded_at_us=last.at_us,
        recorded_by=last.actor,
        reason=last.reason,
        drawn_pico_usd=spent,
        unused_pico_usd=unused,
        left_pico_usd=left,
        pace_pico_usd=ending.pace_pico_usd,
        runs_out_on=_day_text(ending.on),
        runs_out_early=_day_text(ending.early),
        runs_out_late=_day_text(ending.late),
        band_percent=ending.percent,
        days=days[-DAYS_SHOWN_MAX:],
    )


def _state(term: Term, left: int, yesterday: date) -> str:
    if term.is_withdrawn:
        return "withdrawn"
    if term.first_day > yesterday:
        return "coming"
    if term.last_day <= yesterday:
        return "over"
    return "open" if left else "used_up"


def _days(one: Bought, draws: Draws, yesterday: date) -> tuple[CommitmentDay, ...]:
    """Each day from the first on which it could be drawn, until yesterday or its end."""
    pledge, number = one.pledge, one.first.number
    day = min(term.first_day for term in pledge.terms)
    end = min(yesterday, max(term.last_day for term in pledge.terms))
    found: list[CommitmentDay] = []
    gone = 0
    while day <= end:
        term = pledge.term(day)
        if term is not None:
            part = draws.drawn[number].get(day, 0)
            lapsed = draws.unused[number].get(day, 0)
            gone += part + lapsed
            left = 0 if term.is_withdrawn else max(term.amount_pico_usd - gone, 0)
            found.append(
                CommitmentDay(
                    day=day.isoformat(),
                    drawn_pico_usd=part,
                    left_pico_usd=left,
                    unused_pico_usd=lapsed,
                )
            )
        day += timedelta(days=1)
    return tuple(found)


def _usage(connection: sa.Connection, first: date, last: date) -> dict[date, dict[str, int]]:
    """Cost by day and deployment, each late entry on the first day of the month it counts in."""
    table, place = schema.rollup_day, schema.deployment
    from_us, to_us = _start_us(first), _start_us(last) + DAY_US
    found = connection.execute(
        sa.select(table.c.bucket_us, table.c.deployment_id, table.c.cost_pico_usd).where(
            table.c.bucket_us >= from_us, table.c.bucket_us < to_us
        )
    ).all()
    costs: dict[tuple[date, int], int] = {}
    for bucket_us, deployment_id, cost in cast("Sequence[tuple[int, int, int]]", found):
        key = (from_microseconds(bucket_us).date(), deployment_id)
        costs[key] = costs.get(key, 0) + int(cost)
    _move_late(connection, costs, first, last)
    rows = connection.execute(sa.select(place.c.id, place.c.name)).all()
    names = dict(cast("Sequence[tuple[int, str]]", rows))
    usage: dict[date, dict[str, int]] = {}
    for (day, deployment_id), cost in costs.items():
        by_name = usage.setdefault(day, {})
        # Deployments of one name may be interned twice, with another provider or model.
        by_name[names[deployment_id]] = by_name.get(names[deployment_id], 0) + cost
    return {
        day: {name: max(cost, 0) for name, cost in by_name.items()}
        for day, by_name in usage.items()
    }


def _move_late(
    connection: sa.Connection, costs: dict[tuple[date, int], int], first: date, last: date
) -> None:
    """Take late entries from the day on which they happened to that on which they count."""
    month, end = f"{first:%Y-%m}", f"{last:%Y-%m}"
    while month <= end:
        for part in late_of(connection, month):
            row = part.row
            day = from_microseconds(cast("int", row["at_us"])).date()
            if first <= day <= last:
                key = (day, cast("int", row["deployment_id"]))
                costs[key] = costs.get(key, 0) - part.sign * cast("int", row["cost_pico_usd"] or 0)
        counted = date.fromisoformat(f"{month}-01")
        if counted >= first:
            for part in late_in(connection, month):
                row = part.row
                key = (counted, cast("int", row["deployment_id"]))
                costs[key] = costs.get(key, 0) + part.sign * cast("int", row["cost_pico_usd"] or 0)
        month = next_month(month)


def _insert(connection: sa.Connection, row: Mapping[str, object], *, action: str) -> Recording:
    done = connection.execute(sa.insert(commitment).values(dict(row)))
    [number] = cast("Sequence[int]", done.inserted_primary_key)
    append_audit(
        connection,
        at_us=cast("int", row["at_us"]),
        actor=cast("str", row["actor"]),
        action=action,
        subject=cast("str", row["name"]),
        details={
            name: " ".join(value) if isinstance(value, list) else value
            for name, value in cast("Mapping[str, str | int | list[str]]", row).items()
            if name not in ("at_us", "actor", "name")
        },
    )
    return Recording(number, *row.values())  # pyright: ignore[reportArgumentType]


def _reply(one: Recording, *, is_new: bool) -> RecordReply:
    return RecordReply(
        name=one.name,
        revision=one.revision,
        is_new=is_new,
        counts_from=one.counts_from,
        amount_pico_usd=one.amount_pico_usd,
    )


def _checked_days(order: RecordCommitment) -> tuple[date, date]:
    try:
        first, last = date.fromisoformat(order.first_day), date.fromisoformat(order.last_day)
    except ValueError as error:
        raise Refused(f"{order.first_day} to {order.last_day}: {error}") from error
    if first < _FIRST_DAY or last > _LAST_DAY:
        raise Refused(
            f"{order.name} is from {order.first_day} to {order.last_day}, which cannot be meant;"
            f" name days from {_FIRST_DAY} to {_LAST_DAY}"
        )
    if last < first:
        raise Refused(f"{order.name} ends on {last}, before it begins on {first}")
    if (last - first).days >= DAYS_MAX:
        raise Refused(f"{order.name} lasts longer than {DAYS_MAX} days; name a shorter time")
    for deployment in order.deployments:
        if deployment.partition("/")[0] != order.provider:
            raise Refused(
                f"{deployment} is no deployment of {order.provider}, with whom {order.name} is made"
            )
    if order.is_correction and not order.reason.strip():
        raise Refused("a correction needs a reason")
    return first, last


def _in_dollars(order: RecordCommitment, day: date) -> tuple[int, FxRate]:
    """The amount in dollars at the rate of the first day, rounded once."""
    try:
        amount = parse_usd(order.amount)
    except InvalidAmount as error:
        raise Refused(f"amount {order.amount!r}: {error}") from error
    rates = FxRates() if order.rates is None else parse_rates(order.rates, name=order.rates_name)
    rate = rates.rate(day, order.currency, _USD)
    dollars = rate.convert(amount)
    if not 0 < dollars <= PICO_USD_MAX:
        raise Refused(
            f"the amount must be above 0 and at most {format_usd(PICO_USD_MAX)} USD,"
            f" got {order.amount} {order.currency}"
        )
    return dollars, rate


def _open_from(connection: sa.Connection) -> date:
    """The first day of the oldest month that is not closed; the first of all days when none is."""
    through = closed_through(connection)
    return date.min if through is None else date.fromisoformat(f"{next_month(through)}-01")


def _is_same(known: Recording, order: RecordCommitment) -> bool:
    return not known.is_withdrawn and (
        known.kind == order.kind.value
        and known.provider == order.provider
        and list(known.deployments) == sorted(set(order.deployments))
        and (known.currency, parse_usd(known.amount)) == (order.currency, parse_usd(order.amount))
        and (known.first_day, known.last_day) == (order.first_day, order.last_day)
        and known.invoice == order.invoice
    )


def _check_correction(known: Bought, order: RecordCommitment, open_from: date) -> None:
    if not order.is_correction:
        raise Refused(
            f"{order.name} is recorded already, with other terms; correct it with a reason, or"
            " choose another name"
        )
    if known.first.kind != order.kind.value:
        raise Refused(
            f"{order.name} is of kind {known.first.kind}; withdraw it and record another one"
        )
    if date.fromisoformat(known.last.first_day) < open_from != date.min and (
        order.first_day != known.last.first_day
    ):
        raise Refused(
            f"the first day of {order.name} is in a month that is closed; leave it as it is"
        )


def _term(one: Recording) -> Term:
    return Term(
        counts_from=date.fromisoformat(one.counts_from),
        first_day=date.fromisoformat(one.first_day),
        last_day=date.fromisoformat(one.last_day),
        amount_pico_usd=one.amount_pico_usd,
        provider=one.provider,
        deployments=frozenset(one.deployments),
        is_withdrawn=one.is_withdrawn,
    )


def _start_us(day: date) -> int:
    return to_microseconds(
        from_microseconds(0).replace(year=day.year, month=day.month, day=day.day)
    )


def _day_text(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
