"""The rows that a viewer may see or change, as the queries apply it.

A row outside is treated as one that does not exist: left out of lists and sums, and `not found`
where it is named. Nothing tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """Which rows.

    Attributes:
        teams: All rows of these teams; None for every row, of no team too.
        own_teams: Teams of which only the owner's own rows count.
        owner: The person whose rows these are, empty for nobody.
    """

    teams: frozenset[str] | None
    own_teams: frozenset[str] = frozenset()
    owner: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether there is no row at all."""
        return self.teams is not None and not self.teams and not self.own_teams

    @property
    def sums(self) -> tuple[str, ...] | None:
        """The teams whose sums may be seen, sorted; None for all. For `SpendQuery.teams`."""
        return None if self.teams is None else tuple(sorted(self.teams))

    def has_team(self, team: str) -> bool:
        """Whether the team may be known to exist."""
        return self.teams is None or team in self.teams or team in self.own_teams

    def has(self, team: str, owner: str) -> bool:
        """Whether a row may be seen.

        Args:
            team: Its team, empty for none.
            owner: The person who made it, empty for nobody or unknown.
        """
        if self.teams is None or team in self.teams:
            return True
        return team in self.own_teams and owner != "" and owner == self.owner


EVERYTHING: Final = Restriction(teams=None)
NOTHING: Final = Restriction(teams=frozenset())
