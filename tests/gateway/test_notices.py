"""Statements that go out by themselves: once each, to every recipient, until they are taken."""

from __future__ import annotations

import csv
import io
import json
import ssl
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import anyio
import msgspec
import pytest
import sqlalchemy as sa

from gateway.budgets.messages import AlertWebhook
from gateway.budgets.signatures import signature
from gateway.finance.close import close_month
from gateway.finance.errors import Refused
from gateway.finance.statement_books import load_statement, teams_of
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_messages import ShowStatement, days_of, week_of
from gateway.ledger.notice_tables import notice_delivery
from gateway.ledger.service import LedgerService
from gateway.ledger.views import CostCentre
from gateway.notices import outbox
from gateway.notices.mail import make_message
from gateway.notices.messages import MailServer, NoticeDeclarations, Schedule, SendStatement
from gateway.notices.outbox import Attachment, Notice
from gateway.notices.schedules import due_periods, end_of
from gateway.notices.sender import NoticeSender
from tests.gateway.finance_books import DAY_US, attempt, load, write, writing
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_finance_close import ALL, MONTH, NOVEMBER_6, USD, at, order, sound
from tests.gateway.test_finance_journal import adjust
from tests.gateway.test_ledger_alerts import SECRET, receiving
from tests.support.smtp import smtp_server

pytestmark = pytest.mark.anyio

TLS = Path(__file__).parent.parent / "providers" / "transport_tls"
COST = 2_500_000 * 1_000_000
CENTRES = (CostCentre("payments", "", "4711"), CostCentre("payments", "fraud", "4711-F"))


def schedule(**changes) -> Schedule:
    values = {
        "name": "monthly",
        "teams": ("payments",),
        "every": "month",
        "after": "close",
        "mail": ("cfo@example.com",),
        "webhooks": (),
    }
    return Schedule(**(values | changes))


def declared(*schedules: Schedule, port: int = 1, **changes) -> NoticeDeclarations:
    values = {
        "organisation": "Acme",
        "cost_centres": CENTRES,
        "schedules": schedules,
        "mail": MailServer(
            host="127.0.0.1", port=port, security="none", sender="billing@acme.example"
        ),
    }
    return NoticeDeclarations(**(values | changes))


@asynccontextmanager
async def sending(url: str, folder, clock: FakeClock, wanted: NoticeDeclarations):
    service = LedgerService(url, folder / "spool", clock=clock.clock)
    await service.start()
    sender = NoticeSender(service, clock=clock.clock, poll_s=0.01)
    sender.declare(wanted)
    try:
        yield sender
    finally:
        await service.stop(drain=False)


async def books(folder, *, is_closed: bool = True, now_us: int = NOVEMBER_6) -> str:
    """October with two teams and an adjustment."""
    url = await write(folder, [attempt(1), attempt(2, team="search"), attempt(3, project="web")])
    engine = writing(url)
    with engine.begin() as connection:
        adjust(connection, ("payments", -USD), ("search", USD), kind="allocation")
        if is_closed:
            close_month(connection, order(accepted=ALL), sound(), now_us=now_us)
    engine.dispose()
    return url


async def test_a_closed_month_is_sent_once_on_the_day_after_by_mail_and_webhook(tmp_path):
    url = await books(tmp_path, is_closed=False)
    clock = FakeClock(wall=NOVEMBER_6 - DAY_US)
    async with smtp_server() as smtp, receiving() as receiver:
        hook = AlertWebhook(
            name="finance", url=f"http://127.0.0.1:{receiver.port}/hook", secret=SECRET
        )
        wanted = declared(schedule(webhooks=("finance",)), port=smtp.port, webhooks=(hook,))
        async with sending(url, tmp_path, clock, wanted) as sender:
            assert await sender.look() == 0
            engine = writing(url)
            with engine.begin() as connection:
                close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
            clock.wall = NOVEMBER_6 + 3_600 * 10**6
            assert await sender.look() == 0
            clock.wall = NOVEMBER_6 + DAY_US
            assert await sender.look() == 2
            assert await sender.look() == 0
        async with sending(url, tmp_path, clock, wanted) as sender:  # after a restart
            assert await sender.look() == 0
            told = await sender.sent()
        assert {one.recipient for one in told} == {"mail:cfo@example.com", "webhook:finance"}
        assert all(one.delivered_at_us == clock.wall and not one.failure for one in told)
        [received] = smtp.received
        message = received.message
        assert (received.sender, received.recipients) == (
            "billing@acme.example",
            ["cfo@example.com"],
        )
        assert message["Subject"] == "Acme: statement of payments, 2026-10"
        assert message["Message-ID"].endswith("@acme.example>")
        assert parsedate_to_datetime(message["Date"]).year == 2026
        body = message.get_body(("plain",)).get_content()
        assert "Charged: 4.00 USD" in body
        assert "closed: final" in body
        files = {one.get_filename(): one for one in message.iter_attachments()}
        text = files["statement-2026-10.csv"].get_content()
        text = text if isinstance(text, str) else text.decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        assert sum(int(row["amount_pico_usd"]) for row in rows[:-1]) == 2 * COST - USD
        assert (rows[-1]["kind"], rows[-1]["amount_usd"]) == ("total", "4")
        page = files["statement-2026-10.html"].get_content()
        page = page if isinstance(page, str) else page.decode()
        assert "4711-F" in page
        assert "<script" not in page
        [(headers, posted)] = receiver.got
        stamp = int(headers["x-fareway-timestamp"])
        assert headers["x-fareway-signature"] == signature(SECRET, stamp, posted)
        document = json.loads(posted)
        assert (document["type"], document["charged_pico_usd"]) == (
            "statement.ready",
            2 * COST - USD,
        )
        assert [one["name"] for one in document["attachments"]] == [*files]
        assert document["attachments"][0]["text"] == statement_csv_of(url, "payments")


