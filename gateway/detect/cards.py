"""Payment card numbers: an issuer's prefix, its length, and the check digit.

Source: ISO/IEC 7812-1 (numbering, Luhn's check digit in annex B); the networks' public ranges as
their documentation lists them, November 2026.
"""

from __future__ import annotations

CARD_DIGITS_MIN, CARD_DIGITS_MAX = 14, 19

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)

_RANGES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("4", "4", (16, 19)),  # Visa; 13 digits are not issued any more
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),
    ("300", "305", (14, 16)),  # Diners Club
    ("3095", "3095", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("3528", "3589", (16, 17, 18, 19)),  # JCB
    ("6011", "6011", (16, 19)),  # Discover
    ("644", "649", (16, 19)),
    ("65", "65", (16, 19)),
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("81", "81", (16, 17, 18, 19)),
    ("2200", "2204", (16, 17, 18, 19)),  # Mir
    ("60", "60", (16,)),  # RuPay, Hipercard
    ("508", "508", (16,)),
    ("6304", "6304", (16, 18, 19)),  # Maestro
    ("6759", "6763", (16, 18, 19)),
    ("9792", "9792", (16,)),  # Troy
)
"""First and last prefix of each range, and the lengths of its numbers."""


def _by_prefix() -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for first, last, lengths in _RANGES:
        for prefix in range(int(first), int(last) + 1):
            text = str(prefix)
            found[text] = found.get(text, frozenset()) | frozenset(lengths)
    return found


_LENGTHS = _by_prefix()
_PREFIX_DIGITS = sorted({len(prefix) for prefix in _LENGTHS})


def is_luhn(digits: str) -> bool:
    """Whether the last digit is Luhn's check digit of the others."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = ord(digit) - 48
        total += _DOUBLED[value] if place & 1 else value
    return total % 10 == 0


def is_card(digits: str) -> bool:
    """Whether digits without separators are a payment card number."""
    length = len(digits)
    if not any(length in _LENGTHS.get(digits[:count], ()) for count in _PREFIX_DIGITS):
        return False
    return is_luhn(digits) and len(set(digits)) > 1
