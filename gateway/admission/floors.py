"""Tags that a request begins with: one function, which admission and the prover share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway import errors
from gateway.privacy.model import PolicySource
from gateway.settings.document import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRules:
    """What a team's configuration adds to each of its requests.

    Attributes:
        tags: Floor of the team.
        projects: Its projects, each with its floor.
        models: Patterns that the team may use, None for all.
    """

    tags: frozenset[str] = frozenset()
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    models: tuple[str, ...] | None = None


def rules_of_teams(settings: Settings, source: PolicySource) -> Mapping[str, TeamRules]:
    """The rules of every team of a configuration."""
    return {
        name: TeamRules(
            tags=source.teams[name].tags,
            projects=source.teams[name].projects,
            models=team.models,
        )
        for name, team in settings.teams.items()
    }


def starting_tags(
    rules: TeamRules, *, team: str, project: str, added: frozenset[str]
) -> frozenset[str]:
    """The tags of a request before they are closed.

    Args:
        rules: Of its team.
        team: For the message.
        project: What it books on, empty for none.
        added: What its key carries, and what its client and detectors add.

    Raises:
        ModelNotAllowed: The key's project is not in the configuration any more.
    """
    if not project:
        return rules.tags | added
    floor = rules.projects.get(project)
    if floor is None:
        # As with a team: its keys must not fall back to a floor without the project's tags.
        raise errors.ModelNotAllowed(
            f"project {project!r} of team {team!r} is not in the configuration any more"
        )
    return rules.tags | floor | added
