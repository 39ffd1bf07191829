"""What a proof is about beside the policy: names that can be asked for, and who may begin where.

Read from the configuration apart from what the gateway itself makes of it, so that the two can be
held against each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.privacy.model import PolicySource

ADMINISTRATOR = "the administrator"
"""A holder without a team: the administrator's key carries the policy's floor and nothing else."""


class Road(StrEnum):
    """By what an attempt comes to a deployment."""

    PRIMARY = "primary"
    RETRY = "retry"
    FALLBACK = "fallback"
    HEDGE = "hedge"
    ALIAS = "alias"
    DIRECT = "direct"
    """Asked for as `provider/model-id`."""
    CACHE_FILL = "cache_fill"
    """An answer that is asked for to be kept."""
    BATCH = "batch"
    BACKGROUND = "background"
    """What the gateway asks by itself on behalf of a request."""


ROADS_OF_A_MODEL = (
    Road.PRIMARY, Road.RETRY, Road.FALLBACK, Road.HEDGE, Road.CACHE_FILL, Road.BATCH,
    Road.BACKGROUND,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Whose requests begin with certain tags: a team, a project or key of it, the administrator.

    Attributes:
        name: For people, for example `team payments, project fraud`.
        team: Empty for the administrator.
        project: Empty for none.
        key: Name of a key in the file, empty for none.
        floor: Tags that each of its requests carries, beside the policy's floor.
        names: Models, aliases and deployments that it may ask for.
    """

    name: str
    team: str = ""
    project: str = ""
    key: str = ""
    floor: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that can be asked for, and by whom.

    Attributes:
        models: Deployments that a logical model lists, in the operator's order.
        aliases: What an alias stands for: a model or a deployment.
        holders: Whose requests begin where.
    """

    models: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    holders: tuple[Holder, ...] = ()

    def names(
        self, source: PolicySource
    ) -> Iterator[tuple[str, tuple[str, ...], tuple[Road, ...]]]:
        """Every name that a client can write, with where it may lead and by which roads."""
        for name, listed in self.models.items():
            yield name, listed, ROADS_OF_A_MODEL
        for alias, target in self.aliases.items():
            yield alias, self.models.get(target, (target,)), (Road.ALIAS,)
        for deployment in source.deployments:
            yield deployment.name, (deployment.name,), (Road.DIRECT,)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of all of it, in whatever order it was written."""
        content = {
            "models": {name: list(listed) for name, listed in self.models.items()},
            "aliases": dict(self.aliases),
            "holders": sorted(
                [one.name, one.team, one.project, one.key, sorted(one.floor), sorted(one.names)]
                for one in self.holders
            ),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