def statement_csv_of(url: str, team: str) -> str:
    query = ShowStatement(team=team, period=MONTH, organisation="Acme", cost_centres=CENTRES)
    with writing(url).connect() as connection:
        return statement_csv(load_statement(connection, query, now_us=1))


async def test_what_is_not_taken_is_tried_again_with_growing_pauses_until_it_is_given_up(tmp_path):
    url = await books(tmp_path)
    clock = FakeClock(wall=NOVEMBER_6)
    async with smtp_server() as smtp:
        wanted = declared(schedule(), port=smtp.port)
        async with sending(url, tmp_path, clock, wanted) as sender:
            asked = SendStatement(actor="ann", team="payments", period=MONTH)
            assert await sender.send_statement(asked) == 1
            with pytest.raises(Refused, match="sent already; --again"):
                await sender.send_statement(asked)
            smtp.refusals = [b"451 later, please", b"554 no"]
            assert await sender.send_due() == 1
            [one] = await sender.sent()
            assert one.failure == "SMTPDataError: 451 later, please"
            assert one.next_try_at_us == clock.wall + outbox.FIRST_RETRY_US
            assert await sender.send_due() == 0
            clock.wall += outbox.FIRST_RETRY_US
            assert await sender.send_due() == 1
            [one] = await sender.sent()
            assert one.next_try_at_us == clock.wall + 2 * outbox.FIRST_RETRY_US
            clock.wall += 2 * outbox.FIRST_RETRY_US
            assert await sender.send_due() == 1
            [one] = await sender.sent()
            assert (one.tries, one.failure, one.next_try_at_us) == (3, "", None)
            assert len(smtp.received) == 1
            again = msgspec.structs.replace(asked, is_again=True)
            assert await sender.send_statement(again) == 1
            smtp.refusals = [b"554 no"]
            clock.wall += outbox.GIVE_UP_US
            assert await sender.send_due() == 1
            [second, _] = await sender.sent()
            assert (second.next_try_at_us, second.failure) == (None, "SMTPDataError: 554 no")


@pytest.mark.parametrize(
    ("security", "is_tls"), [("starttls", False), ("tls", True)], ids=["STARTTLS", "TLS"]
)
async def test_mail_goes_out_over_tls_with_a_login(tmp_path, security, is_tls):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "upstream.pem", TLS / "upstream.key")
    url = await books(tmp_path)
    async with smtp_server(context=context, is_tls=is_tls, logins={"fareway": "s3cret"}) as smtp:
        server = MailServer(
            host="localhost",
            port=smtp.port,
            security=security,
            sender="billing@acme.example",
            user="fareway",
            password="s3cret",
            ca_file=str(TLS / "authority.pem"),
        )
        wanted = declared(schedule(), mail=server)
        async with sending(url, tmp_path, FakeClock(wall=NOVEMBER_6), wanted) as sender:
            await sender.send_statement(SendStatement(actor="a", team="payments", period=MONTH))
            assert await sender.send_due() == 1
            [received] = smtp.received
            assert (received.user, received.is_encrypted) == ("fareway", True)
            assert "s3cret" not in repr(server)
            refused = {
                "a wrong password": {"password": "no"},
                "a certificate that nobody vouches for": {"ca_file": ""},
                "certificates that are not there": {"ca_file": str(tmp_path / "none.pem")},
            }
            for changes in refused.values():
                sender.declare(
                    declared(schedule(), mail=msgspec.structs.replace(server, **changes))
                )
                again = SendStatement(actor="a", team="payments", period=MONTH, is_again=True)
                await sender.send_statement(again)
                assert await sender.send_due() == 1
                newest = (await sender.sent())[0]
                assert newest.failure
                assert "s3cret" not in newest.failure
            assert len(smtp.received) == 1


