"""The machines of a configuration, as the ledger takes them down.

A provider with a price by the hour is a machine (its GPUs are paid for together), and so is the
embedded engine, whose price is nominal where none is given. A deployment with an hourly price of
its own is a machine of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from gateway.clock import to_microseconds
from gateway.finance.machines.messages import (
    ENGINE,
    SERVER,
    DatedTerms,
    DeclaredMachine,
    Hours,
    IdlePolicy,
    MachineTerms,
    NodePart,
    Slice,
)
from gateway.fleet import NOMINAL_GPU_USD_PER_HOUR, listed_deployments, price_versions
from gateway.settings.document import Settings
from gateway.settings.machines import MachineSettings, PoolSettings
from gateway.settings.models import DeploymentSettings
from gateway.settings.prices import PriceSettings
from gateway.settings.providers import LocalProvider, ProviderSettings, ServerProvider
from pricing.price_book import PriceVersion

_PLACES_COUNT = 18
_PLACES = 10**_PLACES_COUNT
_DIGITS = Context(prec=40)


def declared_machines(settings: Settings, *, node: str = "") -> tuple[DeclaredMachine, ...]:
    """Every machine of a configuration, by name.

    Args:
        settings: Checked.
        node: The name of this one among several that share a database, else empty. Each has an
            engine of its own; a server is the same for all of them.
    """
    pools: dict[str, list[DeploymentSettings]] = {}
    for name, entry in listed_deployments(settings).items():
        provider = settings.providers[entry.provider]
        if any(price.is_by_hour for price in entry.price or provider.price) or (
            isinstance(provider, LocalProvider) and not (entry.price or provider.price)
        ):
            pools.setdefault(name if entry.price else entry.provider, []).append(entry)
    return tuple(_machine(pool, pools[pool], settings, node) for pool in sorted(pools))


def machine_pools(settings: Settings) -> Mapping[str, str]:
    """The pool of each deployment that runs on a machine of ours."""
    return {
        deployment: one.pool
        for one in declared_machines(settings)
        for dated in one.terms
        if dated.terms is not None
        for deployment in dated.terms.deployments
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A server that is looked at.

    Attributes:
        machine: Its name.
        provider: Whose connections are used.
        settings: Of the provider.
        base_url: Where its API is.
        deployment: One of those that run on it.
        model: The only model that counts, where the machine is of a deployment; None for all.
    """

    machine: str
    provider: str
    settings: ServerProvider
    base_url: str
    deployment: str
    model: str | None


def watched_machines(settings: Settings) -> tuple[Watched, ...]:
    """The servers whose metrics are asked for: priced by the hour, with an address of their own."""
    sharing = settings.finance.machines
    found: list[Watched] = []
    for machine in declared_machines(settings):
        provider, _, model = machine.pool.partition("/")
        own = settings.providers[provider]
        stated = sharing.pools.get(machine.pool, PoolSettings()).watch
        is_watched = sharing.watch if stated is None else stated
        if not is_watched or not isinstance(own, ServerProvider):
            continue
        deployments = [
            name for dated in machine.terms if dated.terms for name in dated.terms.deployments
        ]
        found.append(
            Watched(
                machine=machine.machine,
                provider=provider,
                settings=own,
                base_url=own.base_url,
                deployment=deployments[0],
                model=model or None,
            )
        )
    return tuple(found)


def plain(amount: Decimal) -> str:
    """A decimal without exponent or needless zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _exact(usd: Fraction) -> str:
    """As a decimal where it is one of at most 18 places, else as a fraction."""
    scaled = usd * _PLACES
    if scaled.denominator == 1:
        return plain(Decimal(scaled.numerator).scaleb(-_PLACES_COUNT, _DIGITS))
    return str(usd)


def _machine(
    pool: str, entries: Sequence[DeploymentSettings], settings: Settings, node: str
) -> DeclaredMachine:
    provider = settings.providers[entries[0].provider]
    is_engine = isinstance(provider, LocalProvider)
    deployments = tuple(sorted(entry.deployment for entry in entries))
    dated = _dated(pool, entries[0], provider, settings.finance.machines, deployments)
    return DeclaredMachine(
        machine=f"{pool}@{node}" if is_engine and node else pool,
        pool=pool,
        kind=ENGINE if is_engine else SERVER,
        terms=tuple(dated),
    )


def _dated(
    pool: str,
    entry: DeploymentSettings,
    provider: ProviderSettings,
    sharing: MachineSettings,
    deployments: tuple[str, ...],
) -> Iterator[DatedTerms]:
    stated: Sequence[PriceSettings | None] = entry.price or provider.price or (None,)
    usual = Hours.SEEN if isinstance(provider, LocalProvider) else Hours.ALWAYS_ON
    for price, version in zip(stated, price_versions(entry.price, provider), strict=True):
        from_us = None if version.valid_from is None else to_microseconds(version.valid_from)
        is_by_hour = price is None or price.is_by_hour
        terms = None
        if is_by_hour:
            terms = _terms(price, version, usual, _Sharing(sharing, pool), deployments)
        yield DatedTerms(from_us=from_us, terms=terms)


@dataclass(frozen=True)
class _Sharing:
    """How the cost of a pool is shared.

    Attributes:
        usual: How it is where nothing else is said.
        pool: Which.
    """

    usual: MachineSettings
    pool: str

    @property
    def own(self) -> PoolSettings:
        """What is said of this pool alone."""
        return self.usual.pools.get(self.pool, PoolSettings())

    @property
    def idle(self) -> IdlePolicy:
        """Who bears idle time."""
        return IdlePolicy(self.own.idle or self.usual.idle)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Whose it is, by team."""
        return tuple(
            Slice(team=team, fraction=fraction)
            for team, fraction in sorted(self.own.slices.items())
        )


def _terms(
    price: PriceSettings | None,
    version: PriceVersion,
    usual: Hours,
    sharing: _Sharing,
    deployments: tuple[str, ...],
) -> MachineTerms:
    given = price or PriceSettings(gpu_usd_per_hour=Decimal(NOMINAL_GPU_USD_PER_HOUR))
    assert given.usd_per_hour is not None, "a price by the hour"
    rate, work = _exact(given.usd_per_hour), sharing.usual.work_units
    parts: Mapping[str, Fraction] = {} if given.node is None else given.node.facts.parts()
    marginal = given.marginal_usd_per_hour
    # What one more busy hour of a machine costs that is known by facts is what it draws.
    power = parts.get("power", given.usd_per_hour * (given.gpus or 1)) / (given.gpus or 1)
    return MachineTerms(
        gpu_usd_per_hour=rate,
        gpus=given.gpus or 1,
        ops_usd_per_month=plain(given.ops_usd_per_month or Decimal(0)),
        marginal_usd_per_hour=_exact(power) if marginal is None else plain(marginal),
        hours=usual if given.hours is None else Hours(given.hours),
        is_nominal=version.is_nominal,
        price_version=version.version_id,
        idle=sharing.idle,
        slices=sharing.slices,
        target_utilisation_percent=sharing.usual.target_utilisation_percent,
        input_weight=plain(work.input),
        cached_input_weight=plain(work.cached_input),
        output_weight=plain(work.output),
        deployments=deployments,
        parts=tuple(
            NodePart(what=what, usd_per_hour=_exact(usd)) for what, usd in parts.items() if usd
        ),
    )
