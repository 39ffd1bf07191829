"""Section `egress`: where processes of this service may connect to, beside what is configured."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gateway.settings.scalars import Many, Section
from providers.addresses import why_refused

ALLOW_MAX = 256
_HOST = r"(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?"
_PLACE = re.compile(rf"(?P<host>{_HOST}|\[[0-9a-f:.]+\]):(?P<port>[0-9]{{1,5}})", re.ASCII)


def split_place(value: str) -> tuple[str, int]:
    """Host and port of `host:port`; the host without brackets.

    Raises:
        ValueError: It is none.
    """
    match = _PLACE.fullmatch(value.lower())
    port = 0 if match is None else int(match["port"])
    if match is None or not 1 <= port <= 65_535:
        raise ValueError("must be host:port, such as plugins.example.com:443 or [fd00::7]:8080")
    return match["host"].strip("[]"), port


def _check_place(value: str) -> str:
    host, port = split_place(value)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if re.fullmatch(r"[0-9.]+", host):
            raise ValueError(f"{host} is no address") from None
        name = host.removeprefix("*.")
        if "*" in host and "." not in name:
            raise ValueError("a * stands for names below a domain of one's own") from None
        return f"{host.rstrip('.')}:{port}"
    reason = why_refused(host)
    if reason is not None:
        raise ValueError(f"{host} {reason}, and is refused whatever this says")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


Place = Annotated[str, AfterValidator(_check_place)]
"""`host:port`; a name may begin with `*.` for all names below it."""


class EgressSettings(Section):
    """The guard around every process of this service."""

    mode: Literal["enforce", "observe"] = "enforce"
    """`enforce` refuses connections off the list; `observe` lets them pass, and counts and logs
    them. The permit of each request is enforced either way."""
    allow: Many[Place] = Field(default=(), max_length=ALLOW_MAX)
    """What plug-ins of one's own need: `host:port`, or `*.domain:port`."""