async def test_without_tls_nothing_is_said_to_a_server_that_should_have_it(tmp_path):
    url = await books(tmp_path)
    async with smtp_server(logins={"fareway": "s3cret"}) as smtp:
        server = MailServer(
            host="127.0.0.1",
            port=smtp.port,
            security="starttls",
            sender="billing@acme.example",
            user="fareway",
            password="s3cret",
        )
        wanted = declared(schedule(), mail=server)
        async with sending(url, tmp_path, FakeClock(wall=NOVEMBER_6), wanted) as sender:
            await sender.send_statement(SendStatement(actor="a", team="payments", period=MONTH))
            assert await sender.send_due() == 1
            [one] = await sender.sent()
        assert "STARTTLS extension not supported" in one.failure
        assert smtp.received == []


@pytest.mark.slow
async def test_two_machines_make_and_send_one(tmp_path, postgres_url):
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(postgres_url, tmp_path / "spool", clock=clock.clock)
    await service.start()
    await service.stop(drain=False)
    async with smtp_server() as smtp:
        wanted = declared(schedule(after="end"), port=smtp.port)
        async with (
            sending(postgres_url, tmp_path / "a", clock, wanted) as one,
            sending(postgres_url, tmp_path / "b", clock, wanted) as other,
        ):
            assert await one.look() == await other.look() == 0
            clock.wall = at("2026-12-01")

            async with anyio.create_task_group() as tasks:
                for sender in (one, other):
                    tasks.start_soon(sender.look)
            await one.look()
            await other.look()
        [received] = smtp.received
        assert received.message["Subject"] == "Acme: statement of payments, 2026-11"


async def test_the_sender_runs_until_it_is_stopped_and_survives_a_database_that_is_away(tmp_path):
    url = await books(tmp_path)
    clock = FakeClock(wall=NOVEMBER_6)
    async with (
        smtp_server() as smtp,
        sending(url, tmp_path, clock, declared(port=smtp.port)) as sender,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sender.run)
        await anyio.sleep(0.03)
        with writing(url).begin() as connection:
            connection.exec_driver_sql("ALTER TABLE period_close RENAME TO gone")
        sender.declare(declared(schedule(teams=()), port=smtp.port))
        await anyio.sleep(0.3)
        with writing(url).begin() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO period_close")
        await sender.send_statement(SendStatement(actor="a", team="search", period=MONTH))
        with anyio.fail_after(10):
            while not smtp.received:
                await anyio.sleep(0.02)
        sender.declare(declared(port=smtp.port))
        sender.stop()


async def test_who_is_not_configured_any_more_is_told_nothing(tmp_path):
    url = await books(tmp_path)
    wanted = declared(schedule(webhooks=("gone",)), mail=None)
    async with sending(url, tmp_path, FakeClock(wall=NOVEMBER_6), wanted) as sender:
        await sender.send_statement(SendStatement(actor="a", team="payments", period=MONTH))
        assert await sender.send_due() == 2
        failures = {one.recipient: one.failure for one in await sender.sent()}
    assert failures == {
        "mail:cfo@example.com": "finance.mail is not configured on this machine",
        "webhook:gone": "the webhook is not configured on this machine",
    }


async def test_what_nobody_asked_for_or_is_not_over_is_not_sent(tmp_path):
    url = await books(tmp_path)
    async with sending(url, tmp_path, FakeClock(wall=NOVEMBER_6), declared(schedule())) as sender:
        with pytest.raises(Refused, match="sends team 'search' a statement each month"):
            await sender.send_statement(SendStatement(actor="a", team="search", period=MONTH))
        with pytest.raises(Refused, match="2026-11 is not over"):
            await sender.send_statement(SendStatement(actor="a", team="payments", period="2026-11"))
        with pytest.raises(Refused, match="each week"):
            await sender.send_statement(
                SendStatement(actor="a", team="payments", period="2026-W43")
            )


async def test_a_week_goes_to_every_team_with_usage_or_corrections_in_it(tmp_path):
    url = await books(tmp_path)
    clock = FakeClock(wall=at("2026-10-18"))
    async with smtp_server() as smtp:
        weekly = schedule(name="weekly", teams=(), every="week")
        async with sending(url, tmp_path, clock, declared(weekly, port=smtp.port)) as sender:
            assert await sender.look() == 0
            clock.wall = at("2026-10-19")
            assert await sender.look() == 2
        subjects = sorted(one.message["Subject"] for one in smtp.received)
        assert subjects == [
            "Acme: statement of payments, 2026-W42",
            "Acme: statement of search, 2026-W42",
        ]
        body = smtp.received[0].message.get_body(("plain",)).get_content()
        assert "corrections" not in body


