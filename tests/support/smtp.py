"""An SMTP server on loopback: STARTTLS, TLS from the start, AUTH PLAIN and LOGIN, and refusals."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP


@dataclass(slots=True, kw_only=True)
class Received:
    """A message as it came, with its envelope."""

    sender: str
    recipients: list[str]
    data: bytes
    user: str
    is_encrypted: bool

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.data, policy=SMTP)  # pyright: ignore[reportReturnType]


@dataclass(slots=True, kw_only=True)
class SmtpServer:
    """What a test works with.

    Attributes:
        port: Where it listens.
        received: Messages that were taken.
        refusals: Answers to the next messages in place of taking them.
        logins: Users and passwords that are let in; empty for no login.
    """

    port: int = 0
    received: list[Received] = field(default_factory=list)
    refusals: list[bytes] = field(default_factory=list)
    logins: dict[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    offers_starttls: bool = True


@asynccontextmanager
async def smtp_server(
    *,
    context: ssl.SSLContext | None = None,
    is_tls: bool = False,
    offers_starttls: bool = True,
    logins: dict[str, str] | None = None,
):
    """Run a server until the context is left."""
    held = SmtpServer(context=context, logins=logins or {}, offers_starttls=offers_starttls)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Talk(held, reader, writer, is_encrypted=is_tls).run()
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            return  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context if is_tls else None)
    held.port = server.sockets[0].getsockname()[1]
    try:
        yield held
    finally:
        server.close()


class _Talk:
    """One connection."""

    def __init__(self, held, reader, writer, *, is_encrypted: bool) -> None:
        self.held, self.reader, self.writer = held, reader, writer
        self.is_encrypted = is_encrypted
        self.user = self.sender = ""
        self.recipients: list[str] = []

    async def say(self, text: str) -> None:
        self.writer.write(text.encode() + b"\r\n")
        await self.writer.drain()

    async def run(self) -> None:
        await self.say("220 loopback ESMTP")
        while line := (await self.reader.readline()).decode().rstrip("\r\n"):
            verb, _, rest = line.partition(" ")
            answer = getattr(self, f"on_{verb.lower()}", None)
            if answer is None:
                await self.say("502 unknown")
            elif await answer(rest):
                return

    async def on_ehlo(self, _rest: str) -> None:
        await self.say("250-loopback")
        if self.held.context is not None and not self.is_encrypted and self.held.offers_starttls:
            await self.say("250-STARTTLS")
        if self.held.logins:
            await self.say("250-AUTH PLAIN")
        await self.say("250 SIZE 10000000")

    async def on_starttls(self, _rest: str) -> None:
        await self.say("220 go on")
        await self.writer.start_tls(self.held.context)
        self.is_encrypted = True

    async def on_auth(self, rest: str) -> None:
        _, user, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
        if self.held.logins.get(user) != password:
            await self.say("535 5.7.8 wrong")
            return
        self.user = user
        await self.say("235 welcome")

    async def on_mail(self, rest: str) -> None:
        self.sender, self.recipients = rest[6 : rest.index(">")], []
        is_let_in = not self.held.logins or self.user
        await self.say("250 ok" if is_let_in else "530 log in")

    async def on_rcpt(self, rest: str) -> None:
        self.recipients.append(rest[4 : rest.index(">")])
        await self.say("250 ok")

    async def on_data(self, _rest: str) -> None:
        await self.say("354 go on")
        data = await self.reader.readuntil(b"\r\n.\r\n")
        if self.held.refusals:
            await self.say(self.held.refusals.pop(0).decode())
            return
        self.held.received.append(
            Received(
                sender=self.sender.lstrip("<"),
                recipients=[one.lstrip("<") for one in self.recipients],
                data=data[:-3].replace(b"\r\n..", b"\r\n."),
                user=self.user,
                is_encrypted=self.is_encrypted,
            )
        )
        await self.say("250 taken")

    async def on_rset(self, _rest: str) -> None:
        await self.say("250 ok")

    async def on_noop(self, _rest: str) -> None:
        await self.say("250 ok")

    async def on_quit(self, _rest: str) -> bool:
        await self.say("221 bye")
        return True
