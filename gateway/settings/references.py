"""What the models cannot see one by one: names that must exist, and claims that cannot be true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from gateway.settings.baseline import BaselineDeployment
from gateway.settings.budget_scopes import budgets_of
from gateway.settings.document import Settings
from gateway.settings.hosts import is_publicly_routable, vendor_domain
from gateway.settings.models import DeploymentSettings
from gateway.settings.prices import Prices
from gateway.settings.providers import (
    AzureProvider,
    BedrockProvider,
    LocalProvider,
    ProviderSettings,
    RemoteSettings,
    VendorProvider,
    base_url_of,
)
from gateway.settings.scalars import split_url
from gateway.settings.storage import SQLITE_PREFIX
from gateway.settings.trust import (
    DIRECT,
    LOCAL,
    SELF_HOSTED,
    TrustClaim,
    claims_attribute,
    is_known_attribute,
)
from gateway.settings.validation import Path, hint
from gateway.settings.vendors import aggregator_of, needs_evidence
from providers.codecs.enforced import conditions_of

UNATTRIBUTED = "unattributed"
"""What adjustments call the team of spend that belongs to none."""
SQLITE_LIMIT_USD_MAX = 9_000_000
"""Sums of picodollars in SQLite's integers go up to a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A sentence about a path of the settings.

    Attributes:
        path: Steps from the root.
        message: What is wrong.
        is_error: False for a warning.
    """

    path: Path
    message: str
    is_error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the file names, sound or not, so that one fault is not reported twice."""

    providers: frozenset[str]
    models: frozenset[str]
    tags: frozenset[str]


def check(settings: Settings, *, names: Names, today: date | None) -> Iterator[Finding]:
    """Find references to nothing, claims that cannot hold, and what deserves a warning.

    Args:
        settings: The sound parts of the file.
        names: Everything that the file names.
        today: For expired claims; None leaves them unchecked.
    """
    yield from _models(settings, names)
    yield from _providers(settings, today)
    yield from _teams(settings, names)
    yield from _login(settings)
    yield from _tags(settings, names)
    yield from _implications(settings)
    yield from _attributes(settings)
    yield from _budgets(settings)
    yield from _retention(settings)
    yield from _egress(settings)
    yield from _baseline(settings, names)
    yield from _finance(settings, names)
    yield from _machines(settings)
    yield from _notices(settings)


def _models(settings: Settings, names: Names) -> Iterator[Finding]:
    owners = dict.fromkeys(names.models, "a model")
    for name, model in settings.models.items():
        prefix = name.partition("/")[0]
        if "/" in name and prefix in names.providers:
            yield Finding(
                path=("models", name),
                message=f"a model cannot begin with a provider's name (`{prefix}/`)",
            )
        for index, alias in enumerate(model.aliases):
            path = ("models", name, "aliases", index)
            if alias in owners:
                yield Finding(path=path, message=f"`{alias}` is already {owners[alias]}")
            elif "/" in alias and alias.partition("/")[0] in names.providers:
                yield Finding(path=path, message="an alias cannot begin with a provider's name")
            owners.setdefault(alias, f"an alias of `{name}`")
        seen: set[str] = set()
        for index, entry in enumerate(model.deployments):
            path = ("models", name, "deployments", index)
            if entry.deployment in seen:
                yield Finding(path=path, message=f"`{entry.deployment}` is listed twice")
            seen.add(entry.deployment)
            yield from _deployment(settings, names, entry, path)


def _deployment(
    settings: Settings, names: Names, entry: DeploymentSettings, path: Path
) -> Iterator[Finding]:
    if entry.provider not in names.providers:
        near = hint(entry.provider, names.providers)
        yield Finding(path=path, message=f"unknown provider `{entry.provider}`{near}")
        return
    provider = settings.providers.get(entry.provider)
    if isinstance(provider, LocalProvider):
        known = [model.id for model in provider.models]
        if entry.model_id not in known:
            message = f"provider `{entry.provider}` has no model `{entry.model_id}`"
            yield Finding(path=path, message=message + hint(entry.model_id, known))
    if provider is not None and entry.trust is not None:
        yield from _claims(provider, entry.trust, (*path, "trust"))


