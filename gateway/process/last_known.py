"""Keys and budgets as the database told them last, for a start while it does not answer.

With PostgreSQL they lie in a file beside the journal, written anew whenever they change and at
least once an hour. It holds what the database holds, keyed hashes and no key, and is only believed
for a day: who was revoked in the meantime, on another machine, is not let in for longer.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import BudgetDeclarations, BudgetRule, BudgetRules
from gateway.clock import Clock

logger = logging.getLogger(__name__)

FILE = "last-known"
FRESH_S = 24 * 3_600
RENEW_S = 3_600
_US_PER_S = 1_000_000


class LastKnown(msgspec.Struct, frozen=True, kw_only=True):
    """What was known, and when.

    Attributes:
        database: Digest of the database's URL, without a password.
        at_us: When the database told it, or was last heard of.
        keys: Every key.
        budgets: Every budget in force.
    """

    database: str
    at_us: int
    keys: list[KeyRecord]
    budgets: BudgetRules


@dataclass(slots=True, kw_only=True)
class LastKnownFile:
    """Keeps what was known last of one database.

    Attributes:
        folder: Of the journal.
        database_url: Without a password.
        clock: Time.
    """

    folder: Path
    database_url: str
    clock: Clock
    _saved: LastKnown | None = None

    def save(self, keys: list[KeyRecord], budgets: BudgetRules) -> None:
        """Keep what the database tells now; a disk that takes no file is only a warning."""
        now_us = self.clock.wall_us()
        saved = self._saved
        if (
            saved is not None
            and (saved.keys, saved.budgets) == (keys, budgets)
            and 0 <= now_us - saved.at_us < RENEW_S * _US_PER_S
        ):
            return
        known = LastKnown(database=self._database(), at_us=now_us, keys=list(keys), budgets=budgets)
        draft = self.folder / f".{FILE}"
        try:
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.msgpack.encode(known))
            draft.replace(self.folder / FILE)
        except OSError as error:
            logger.warning("keys and budgets are not kept for a start without database: %s", error)
            return
        self._saved = known

    def load(self) -> LastKnown | None:
        """What was known within the last day of this database; None for nothing."""
        try:
            known = msgspec.msgpack.decode((self.folder / FILE).read_bytes(), type=LastKnown)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("%s cannot be read: %s", self.folder / FILE, error)
            return None
        age_us = self.clock.wall_us() - known.at_us
        is_fresh = 0 <= age_us < FRESH_S * _US_PER_S
        return known if is_fresh and known.database == self._database() else None

    def _database(self) -> str:
        return hashlib.sha256(self.database_url.encode()).hexdigest()


def declared_only(declarations: BudgetDeclarations) -> BudgetRules:
    """The budgets of the configuration, before the database has given them numbers.

    Nobody can lease from them: what they count waits for the database, and what no budget counts
    goes on. Negative numbers are never the database's.
    """
    return BudgetRules(
        rules=tuple(
            BudgetRule(
                budget_id=-number,
                name=budget.name,
                scope=budget.scope,
                team=budget.team,
                project=budget.project,
                key_id=budget.key_id,
                cost_tag=budget.cost_tag,
                limit_pico_usd=budget.limit_pico_usd,
                window=budget.window,
                time_zone=budget.time_zone,
                fiscal_month=budget.fiscal_month,
                on_exceed=budget.on_exceed,
            )
            for number, budget in enumerate(declarations.budgets, start=1)
        )
    )
