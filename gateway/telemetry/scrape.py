"""A worker's part of a scrape: ask the supervisor for everybody's numbers and hand them out."""

from __future__ import annotations

from dataclasses import dataclass

import anyio.to_thread

from gateway.channel import Channel, ChannelError
from gateway.telemetry.metrics import Metrics

COLLECT_S = 8.0
"""Prometheus waits 10 s by default."""


class ScrapeFailed(Exception):
    """The supervisor did not answer; this worker's numbers alone would be a fall of every sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraper:
    """Answers `/metrics`.

    Attributes:
        metrics: This worker's numbers.
        supervisor: Who adds up; None where this process is all there is.
    """

    metrics: Metrics
    supervisor: Channel | None

    async def text(self) -> bytes:
        """Prometheus' text, for all workers.

        Raises:
            ScrapeFailed: There is no answer; a scrape that fails is better than one that lies.
        """
        if self.supervisor is None:
            return await anyio.to_thread.run_sync(self.metrics.render)
        try:
            return await self.supervisor.call(
                "metrics", None, result_type=bytes, timeout_s=COLLECT_S
            )
        except ChannelError as error:
            raise ScrapeFailed(f"the supervisor did not tell the metrics: {error}") from error
