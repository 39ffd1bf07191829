"""Where the service's processes may connect to, as the configuration that is served has it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gateway.channel import ChannelError
from gateway.clock import Clock, from_microseconds
from gateway.egress.destinations import Role, egress_list
from gateway.egress.lists import EgressList, follow
from gateway.process.child import Child
from gateway.settings.loader import LoadedConfig

logger = logging.getLogger(__name__)

TELL_S = 30.0


@dataclass(slots=True)
class EgressBoard:
    """Tells the supervisor's own guard and the ledger process; workers have the configuration.

    Attributes:
        loaded: The configuration that is served.
        environ: The environment.
        clock: For claims that expire.
        ledger: The ledger process once it is ready; raises `RemoteError` when it is not.
    """

    loaded: LoadedConfig
    environ: Mapping[str, str]
    clock: Clock
    ledger: Callable[[], Awaitable[Child]]
    ledger_list: EgressList = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the configuration of the start."""
        self.ledger_list = self._list(self.loaded, Role.LEDGER)
        follow(self._list(self.loaded, Role.SUPERVISOR))

    async def replace(
        self, serve: Callable[[LoadedConfig], Awaitable[None]], loaded: LoadedConfig
    ) -> None:
        """Serve another configuration; its places come before it, the old ones go with it.

        A ledger process that is away hears it at its start. One that is there and cannot be told is
        ended: it would go on connecting where it may no longer.
        """
        before = self.loaded
        await self._tell(before, loaded)
        try:
            await serve(loaded)
        except BaseException:
            await self._tell(before)
            raise
        self.loaded = loaded
        await self._tell(loaded)

    async def _tell(self, *configurations: LoadedConfig) -> None:
        """Have both go by what any of these configurations has."""
        ours, ledgers = EgressList(), EgressList()
        for loaded in configurations:
            ours = ours.joined(self._list(loaded, Role.SUPERVISOR))
            ledgers = ledgers.joined(self._list(loaded, Role.LEDGER))
        follow(ours)
        if ledgers == self.ledger_list:
            return
        self.ledger_list = ledgers
        try:
            child = await self.ledger()
        except ChannelError:
            return
        try:
            await child.channel.call(
                "set_egress", ledgers, result_type=type(None), timeout_s=TELL_S
            )
        except ChannelError as error:
            logger.warning("the ledger process does not take its list of places: %s", error)
            child.process.kill()

    def _list(self, loaded: LoadedConfig, role: Role) -> EgressList:
        today = from_microseconds(self.clock.wall_us()).date()
        return egress_list(loaded.settings, role, environ=self.environ, today=today)
