"""A batch of records on its way to the database: what needs no database to be worked out.

Matching thousands of settlements to their intents is plain computing; it runs in a thread, away
from the event loop on which the ledger process answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from gateway.ledger import booking
from gateway.ledger.booking import INTENT_COLUMNS, Named, Values
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
_COST = booking.EVENT_COLUMNS.index("cost_pico_usd") - booking.INTENT_COLUMNS.index("route")
"""In `booking.after_names`."""
_EXPOSURE = booking.EVENT_COLUMNS.index("exposure_pico_usd")


Opened = tuple[Intent, SpoolRecords, int, Named]
"""An intent, where it lies, and what it names."""
Match = tuple[Values, Named, Values, int | None, Intent | None]
"""A settled attempt: `before_names`, what it names, `after_names`, the exposure that stays, and the
intent where it has leases to release."""
Settled = tuple[Settlement, SpoolRecords, int]
"""A settlement, and where it lies."""


@dataclass(slots=True)
class Batch:
    """Records taken apart, and what the database knows of them.

    Attributes:
        entries: Where the records lie.
        intents: The first of each event that is neither settled here nor known.
        matches: What becomes of those that are settled here, by event. Of thousands of attempts
            it is the only thing that is kept, so that the memory of their records is used again
            while it is in the processor's caches.
        sums: What the matches add to sums.
        others: All other settlements, in the order of the spool.
        refused: Damage, and what no record or no bookable one.
        stored: Open intents of the database that are settled here, by event.
        names: What the intents name.
        known: Entries that events have already, lowest first, as in `booking.EVENT_COLUMNS`.
        matcher: Of the budgets in force.
        owners: Whose the lost attempts are that budgets count; by event.
        lost_tags: Listed cost tags of the known entries, by the id of their set of cost tags.
    """

    entries: Sequence[SpoolRecords | SpoolDamage] = ()
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
        return not (self.intents or self.matches or self.others or self.refused)

    def settled_ids(self) -> set[bytes]:
        """Events that are settled in the batch."""
        return self.matches.keys() | {settlement.event_id for settlement, _, _ in self.others}

    def instants_us(self) -> dict[bytes, int]:
        """When the attempts whose intents are here began, by event."""
        at_us = {event_id: intent.at_us for event_id, (intent, *_) in self.intents.items()}
        settled = {event_id: match[0][_AT] for event_id, match in self.matches.items()}
        return at_us | cast("dict[bytes, int]", settled)

    def add_stored(self, intent: Intent) -> None:
        """Let settlements find an intent that is open in the database."""
        if intent.event_id not in self.intents and intent.event_id not in self.matches:
            self.stored[intent.event_id] = (intent, self.name(intent))

    def name(self, intent: Intent) -> Named:
        """What an intent names, one object for all that name the same."""
        names = names_of(intent)
        named = self.names.get(names)
        if named is None:
            named = self.names[names] = Named(intent)
        return named

    def take(self, records: SpoolRecords, start: int) -> None:
        """Decode, check and match the records of a step, which begins at an index."""
        refused, intents, matches, known = self.refused, self.intents, self.matches, self.known
        for index, payload in enumerate(records.payloads[start : start + _STEP_RECORDS], start):
            try:
                record = decode(payload)
            except msgspec.ValidationError as error:
                refused.append((records[index], f"not bookable: {error}"))
                continue
            except msgspec.DecodeError as error:
                refused.append((records[index], f"not a record: {error}"))
                continue
            event_id = record.event_id
            if reason := booking.fault(record):
                refused.append((records[index], reason))
            elif isinstance(record, Settlement):
                if not self.match(record):
                    self.others.append((record, records, index))
            elif not (event_id in intents or event_id in matches or event_id in known):
                intents[event_id] = (record, records, index, self.name(record))

    def match(self, settlement: Settlement) -> bool:
        """Pair a settlement with its intent, and count it; False where there is none to pair."""
        found = self.intents.pop(settlement.event_id, None)
        if found is None:
            return False
        self.settle(settlement, found[0], found[3])
        return True

    def settle(self, settlement: Settlement, intent: Intent, named: Named) -> None:
        """Book the settlement of an attempt that is open."""
        exposure = booking.kept_exposure(settlement, booking.exposure_of(intent))
        self.sums.add(settlement, intent, named, exposure)
        self.matches[intent.event_id] = (
            booking.before_names(intent),
            named,
            booking.after_names(intent, settlement, exposure),
            exposure,
            intent if intent.lease_ids else None,
        )

    def fill(self) -> Iterator[None]:
        """Take all entries, in steps of about a millisecond."""
        for entry in self.entries:
            if isinstance(entry, SpoolDamage):
                self.refused.append((entry, entry.reason))
                continue
            for start in range(0, len(entry.payloads), _STEP_RECORDS):
                self.take(entry, start)
                yield
        # Some may lie before their intents.
        self.others = [one for one in self.others if not self.match(one[0])]

    def fill_again(self) -> None:
        """Take all entries once more, now that known events are told apart; their names stay."""
        self.intents, self.matches, self.sums = {}, {}, SettledSums()
        self.others, self.refused = [], []
        for _ in self.fill():
            pass


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
        replaced: Events whose lost entry is replaced.
    """

    rows: list[Values] = field(default_factory=list)
    roll_ups: RollUps = field(default_factory=RollUps)
    meters: MeterSums = field(default_factory=MeterSums)
    opened: list[Values] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    replays: int = 0
    budgets: BudgetDeltas = field(default_factory=BudgetDeltas)
    replaced: set[bytes] = field(default_factory=set[bytes])


