"""International bank account numbers: country, length, check digits, and the country's structure.

Source: ISO 13616 and SWIFT's IBAN registry, which python-stdnum carries.
"""

from __future__ import annotations

from collections.abc import Iterator

from stdnum import iban

from gateway.detect.budget import Budget
from gateway.detect.hits import ALPHANUMERIC, Hit, Rule
from gateway.detect.linear import Pattern

IBAN = "iban"

_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
    "BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27,
    "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27,
    "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32,
    "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24,
    "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31,
    "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23,
    "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
"""Characters of each country's numbers."""

_START = f"(?i)(?:\\b|_)(?:{'|'.join(_LENGTHS)})[ \\-]{{0,2}}[0-9][ \\-]{{0,2}}[0-9]"
_PREFILTER = _START + r"[ \-]{0,2}[0-9A-Z]{2}[ \-]{0,2}[0-9A-Z]{2}"
_PATTERN = Pattern(_START)
_UNDERSCORE = ord("_")
_SEPARATORS = frozenset(b" -.")
_SEPARATORS_TOGETHER_MAX = 3


def find(text: bytes, budget: Budget) -> Iterator[Hit]:
    """IBANs, with or without spaces or dashes, in capitals or not."""
    done = 0
    for start, _ in _PATTERN.spans(text):
        start += text[start] == _UNDERSCORE
        if start < done:
            continue
        budget.note_candidate()
        taken = _take(text, start)
        if taken is not None and _is_iban(taken[0]):
            done = taken[1]
            yield Hit(IBAN, IBAN, start, done)


RULE = Rule(prefilters=(_PREFILTER,), find=find)


def _take(text: bytes, start: int) -> tuple[str, int] | None:
    """As many characters as the country's numbers have, and where they end.

    None where there are fewer, or one more touches them.
    """
    length = _LENGTHS[text[start : start + 2].decode().upper()]
    taken = bytearray()
    separators, place = 0, start
    while place < len(text) and len(taken) < length:
        byte = text[place]
        if byte in ALPHANUMERIC:
            taken.append(byte)
            separators = 0
        elif byte in _SEPARATORS and separators < _SEPARATORS_TOGETHER_MAX:
            separators += 1
        else:
            break
        place += 1
    if len(taken) < length or (place < len(text) and text[place] in ALPHANUMERIC):
        return None
    return taken.decode().upper(), place


def _is_iban(number: str) -> bool:
    rotated = number[4:] + number[:4]
    digits = "".join(str(int(character, 36)) for character in rotated)
    return int(digits) % 97 == 1 and iban.is_valid(number, check_country=False)
