"""National identity and tax numbers of many countries, with the checks that issuers define.

A number whose own checks leave more than about one random number in three hundred counts only in
its written form (`ddd-dd-dddd`) or near a word that names it: a request is full of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stdnum import verhoeff
from stdnum.au import tfn
from stdnum.be import nn as be_nn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.ch import ssn as ch_ssn
from stdnum.de import idnr
from stdnum.dk import cpr
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import pesel
from stdnum.se import personnummer
from stdnum.tr import tckimlik
from stdnum.us import ssn
from stdnum.za import idnr as za_id

from gateway.detect.cards import is_luhn

NEAR_BYTES = 64
"""How far from a number the word may stand that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NationalId:
    """A kind of number made of digits.

    Attributes:
        kind: Its name, after its country.
        digits: How many it has.
        forms: Sizes of its groups as people write it; such a number needs no word beside it.
        weak_forms: The same, where others write other numbers so, too.
        is_valid: Whether digits without separators pass its checks.
        words: Pattern of words that name it, in lower case; empty: it stands for itself.
        between: What may stand between its groups.
        is_mixed: Whether different things may.
    """

    kind: str
    digits: int
    forms: tuple[tuple[int, ...], ...] = ()
    weak_forms: tuple[tuple[int, ...], ...] = ()
    is_valid: Callable[[str], bool]
    words: str = ""
    between: frozenset[bytes] = frozenset({b" ", b"-", b"."})
    is_mixed: bool = False


_CHINESE_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_CHINESE_CHECKS = "10X98765432"
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_day(month: str, day: str) -> bool:
    """Whether two digits each are a month and one of its days, in a leap year."""
    number = int(month)
    return 1 <= number <= 12 and 1 <= int(day) <= _DAYS[number - 1]


def is_us_ssn(digits: str) -> bool:
    """A US social security number: no check digit, but ranges that were never issued."""
    return ssn.is_valid(digits) and len(set(digits)) > 1


def is_chinese_id(digits: str) -> bool:
    """A Chinese resident identity number, its last digit perhaps an `X` (GB 11643-1999)."""
    if not (11 <= int(digits[:2]) <= 82 and digits[6:8] in ("19", "20")):
        return False
    if not is_day(digits[10:12], digits[12:14]):
        return False
    total = sum(
        weight * int(digit) for weight, digit in zip(_CHINESE_WEIGHTS, digits[:17], strict=True)
    )
    return _CHINESE_CHECKS[total % 11] == digits[17]


def is_aadhaar(digits: str) -> bool:
    """An Indian Aadhaar number; not `stdnum.in_`, whose name is awkward for type checkers."""
    return digits[0] in "23456789" and digits != digits[::-1] and verhoeff.is_valid(digits)


def is_danish_cpr(digits: str) -> bool:
    """A Danish CPR number; since 2007 only its date can be checked."""
    return is_day(digits[2:4], digits[:2]) and cpr.is_valid(digits)


def is_za_id(digits: str) -> bool:
    """A South African identity number."""
    return is_day(digits[2:4], digits[4:6]) and digits[10] in "012" and za_id.is_valid(digits)


def is_swedish(digits: str) -> bool:
    """A Swedish personal number without its century."""
    return is_day(digits[2:4], digits[4:6]) and is_luhn(digits) and personnummer.is_valid(digits)


def is_korean(digits: str) -> bool:
    """A Korean resident registration number."""
    return is_day(digits[2:4], digits[4:6]) and rrn.is_valid(digits)


