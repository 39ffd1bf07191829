"""Budgets set from the command line, by `fareway budgets` and by `fareway keys create`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gateway.budgets.messages import BudgetChange, BudgetReport, BudgetRules
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway, catch_up
from gateway.cli.faults import CliFault
from gateway.clock import system_clock
from gateway.ledger.errors import LedgerError
from gateway.settings.budget_orders import BudgetOrder
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig

if TYPE_CHECKING:
    from gateway.ledger.service import LedgerService

ACTOR = "cli"


def parse_order(wanted: dict[str, object]) -> BudgetOrder:
    """A budget from the values of options.

    Raises:
        CliFault: They make no budget.
    """
    try:
        return BudgetOrder.model_validate(wanted)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"{step}: " for step in detail["loc"][:1])
        raise CliFault(f"{place}{detail['msg'].removeprefix('Value error, ')}") from error


async def change_budget(config: LoadedConfig, change: BudgetChange) -> None:
    """Change a budget through the running gateway, or in the database of a stopped one.

    Raises:
        CliFault: It is refused.
    """
    try:
        try:
            await call_gateway(config, "change_budget", change, result_type=BudgetRules)
        except NoGateway:
            service = await offline_ledger(config)
            try:
                await service.change_budget(change)
            finally:
                await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


async def budget_reports(config: LoadedConfig) -> Sequence[BudgetReport]:
    """Every budget in force; of a stopped gateway those that it went by.

    Raises:
        CliFault: The ledger cannot be read.
    """
    await catch_up(config)
    try:
        try:
            return await call_gateway(config, "budget_reports", result_type=list[BudgetReport])
        except NoGateway:
            pass  # nobody else has the database open
        service = await offline_ledger(config)
        try:
            return await service.budget_reports()
        finally:
            await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


async def offline_ledger(config: LoadedConfig) -> LedgerService:
    """The ledger of a gateway that does not run; to be stopped."""
    from gateway.ledger.service import LedgerService  # SQLAlchemy, for a stopped gateway only

    service = LedgerService(
        connection_url(config, environ=process_environ()), config.spool_dir, clock=system_clock()
    )
    await service.start()
    return service
