"""A worker's budgets over its channel to the supervisor, and those of a process that has none."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.budgets.holds import Holds
from gateway.budgets.messages import BudgetRules, BudgetState, LeaseReply, LeaseRequest
from gateway.budgets.standing import Standing
from gateway.channel import Channel, ChannelClosed
from gateway.clock import Clock

LEASE_S = 15.0
"""Longer than any request waits: a slab that comes late is still of use to the next one."""
STATES_S = 5.0


def make_holds(channel: Channel, *, clock: Clock, directory: str, session: bytes) -> Holds:
    """The budgets of a worker, which the supervisor has yet to tell.

    Args:
        channel: To the supervisor.
        clock: Time.
        directory: Name of the worker's spool directory.
        session: Of its spool writer.
    """

    async def lease(request: LeaseRequest) -> LeaseReply:
        return await channel.call(
            "lease_budgets", request, result_type=LeaseReply, timeout_s=LEASE_S
        )

    async def states() -> Sequence[BudgetState]:
        return await channel.call(
            "budget_states", None, result_type=list[BudgetState], timeout_s=STATES_S
        )

    return Holds(
        lease=lease,
        standing=Standing(states, clock.monotonic_s),
        clock=clock,
        directory=directory,
        session=session,
    )


def no_budgets(clock: Clock) -> Holds:
    """For a process without a supervisor: there are no budgets."""

    async def lease(_request: LeaseRequest) -> LeaseReply:
        raise ChannelClosed("this process has no supervisor")

    async def states() -> Sequence[BudgetState]:
        raise ChannelClosed("this process has no supervisor")

    holds = Holds(lease=lease, standing=Standing(states, clock.monotonic_s), clock=clock)
    holds.follow(BudgetRules())
    return holds
