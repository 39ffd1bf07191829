"""Configurations, and a third reading of what they mean: as plainly as it can be written.

`gateway.privacy` has an evaluator and an oracle. Neither is asked here: what a test expects is read
from the same facts again, so that a fault in what the two share would show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PAST, FUTURE = "2020-01-01", "2099-01-01"
GIVES = {"self_hosted": {"no_train", "zero_retention", "dpa"}}
KEYS = {"apps": "APP_KEY", "others": "OTHER_KEY"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A trust attribute, `expires` None for never."""

    attribute: str
    expires: str | None = None

    def written(self) -> object:
        """As in the file."""
        if self.expires is None:
            return self.attribute
        return {"attribute": self.attribute, "evidence": "page 1", "expires": self.expires}


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A tag's rule."""

    require: tuple[str, ...] = ()
    implies: tuple[str, ...] = ()
    deny: bool = False

    def written(self) -> object:
        """As in the file."""
        return {"require": [*self.require], "implies": [*self.implies], "deny": self.deny}


@dataclass(frozen=True, kw_only=True)
class World:
    """A configuration.

    Attributes:
        tags: Rules by tag.
        floor: Tags of every request.
        teams: Tags by team, of `KEYS`.
        projects: Tags of each team's project `unit`.
        keys: Tags of each team's key.
        bound: Teams whose key belongs to the project; others name it in a request.
        trust: Claims by provider, each with one deployment `<provider>/m`.
        entries: Claims of the deployment of a model where it has its own, by provider.
        model: Providers of the model `chat`, in its order; its alias is `small`.
        urls: Base URL by provider.
        more: Further sections.
    """

    tags: Mapping[str, Tag]
    floor: tuple[str, ...] = ()
    teams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    projects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    trust: Mapping[str, tuple[Claim, ...]]
    model: tuple[str, ...]
    urls: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def text(self, urls: Mapping[str, str]) -> str:
        """The file."""
        providers = {
            name: {
                "kind": "openai_compatible",
                "base_url": self.urls.get(name, url),
                "api_key_env": "UPSTREAM_KEY",
                "trust": [claim.written() for claim in self.trust.get(name, ())],
            }
            for name, url in urls.items()
        }
        price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
        entries = [
            {"deployment": f"{name}/m", "price": {**price, "output_usd_per_mtok": 2 + place}}
            for place, name in enumerate(self.model)
        ]
        others = [{"deployment": f"{name}/m", "price": price} for name in urls]
        document = {
            "providers": providers,
            "models": {
                "chat": {"aliases": ["small"], "deployments": entries},
                "all": {"deployments": others},
            },
            "teams": {name: self._team(name, variable) for name, variable in KEYS.items()},
            "privacy": {
                "tags": {name: rule.written() for name, rule in self.tags.items()},
                "floor": [*self.floor],
            },
            "routing": {"retries": {"attempts": 5, "within_s": 20, "budget_percent": 100}},
            **self.more,
        }
        return json.dumps(document)

    def _team(self, name: str, variable: str) -> object:
        key: dict[str, object] = {"name": name, "value_env": variable}
        if self.keys.get(name):
            key["tags"] = [*self.keys[name]]
        if name in self.bound:
            key["project"] = "unit"
        unit = {"tags": [*self.projects.get(name, ())]}
        return {"tags": [*self.teams.get(name, ())], "keys": [key], "projects": {"unit": unit}}

    def carried(self, team: str, added: frozenset[str], *, unit: bool = False) -> frozenset[str]:
        """All tags of a request; with `unit`, of one that names the project."""
        tags = {*self.floor, *self.teams.get(team, ()), *self.keys.get(team, ()), *added}
        if unit or team in self.bound:
            tags.update(self.projects.get(team, ()))
        for _ in self.tags:
            tags |= {one for tag in tags if tag in self.tags for one in self.tags[tag].implies}
        return frozenset(tags)

    def may_reach(self, team: str, added: frozenset[str], *, unit: bool = False) -> frozenset[str]:
        """Providers that a request may come to; none with a tag that nobody declared."""
        tags = self.carried(team, added, unit=unit)
        if not tags <= self.tags.keys() or any(self.tags[tag].deny for tag in tags):
            return frozenset()
        needed = {one for tag in tags for one in self.tags[tag].require}
        return frozenset(name for name, facts in self._facts().items() if needed <= facts)

    def _facts(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, claims in self.trust.items():
            facts = {claim.attribute for claim in claims if claim.expires != PAST}
            found[name] = facts.union(*(GIVES.get(fact, set()) for fact in facts))
        return found


OURS = (Claim(attribute="self_hosted"),)
PRIVATE = {"private": Tag(require=("self_hosted",)), "card": Tag(implies=("private",))}
WORLD = World(
    tags=PRIVATE,
    teams={"apps": ("private",)},
    trust={"p0": OURS},
    # The vendors come first, and are cheaper.
    model=("p1", "p2", "p3", "p4", "p0"),
)
TAGGED = replace(WORLD, teams={})
