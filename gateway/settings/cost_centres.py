"""Which cost centre each team and project of the configuration is charged to."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.settings.document import Settings


def cost_centres(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Team, project and cost centre, of those that name one.

    A project without one of its own has its team's; an empty team is spend of nobody.
    """
    journal = settings.finance.journal
    if journal is not None and journal.unattributed_cost_centre is not None:
        yield "", "", journal.unattributed_cost_centre
    for name, team in settings.teams.items():
        if team.cost_centre is not None:
            yield name, "", team.cost_centre
        for project, found in team.projects.items():
            if found.cost_centre is not None:
                yield name, project, found.cost_centre
