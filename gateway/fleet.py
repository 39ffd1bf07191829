"""Everything that can be called, as configured: names, prices, trust; and the snapshot of a moment.

Built once per activated configuration. What changes while it runs (engines that come and go,
deployments that asked for a pause, measured speeds) lives in `gateway.health` and enters a snapshot
as values, so that a decision stays pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time

from gateway.clock import from_microseconds
from gateway.health import AVAILABLE, HealthBoard
from gateway.privacy.model import (
    DIRECT,
    LOCAL,
    Sink,
    TagRule,
    TeamFloor,
    TrustClaim,
    TrustedDeployment,
    shipped_implications,
)
from gateway.privacy.policy import Policy
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from gateway.settings import trust as trust_settings
from gateway.settings.baseline import BaselineDeployment
from gateway.settings.document import Settings
from gateway.settings.models import DeploymentSettings
from gateway.settings.prices import ListPriceSettings, Prices, PriceSettings
from gateway.settings.providers import LocalProvider, ProviderSettings
from gateway.settings.vendors import documented
from pricing.baseline import Baseline
from pricing.money import Rate, rate_per_hour_us, rate_per_mtok, rate_per_unit
from pricing.price_book import Basis, PriceBook, PriceVersion, Unpriced
from pricing.usage import Meter
from providers.codecs.enforced import conditions_of
from providers.contract import Provider

NOMINAL_GPU_USD_PER_HOUR = "0.10"
"""This machine's rate where the configuration gives none; marked in every report."""

_AUDIO_MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The configured fleet.

    Attributes:
        deployments: Names, `provider/model-id`, in the order of the file.
        models: Deployments per logical model.
        aliases: What an alias stands for.
        prices: Effective-dated prices per deployment.
        region: Where this machine stands, None when not configured.
        local: Names of the deployments that the embedded engine serves.
        baselines: What a model's requests are compared with, by model.
        baseline_prices: Effective-dated prices of these, by model.
        hosted: What a pool of machines is compared with, by pool.
        hosted_prices: Effective-dated prices of these, by pool.
        known_names: The names as a set.
    """

    deployments: tuple[str, ...]
    models: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]
    prices: PriceBook
    region: str | None
    local: frozenset[str]
    baselines: Mapping[str, str] = field(default_factory=dict[str, str])
    baseline_prices: PriceBook = field(default_factory=lambda: PriceBook({}))
    hosted: Mapping[str, str] = field(default_factory=dict[str, str])
    hosted_prices: PriceBook = field(default_factory=lambda: PriceBook({}))
    known_names: frozenset[str] = field(init=False, repr=False, compare=False)
    _parts: Mapping[str, tuple[str, str]] = field(init=False, repr=False, compare=False)
    _views: dict[str, DeploymentView] = field(
        default_factory=dict[str, DeploymentView], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check the names once, and take them apart.

        Raises:
            ValueError: With every name that leads nowhere or means two things.
        """
        object.__setattr__(self, "known_names", frozenset(self.deployments))
        parts = {
            name: (name.partition("/")[0], name.partition("/")[2]) for name in self.deployments
        }
        object.__setattr__(self, "_parts", parts)
        nothing = Unpriced(reason="only its name is looked at")
        FleetSnapshot(
            deployments={name: DeploymentView(name=name, price=nothing) for name in parts},
            models=self.models,
            aliases=self.aliases,
        )

    @property
    def providers(self) -> frozenset[str]:
        """Names of the providers that have a deployment."""
        return frozenset(provider for provider, _ in self._parts.values())

    def snapshot(
        self, *, providers: Mapping[str, Provider], health: HealthBoard, at: datetime
    ) -> FleetSnapshot:
        """The fleet at one instant.

        Args:
            providers: By name; they know what their models can do.
            health: What is up, and how fast.
            at: Aware instant, for prices.
        """
        views = _Views(self, providers=providers, health=health, at=at)
        return FleetSnapshot(
            deployments=views, models=self.models, aliases=self.aliases, is_checked=True
        )

    def baseline(self, model: str, wall_us: int) -> Baseline | None:
        """What a request to a model is compared with at an instant; None without any.

        Args:
            model: Logical name.
            wall_us: Microseconds since the epoch.
        """
        deployment = self.baselines.get(model)
        if deployment is None:
            return None
        price = self.baseline_prices.lookup(model, from_microseconds(wall_us))
        return Baseline(deployment=deployment, price=price)

    def view(
        self, name: str, *, providers: Mapping[str, Provider], health: HealthBoard, at: datetime
    ) -> DeploymentView:
        """One deployment at one instant; arguments as `snapshot`.

        Raises:
            KeyError: No such deployment.
        """
        provider, model_id = self._parts[name]
        state, speed = health.state(name), health.speed(name)
        price = self.prices.lookup(name, at)
        capabilities = providers[provider].capabilities(model_id)
        # Nearly always nothing has changed since the last request that looked.
        known = self._views.get(name)
        if (
            known is not None
            and known.price is price
            and known.capabilities is capabilities
            and known.speed == speed
            and state is AVAILABLE
            and known.is_available
        ):
            return known
        made = DeploymentView(
            name=name,
            price=price,
            capabilities=capabilities,
            speed=speed,
            is_available=state.is_available,
            unavailable_reason=state.reason,
            retry_after_s=state.retry_after_s,
            region=self.region if name in self.local else None,
        )
        self._views[name] = made
        return made