def prepare(entries: Iterable[SpoolRecords | SpoolDamage]) -> Batch:
    """Decode, check and match entries, and add up what is settled: all that needs no database."""
    batch = Batch(entries=[*entries])
    for _ in batch.fill():
        pass
    return batch


def book(batch: Batch, *, grace_s: float, node: str = "") -> Changes:
    """Decide what becomes of every record of a batch that was looked up.

    Args:
        batch: Not used again.
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
        node: Stands before the names of the directories.
    """
    if batch.known:
        batch.fill_again()
    changes = Changes(refused=batch.refused, budgets=BudgetDeltas(batch.matcher))
    for settlement, records, index in batch.others:
        event_id = settlement.event_id
        if event_id in batch.matches:
            changes.replays += 1
        elif event_id in batch.known:
            _settle_known(changes, batch, settlement)
        elif found := batch.stored.get(event_id):
            batch.settle(settlement, *found)
        else:
            changes.refused.append((records[index], "settled without an intent"))
    changes.rows += [
        (*before, *named.columns, *after) for before, named, after, _, _ in batch.matches.values()
    ]
    batch.sums.fold(changes.roll_ups, changes.meters)
    _book_budgets(changes.budgets, batch)
    changes.opened = [
        (
            event_id,
            node + records.directory,
            records.session,
            intent.at_us,
            booking.expires_at_us(intent, grace_s=grace_s),
            records.payloads[index],
        )
        for event_id, (intent, records, index, _) in batch.intents.items()
    ]
    return changes


def _book_budgets(budgets: BudgetDeltas, batch: Batch) -> None:
    has_rules = bool(budgets.matcher.rules)
    owners = {named: owner_of(named.intent) for named in batch.names.values()} if has_rules else {}
    for before, named, after, exposure, leased in batch.matches.values():
        if has_rules:
            budgets.add(
                owners[named],
                cast("int", before[_AT]),
                spent_pico_usd=cast("int | None", after[_COST]) or 0,
                exposed_pico_usd=exposure or 0,
            )
        if leased is not None:
            budgets.release(leased)


def _settle_known(changes: Changes, batch: Batch, settlement: Settlement) -> None:
    """Let the first settlement of a lost attempt take its place; any other is a replay."""
    event_id = settlement.event_id
    entries = batch.known[event_id]
    if len(entries) > 1 or not entries[0][_IS_LOST] or event_id in changes.replaced:
        changes.replays += 1
    else:
        changes.replaced.add(event_id)
        owner = batch.owners.get(event_id)
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
