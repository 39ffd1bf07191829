"""Alerts: one per crossing, signed, tried until they are taken, whatever is restarted meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import anyio
import pytest
import sqlalchemy as sa
from aiohttp import web

from gateway.budgets.messages import AlertWebhook, BudgetDeclarations
from gateway.ledger.alert_sender import AlertSender
from gateway.ledger.budget_alerts import GIVE_UP_US
from gateway.ledger.budget_schema import alert_delivery, budget_alert
from gateway.ledger.errors import DatabaseUnavailable, UnusableDatabase
from gateway.ledger.signed_post import post_signed
from tests.gateway.ledger_samples import FakeClock, intent, make_database, open_spool, settlement
from tests.gateway.test_ledger_budgets import COST, EXPOSURE, budget, serving

pytestmark = pytest.mark.anyio

SECRET = b"what-signs-the-alerts"


@dataclass
class Receiver:
    """A webhook on loopback: what it got, and what it answers."""

    port: int = 0
    status: int = 204
    on_take: Callable[[], None] = lambda: None
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def webhook(self, name: str = "finance") -> AlertWebhook:
        return AlertWebhook(name=name, url=f"http://127.0.0.1:{self.port}/hook", secret=SECRET)

    async def take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((headers, await request.read()))
        self.on_take()
        return web.Response(status=self.status, headers={"location": "/elsewhere"})


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/{tail:.*}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@asynccontextmanager
async def spending(tmp_path, clock, receiver: Receiver | None = None, **changes):
    """A service with one budget, and a function that spends `COST` so often."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if not (tmp_path / "ledger.db").exists():
        make_database(tmp_path)
    async with serving(url, tmp_path, clock) as service:
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        webhooks = () if receiver is None else (receiver.webhook(),)
        declared = budget(**({"limit_pico_usd": 10 * COST} | changes))
        await service.set_budgets(BudgetDeclarations(budgets=(declared,), webhooks=webhooks))
        service.count = 0

        async def spend(times: int = 1, **fields) -> None:
            for _ in range(times):
                service.count += 1
                n = service.count
                spool.append(intent(n, at_us=clock.wall))
                spool.append(settlement(n, **fields))
            await service.flush()

        yield service, spend
        await spool.close()


async def crossings(service) -> list[tuple[int, bool]]:
    """Threshold, and whether it stands, of every crossing."""
    async with service._reader.connect() as connection:
        rows = await connection.execute(
            sa.select(budget_alert.c.percent, budget_alert.c.cleared_at_us).order_by(
                budget_alert.c.id
            )
        )
        return [(percent, cleared is None) for percent, cleared in rows.all()]


async def deliveries(service) -> list[tuple[int, bool, bool, str]]:
    """Tries, whether due, whether delivered and the last failure, of every delivery."""
    async with service._reader.connect() as connection:
        rows = await connection.execute(
            sa.select(
                alert_delivery.c.tries,
                alert_delivery.c.next_try_at_us,
                alert_delivery.c.delivered_at_us,
                alert_delivery.c.failure,
            ).order_by(alert_delivery.c.alert_id)
        )
        return [(row[0], row[1] is not None, row[2] is not None, row[3]) for row in rows.all()]


async def test_each_threshold_is_crossed_once_in_a_window(tmp_path, clock):
    async with spending(tmp_path, clock) as (service, spend):
        await spend(4)
        assert await crossings(service) == []
        await spend()
        assert await crossings(service) == [(50, True)]
        await spend(3)
        await spend(4)
        assert await crossings(service) == [(50, True), (80, True), (100, True)]


async def test_a_bill_that_is_unknown_counts_with_its_upper_bound(tmp_path, clock):
    async with spending(tmp_path, clock, limit_pico_usd=EXPOSURE) as (service, spend):
        await spend(
            status="unknown_billing", quality="unknown", lines=(), cost_pico_usd=0, usage={}
        )
        assert await crossings(service) == [(50, True), (80, True), (100, True)]


