"""Holds of a request's attempts: how much, and for which candidate where the first is too dear.

Every attempt of every route comes by here, since none can be written down without its hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gateway.budgets.holds import NO_HOLD, Hold, Holds
from gateway.errors import BudgetExceeded
from gateway.relay.exposure import Exposures
from gateway.relay.failures import Failure
from gateway.relay.job import Job
from gateway.relay.verdict import trail_of
from gateway.routing.ranking import Candidate
from pricing.money import PicoUsd
from pricing.price_book import Unpriced


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate that may be tried.

    Attributes:
        candidate: Which.
        exposure_pico_usd: The most that it is taken to cost, None where its price is not known.
        hold: What is held for it.
    """

    candidate: Candidate
    exposure_pico_usd: PicoUsd | None
    hold: Hold


async def held_for(
    holds: Holds,
    exposures: Exposures,
    job: Job,
    candidate: Candidate,
    failures: Sequence[Failure],
) -> Held:
    """Hold what an attempt may cost, at the candidate or else at a cheaper one.

    Args:
        holds: The budgets.
        exposures: What attempts may cost.
        job: The request.
        candidate: Whom to try.
        failures: Of the request's attempts before.

    Raises:
        BudgetExceeded: A budget has room for no candidate.
        BudgetUnavailable: Nobody said in time whether it has.
    """
    model = job.booking.model
    exposure = exposures.of(model, job.asked, candidate)
    if holds.is_free:
        return Held(candidate=candidate, exposure_pico_usd=exposure, hold=NO_HOLD)
    refusal: BudgetExceeded | None = None
    least = exposure
    for one in _in_turn(job, candidate, failures):
        exposure = exposures.of(model, job.asked, one)
        if refusal is not None and (exposure is None or (least is not None and exposure >= least)):
            continue  # what did not fit for less does not fit for as much
        try:
            hold = holds.take(job.booking, exposure)
            if hold is None:
                hold = await holds.wait(job.booking, exposure)
        except BudgetExceeded as error:
            refusal = refusal or error
            least = exposure
            continue
        return Held(candidate=one, exposure_pico_usd=exposure, hold=hold)
    assert refusal is not None, "there is at least one candidate"
    if failures:
        refusal.message += f"; the attempts before it failed: {trail_of(failures)}"
        refusal.deployment, refusal.attempts = failures[-1].deployment, len(failures)
    raise refusal


def narrowed(holds: Holds, job: Job) -> Job:
    """The request with its cheapest candidates alone, where a used-up budget asks for it."""
    if not holds.is_narrowed(job.booking):
        return job
    priced = [one for one in job.candidates if not isinstance(one.quote, Unpriced)]
    costs = [_expected(one) for one in priced]
    cheapest = [one for one, cost in zip(priced, costs, strict=True) if cost == min(costs)]
    return msgspec.structs.replace(job, candidates=tuple(cheapest) or job.candidates)


def _expected(candidate: Candidate) -> int:
    assert not isinstance(candidate.quote, Unpriced), "only priced ones are compared"
    return candidate.quote.expected_pico_usd


def _in_turn(job: Job, candidate: Candidate, failures: Sequence[Failure]) -> Iterator[Candidate]:
    """The candidate, then every other one that was not tried yet."""
    yield candidate
    seen = {candidate.deployment, *(failure.deployment for failure in failures)}
    for one in job.candidates:
        if one.deployment in seen:
            continue
        renewed = job.renew(one)
        if renewed is not None:
            yield renewed