class _Views(Mapping[str, DeploymentView]):
    """The fleet's deployments at one instant, each made when a decision first looks at it.

    A decision looks at one model's deployments; a fleet may have hundreds.
    """

    __slots__ = ("_at", "_fleet", "_health", "_made", "_providers")

    def __init__(
        self, fleet: Fleet, *, providers: Mapping[str, Provider], health: HealthBoard, at: datetime
    ) -> None:
        self._fleet = fleet
        self._providers = providers
        self._health = health
        self._at = at
        self._made: dict[str, DeploymentView] = {}

    def __getitem__(self, name: str) -> DeploymentView:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._fleet.view(
                name, providers=self._providers, health=self._health, at=self._at
            )
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._fleet.known_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._fleet.deployments)

    def __len__(self) -> int:
        return len(self._fleet.deployments)


def build_fleet(settings: Settings) -> Fleet:
    """Collect the deployments of a configuration with their prices.

    Raises:
        PriceBookError: Prices of a deployment contradict each other.
    """
    listed = listed_deployments(settings)
    compared = settings.finance.baseline.models
    hosted = {
        name: pool.compare_with
        for name, pool in settings.finance.machines.pools.items()
        if pool.compare_with is not None
    }
    models = {
        name: tuple(entry.deployment for entry in model.deployments)
        for name, model in settings.models.items()
    }
    return Fleet(
        deployments=tuple(listed),
        models=models,
        aliases={alias: name for name, model in settings.models.items() for alias in model.aliases},
        prices=PriceBook(
            {
                name: price_versions(entry.price, settings.providers[name.partition("/")[0]])
                for name, entry in listed.items()
            }
        ),
        region=settings.server.region,
        local=frozenset(
            name
            for name in listed
            if isinstance(settings.providers[name.partition("/")[0]], LocalProvider)
        ),
        baselines={name: one.deployment for name, one in compared.items()},
        baseline_prices=_prices_of(compared, settings, listed),
        hosted={name: one.deployment for name, one in hosted.items()},
        hosted_prices=_prices_of(hosted, settings, listed),
    )


def _prices_of(
    compared: Mapping[str, BaselineDeployment],
    settings: Settings,
    listed: Mapping[str, DeploymentSettings],
) -> PriceBook:
    """What is compared with, by what is compared."""
    return PriceBook(
        {
            name: price_versions(
                one.price or _price_of(listed, one.deployment),
                settings.providers.get(one.deployment.partition("/")[0]),
            )
            for name, one in compared.items()
        }
    )


def build_policy(settings: Settings) -> Policy:
    """Compile the privacy policy over every deployment of a configuration.

    Raises:
        PolicyError: With every problem.
    """
    return Policy.compile(
        tags={
            name: TagRule(
                require=frozenset(tag.require), implies=frozenset(tag.implies), deny=tag.deny
            )
            for name, tag in settings.privacy.tags.items()
        },
        floor=settings.privacy.floor,
        deployments=[
            TrustedDeployment(
                name=name,
                claims=_claims(entry, settings.providers[name.partition("/")[0]]),
                enforces=_enforced(settings.providers[name.partition("/")[0]]),
            )
            for name, entry in listed_deployments(settings).items()
        ],
        implications=shipped_implications(settings.server.region),
        tools={
            name: [_claim(one) for one in tool.trust]
            for name, tool in settings.privacy.tools.items()
        },
        sinks={sink: getattr(settings.privacy.sinks, sink) for sink in Sink},
        teams={
            name: TeamFloor(
                tags=frozenset(team.tags),
                projects={project: frozenset(one.tags) for project, one in team.projects.items()},
                keys={key.name: frozenset(key.tags) for key in team.keys},
            )
            for name, team in settings.teams.items()
        },
    )


def listed_deployments(settings: Settings) -> dict[str, DeploymentSettings]:
    """Every deployment once: those of models first, then local models that no model lists."""
    found: dict[str, DeploymentSettings] = {}
    for model in settings.models.values():
        for entry in model.deployments:
            known = found.get(entry.deployment)
            found[entry.deployment] = entry if known is None else _joined(known, entry)
    for name, provider in settings.providers.items():
        if isinstance(provider, LocalProvider):
            for local in provider.models:
                deployment = f"{name}/{local.id}"
                found.setdefault(deployment, DeploymentSettings(deployment=deployment))
    return found


