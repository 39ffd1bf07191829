"""A batch of records on its way to the database: what needs no database to be worked out.

Matching thousands of settlements to their intents is plain computing; it runs in a thread, away
from the event loop on which the ledger process answers.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import cast

import msgspec

from gateway.ledger import booking
from gateway.ledger.booking import INTENT_COLUMNS, Match, Named, Values
from gateway.ledger.budget_deltas import BudgetDeltas, BudgetMatcher, Owner, owner_of
from gateway.ledger.dimensions import Names, names_of
from gateway.ledger.meter_sums import MeterSums
from gateway.ledger.records import Intent, Settlement, decode
from gateway.ledger.roll_ups import RollUps
from gateway.ledger.settled_sums import SettledSums
from gateway.ledger.spool_reader import SpoolDamage, SpoolEntry, SpoolRecords

Refused = tuple[SpoolEntry, str]
"""An entry that cannot be booked, and why."""

_STEP_RECORDS = 128
_ENTRY = len(INTENT_COLUMNS)
_AT = booking.EVENT_COLUMNS.index("at_us")
COST_TAGS_ID = booking.EVENT_COLUMNS.index("cost_tags_id")
"""Where an entry has its set of cost tags."""
_IS_LOST = booking.EVENT_COLUMNS.index("is_lost")
_EXPOSURE = booking.EVENT_COLUMNS.index("exposure_pico_usd")


Opened = tuple[Intent, SpoolRecords, int, Named]
"""An intent, where it lies, and what it names."""
Settled = tuple[Settlement, SpoolRecords, int]
"""A settlement, and where it lies."""


@dataclass(slots=True)
class Batch:
    """Records taken apart, and what the database knows of them.

    Attributes:
        intents: The first of each event.
        matches: By event, the first settlement of each of these intents.
        sums: What the matches add to sums, if no event is known.
        others: All other settlements, in the order of the spool.
        refused: Damage, and what no record or no bookable one.
        stored: Open intents of the database that are settled here, by event.
        names: What the intents name.
        known: Entries that events have already, lowest first, as in `booking.EVENT_COLUMNS`.
        matcher: Of the budgets in force.
        owners: Whose the lost attempts are that budgets count; by event.
        lost_tags: Listed cost tags of the known entries, by the id of their set of cost tags.
    """

    intents: dict[bytes, Opened] = field(default_factory=dict)
    matches: dict[bytes, Match] = field(default_factory=dict)
    sums: SettledSums = field(default_factory=SettledSums)
    others: list[Settled] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    stored: dict[bytes, tuple[Intent, Named]] = field(default_factory=dict)
    names: dict[Names, Named] = field(default_factory=dict)
    known: dict[bytes, list[Values]] = field(default_factory=dict)
    matcher: BudgetMatcher = field(default_factory=BudgetMatcher)
    owners: dict[bytes, Owner] = field(default_factory=dict)
    lost_tags: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.intents or self.others or self.refused)

    def settled_ids(self) -> set[bytes]:
        """Events that are settled in the batch."""
        return self.matches.keys() | {settlement.event_id for settlement, _, _ in self.others}

    def add_stored(self, intent: Intent) -> None:
        """Let settlements find an intent that is open in the database."""
        if intent.event_id not in self.intents:
            self.stored[intent.event_id] = (intent, self.name(intent))

    def name(self, intent: Intent) -> Named:
        """What an intent names, one object for all that name the same."""
        names = names_of(intent)
        named = self.names.get(names)
        if named is None:
            named = self.names[names] = Named(intent)
        return named

    def match(self, settlement: Settlement) -> bool:
        """Pair a settlement with its intent, and count it; False where there is none to pair."""
        event_id = settlement.event_id
        found = self.intents.get(event_id)
        if found is None or event_id in self.matches:
            return False
        match = self.matches[event_id] = _matched(settlement, found[0], found[3])
        self.sums.add(*match[:4])
        return True


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
    """Decode, check and match entries, and add up what is settled: all that needs no database."""
    steps = preparing(entries)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Batch", end.value)


def preparing(
    entries: Iterable[SpoolRecords | SpoolDamage],
) -> Generator[None, None, Batch]:
    """The same in steps of about a millisecond."""
    batch = Batch()
    for entry in entries:
        if isinstance(entry, SpoolDamage):
            batch.refused.append((entry, entry.reason))
            continue
        for start in range(0, len(entry.payloads), _STEP_RECORDS):
            _take(batch, entry, start)
            yield
    # Some may lie before their intents.
    batch.others = [one for one in batch.others if not batch.match(one[0])]
    return batch


def book(batch: Batch, *, grace_s: float, node: str = "") -> Changes:
    """Decide what becomes of every record of a batch that was looked up.

    Args:
        batch: Not used again.
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
        node: Stands before the names of the directories.
    """
    changes = Changes(refused=batch.refused, budgets=BudgetDeltas(batch.matcher))
    taken = set(batch.matches)
    if batch.known:
        _part_known(changes, batch)
    _add(changes, batch.matches.values(), batch.sums)
    found_open: list[Match] = []
    for settlement, records, index in batch.others:
        event_id = settlement.event_id
        if event_id in taken:
            changes.replays += 1
        elif event_id in batch.known:
            taken.add(event_id)
            _settle_known(changes, batch, settlement)
        elif found := batch.stored.get(event_id):
            taken.add(event_id)
            found_open.append(_matched(settlement, *found))
        else:
            changes.refused.append((records[index], "settled without an intent"))
    _add(changes, found_open, SettledSums.of(found_open))
    changes.opened = _still_open(batch, taken, grace_s=grace_s, node=node)
    return changes


def _take(batch: Batch, records: SpoolRecords, start: int) -> None:
    """Decode and check the records of a step."""
    intents = batch.intents
    for index, payload in enumerate(records.payloads[start : start + _STEP_RECORDS], start):
        try:
            record = decode(payload)
        except msgspec.ValidationError as error:
            batch.refused.append((records[index], f"not bookable: {error}"))
            continue
        except msgspec.DecodeError as error:
            batch.refused.append((records[index], f"not a record: {error}"))
            continue
        if reason := booking.fault(record):
            batch.refused.append((records[index], reason))
        elif isinstance(record, Settlement):
            if not batch.match(record):
                batch.others.append((record, records, index))
        elif record.event_id not in intents:
            intents[record.event_id] = (record, records, index, batch.name(record))


def _matched(settlement: Settlement, intent: Intent, named: Named) -> Match:
    exposure = booking.kept_exposure(settlement, booking.exposure_of(intent))
    return (settlement, intent, named, exposure, booking.settled_values(settlement, exposure))


def _add(changes: Changes, matches: Collection[Match], sums: SettledSums) -> None:
    """Book settlements of attempts that were open."""
    budgets = changes.budgets
    has_rules = bool(budgets.matcher.rules)
    for settlement, intent, named, exposure, values in matches:
        assert named.ids is not None, "looked up before"
        changes.rows.append((*booking.intent_values(intent, named.ids), 0, *values))
        if has_rules:
            budgets.add(
                owner_of(intent),
                intent.at_us,
                spent_pico_usd=settlement.cost_pico_usd or 0,
                exposed_pico_usd=exposure or 0,
            )
        if intent.lease_ids:
            budgets.release(intent)
    sums.fold(changes.roll_ups, changes.meters)


def _part_known(changes: Changes, batch: Batch) -> None:
    """Take events that the database knows out of the matches, and out of the sums."""
    for event_id in [*batch.matches]:
        if event_id in batch.known:
            _settle_known(changes, batch, batch.matches.pop(event_id)[0])
    batch.sums = SettledSums.of(batch.matches.values())


def _settle_known(changes: Changes, batch: Batch, settlement: Settlement) -> None:
    """Let the first settlement of a lost attempt take its place; any other is a replay."""
    entries = batch.known[settlement.event_id]
    if len(entries) > 1 or not entries[0][_IS_LOST]:
        changes.replays += 1
    else:
        owner = batch.owners.get(settlement.event_id)
        _replace_lost(changes, entries[0], settlement, owner, batch.lost_tags)


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


def _still_open(
    batch: Batch, taken: AbstractSet[bytes], *, grace_s: float, node: str
) -> list[Values]:
    return [
        (
            event_id,
            node + records.directory,
            records.session,
            intent.at_us,
            booking.expires_at_us(intent, grace_s=grace_s),
            records.payloads[index],
        )
        for event_id, (intent, records, index, _) in batch.intents.items()
        if event_id not in taken and event_id not in batch.known
    ]
