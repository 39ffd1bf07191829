"""A command's configuration, by which its process is bound from then on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from gateway.egress.destinations import Role, egress_list
from gateway.egress.lists import also, follow
from gateway.settings.loader import LoadedConfig, load

_LISTENING = {"0.0.0.0": ("127.0.0.1",), "::": ("::1", "127.0.0.1")}  # noqa: S104 - to be asked
"""Where a gateway that listens on every address is asked from its own machine."""


def load_guarded(
    path: Path | None, *, environ: Mapping[str, str], today: date | None = None
) -> LoadedConfig:
    """Load the configuration, and let this process connect to what a command may.

    That is what the configuration names, and the gateway of this configuration itself.

    Args:
        path: As `load`.
        environ: As `load`.
        today: As `load`.

    Raises:
        ConfigError: With every problem that was found.
    """
    loaded = load(path, environ=environ, today=today)
    follow(egress_list(loaded.settings, Role.COMMAND, environ=environ, today=today))
    server = loaded.settings.server
    for host in _LISTENING.get(server.host, (server.host,)):
        also(host, server.port)
    return loaded