def _joined(known: DeploymentSettings, other: DeploymentSettings) -> DeploymentSettings:
    """One deployment that two models list: it has one price and one trust.

    What only one of them states holds for both. Of two prices the first holds; of two lists of
    claims only what both say, so that no model can lend another one trust.
    """
    trust = known.trust if other.trust is None else other.trust
    if known.trust is not None and other.trust is not None:
        trust = tuple(claim for claim in known.trust if claim in other.trust)
    return known.model_copy(update={"price": known.price or other.price, "trust": trust})


def _claims(entry: DeploymentSettings, provider: ProviderSettings) -> tuple[TrustClaim, ...]:
    stated = entry.trust if entry.trust is not None else provider.trust
    claims = tuple(_claim(one) for one in stated or ())
    if isinstance(provider, LocalProvider):
        # What runs in a process of ours is local as a matter of fact, whatever else is claimed.
        return (*claims, TrustClaim(attribute=LOCAL))
    row = documented(provider)
    if row is None:
        return claims
    # That nobody stands between is a fact of the vendor; all else is the operator's to say.
    return (*claims, *(one for one in row.claims if stated is None or one.attribute == DIRECT))


def _enforced(provider: ProviderSettings) -> frozenset[str]:
    """Conditions that the provider's adapter puts into every request."""
    return frozenset() if isinstance(provider, LocalProvider) else conditions_of(provider.enforce)


def _claim(stated: trust_settings.TrustClaim) -> TrustClaim:
    expires_at = None
    if stated.expires is not None:
        expires_at = datetime.combine(stated.expires, time.min, tzinfo=UTC)
    return TrustClaim(
        attribute=stated.attribute,
        expires_at=expires_at,
        evidence=stated.evidence or "",
        verified_by=stated.verified_by or "",
        verified_on=stated.verified_on,
        condition=stated.condition or "",
    )


def _price_of(listed: Mapping[str, DeploymentSettings], deployment: str) -> Prices:
    """What a listed deployment states itself."""
    entry = listed.get(deployment)
    return () if entry is None else entry.price


def price_versions(own: Prices, provider: ProviderSettings | None) -> Sequence[PriceVersion]:
    """Dated versions of a price, in order; where there is none of its own, the provider's.

    The embedded engine has a nominal one where none is stated.
    """
    stated = own or (() if provider is None else provider.price)
    if not stated and isinstance(provider, LocalProvider):
        rate = rate_per_hour_us(NOMINAL_GPU_USD_PER_HOUR)
        return [
            PriceVersion(
                rates={Meter.GPU_US: rate},
                source="nominal rate of this machine",
                basis=Basis.GPU_TIME,
                is_nominal=True,
            )
        ]
    # A price ends where the next one begins; without any the deployment stays unpriced.
    ends = [*(price.valid_from for price in stated[1:]), None][: len(stated)]
    return [
        PriceVersion(
            rates=dict(_rates(price, gpus=price.gpus)),
            source="configuration",
            basis=Basis.GPU_TIME if price.is_by_hour else Basis.TOKENS,
            valid_from=price.valid_from,
            valid_to=end,
            list_rates={} if price.list is None else dict(_rates(price.list, gpus=price.gpus)),
        )
        for price, end in zip(stated, ends, strict=True)
    ]


def _rates(
    price: PriceSettings | ListPriceSettings, *, gpus: int | None
) -> Iterator[tuple[Meter, Rate]]:
    per_mtok = {
        Meter.INPUT: price.input_usd_per_mtok,
        Meter.CACHE_READ: price.cached_input_usd_per_mtok,
        Meter.CACHE_WRITE: price.cache_write_usd_per_mtok,
        Meter.OUTPUT: price.output_usd_per_mtok,
        Meter.REASONING: price.reasoning_usd_per_mtok,
    }
    for meter, amount in per_mtok.items():
        if amount is not None:
            yield meter, rate_per_mtok(amount)
    if price.request_usd is not None:
        yield Meter.REQUESTS, rate_per_unit(price.request_usd)
    if price.image_usd is not None:
        yield Meter.IMAGES, rate_per_unit(price.image_usd)
    if price.audio_usd_per_minute is not None:
        minute = rate_per_unit(price.audio_usd_per_minute)
        yield (
            Meter.AUDIO_MS,
            Rate(pico_usd=minute.pico_usd, per_units=minute.per_units * _AUDIO_MS_PER_MINUTE),
        )
    if price.gpu_usd_per_hour is not None:
        yield Meter.GPU_US, rate_per_hour_us(price.gpu_usd_per_hour, gpus or 1)
    elif isinstance(price, PriceSettings) and price.usd_per_hour is not None:
        yield Meter.GPU_US, rate_per_hour_us(price.usd_per_hour, gpus or 1)
