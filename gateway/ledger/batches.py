"""A batch of records on its way to the database: what needs no database to be worked out.

Matching thousands of settlements to their intents is plain computing; it runs in a thread, away
from the event loop on which the ledger process answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from gateway.ledger import booking
from gateway.ledger.booking import INTENT_COLUMNS, DimensionIds, Values
from gateway.ledger.budget_deltas import BudgetDeltas, BudgetMatcher, Owner, owner_of
from gateway.ledger.dimensions import Names, names_of
from gateway.ledger.meter_sums import MeterSums, SettledMeters
from gateway.ledger.records import Intent, Record, Settlement, decode
from gateway.ledger.roll_ups import RollUps, SettledSums
from gateway.ledger.spool_reader import SpoolDamage, SpoolEntry, SpoolRecords

Refused = tuple[SpoolEntry, str]
"""An entry that cannot be booked, and why."""

_ENTRY = len(INTENT_COLUMNS)
_AT = booking.EVENT_COLUMNS.index("at_us")
COST_TAGS_ID = booking.EVENT_COLUMNS.index("cost_tags_id")
"""Where an entry has its set of cost tags."""
_IS_LOST = booking.EVENT_COLUMNS.index("is_lost")
_EXPOSURE = booking.EVENT_COLUMNS.index("exposure_pico_usd")


@dataclass(slots=True)
class Named:
    """Names that intents of a batch share, by one of these intents.

    Attributes:
        intent: Any of them.
        ids: Filled in by `Store.look_up`.
    """

    intent: Intent
    ids: DimensionIds | None = None


@dataclass(slots=True)
class Batch:
    """Records taken apart, and what the database knows of them.

    Attributes:
        intents: The first of each event, with where it lies.
        settlements: In the order of the spool, with where they lie.
        refused: Damage, and what no record or no bookable one.
        opened: Intents by event, those of the batch and open ones of the database.
        names: What the intents name.
        known: Entries that events have already, lowest first, as in `booking.EVENT_COLUMNS`.
        matcher: Of the budgets in force.
        owners: Whose the lost attempts are that budgets count; by event.
        lost_tags: Listed cost tags of the known entries, by the id of their set of cost tags.
    """

    intents: dict[bytes, tuple[Intent, SpoolRecords, int]] = field(default_factory=dict)
    settlements: list[tuple[Settlement, SpoolRecords, int]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    opened: dict[bytes, tuple[Intent, Named]] = field(default_factory=dict)
    names: dict[Names, Named] = field(default_factory=dict)
    known: dict[bytes, list[Values]] = field(default_factory=dict)
    matcher: BudgetMatcher = field(default_factory=BudgetMatcher)
    owners: dict[bytes, Owner] = field(default_factory=dict)
    lost_tags: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.intents or self.settlements or self.refused)

    def add_open(self, intent: Intent) -> None:
        """Let settlements find an intent."""
        names = names_of(intent)
        named = self.names.get(names)
        if named is None:
            named = self.names[names] = Named(intent)
        self.opened[intent.event_id] = (intent, named)


@dataclass(slots=True)
class Changes:
    """What a batch does to the database.

    Attributes:
        rows: New entries, as in `booking.EVENT_COLUMNS`.
        roll_ups: What they add to the sums, less what they replace.
        meters: What their lines add to the sums by meter.
        opened: Open attempts, as in `statements.INTENT_COLUMNS`.
        refused: What goes to quarantine.
        replays: Settlements that were booked before.
        budgets: What the entries add to budgets, and what leases give up.
    """

    rows: list[Values] = field(default_factory=list)
    roll_ups: RollUps = field(default_factory=RollUps)
    meters: MeterSums = field(default_factory=MeterSums)
    opened: list[Values] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    replays: int = 0
    budgets: BudgetDeltas = field(default_factory=BudgetDeltas)


def prepare(entries: Iterable[SpoolRecords | SpoolDamage]) -> Batch:
    """Decode and check entries."""
    batch = Batch()
    for entry in entries:
        if isinstance(entry, SpoolDamage):
            batch.refused.append((entry, entry.reason))
            continue
        for index, payload in enumerate(entry.payloads):
            record, reason = _read(payload)
            if record is None:
                batch.refused.append((entry[index], reason))
            elif isinstance(record, Settlement):
                batch.settlements.append((record, entry, index))
            elif record.event_id not in batch.intents:
                batch.intents[record.event_id] = (record, entry, index)
                batch.add_open(record)
    return batch


def book(batch: Batch, *, grace_s: float, node: str = "") -> Changes:
    """Decide what becomes of every record of a batch that was looked up.

    Args:
        batch: Not used again.
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
        node: Stands before the names of the directories.
    """
    changes = Changes(refused=batch.refused, budgets=BudgetDeltas(batch.matcher))
    sums, meters = SettledSums(), SettledMeters()
    taken: set[bytes] = set()
    for settlement, records, index in batch.settlements:
        event_id = settlement.event_id
        entries = batch.known.get(event_id)
        if event_id in taken or (entries and (len(entries) > 1 or not entries[0][_IS_LOST])):
            changes.replays += 1
        elif entries:
            taken.add(event_id)
            owner = batch.owners.get(event_id)
            _replace_lost(changes, entries[0], settlement, owner, batch.lost_tags)
        elif found := batch.opened.get(event_id):
            taken.add(event_id)
            intent, named = found
            assert named.ids is not None, "looked up before"
            exposure = booking.kept_exposure(settlement, booking.exposure_of(intent))
            if batch.matcher.rules:
                changes.budgets.add(
                    owner_of(intent),
                    intent.at_us,
                    spent_pico_usd=settlement.cost_pico_usd or 0,
                    exposed_pico_usd=exposure or 0,
                )
            if intent.lease_ids:
                changes.budgets.release(intent)
            sums.add(intent, named.ids, settlement, exposure)
            meters.add(intent, named.ids, settlement)
            changes.rows.append(
                (
                    *booking.intent_values(intent, named.ids),
                    0,
                    *booking.settled_values(settlement, exposure),
                )
            )
        else:
            changes.refused.append((records[index], "settled without an intent"))
    sums.fold(changes.roll_ups)
    meters.fold(changes.meters)
    changes.opened = _still_open(batch, taken, grace_s=grace_s, node=node)
    return changes


def _read(payload: bytes) -> tuple[Record | None, str]:
    """The record, or None and the reason why it is none."""
    try:
        record = decode(payload)
    except msgspec.ValidationError as error:
        return None, f"not bookable: {error}"
    except msgspec.DecodeError as error:
        return None, f"not a record: {error}"
    reason = booking.fault(record)
    return (None, reason) if reason else (record, "")


def _replace_lost(
    changes: Changes,
    lost: Values,
    settlement: Settlement,
    owner: Owner | None,
    lost_tags: Mapping[int, tuple[int, ...]],
) -> None:
    """Entry 1: what the intent said, from the lost entry, and what the settlement says."""
    exposure_before = cast("int | None", lost[_EXPOSURE])
    exposure = booking.kept_exposure(settlement, exposure_before)
    if owner is not None:
        changes.budgets.add(
            owner,
            cast("int", lost[_AT]),
            spent_pico_usd=settlement.cost_pico_usd or 0,
            exposed_pico_usd=(exposure or 0) - (exposure_before or 0),
        )
    row = (*lost[:_ENTRY], 1, *booking.settled_values(settlement, exposure))
    changes.rows.append(row)
    cost_tag_ids = lost_tags[cast("int", lost[COST_TAGS_ID])]
    changes.roll_ups.add(booking.row_of(row), cost_tag_ids)
    changes.roll_ups.add(booking.row_of(lost), cost_tag_ids, sign=-1)
    # A lost entry has no lines that would have to be taken back.
    changes.meters.add(booking.row_of(row))


def _still_open(batch: Batch, taken: set[bytes], *, grace_s: float, node: str) -> list[Values]:
    return [
        (
            intent.event_id,
            node + records.directory,
            records.session,
            intent.at_us,
            booking.expires_at_us(intent, grace_s=grace_s),
            records.payloads[index],
        )
        for event_id, (intent, records, index) in batch.intents.items()
        if event_id not in taken and event_id not in batch.known
    ]
