"""Gateways with everything around them, as the end-to-end tests use them."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import LedgerRow, wait_for_rows
from tests.support.scripted_upstream import BillLine, Received, Scripts, UpstreamProcess

CHEAP = {"input_usd_per_mtok": "0.10", "output_usd_per_mtok": "0.40"}
DEAR = {"input_usd_per_mtok": "0.30", "output_usd_per_mtok": "1.20"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """A gateway in front of a scripted upstream, each in processes of its own."""

    gateway: GatewayProcess
    upstream: UpstreamProcess

    def rows(self, request_id: str, attempts: int) -> list[LedgerRow]:
        """The ledger's rows of one request, once there are that many."""
        rows = wait_for_rows(
            self.gateway.database, attempts, where=lambda row: row.request_id == request_id
        )
        return sorted(rows, key=lambda row: row.attempt)

    def received(self, row: LedgerRow) -> Received:
        """What the upstream got for an attempt."""
        [found] = [
            request
            for request in self.upstream.requests()
            if request.headers.get("x-client-request-id") == row.event_id
        ]
        return found

    def bill_line(self, row: LedgerRow) -> BillLine:
        """What the upstream bills for an attempt."""
        [found] = [line for line in self.upstream.bill() if line.attempt_id == row.event_id]
        return found


@contextlib.contextmanager
def running_road(
    folder: Path,
    *,
    scripts: Scripts,
    config: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
) -> Iterator[Road]:
    """Run both; every provider of the configuration without a base URL gets the upstream's."""
    with UpstreamProcess(scripts, folder=folder) as upstream:
        config = json.loads(json.dumps(config))
        for provider in config["providers"].values():
            if provider["kind"] != "local":
                provider.setdefault("base_url", upstream.base_url)
        with GatewayProcess(folder / "gateway", config, environ) as gateway:
            yield Road(gateway=gateway, upstream=upstream)


def deployments(*listed: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A model's configuration from deployments and their prices."""
    return {"deployments": [{"deployment": name, "price": price} for name, price in listed]}


def events_of(body: bytes) -> Sequence[str]:
    """Payloads of a stream's data events."""
    return [
        event.removeprefix(b"data: ").decode()
        for event in body.split(b"\n\n")
        if event.startswith(b"data: ")
    ]


def readyz(gateway: GatewayProcess) -> tuple[int, dict[str, Any]]:
    """Status and body of `/readyz`."""
    try:
        with urllib.request.urlopen(f"{gateway.url}/readyz", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
