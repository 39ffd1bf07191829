"""How commands ask finance: the running gateway, else the database of its configuration."""

from __future__ import annotations

import os
import pwd
from typing import TypeVar, cast

import anyio
import msgspec

from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.faults import CliFault
from gateway.clock import system_clock
from gateway.finance.errors import FinanceError
from gateway.finance.requests import FinanceRequest
from gateway.ledger.errors import LedgerError
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig

T = TypeVar("T")
TIMEOUT_S = 600.0


def actor() -> str:
    """Who runs the command, for the audit log: `cli:` and the user of this machine."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:{os.getuid()}"


def ask(config: LoadedConfig, request: FinanceRequest, result_type: type[T]) -> T:
    """Have a request answered.

    Args:
        config: Whose ledger.
        request: What is asked.
        result_type: What the answer is.

    Raises:
        CliFault: It was refused, or nobody answers; the sentence is for the person.
    """
    return anyio.run(_ask, config, request, result_type)


async def _ask(config: LoadedConfig, request: FinanceRequest, result_type: type[T]) -> T:
    try:
        return await call_gateway(
            config, "finance", request, result_type=result_type, timeout_s=TIMEOUT_S
        )
    except NoGateway:
        return await _offline(config, request, result_type)
    except ChannelError as error:
        raise CliFault(str(error)) from error


async def _offline(config: LoadedConfig, request: FinanceRequest, result_type: type[T]) -> T:
    # SQLAlchemy, for a stopped gateway only.
    from gateway.finance.desk import FinanceDesk
    from gateway.ledger.service import LedgerService

    clock = system_clock()
    try:
        url = connection_url(config, environ=process_environ())
        service = LedgerService(url, config.spool_dir, clock=clock)
        try:
            await service.start()
            answer = await FinanceDesk(service, clock=clock).answer(request)
        finally:
            await service.stop(drain=False)
    except (FinanceError, LedgerError) as error:
        raise CliFault(str(error)) from error
    return msgspec.convert(cast("object", msgspec.to_builtins(answer)), result_type)
