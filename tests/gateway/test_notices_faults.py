"""Notices where servers are slow or silent, and where the configuration changes meanwhile."""

from __future__ import annotations

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import pytest

from gateway.notices import outbox
from gateway.notices.mail import make_message, send_mail
from gateway.notices.messages import MailServer, SendStatement
from gateway.notices.outbox import Notice, Parcel
from gateway.notices.sender import NoticeSender
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_finance_close import MONTH, NOVEMBER_6, at
from tests.gateway.test_notices import books, declared, schedule, sending
from tests.support.smtp import smtp_server

pytestmark = pytest.mark.anyio


async def test_what_lies_behind_a_slow_server_is_sent_by_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.notices.sender._LOOK_MAX", 2)
    url = await books(tmp_path)
    clock = FakeClock(wall=NOVEMBER_6)
    everybody = tuple(f"{name}@example.com" for name in "abc")
    async with smtp_server() as smtp:
        wanted = declared(schedule(mail=everybody), port=smtp.port)
        async with (
            sending(url, tmp_path, clock, wanted) as sender,
            sending(url, tmp_path / "b", clock, wanted) as other,
        ):
            await sender.send_statement(SendStatement(actor="a", team="payments", period=MONTH))
            send = sender._send

            async def send_slowly(parcel: Parcel) -> str:
                failure = await send(parcel)
                clock.wall += outbox.CLAIM_US * 2 // 3
                if len(smtp.received) == 2:
                    await other.send_due()
                return failure

            sender._send = send_slowly
            while await sender.send_due():
                pass
        assert sorted(one.recipients[0] for one in smtp.received) == sorted(everybody)


async def test_a_mail_server_that_says_nothing_is_left_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.notices.sender.MAIL_S", 0.02)
    url = await books(tmp_path)
    is_over = anyio.Event()

    async def say_nothing(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await is_over.wait()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, say_nothing)
        wanted = declared(schedule(), port=port)
        async with sending(url, tmp_path, FakeClock(wall=NOVEMBER_6), wanted) as sender:
            await sender.send_statement(SendStatement(actor="a", team="payments", period=MONTH))
            assert await sender.send_due() == 1
            [one] = await sender.sent()
        assert one.failure == "it was not taken within 0.02 s"
        is_over.set()
        tasks.cancel_scope.cancel()


async def test_what_makes_no_message_is_a_failure_of_its_own():
    sender = NoticeSender(None, clock=FakeClock().clock)
    sender.declare(declared())
    broken = Notice(kind="statement", name="x", at_us=1, subject="s", body="\ud800", document={})
    failure = await sender._send(Parcel(notice=broken, recipient="mail:a@b.example", tries=0))
    assert failure.startswith("it makes no message: ")


async def test_a_team_that_a_schedule_gets_later_is_sent_what_is_due(tmp_path):
    url = await books(tmp_path)
    clock = FakeClock(wall=at("2026-10-18"))
    async with smtp_server() as smtp:
        weekly = schedule(name="weekly", every="week")
        async with sending(url, tmp_path, clock, declared(weekly, port=smtp.port)) as sender:
            await sender.look()
            clock.wall = at("2026-10-19")
            assert await sender.look() == 1
            more = msgspec.structs.replace(weekly, teams=("payments", "search"))
            sender.declare(declared(more, port=smtp.port))
            assert await sender.look() == 1
            assert await sender.look() == 0
        assert [one.message["Subject"].split()[3] for one in smtp.received] == [
            "payments,",
            "search,",
        ]


async def test_a_password_that_cannot_be_said_is_not_told():
    async with smtp_server(logins={"fareway": "x"}) as smtp:
        server = MailServer(
            host="127.0.0.1",
            port=smtp.port,
            security="none",
            sender="a@b.example",
            user="fareway",
            password="p\xe4ss",
        )
        notice = Notice(kind="statement", name="x", at_us=1, subject="s", body="b", document={})
        message = make_message(notice, sender="a@b.example", recipient="c@d.example")
        failure = await anyio.to_thread.run_sync(send_mail, server, message)
    assert failure == "ValueError: user and password of finance.mail have to be ASCII"
