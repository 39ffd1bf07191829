"""A reload: places of the new configuration before it is served, those of the old one gone after."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.channel import ChannelError, RemoteError
from gateway.clock import system_clock
from gateway.process.egress_board import EgressBoard
from gateway.process.worker import _egress_series
from tests.gateway.settings_text import load_settings, warnings_of

pytestmark = pytest.mark.anyio

OLD = load_settings('storage: {redis: "redis://one.internal/0"}')
NEW = load_settings(
    'alerts: {webhooks: [{name: w, url: "https://hooks.example.com/x", secret_env: W}]}'
)


class Ledger:
    """A ledger process that notes what it is told."""

    def __init__(self, fault: ChannelError | None = None) -> None:
        self.told: list[set[str]] = []
        self.killed = 0
        self.fault = fault
        self.channel = SimpleNamespace(call=self._call)
        self.process = SimpleNamespace(kill=self._kill)

    async def _call(self, name, listed, *, result_type, timeout_s):
        assert name == "set_egress"
        if self.fault is not None:
            raise self.fault
        self.told.append({place.host for place in listed.places})

    def _kill(self) -> None:
        self.killed += 1


def board(ledger: Ledger | None) -> EgressBoard:
    async def ready():
        if ledger is None:
            raise RemoteError("ledger_unavailable", "it is being started")
        return ledger

    return EgressBoard(OLD, {}, system_clock(), ready)


def hosts(made: EgressBoard) -> set[str]:
    return {place.host for place in made.ledger_list.places}


async def test_both_lists_count_while_it_is_decided_and_the_new_one_after():
    ledger = Ledger()
    made = board(ledger)
    seen: list[set[str]] = []

    async def serve(loaded):
        assert loaded is NEW
        seen.append(hosts(made))

    assert hosts(made) == {"one.internal"}
    await made.replace(serve, NEW)
    assert seen == [{"one.internal", "hooks.example.com"}]
    assert hosts(made) == {"hooks.example.com"}
    assert ledger.told == [*seen, {"hooks.example.com"}]
    await made.replace(serve, NEW)
    assert len(ledger.told) == 2, "the same list is not told again"


async def test_a_configuration_that_cannot_be_served_leaves_the_old_list():
    ledger = Ledger()
    made = board(ledger)

    async def fail(_loaded):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await made.replace(fail, NEW)
    assert hosts(made) == {"one.internal"}
    assert ledger.told[-1] == {"one.internal"}


async def test_a_ledger_process_that_is_away_hears_it_at_its_start():
    made = board(None)

    async def serve(_loaded):
        return None

    await made.replace(serve, NEW)
    assert hosts(made) == {"hooks.example.com"}, "its order has it"


async def test_a_ledger_process_that_cannot_be_told_is_ended():
    """It would go on connecting where it may no longer."""
    ledger = Ledger(fault=ChannelError("it hangs"))
    made = board(ledger)

    async def serve(_loaded):
        return None

    await made.replace(serve, NEW)
    assert ledger.killed >= 1


def test_a_worker_counts_what_its_guard_refused():
    [series] = _egress_series()
    assert (series.family, series.labels) == ("fareway_egress_refusals_total", ("process",))
    assert series.values == [0]


def test_a_guard_that_only_observes_is_warned_of():
    [warning] = warnings_of(load_settings("egress: {mode: observe}"))
    assert "egress.mode" in warning
    assert "refuses no connection" in warning
