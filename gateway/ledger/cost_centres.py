"""Which cost centre spend is charged to: its project's, else its team's, as the settings say."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.ledger.views import CostCentre


class CostCentreBook:
    """Finds the cost centre of a team and a project.

    Args:
        entries: Of teams (with an empty project) and of projects.
    """

    def __init__(self, entries: Iterable[CostCentre]) -> None:
        self._names = {(one.team, one.project): one.name for one in entries}

    def of(self, team: str, project: str) -> str:
        """The cost centre; empty where nobody has named one."""
        return self._names.get((team, project)) or self._names.get((team, ""), "")