def _providers(settings: Settings, today: date | None) -> Iterator[Finding]:
    for name, provider in settings.providers.items():
        path: Path = ("providers", name)
        yield from _claims(provider, provider.trust or (), (*path, "trust"))
        base_url = base_url_of(provider)
        if base_url is not None:
            url = split_url(base_url)
            if url.scheme == "http" and is_publicly_routable(url.hostname or ""):
                yield Finding(
                    path=(*path, "base_url"),
                    message="plain http to a public host sends prompts and the key in the clear",
                    is_error=False,
                )
        if isinstance(provider, LocalProvider):
            yield from _repeats((model.id for model in provider.models), (*path, "models"), "model")
        for index, claim in enumerate(provider.trust or ()):
            if today is not None and claim.expires is not None and claim.expires <= today:
                yield Finding(
                    path=(*path, "trust", index),
                    message=f"the claim `{claim.attribute}` expired on {claim.expires}; it is void",
                    is_error=False,
                )


def _claims(
    provider: ProviderSettings, claims: tuple[TrustClaim, ...], path: Path
) -> Iterator[Finding]:
    yield from _repeats((claim.attribute for claim in claims), path, "attribute")
    if isinstance(provider, LocalProvider):
        return
    yield from _proofs(provider, claims, path)
    if claims_attribute(claims, LOCAL) is not None:
        yield Finding(path=path, message="`local` is given by `kind: local` only")
    claim = claims_attribute(claims, SELF_HOSTED)
    if claim is None:
        return
    place = (*path, claims.index(claim))
    if isinstance(provider, VendorProvider | AzureProvider | BedrockProvider):
        yield Finding(path=place, message=f"kind {provider.kind} is a vendor, never self_hosted")
        return
    host = split_url(provider.base_url).hostname or ""
    domain = vendor_domain(host)
    if domain is not None:
        yield Finding(path=place, message=f"{host} belongs to a vendor ({domain}), not self_hosted")
    elif is_publicly_routable(host) and (claim.evidence is None or claim.expires is None):
        yield Finding(
            path=place,
            message=f"self_hosted on the public host {host} needs `evidence` and `expires`",
        )


def _proofs(
    provider: RemoteSettings, claims: tuple[TrustClaim, ...], path: Path
) -> Iterator[Finding]:
    enforced = conditions_of(provider.enforce)
    for index, claim in enumerate(claims):
        place = (*path, index)
        if claim.condition is not None and claim.condition not in enforced:
            near = hint(claim.condition, enforced)
            message = f"nothing enforces `{claim.condition}`{near}; see the provider's `enforce`"
            yield Finding(path=place, message=message)
        if claim.attribute == DIRECT and (aggregator := aggregator_of(provider)) is not None:
            message = f"{aggregator} hands requests on to others, so nothing there is `{DIRECT}`"
            yield Finding(path=place, message=message)
        elif claim.evidence is None and needs_evidence(provider, claim):
            yield Finding(
                path=place,
                message=f"`{claim.attribute}` is more than is documented of {provider.kind}"
                " on a public host; say in `evidence` where the proof is",
            )


