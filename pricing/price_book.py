"""What each deployment costs and when: immutable, dated price versions.

A price version says what is charged (`Basis`), at which rates, from when to when, and where the
figures come from. A deployment's versions never overlap, so an instant has one price or none; none
is `Unpriced`, never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import msgspec

from pricing.errors import PriceBookError
from pricing.money import Rate
from pricing.usage import METERS, Meter


class Basis(StrEnum):
    """What a price version charges for."""

    TOKENS = "tokens"
    """Everything that was used, except busy time, which is for information."""
    GPU_TIME = "gpu_time"
    """Busy microseconds alone; tokens are for information and cost nothing by design."""


FALLBACK_METERS: Mapping[Meter, Meter] = MappingProxyType(
    {
        Meter.CACHE_READ: Meter.INPUT,
        Meter.CACHE_WRITE: Meter.INPUT,
        Meter.REASONING: Meter.OUTPUT,
    }
)
"""Whose rate a meter without one of its own pays: a discount must be declared to be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """The price is unknown.

    Attributes:
        reason: One phrase for reports and `explain`.
        is_momentary: Whether the reason names the instant that was asked about.
    """

    reason: str
    is_momentary: bool = field(default=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dearest:
    """The most that a token can cost on a group of meters.

    Attributes:
        rate: The highest rate of the group.
        rounding_pico_usd: What rounding can add when a count is split over the group: each line is
            rounded once, up by at most half; 0 where every rate divides.
    """

    rate: Rate
    rounding_pico_usd: int


class Linear(msgspec.Struct, frozen=True, kw_only=True):
    """Token prices of which every rate is a whole number of picodollars: nothing is ever rounded.

    All in picodollars per token, the fee per request.
    """

    input: int
    cache_read: int
    cache_write: int
    output: int
    dearest_prompt: int
    dearest_output: int
    fee: int


_PROMPT_METERS = (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE)
_OUTPUT_METERS = (Meter.OUTPUT, Meter.REASONING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceVersion:
    """One immutable set of rates; `PriceBook` checks it.

    Attributes:
        rates: Rate per meter.
        source: Where the figures come from: a file and key, or a page.
        basis: What is charged.
        valid_from: First aware instant of validity, None for always.
        valid_to: First aware instant after it, None for open.
        checked_on: When the source was last compared, None when never.
        is_nominal: Whether the rate is a stand-in that reports must mark.
        list_rates: Public rate per meter, beside the contracted `rates`; a meter that it leaves out
            has the contracted one. Empty where no public price is known apart.
        version_id: Digest of what is charged, from when, and by which source. `valid_to` and
            `checked_on` are left out: a price keeps its identity when a successor ends it or when
            it is confirmed.
        plan: Per meter in the order of `METERS`, what a unit costs: its rate, None when it is
            charged and has none, False when the basis does not charge for it.
        list_plan: The same at public rates, None without any.
        dearest_prompt: The most that a prompt token can cost, None without any rate.
        dearest_output: The same of an output token.
        linear: The token prices as plain integers, None where one is missing or has to be rounded.
    """

    rates: Mapping[Meter, Rate] = field(hash=False)
    source: str
    basis: Basis = Basis.TOKENS
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    checked_on: date | None = None
    is_nominal: bool = False
    list_rates: Mapping[Meter, Rate] = field(default_factory=dict[Meter, Rate], hash=False)
    version_id: str = field(init=False)
    plan: tuple[Rate | Literal[False] | None, ...] = field(init=False, repr=False, compare=False)
    list_plan: tuple[Rate | Literal[False] | None, ...] | None = field(
        init=False, repr=False, compare=False
    )
    dearest_prompt: Dearest | None = field(init=False, repr=False, compare=False)
    dearest_output: Dearest | None = field(init=False, repr=False, compare=False)
    linear: Linear | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Freeze the rates, derive the identity, and work out what every request asks for."""
        object.__setattr__(self, "rates", MappingProxyType(dict(self.rates)))
        object.__setattr__(self, "list_rates", MappingProxyType(dict(self.list_rates)))
        object.__setattr__(self, "version_id", self._digest())
        object.__setattr__(self, "plan", self._plan(self.rates))
        listed = self._plan({**self.rates, **self.list_rates}) if self.list_rates else None
        object.__setattr__(self, "list_plan", listed)
        object.__setattr__(self, "dearest_prompt", self._dearest(_PROMPT_METERS))
        object.__setattr__(self, "dearest_output", self._dearest(_OUTPUT_METERS))
        object.__setattr__(self, "linear", self._linear())

    def rate_for(self, meter: Meter) -> Rate | None:
        """The meter's rate, else that of its fallback meter, None when neither has one."""
        return _rate_for(self.rates, meter)

    def is_in_force(self, at: datetime) -> bool:
        """Whether `at` (aware) lies in the half-open interval of validity."""
        if self.valid_from is not None and at < self.valid_from:
            return False
        return self.valid_to is None or at < self.valid_to

    def is_charged(self, meter: Meter) -> bool:
        """Whether the basis charges for this meter at all."""
        return (meter is Meter.GPU_US) == (self.basis is Basis.GPU_TIME)

    def problems(self) -> Iterator[str]:
        """Every fault of this version, as phrases."""
        if not self.source:
            yield "its source is not named"
        if not self.rates:
            yield "it has no rate"
        for meter in self.rates:
            if not self.is_charged(meter):
                yield f"a {meter} rate is never charged on the basis {self.basis}"
        for meter in self.list_rates:
            if self.is_charged(meter) and self.rate_for(meter) is None:
                yield f"a public {meter} rate stands beside none that is charged"
            elif not self.is_charged(meter):
                yield f"a public {meter} rate is never charged on the basis {self.basis}"
        for name, at in (("valid_from", self.valid_from), ("valid_to", self.valid_to)):
            if at is not None and at.tzinfo is None:
                yield f"{name} has no time zone"
        if self._has_comparable_bounds() and self._is_empty_interval():
            yield f"valid_from {self.valid_from} is not before valid_to {self.valid_to}"

    def _plan(self, rates: Mapping[Meter, Rate]) -> tuple[Rate | Literal[False] | None, ...]:
        return tuple(self.is_charged(one) and _rate_for(rates, one) for one in METERS)

    def _dearest(self, meters: Sequence[Meter]) -> Dearest | None:
        rates = [self.rates[meter] for meter in meters if meter in self.rates]
        if not rates:
            return None
        is_exact = all(rate.per_units == 1 for rate in rates)
        return Dearest(
            # Rounding keeps the order, so the dearest rate gives the dearest line.
            rate=max(rates, key=lambda rate: Fraction(rate.pico_usd, rate.per_units)),
            rounding_pico_usd=0 if is_exact else len(meters),
        )

    def _linear(self) -> Linear | None:
        prompt, output = self.dearest_prompt, self.dearest_output
        fee = self.rates.get(Meter.REQUESTS, Rate(pico_usd=0))
        used = [self.rate_for(meter) for meter in (*_PROMPT_METERS, Meter.OUTPUT)]
        known = [rate for rate in (*used, fee) if rate is not None and rate.per_units == 1]
        if self.basis is not Basis.TOKENS or len(known) != len(used) + 1:
            return None
        if prompt is None or output is None or prompt.rounding_pico_usd + output.rounding_pico_usd:
            return None
        return Linear(
            input=known[0].pico_usd,
            cache_read=known[1].pico_usd,
            cache_write=known[2].pico_usd,
            output=known[3].pico_usd,
            dearest_prompt=prompt.rate.pico_usd,
            dearest_output=output.rate.pico_usd,
            fee=fee.pico_usd,
        )

    def _has_comparable_bounds(self) -> bool:
        return all(at is None or at.tzinfo is not None for at in (self.valid_from, self.valid_to))

    def _is_empty_interval(self) -> bool:
        if self.valid_from is None or self.valid_to is None:
            return False
        return self.valid_from >= self.valid_to

    def _digest(self) -> str:
        content = {
            "basis": self.basis.value,
            "nominal": self.is_nominal,
            "rates": _sorted_rates(self.rates),
            "source": self.source,
            "from": _instant_text(self.valid_from),
        }
        if self.list_rates:  # left out where there is none: those prices keep their identity
            content["list"] = _sorted_rates(self.list_rates)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class PriceBook:
    """Every deployment's price versions, checked as a whole."""

    __slots__ = ("_versions",)

    def __init__(self, entries: Mapping[str, Sequence[PriceVersion]]) -> None:
        """Check all entries and keep them by start.

        Args:
            entries: Versions per deployment (`provider/model-id`), in any order.

        Raises:
            PriceBookError: With every problem of every entry.
        """
        problems: list[str] = []
        versions: dict[str, tuple[PriceVersion, ...]] = {}
        for deployment, listed in entries.items():
            faults = [fault for version in listed for fault in version.problems()]
            if not faults:
                versions[deployment] = tuple(sorted(listed, key=_start))
                faults = list(_overlaps(versions[deployment]))
            problems += [f"{deployment}: {fault}" for fault in faults]
        if problems:
            raise PriceBookError(problems)
        self._versions = versions

    def lookup(self, deployment: str, at: datetime) -> PriceVersion | Unpriced:
        """The one version in force at an instant.

        Args:
            deployment: `provider/model-id`.
            at: Aware instant at which the attempt starts.

        Raises:
            ValueError: `at` has no time zone.
        """
        if at.tzinfo is None:
            raise ValueError("a price is looked up at an aware instant")
        versions = self._versions.get(deployment, ())
        for version in versions:
            if version.is_in_force(at):
                return version
        if versions:
            reason = f"no price in force on {_instant_text(at)}"
            return Unpriced(reason=reason, is_momentary=True)
        return Unpriced(reason="no price configured")

    def steady(
        self, deployments: Iterable[str], at: datetime
    ) -> tuple[datetime | None, datetime | None]:
        """The half-open interval around an instant within which `lookup` finds the same versions.

        Args:
            deployments: Names, `provider/model-id`.
            at: Aware instant.

        Returns:
            Its first instant, None for always, and the first one after it, None for open.
        """
        bounds = {
            bound
            for deployment in deployments
            for version in self._versions.get(deployment, ())
            for bound in (version.valid_from, version.valid_to)
            if bound is not None
        }
        return (
            max((bound for bound in bounds if bound <= at), default=None),
            min((bound for bound in bounds if bound > at), default=None),
        )

    def versions(self, deployment: str) -> tuple[PriceVersion, ...]:
        """All versions of a deployment by start; empty when it has none."""
        return self._versions.get(deployment, ())


def _rate_for(rates: Mapping[Meter, Rate], meter: Meter) -> Rate | None:
    rate = rates.get(meter)
    if rate is not None:
        return rate
    fallback = FALLBACK_METERS.get(meter)
    return None if fallback is None else rates.get(fallback)


def _sorted_rates(rates: Mapping[Meter, Rate]) -> list[tuple[str, int, int]]:
    return sorted((meter.value, rate.pico_usd, rate.per_units) for meter, rate in rates.items())


def _start(version: PriceVersion) -> datetime:
    return version.valid_from or datetime.min.replace(tzinfo=UTC)


def _overlaps(versions: Sequence[PriceVersion]) -> Iterator[str]:
    """Phrases for neighbours (sorted by start) that are both in force at some instant."""
    for earlier, later in pairwise(versions):
        if earlier.valid_to is None or later.valid_from is None:
            clash = True
        else:
            clash = later.valid_from < earlier.valid_to
        if clash:
            yield (
                f"prices {earlier.version_id} ({earlier.source}) and "
                f"{later.version_id} ({later.source}) overlap"
            )


def _instant_text(at: datetime | None) -> str | None:
    """ISO text in UTC; a naive instant, which the book refuses, keeps its own text."""
    if at is None or at.tzinfo is None:
        return None if at is None else at.isoformat()
    return at.astimezone(UTC).isoformat()