async def test_a_threshold_is_crossed_again_only_after_use_fell_well_below_it(tmp_path, clock):
    async with spending(tmp_path, clock, alerts_at=(50,)) as (service, spend):
        await spend(5)

        async def limit(times: int) -> None:
            declared = budget(limit_pico_usd=times * COST, alerts_at=(50,))
            await service.set_budgets(BudgetDeclarations(budgets=(declared,)))

        await limit(11)  # 45.45 %: below the threshold, and not by five points
        await limit(10)
        assert await crossings(service) == [(50, True)]
        await limit(12)
        assert await crossings(service) == [(50, False)]
        await limit(10)
        assert await crossings(service) == [(50, False), (50, True)]


async def test_a_budget_without_thresholds_tells_nothing(tmp_path, clock):
    async with spending(tmp_path, clock, alerts_at=()) as (service, spend):
        await spend(20)
        assert await crossings(service) == []


async def test_an_alert_is_posted_once_and_signed(tmp_path, clock):
    async with receiving() as receiver, spending(tmp_path, clock, receiver) as (service, spend):
        await spend(5)
        assert await service._alerts.send_due() == 1
        assert await service._alerts.send_due() == 0
        ((headers, body),) = receiver.got
        timestamp = headers["x-fareway-timestamp"]
        assert int(timestamp) == clock.wall // 1_000_000
        digest = hmac.new(SECRET, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        assert headers["x-fareway-signature"] == f"v1={digest}"
        document = json.loads(body)
        assert document["id"] == headers["x-fareway-alert-id"] == "alert-1"
        assert (document["type"], document["percent"]) == ("budget.threshold", 50)
        assert (document["budget"], document["team"]) == ("team", "payments")
        assert (document["limit_usd"], document["spent_usd"]) == ("0.00005", "0.000025")
        assert await deliveries(service) == [(1, False, True, "")]


async def test_an_alert_is_tried_with_growing_pauses_until_it_is_taken(tmp_path, clock):
    async with receiving() as receiver, spending(tmp_path, clock, receiver) as (service, spend):
        receiver.status = 500
        await spend(5)
        pauses = []
        for _ in range(4):
            before = clock.wall
            while not await service._alerts.send_due():
                clock.pass_s(1)
            pauses.append((clock.wall - before) / 1e6)
        assert pauses == [0, 5, 10, 20]
        assert await deliveries(service) == [(4, True, False, "it answered 500")]
        receiver.status = 200
        clock.pass_s(40)
        await service._alerts.send_due()
        assert (await deliveries(service))[0][:3] == (5, False, True)


async def test_a_redirect_is_not_followed(tmp_path, clock):
    async with receiving() as receiver, spending(tmp_path, clock, receiver) as (service, spend):
        receiver.status = 307
        await spend(5)
        await service._alerts.send_due()
        assert len(receiver.got) == 1
        assert await deliveries(service) == [(1, True, False, "it answered 307")]


async def test_an_alert_that_nobody_takes_is_given_up_in_the_end(tmp_path, clock):
    receiver = Receiver(port=9)  # nobody listens there
    async with spending(tmp_path, clock, receiver) as (service, spend):
        await spend(5)
        clock.pass_s(GIVE_UP_US / 1e6)
        assert await service._alerts.send_due() == 1
        ((tries, is_due, is_delivered, failure),) = await deliveries(service)
        assert (tries, is_due, is_delivered) == (1, False, False)
        assert failure.startswith("ClientConnectorError")


async def test_a_restart_loses_no_alert_and_repeats_none(tmp_path, clock):
    async with receiving() as receiver:
        async with spending(tmp_path, clock, receiver) as (_, spend):
            await spend(5)
        assert receiver.got == []
        async with spending(tmp_path, clock, receiver) as (service, _):
            assert await service._alerts.send_due() == 1
        async with spending(tmp_path, clock, receiver) as (service, _):
            clock.pass_s(3_600)
            assert await service._alerts.send_due() == 0
        assert len(receiver.got) == 1


async def test_a_webhook_that_is_taken_out_hears_nothing_more(tmp_path, clock):
    receiver = Receiver(port=9)
    async with spending(tmp_path, clock, receiver) as (service, spend):
        await spend(5)
        await service.set_budgets(BudgetDeclarations(budgets=(budget(limit_pico_usd=10 * COST),)))
        assert await service._alerts.send_due() == 0
        assert await deliveries(service) == [
            (0, False, False, "the webhook is no longer configured")
        ]


async def test_a_webhook_of_another_machine_is_left_to_it(tmp_path, clock):
    async with spending(tmp_path, clock, Receiver(port=9)) as (service, spend):
        await spend(5)
        service._alerts.set_webhooks(())
        assert await service._alerts.send_due() == 1
        ((_, is_due, _, failure),) = await deliveries(service)
        assert is_due
        assert failure == "the webhook is not configured on this machine"


async def test_alerts_are_looked_for_while_the_service_runs(tmp_path, clock):
    async with receiving() as receiver, spending(tmp_path, clock, receiver) as (service, spend):
        service._alerts._poll_s = 0.01
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run)
            await spend(5)
            with anyio.fail_after(20):
                while not receiver.got:
                    await anyio.sleep(0.01)
            service._loader.stop()
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "outage", [DatabaseUnavailable("locked"), UnusableDatabase("no such user")]
)
async def test_an_outage_of_the_database_only_delays_alerts(clock, outage):
    looks = []

    async def away(_run):
        looks.append(1)
        raise outage

    sender = AlertSender(away, away, clock=clock.clock, poll_s=0.001)
    sender.set_webhooks((Receiver(port=9).webhook(),))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.run)
        with anyio.fail_after(20):
            while len(looks) < 3:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()