DUE = {
    "nothing before the day after the close": ("close", {MONTH: 100}, 0, 200, []),
    "a month from the day after its close": ("close", {MONTH: 100}, 0, DAY_US, [MONTH]),
    "no month that was closed before the schedule": ("close", {MONTH: 100}, 101, DAY_US, []),
}


@pytest.mark.parametrize(
    ("after", "closed", "seen", "now", "periods"), DUE.values(), ids=DUE.keys()
)
def test_what_is_due(after, closed, seen, now, periods):
    found = due_periods(schedule(after=after), closed, seen_at_us=seen, now_us=now)
    assert list(found) == periods


def test_ended_months_and_weeks_are_due_at_their_end():
    seen, now = at("2026-10-15"), at("2026-12-01")
    monthly = schedule(after="end")
    assert [*due_periods(monthly, {}, seen_at_us=seen, now_us=now)] == ["2026-10", "2026-11"]
    assert [*due_periods(monthly, {}, seen_at_us=seen, now_us=now - 1)] == ["2026-10"]
    weeks = [*due_periods(schedule(every="week"), {}, seen_at_us=seen, now_us=at("2026-11-02"))]
    assert weeks == ["2026-W42", "2026-W43", "2026-W44"]
    assert end_of("2026-W44") == at("2026-11-02")
    assert days_of("2026-W53")[1].isoformat() == "2027-01-03"
    assert week_of(days_of("2026-W01")[0]) == "2026-W01"
    with pytest.raises(Refused, match="no month such as"):
        days_of("2025-W53")


def test_names_that_would_begin_another_header_stay_in_theirs():
    notice = Notice(
        kind="statement",
        name="x",
        at_us=NOVEMBER_6,
        subject="a\r\nBcc: everybody@example.com\x1b",
        body="b",
        document={},
        attachments=(Attachment(name='x"\r\n.csv', media_type="text/csv", text="=1"),),
    )
    message = make_message(notice, sender="a@b.example", recipient="c@d.example")
    assert message["Bcc"] is None
    raw = message.as_bytes()
    assert b"\r\nBcc" not in raw
    assert message["To"] == "c@d.example"


async def test_a_statement_tells_late_usage_in_both_months(tmp_path):
    url = await books(tmp_path)
    more = [attempt(9), attempt(10, at_us=at("2026-11-07"), project="web")]
    await load(tmp_path, url, more, clock=FakeClock(), session=2)
    with writing(url).connect() as connection:
        query = ShowStatement(
            team="payments", period=MONTH, organisation="Acme", cost_centres=CENTRES
        )
        october = load_statement(connection, query, now_us=1)
        assert (october.state, october.counted_later_pico_usd) == ("closed", COST)
        assert october.sums.total_pico_usd == 2 * COST - USD
        november = load_statement(
            connection, msgspec.structs.replace(query, period="2026-11"), now_us=1
        )
        [late] = november.late
        assert (late.month, late.amount_pico_usd, late.project) == (MONTH, COST, "fraud")
        assert november.sums.total_pico_usd == 2 * COST
        hidden = msgspec.structs.replace(query, teams=("search",))
        assert load_statement(connection, hidden, now_us=1).sums.total_pico_usd == 0
        assert teams_of(connection, MONTH) == ("payments", "search")
        for statement in (october, november):
            rows = list(csv.DictReader(io.StringIO(statement_csv(statement), newline="")))
            amounts = [int(row["amount_pico_usd"]) for row in rows]
            assert sum(amounts[:-1]) == amounts[-1] == statement.sums.total_pico_usd


async def test_a_delivery_that_is_over_is_not_changed_any_more(tmp_path):
    url = await books(tmp_path)
    made = Notice(kind="statement", name="x", at_us=1, subject="s", body="b", document={})
    with writing(url).begin() as connection:
        assert outbox.make(connection, made, ["mail:a@b.example"])
        assert not outbox.make(connection, made, ["mail:a@b.example"])
        [parcel] = outbox.claim(connection, now_us=2, count=5)
        assert outbox.claim(connection, now_us=3, count=5) == ()
        outbox.note(connection, parcel, "", now_us=4)
        outbox.note(connection, parcel, "late failure", now_us=5)
        row = connection.execute(sa.select(notice_delivery)).one()
        assert (row.delivered_at_us, row.failure, row.next_try_at_us) == (4, "", None)