KINDS: tuple[NationalId, ...] = (
    NationalId(
        kind="us_ssn", digits=9, forms=((3, 2, 4),), is_valid=is_us_ssn,
        between=frozenset({b" ", b"-"}),
        words=r"\bssns?\b|social.?security",
    ),
    NationalId(
        kind="ca_sin", digits=9, weak_forms=((3, 3, 3),), is_valid=sin.is_valid,
        words=r"\x7fsin\x7f|\bsin (?:no|num)|social.?insurance|assurance.?sociale",
    ),
    NationalId(
        kind="au_tfn", digits=9, weak_forms=((3, 3, 3),), is_valid=tfn.is_valid,
        words=r"\btfn\b|tax.?file",
    ),
    NationalId(
        kind="nl_bsn", digits=9, weak_forms=((3, 3, 3), (4, 2, 3)), is_valid=bsn.is_valid,
        words=r"\bbsn\b|burgerservice|sofi.?num",
    ),
    NationalId(
        kind="uk_nhs", digits=10, weak_forms=((3, 3, 4),), is_valid=nhs.is_valid,
        words=r"\bnhs\b|national.?health",
    ),
    NationalId(
        kind="se_personnummer", digits=10, forms=((6, 4),), is_valid=is_swedish,
        words=r"person.?num|samordning",
    ),
    NationalId(
        kind="dk_cpr", digits=10, weak_forms=((6, 4),), is_valid=is_danish_cpr,
        words=r"\bcpr\b|personnummer",
    ),
    NationalId(
        kind="de_tax_id", digits=11, forms=((2, 3, 3, 3),), is_valid=idnr.is_valid,
        words=r"\bidnr\b|steuer|tax.?id|\btin\b",
    ),
    NationalId(
        kind="pl_pesel", digits=11, is_valid=pesel.is_valid, words=r"pesel",
    ),
    NationalId(
        kind="tr_kimlik", digits=11, is_valid=tckimlik.is_valid, words=r"kimlik|\btckn?\b|\bt\.c\.",
    ),
    NationalId(
        kind="br_cpf", digits=11, forms=((3, 3, 3, 2),), is_valid=cpf.is_valid, words=r"\bcpf\b",
        is_mixed=True,
    ),
    NationalId(
        kind="be_nn", digits=11, forms=((2, 2, 2, 3, 2), (6, 3, 2)), is_valid=be_nn.is_valid,
        is_mixed=True,
    ),
    NationalId(
        kind="no_fodselsnummer", digits=11, forms=((6, 5),), is_valid=fodselsnummer.is_valid,
    ),
    NationalId(
        kind="in_aadhaar", digits=12, weak_forms=((4, 4, 4),), is_valid=is_aadhaar,
        words=r"aadh?aa?r|uidai",
    ),
    NationalId(
        kind="ch_ahv", digits=13, forms=((3, 4, 4, 2),), is_valid=ch_ssn.is_valid,
    ),
    NationalId(
        kind="za_id", digits=13, weak_forms=((6, 4, 3), (6, 4, 2, 1)), is_valid=is_za_id,
        words=r"\brsa\b|\bsa.?id\b|identity.?n|south.?africa",
    ),
    NationalId(
        kind="kr_rrn", digits=13, forms=((6, 7),), is_valid=is_korean, words=r"\brrn\b|resident",
    ),
    NationalId(
        kind="fr_nir", digits=15, forms=((1, 2, 2, 2, 3, 3, 2), (1, 2, 2, 5, 3, 2), (13, 2)),
        is_valid=nir.is_valid, words=r"\bnir\b|s.curit. sociale|\bsecu\b|\binsee\b|\bnss\b",
    ),
    NationalId(kind="cn_ric", digits=18, forms=((6, 8, 4),), is_valid=is_chinese_id),
)  # fmt: skip
"""Numbers made of digits. Sources: python-stdnum's modules, which cite each issuer."""


NINO_PREFIXES_REFUSED = frozenset({"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"})
_SINGAPORE = {"S": "JZIHGFEDCBA", "T": "GFEDCBAJZIH", "F": "XWUTRQPNMLK", "G": "RQPNMLKXWUT"}
_SINGAPORE_WEIGHTS = (2, 7, 6, 5, 4, 3, 2)
_GERMAN_CARD_WEIGHTS = (7, 3, 1)


def is_nino(text: str) -> bool:
    """A UK national insurance number: no check digit, but prefixes that are never given."""
    return text[:2] not in NINO_PREFIXES_REFUSED and len(set(text[2:8])) > 1