async def test_alerts_behind_a_slow_webhook_are_posted_by_one_machine(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("gateway.ledger.alert_sender._LOOK_MAX", 2)
    async with receiving() as receiver, spending(tmp_path, clock, receiver) as (service, spend):
        await spend(10)
        other = AlertSender(service._read, service._write, clock=clock.clock)
        other.set_webhooks((receiver.webhook(),))
        # The second answer comes later than a claim lasts.
        receiver.on_take = lambda: clock.pass_s(40 if len(receiver.got) <= 2 else 0)
        post = service._alerts._post

        async def post_and_look(session, webhook, delivery):
            failure = await post(session, webhook, delivery)
            if len(receiver.got) == 2:
                await other.send_due()
            return failure

        service._alerts._post = post_and_look
        while await service._alerts.send_due():
            pass
        ids = [headers["x-fareway-alert-id"] for headers, _ in receiver.got]
        assert sorted(ids) == ["alert-1", "alert-2", "alert-3"]


async def test_what_is_told_of_a_webhook_that_speaks_no_http_hides_where_it_is() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = AlertWebhook(name="chat", url=f"http://127.0.0.1:{port}/T0/s3cret", secret=SECRET)
    async with server, aiohttp.ClientSession() as session:
        failure = await post_signed(session, hook, message_id="1", document={}, timestamp_s=1)
    assert failure.startswith("it answered no HTTP: ")
    assert "s3cret" not in failure


async def test_a_webhook_whose_host_cannot_be_looked_up_ends_nothing(tmp_path, clock):
    hook = AlertWebhook(name="finance", url="http://hooks..example/h", secret=SECRET)
    async with spending(tmp_path, clock, Receiver(port=9)) as (service, spend):
        service._alerts.set_webhooks((hook,))
        await spend(5)
        assert await service._alerts.send_due() == 1
        ((_, is_due, _, failure),) = await deliveries(service)
        assert is_due
        assert failure.startswith("Unicode")
