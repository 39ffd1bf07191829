"""E-mail addresses, phone numbers and IP addresses.

Ordinary text holds them, so each has a threshold: it is their number that tells a list of customers
from a letter. Addresses that nobody has (RFC 2606, 3849, 5737) and private ones do not count.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from gateway.detect.budget import Budget
from gateway.detect.hits import ALPHANUMERIC, DIGITS, Hit, Rule
from gateway.detect.linear import Pattern

EMAIL = "email"
PHONE = "phone_number"
IP_ADDRESS = "ip_address"
CONTACTS = frozenset({EMAIL, PHONE, IP_ADDRESS})

_EMAIL_PREFILTER = r"[A-Za-z0-9]@[A-Za-z0-9][A-Za-z0-9.\-]{0,60}\.[A-Za-z]{2}"
_EMAIL = Pattern(r"[A-Za-z0-9._%+\-]+@(?:[A-Za-z0-9\-]+\.)+[A-Za-z]{2,24}")
_EMAIL_CHARS_MAX = 254
_NOBODYS = (b"example.com", b"example.org", b"example.net", b".example", b".test", b".invalid")

_INTERNATIONAL = r"\+[ ]?\(?[1-9][0-9]{0,2}\)?(?:[ .\-/]?\(?[0-9]{1,5}\)?){2,7}"
_NORTH_AMERICAN = r"(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}"
_PHONES = (Pattern(_INTERNATIONAL), Pattern(_NORTH_AMERICAN))
_PHONE_DIGITS_MIN, _PHONE_DIGITS_MAX = 8, 15
_FICTION = b"555"

_IPV4 = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_IPV6 = r"(?i)[0-9a-f]:[0-9a-f]{0,4}:[0-9a-f]{0,4}:"
_IPV4_PATTERN = Pattern(r"[0-9]+(?:\.[0-9]+){3,}")
_IPV6_PATTERN = Pattern(r"(?i)[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){3,}")
_IPV4_CHARS_MAX, _IPV4_POINTS = 15, 3
_IPV6_CHARS_MAX, _IPV6_COLONS = 39, 7
_USUAL_PRIVATE = (b"10.", b"127.", b"192.168.", b"0.")


def find_emails(text: bytes, budget: Budget) -> Iterator[Hit]:
    """E-mail addresses, except those at names reserved for examples."""
    for start, end in _EMAIL.spans(text):
        budget.note_candidate()
        address = text[start:end].lower()
        if len(address) <= _EMAIL_CHARS_MAX and not address.endswith(_NOBODYS):
            yield Hit(EMAIL, EMAIL, start, end)


def find_phones(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Phone numbers in international form, and in North America's."""
    for pattern in _PHONES:
        for start, end in pattern.spans(text):
            budget.note_candidate()
            if _touches(text, start, end):
                continue
            digits = bytes(byte for byte in text[start:end] if byte in DIGITS)
            if not _PHONE_DIGITS_MIN <= len(digits) <= _PHONE_DIGITS_MAX:
                continue
            # 555 is the exchange of films; a number of one digit is a pattern.
            if len(set(digits)) > 2 and digits[-7:-4] != _FICTION:
                yield Hit(PHONE, PHONE, start, end)


def find_ip_addresses(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Addresses that are routed in public."""
    for pattern, may_be in ((_IPV4_PATTERN, _may_be_ipv4), (_IPV6_PATTERN, _may_be_ipv6)):
        for start, end in pattern.spans(text):
            budget.note_candidate()
            address = text[start:end]
            if may_be(address) and not _touches(text, start, end) and _is_public(address):
                yield Hit(IP_ADDRESS, IP_ADDRESS, start, end)


def _may_be_ipv4(address: bytes) -> bool:
    """Whether it is worth a closer look: neither a version nor in the usual private networks."""
    if len(address) > _IPV4_CHARS_MAX or address.startswith(_USUAL_PRIVATE):
        return False
    return address.count(b".") == _IPV4_POINTS


def _may_be_ipv6(address: bytes) -> bool:
    """Whether it is worth a closer look; a time of day is not."""
    if len(address) > _IPV6_CHARS_MAX:
        return False
    return b"::" in address or address.count(b":") == _IPV6_COLONS


RULES = (
    Rule(prefilters=(_EMAIL_PREFILTER,), find=find_emails),
    Rule(prefilters=(_INTERNATIONAL, _NORTH_AMERICAN), find=find_phones),
    Rule(prefilters=(_IPV4, _IPV6), find=find_ip_addresses),
)


def _touches(text: bytes, start: int, end: int) -> bool:
    """Whether a span goes on in a way that makes something else of it: a version, a sum, a path."""
    if start and (text[start - 1] in ALPHANUMERIC or text[start - 1] in b".-+:_*%"):
        return True
    return end < len(text) and (text[end] in ALPHANUMERIC or text[end] in b"-+_*")


def _is_public(address: bytes) -> bool:
    try:
        return ipaddress.ip_address(address.decode()).is_global
    except ValueError:
        return False
