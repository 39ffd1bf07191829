"""What the ledger process is told about notices: at its start, and with each configuration."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.channel import ChannelError
from gateway.notices.declared import declared_notices
from gateway.notices.messages import NoticeDeclarations
from gateway.process.child import Child
from gateway.settings.loader import LoadedConfig

logger = logging.getLogger(__name__)

METHODS = ("send_statement", "sent_notices")
"""Of the ledger process, that the admin socket reaches unchanged."""
DECLARE_S = 30.0


@dataclass(slots=True, kw_only=True)
class NoticeBoard:
    """Knows what the configuration that is served says about notices.

    Attributes:
        environ: The environment, for secrets.
        ledger: The ledger process once it is ready; raises `RemoteError` when it is not.
        declared: What it was told.
    """

    environ: Mapping[str, str]
    ledger: Callable[[], Awaitable[Child]]
    declared: NoticeDeclarations

    @classmethod
    def of(
        cls,
        loaded: LoadedConfig,
        environ: Mapping[str, str],
        *,
        ledger: Callable[[], Awaitable[Child]],
    ) -> NoticeBoard:
        """Begin with a configuration.

        Raises:
            ConfigError: A secret that sending needs cannot be read.
        """
        declared = declared_notices(loaded, environ=environ)
        return cls(environ=environ, ledger=ledger, declared=declared)

    async def start_with(self, child: Child) -> None:
        """Tell a ledger process that was started.

        Raises:
            ChannelError: It did not answer.
        """
        await child.channel.call(
            "set_notices", self.declared, result_type=type(None), timeout_s=DECLARE_S
        )

    async def replace(
        self, serve: Callable[[LoadedConfig], Awaitable[None]], loaded: LoadedConfig
    ) -> None:
        """Serve another configuration; what is sent to people goes by it once it is served.

        A ledger process that is away hears it at its start.

        Raises:
            SettingsError: A secret cannot be read; nothing was changed.
        """
        declared = declared_notices(loaded, environ=self.environ)
        await serve(loaded)
        self.declared = declared
        try:
            await self.start_with(await self.ledger())
        except ChannelError as error:
            logger.warning("notices go by the earlier configuration for now: %s", error)
