"""Portkey's gateway on Node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.gateway.targets import KEY, Launch, Place

SCRIPT = Path("node_modules/@portkey-ai/gateway/build/start-server.js")


def preparer(path: Path) -> Callable[[Place], Launch]:
    """How Portkey's gateway is started.

    Args:
        path: The folder whose `node_modules` has it.
    """

    def prepare(place: Place) -> Launch:
        return Launch(
            command=("node", str(path / SCRIPT), f"--port={place.port}", "--headless"),
            environment={
                "NODE_ENV": "production",
                "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost",
            },
            headers={
                "Authorization": f"Bearer {KEY}",
                "x-portkey-provider": "openai",
                "x-portkey-custom-host": f"{place.mock_url}/v1",
            },
        )

    return prepare
