"""Which limits a request counts against, by who asks, for which project and model; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from gateway.limits.amounts import LimitAmounts
from gateway.limits.gcra import Bucket

KNOWN_MAX: Final = 10_000
"""Combinations of key, project and model that are remembered."""


class LimitScope(StrEnum):
    """Whose requests a limit counts."""

    TEAM = "team"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    """Everybody's requests for a model."""
    TEAM_MODEL = "team_model"
    """One team's requests for a model."""


class LimitKind(StrEnum):
    """What a limit counts."""

    RPM = "rpm"
    TPM = "tpm"
    CONCURRENCY = "concurrency"


class LimitRule(msgspec.Struct, frozen=True, gc=False):
    """The limits of one scope.

    Attributes:
        scope: What kind it is.
        name: For messages, for example `team 'payments'`.
        digest: 16 bytes that stand for it wherever its state is kept.
        tenant: 8 bytes that stand for the team, or for the model where it is everybody's.
        requests: Requests per minute, None for any number.
        tokens: Tokens per minute, None for any number.
        concurrency: Requests in flight, None for any number.
    """

    scope: LimitScope
    name: str
    digest: bytes
    tenant: bytes
    requests: Bucket | None
    tokens: Bucket | None
    concurrency: int | None

    def shared(self, parts: int) -> LimitRule:
        """The share of one among so many that cannot count together; at least 1 of each."""
        return LimitRule(
            self.scope,
            self.name,
            self.digest,
            self.tenant,
            None if self.requests is None else self.requests.shared(parts),
            None if self.tokens is None else self.tokens.shared(parts),
            None if self.concurrency is None else max(self.concurrency // parts, 1),
        )


class TeamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a team's configuration says of limits.

    Attributes:
        own: Of all its requests.
        projects: Of those of a project, by name.
        models: Of those for a model, by name.
    """

    own: LimitAmounts | None = None
    projects: Mapping[str, LimitAmounts] = {}
    models: Mapping[str, LimitAmounts] = {}


class LimitBook:
    """Every limit of the configuration.

    Args:
        teams: By team.
        models: Of everybody's requests for a model, by its name.
        names: The models that list a deployment, by its name: who asks for the deployment itself
            counts against each of them, or a model's limit would hold for nobody who knows that.
    """

    def __init__(
        self,
        *,
        teams: Mapping[str, TeamLimits],
        models: Mapping[str, LimitAmounts],
        names: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._teams = teams
        self._models = models
        self._names = names
        self._known: dict[
            tuple[str, str, str, str, LimitAmounts | None], tuple[LimitRule, ...]
        ] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the configuration limits nobody."""
        return not self._teams and not self._models

    def rules(
        self, *, team: str, project: str, key_id: str, key: LimitAmounts | None, model: str
    ) -> tuple[LimitRule, ...]:
        """The limits that a request counts against, none for most.

        Args:
            team: Who asks, empty for the administrator.
            project: What it is booked on, empty for none.
            key_id: The key's public id.
            key: The key's own limits, None for none.
            model: The model, or the deployment that was asked for by its own name.
        """
        asked = (team, project, key_id, model, key)
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[asked] = tuple(self._find(team, project, key_id, key, model))
        return known

    def _find(
        self, team: str, project: str, key_id: str, key: LimitAmounts | None, model: str
    ) -> Iterator[LimitRule]:
        models = self._names.get(model, (model,))
        own = self._teams.get(team)
        if own is not None:
            yield from _made(LimitScope.TEAM, f"team {team!r}", own.own, team)
            yield from _made(
                LimitScope.PROJECT,
                f"project {project!r} of team {team!r}",
                own.projects.get(project),
                team,
                project,
            )
            for name in models:
                said = f"team {team!r} for model {name!r}"
                yield from _made(LimitScope.TEAM_MODEL, said, own.models.get(name), team, name)
        yield from _made(LimitScope.KEY, "this key", key, team, key_id)
        for name in models:
            yield from _made(LimitScope.MODEL, f"model {name!r}", self._models.get(name), name)


def _made(
    scope: LimitScope, said: str, amounts: LimitAmounts | None, tenant: str, *more: str
) -> Iterator[LimitRule]:
    """The rule of some amounts; none where nothing is limited."""
    if amounts is None or amounts.is_unlimited:
        return
    text = "\0".join((scope.value, tenant, *more)).encode("utf-8", "surrogatepass")
    kind = "model" if scope is LimitScope.MODEL else "team"
    yield LimitRule(
        scope,
        said,
        blake2b(text, digest_size=16, person=b"fareway-limit").digest(),
        blake2b(f"{kind}\0{tenant}".encode("utf-8", "surrogatepass"), digest_size=8).digest(),
        _bucket(amounts.rpm, amounts.rpm_burst),
        _bucket(amounts.tpm, amounts.tpm_burst),
        amounts.concurrency,
    )


def _bucket(rate: int | None, burst: int | None) -> Bucket | None:
    return None if rate is None else Bucket(rate, burst or rate)
