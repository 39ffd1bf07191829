"""A notice as e-mail, and handing it to the server (SMTP submission, RFC 6409).

`smtplib` blocks, so it runs in a thread with a deadline of its own. The server's certificate is
always checked; with `starttls` nothing is said before TLS, and without it nothing is sent.
"""

from __future__ import annotations

import smtplib
import ssl
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from gateway.notices.messages import MailServer
from gateway.notices.outbox import Notice

TIMEOUT_S = 30.0
"""For each step of the conversation."""
_FAILURE_CHARACTERS_MAX = 200
_US = 1_000_000


def make_message(notice: Notice, *, sender: str, recipient: str) -> EmailMessage:
    """The message; the same for every try, its id too, so that a second one is known as such.

    Args:
        notice: What it says.
        sender: Address.
        recipient: Address.
    """
    message = EmailMessage(policy=SMTP)
    # A line break in a header would begin another one; the policy refuses it, we never have one.
    message["Subject"] = _one_line(notice.subject)
    message["From"] = sender
    message["To"] = recipient
    message["Date"] = format_datetime(datetime.fromtimestamp(notice.at_us // _US, tz=UTC))
    domain = sender.rpartition("@")[2]
    message["Message-ID"] = f"<fareway-notice-{notice.notice_id}-{notice.at_us}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notice.body)
    for one in notice.attachments:
        main, _, sub = one.media_type.partition("/")
        message.add_attachment(
            one.text.encode(), maintype=main, subtype=sub, filename=_one_line(one.name)
        )
    return message


def send_mail(server: MailServer, message: EmailMessage) -> str:
    """Hand a message to the server; why it was not taken, empty when it was. Blocks."""
    try:
        with _connected(server) as client:
            client.send_message(message)
    except (smtplib.SMTPException, OSError, ValueError) as error:
        return f"{type(error).__name__}: {_told(error)}"[:_FAILURE_CHARACTERS_MAX]
    return ""


def _connected(server: MailServer) -> smtplib.SMTP:
    context = ssl.create_default_context(cafile=server.ca_file or None)
    if server.security == "tls":
        client: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, server.port, timeout=TIMEOUT_S, context=context
        )
    else:
        client = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
    try:
        if server.security == "starttls":
            client.starttls(context=context)  # refuses to go on where the server has none
        if server.user:
            if not f"{server.user}{server.password}".isascii():
                # Else the library's error would tell a character of the password.
                raise ValueError("user and password of finance.mail have to be ASCII")
            client.login(server.user, server.password)
    except BaseException:
        client.close()
        raise
    return client


def _told(error: Exception) -> str:
    """What the server said, never what we said to it: that could hold the password."""
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        return _one_line(f"{error.smtp_code} {text}")
    return _one_line(str(error))


def _one_line(text: str) -> str:
    """Text without what could begin another line or disturb a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