def is_singapore(text: str) -> bool:
    """A Singapore NRIC or FIN number."""
    weights = zip(_SINGAPORE_WEIGHTS, text[1:8], strict=True)
    total = sum(weight * int(digit) for weight, digit in weights)
    return _SINGAPORE[text[0]][total % 11] == text[8]


def is_german_card(text: str) -> bool:
    """A German identity card's number: nine characters and a check digit by weights 7, 3, 1."""
    values = (int(character, 36) for character in text[:9])
    total = sum(value * _GERMAN_CARD_WEIGHTS[place % 3] for place, value in enumerate(values))
    return total % 10 == int(text[9])


@dataclass(frozen=True, slots=True, kw_only=True)
class LetteredId:
    """A kind of number with letters in it.

    Attributes:
        kind: Its name, after its country.
        pattern: RE2 pattern of it, separators included; any case.
        is_valid: Whether it passes its checks, in capitals and without separators.
        words: As of `NationalId`.
        keeps_signs: Whether its dash or plus says something, and is no separator.
    """

    kind: str
    pattern: str
    is_valid: Callable[[str], bool]
    words: str = ""
    keeps_signs: bool = False


GERMAN_CARD_WORDS = r"ausweis|id.?card|identity.?card|german.?id"

LETTERED: tuple[LetteredId, ...] = (
    LetteredId(
        kind="uk_nino",
        pattern=(
            r"(?i)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2}[ \-]?[0-9]{2}[ \-]?[0-9]{2}"
            r"[ \-]?[A-D]"
        ),
        is_valid=is_nino,
    ),
    LetteredId(
        kind="es_dni", pattern=r"(?i)[0-9]{2}\.?[0-9]{3}\.?[0-9]{3}[ \-]?[A-HJ-NP-TV-Z]",
        is_valid=dni.is_valid,
    ),
    LetteredId(
        kind="es_nie", pattern=r"(?i)[XYZ][ \-]?[0-9]{7}[ \-]?[A-HJ-NP-TV-Z]",
        is_valid=nie.is_valid,
    ),
    LetteredId(
        kind="it_codice_fiscale",
        pattern=r"(?i)[A-Z]{3} ?[A-Z]{3} ?[0-9]{2}[A-Z][0-9]{2} ?[A-Z][0-9]{3}[A-Z]",
        is_valid=codicefiscale.is_valid,
    ),
    LetteredId(
        kind="fi_hetu", pattern=r"(?i)[0-3][0-9][01][0-9]{3}[\-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]",
        is_valid=hetu.is_valid, keeps_signs=True,
    ),
    LetteredId(
        kind="fr_nir",
        pattern=(
            r"(?i)[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]) ?2[AB] ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"
        ),
        is_valid=nir.is_valid,
    ),
    LetteredId(
        kind="cn_ric", pattern=r"(?i)[1-8][0-9]{5}(?:19|20)[0-9]{9}X", is_valid=is_chinese_id,
    ),
    LetteredId(
        kind="mx_curp", pattern=r"(?i)[A-Z]{4}[0-9]{6}[HM][A-Z]{5}[0-9A-Z][0-9]",
        is_valid=curp.is_valid,
    ),
    LetteredId(
        kind="sg_nric", pattern=r"(?i)[STFG][0-9]{7}[A-Z]", is_valid=is_singapore,
    ),
    LetteredId(
        kind="de_id_card", pattern=r"(?i)[CFGHJ-NPRTV-Z][0-9CFGHJ-NPRTV-Z]{8}[0-9]",
        is_valid=is_german_card, words=GERMAN_CARD_WORDS,
    ),
)  # fmt: skip
"""Numbers with letters. Sources: python-stdnum's modules; for those checked here, the issuers' own
pages, November 2026."""


def words_pattern(words: str) -> re.Pattern[bytes]:
    """A pattern over the lower-cased neighbourhood of a number; alternatives of plain words."""
    return re.compile(words.encode("ascii"))


def is_named(words: re.Pattern[bytes], text: bytes, start: int, end: int) -> bool:
    """Whether a word that names a number stands near it."""
    near = text[max(0, start - NEAR_BYTES) : end + NEAR_BYTES].lower()
    return words.search(near) is not None