def _repeats(values: Iterable[str], path: Path, what: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield Finding(path=(*path, index), message=f"{what} `{value}` is listed twice")
        seen.add(value)


def _login(settings: Settings) -> Iterator[Finding]:
    oidc = settings.login.oidc
    if oidc is None:
        return
    path: Path = ("login", "oidc", "groups")
    if not oidc.groups:
        message = "names no group, so nobody can log in through the identity provider"
        yield Finding(path=("login", "oidc"), message=message, is_error=False)
    for index, group in enumerate(oidc.groups):
        if group.team is not None and group.team not in settings.teams:
            near = hint(group.team, settings.teams)
            yield Finding(path=(*path, index, "team"), message=f"unknown team `{group.team}`{near}")


def _teams(settings: Settings, names: Names) -> Iterator[Finding]:
    aliases = {alias for model in settings.models.values() for alias in model.aliases}
    known_models = names.models | aliases
    for name, team in settings.teams.items():
        path: Path = ("teams", name)
        yield from _known_models(team.models, known_models, names, (*path, "models"))
        yield from _repeats((key.name for key in team.keys), (*path, "keys"), "key")
        for model in team.model_limits:
            if model not in names.models:
                yield Finding(
                    path=(*path, "model_limits", model),
                    message=f"unknown model `{model}`{hint(model, names.models)}",
                )
        for index, key in enumerate(team.keys):
            place: Path = (*path, "keys", index)
            yield from _known_models(key.models, known_models, names, (*place, "models"))
            if key.project is not None and key.project not in team.projects:
                near = hint(key.project, team.projects)
                message = f"team `{name}` has no project `{key.project}`{near}"
                yield Finding(path=(*place, "project"), message=message)


def _known_models(
    wanted: tuple[str, ...] | None, known: frozenset[str] | set[str], names: Names, path: Path
) -> Iterator[Finding]:
    for index, model in enumerate(wanted or ()):
        if model not in known and model.partition("/")[0] not in names.providers:
            yield Finding(
                path=(*path, index), message=f"unknown model `{model}`{hint(model, known)}"
            )


def _tags(settings: Settings, names: Names) -> Iterator[Finding]:
    for path, tags in _tag_lists(settings):
        for index, tag in enumerate(tags):
            if tag not in names.tags:
                near = hint(tag, names.tags) or "; tags are listed under privacy.tags"
                yield Finding(path=(*path, index), message=f"unknown tag `{tag}`{near}")


def _tag_lists(settings: Settings) -> Iterator[tuple[Path, tuple[str, ...]]]:
    privacy = settings.privacy
    for name, team in settings.teams.items():
        yield ("teams", name, "tags"), team.tags
        for project, one in team.projects.items():
            yield ("teams", name, "projects", project, "tags"), one.tags
        for index, key in enumerate(team.keys):
            yield ("teams", name, "keys", index, "tags"), key.tags
    for name, tag in privacy.tags.items():
        yield ("privacy", "tags", name, "implies"), tag.implies
    yield ("privacy", "floor"), privacy.floor
    for sink in type(privacy.sinks).model_fields:
        yield ("privacy", "sinks", sink), getattr(privacy.sinks, sink)
    yield ("stored_objects", "tags"), settings.stored_objects.tags
    detect = privacy.detect
    if detect is not None:
        for path, tags in detect.tag_lists():
            yield ("privacy", "detect", *path), tags


def _implications(settings: Settings) -> Iterator[Finding]:
    """Report each cycle of `implies` once, at the tag that comes first in the file."""
    tags = settings.privacy.tags
    reported: set[str] = set()
    for start in tags:
        if start in reported:
            continue
        cycle = _cycle_through(start, settings)
        if cycle:
            reported.update(cycle)
            message = f"tags imply each other: {' -> '.join((*cycle, start))}"
            yield Finding(path=("privacy", "tags", start, "implies"), message=message)


def _cycle_through(start: str, settings: Settings) -> tuple[str, ...]:
    """The shortest cycle of implications through a tag, empty when there is none."""
    tags = settings.privacy.tags
    trails: list[tuple[str, ...]] = [(start,)]
    visited: set[str] = set()
    for trail in trails:
        tag = tags.get(trail[-1])
        for implied in tag.implies if tag is not None else ():
            if implied == start:
                return trail
            if implied not in visited:
                visited.add(implied)
                trails.append((*trail, implied))
    return ()


def _attributes(settings: Settings) -> Iterator[Finding]:
    """Warn of a required attribute that Fareway does not ship and nobody claims."""
    claimed = {
        claim.attribute
        for provider in settings.providers.values()
        for claim in provider.trust or ()
    } | {
        claim.attribute
        for model in settings.models.values()
        for entry in model.deployments
        for claim in entry.trust or ()
    }
    for name, tag in settings.privacy.tags.items():
        for index, attribute in enumerate(tag.require):
            if not is_known_attribute(attribute) and attribute not in claimed:
                yield Finding(
                    path=("privacy", "tags", name, "require", index),
                    message=f"no deployment claims `{attribute}`; every request with tag `{name}` "
                    "will be refused",
                    is_error=False,
                )


def _budgets(settings: Settings) -> Iterator[Finding]:
    """Report budgets of one name, and limits that the database cannot hold."""
    seen: set[str] = set()
    is_sqlite = settings.storage.database.startswith(SQLITE_PREFIX)
    for path, budget in budgets_of(settings, {}):
        if budget.name in seen:
            message = f"another budget is called `{budget.name}` too; give one of them a `name`"
            yield Finding(path=path, message=message)
        seen.add(budget.name)
        if is_sqlite and budget.limit_pico_usd > SQLITE_LIMIT_USD_MAX * 10**12:
            yield Finding(
                path=path,
                message=f"SQLite holds budgets up to {SQLITE_LIMIT_USD_MAX:,} USD; use PostgreSQL"
                " in storage.database, or a lower limit",
            )


def _egress(settings: Settings) -> Iterator[Finding]:
    if settings.egress.mode == "observe":
        yield Finding(
            path=("egress", "mode"),
            message="refuses no connection; the guard only tells what it would refuse",
            is_error=False,
        )


def _retention(settings: Settings) -> Iterator[Finding]:
    """Report months that SQLite could only empty row by row."""
    is_sqlite = settings.storage.database.startswith(SQLITE_PREFIX)
    if is_sqlite and settings.retention.events_months is not None:
        message = "entries are dropped by month on PostgreSQL only; take it out, or name one there"
        yield Finding(path=("retention", "events_months"), message=message)


def _baseline(settings: Settings, names: Names) -> Iterator[Finding]:
    """Report baselines that nothing could be compared with."""
    for model, entry in settings.finance.baseline.models.items():
        path: Path = ("finance", "baseline", "models", model)
        if model not in names.models:
            message = f"unknown model `{model}`{hint(model, names.models)}"
            yield Finding(path=path, message=message)
        yield from _comparable(settings, entry, path)


def _comparable(settings: Settings, entry: BaselineDeployment, path: Path) -> Iterator[Finding]:
    """Report a deployment that no usage can be priced at."""
    listed = _listed_prices(settings, entry.deployment)
    provider = settings.providers.get(entry.deployment.partition("/")[0])
    known = entry.price or listed or (() if provider is None else provider.price)
    if entry.price and listed:
        message = f"`{entry.deployment}` has a price under `models`; take one of the two out"
        yield Finding(path=(*path, "price"), message=message)
    elif any(price.is_by_hour for price in known) or isinstance(provider, LocalProvider):
        message = f"`{entry.deployment}` is priced by the hour, which the same usage elsewhere"
        yield Finding(path=path, message=f"{message} has not; name one priced by usage")
    elif not known:
        message = f"`{entry.deployment}` has no price to compare with; give it `price` here"
        yield Finding(path=path, message=message)


def _listed_prices(settings: Settings, deployment: str) -> Prices:
    """The price that a deployment states under `models`, empty when it states none."""
    for model in settings.models.values():
        for entry in model.deployments:
            if entry.deployment == deployment and entry.price:
                return entry.price
    return ()


def _finance(settings: Settings, names: Names) -> Iterator[Finding]:
    """Report accounts of unknown providers, a currency without rates, and teams of nobody."""
    if UNATTRIBUTED in settings.teams:
        yield Finding(
            path=("teams", UNATTRIBUTED),
            message=f"`{UNATTRIBUTED}` is what spend of no team is called; name the team otherwise",
        )
    journal = settings.finance.journal
    if journal is None:
        return
    path: Path = ("finance", "journal")
    for name in journal.accounts.providers:
        if name not in names.providers:
            near = hint(name, names.providers)
            yield Finding(
                path=(*path, "accounts", "providers", name),
                message=f"unknown provider `{name}`{near}",
            )
    currency = journal.currency or settings.finance.currency
    if currency != "USD" and settings.finance.rates_file is None:
        place = path if journal.currency is None else (*path, "currency")
        message = f"a journal in {currency} needs exchange rates; name a file in finance.rates_file"
        yield Finding(path=place, message=message)
    for name, team in settings.teams.items():
        if team.cost_centre is None:
            message = "has no cost_centre: a month in which it spends has no journal"
            yield Finding(path=("teams", name), message=message, is_error=False)


def _machines(settings: Settings) -> Iterator[Finding]:
    """Report pools that are no machines, and slices of teams that are none."""
    known = set(_pools(settings))
    for name, pool in settings.finance.machines.pools.items():
        path: Path = ("finance", "machines", "pools", name)
        if name not in known:
            what = "a provider, or a deployment with a price of its own, that costs by the hour"
            message = f"`{name}` is no machine ({what} and is listed by a model)"
            yield Finding(path=path, message=message + hint(name, known))
        if pool.compare_with is not None:
            yield from _comparable(settings, pool.compare_with, (*path, "compare_with"))
        for team in pool.slices:
            if team not in settings.teams:
                near = hint(team, settings.teams)
                yield Finding(path=(*path, "slices", team), message=f"unknown team `{team}`{near}")


def _pools(settings: Settings) -> Iterator[str]:
    """Providers and deployments that are priced by the hour."""
    for name, provider in settings.providers.items():
        # The engine's models run whether or not a model of the file lists them.
        is_hourly = not provider.price or any(price.is_by_hour for price in provider.price)
        if isinstance(provider, LocalProvider) and provider.models and is_hourly:
            yield name
    for model in settings.models.values():
        for entry in model.deployments:
            provider = settings.providers.get(entry.provider)
            prices = entry.price or (() if provider is None else provider.price)
            is_nominal = isinstance(provider, LocalProvider) and not prices
            if is_nominal or any(price.is_by_hour for price in prices):
                yield entry.deployment if entry.price else entry.provider


def _notices(settings: Settings) -> Iterator[Finding]:
    """Report statements and anomalies whose teams, webhooks or mail server do not exist."""
    finance = settings.finance
    path: Path = ("finance", "statements")
    yield from _repeats((one.name for one in finance.statements), path, "schedule")
    for index, one in enumerate(finance.statements):
        for place, team in enumerate(one.teams):
            if team not in settings.teams:
                near = hint(team, settings.teams)
                message = f"unknown team `{team}`{near}"
                yield Finding(path=(*path, index, "teams", place), message=message)
        yield from _recipients(settings, one.mail, one.webhooks, (*path, index))
    watch = finance.anomalies
    if watch is not None:
        yield from _recipients(settings, watch.mail, watch.webhooks, ("finance", "anomalies"))


def _recipients(
    settings: Settings, mail: tuple[str, ...], webhooks: tuple[str, ...], path: Path
) -> Iterator[Finding]:
    if mail and settings.finance.mail is None:
        message = "e-mail needs a server; name it in finance.mail"
        yield Finding(path=(*path, "mail"), message=message)
    known = [webhook.name for webhook in settings.alerts.webhooks]
    for index, name in enumerate(webhooks):
        if name not in known:
            message = f"unknown webhook `{name}`{hint(name, known)}; alerts.webhooks lists them"
            yield Finding(path=(*path, "webhooks", index), message=message)
