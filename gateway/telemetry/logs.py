"""Log lines: one per event, to standard error, without content and without secrets."""

from __future__ import annotations

import logging


def set_up_logging(process: str, *, level: int = logging.INFO) -> None:
    """Send this process's log lines to standard error.

    Args:
        process: Named in every line.
        level: Lines below it are dropped.
    """
    logging.basicConfig(
        level=level,
        format=f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s",
    )
    # Libraries speak of connections and requests on these levels, sometimes with URLs.
    for noisy in ("aiohttp", "aiosqlite", "alembic", "asyncio", "httpx", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
