"""Compile the privacy policy and hold it against its oracle, before anything is served with it.

Apart from `gateway.app`, because the supervisor needs this and nothing of what answers requests.
"""

from __future__ import annotations

from gateway.clock import Clock, from_microseconds
from gateway.fleet import build_policy
from gateway.privacy.oracle import verify
from gateway.privacy.policy import Policy
from gateway.settings.document import Settings

INSTANTS_MAX = 16
"""Expiries that the check looks at, the nearest first."""


class PolicyUnproved(Exception):
    """The compiled policy and the independent oracle disagree; nothing may be served with it."""


def proved_policy(settings: Settings, clock: Clock) -> Policy:
    """Compile the policy and hold it against the oracle.

    Raises:
        PolicyUnproved: With the first counter-examples.
    """
    policy = build_policy(settings)
    at = from_microseconds(clock.wall_us())
    # At the instants of expiry too: what is allowed then must still be what the oracle says.
    expiries = {
        claim.expires_at
        for claims in (
            *(deployment.claims for deployment in policy.source.deployments),
            *policy.source.tools.values(),
        )
        for claim in claims
        if claim.expires_at is not None
    }
    verdict = verify(
        policy,
        policy.source,
        instants=[at, *sorted(expiries)[:INSTANTS_MAX]],
        floors=policy.source.floors(),
    )
    if verdict.counter_examples:
        shown = "; ".join(str(one) for one in verdict.counter_examples[:3])
        raise PolicyUnproved(f"the privacy policy does not hold against its oracle: {shown}")
    return policy
