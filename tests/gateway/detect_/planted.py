"""Values made by rule, each valid by its issuer's checks, and ones that miss by little.

Nothing here was ever issued to anybody on purpose: all is drawn from a seeded source.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

from stdnum import luhn, verhoeff
from stdnum.iso7064 import mod_11_10, mod_97_10

from gateway.auth.keys import make_key
from tests.gateway.detect_.drawing import ALNUM, DIGITS, STANDARD, URL_SAFE, Make, draw


def grouped(text: str, sizes: tuple[int, ...], separator: str) -> str:
    parts, place = [], 0
    for size in sizes:
        parts.append(text[place : place + size])
        place += size
    return separator.join([*parts, text[place:]] if place < len(text) else parts)


# Cards.

CARD_FORMS = (
    ("4", 16, (4, 4, 4, 4)), ("51", 16, (4, 4, 4, 4)), ("55", 16, (4, 4, 4, 4)), ("2221", 16, (4, 4, 4, 4)),
    ("2720", 16, (4, 4, 4, 4)), ("34", 15, (4, 6, 5)), ("37", 15, (4, 6, 5)), ("300", 14, (4, 6, 4)),
    ("36", 14, (4, 6, 4)), ("3528", 16, (4, 4, 4, 4)), ("6011", 16, (4, 4, 4, 4)), ("65", 16, (4, 4, 4, 4)),
    ("62", 19, (6, 13)), ("2200", 16, (4, 4, 4, 4)), ("4", 19, (4, 4, 4, 4, 3)),
)  # fmt: skip


def card(rng: random.Random, prefix: str = "4", size: int = 16) -> str:
    bare = prefix + draw(rng, DIGITS, size - len(prefix) - 1)
    return bare + luhn.calc_check_digit(bare)


def any_card(rng: random.Random) -> str:
    prefix, size, sizes = rng.choice(CARD_FORMS)
    separator = rng.choice(("", "", " ", "-", "."))
    number = card(rng, prefix, size)
    if separator and not (separator == "." and len(sizes) == 2):
        return grouped(number, sizes, separator)
    return number if size <= 16 else f"card {number}"


def near_card(rng: random.Random) -> str:
    """A card's number with one digit changed: Luhn finds every such change."""
    number = card(rng)
    place = rng.randrange(1, len(number))
    other = rng.choice([digit for digit in DIGITS if digit != number[place]])
    return number[:place] + other + number[place + 1 :]


# Accounts.

IBAN_FORMS = {
    "DE": "n" * 18, "GB": "a" * 4 + "n" * 14, "FR": "n" * 10 + "c" * 11 + "n" * 2, "NL": "a" * 4 + "n" * 10,
    "ES": "n" * 20, "IT": "a" + "n" * 10 + "c" * 12, "CH": "n" * 5 + "c" * 12, "AT": "n" * 16,
    "BE": "n" * 12, "PL": "n" * 24, "SE": "n" * 20, "NO": "n" * 11, "MT": "a" * 4 + "n" * 5 + "c" * 18,
    "PT": "n" * 21, "SA": "n" * 2 + "c" * 18, "IE": "a" * 4 + "n" * 14, "LU": "n" * 3 + "c" * 13,
}  # fmt: skip
_CLASSES = {"n": DIGITS, "a": string.ascii_uppercase, "c": string.ascii_uppercase + DIGITS}


def bare_iban(rng: random.Random) -> str:
    country = rng.choice(sorted(IBAN_FORMS))
    bban = "".join(rng.choice(_CLASSES[one]) for one in IBAN_FORMS[country])
    return country + mod_97_10.calc_check_digits(bban + country) + bban


def iban(rng: random.Random) -> str:
    number = bare_iban(rng)
    if rng.random() < 0.2:
        number = number.lower()
    separator = rng.choice(("", " ", " ", "-"))
    return separator.join(number[place : place + 4] for place in range(0, len(number), 4))


# Identity numbers, in a form that stands for itself or beside the word that names them.


def date(rng: random.Random) -> tuple[str, str, str]:
    """Two digits each of a year, month and day in the past."""
    return (
        f"{rng.randrange(40, 100):02}",
        f"{rng.randrange(1, 13):02}",
        f"{rng.randrange(1, 29):02}",
    )


def until_valid(make: Make, is_valid: Callable[[str], bool]) -> Make:
    def made(rng: random.Random) -> str:
        while True:
            text = make(rng)
            if is_valid(text):
                return text

    return made


def weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def us_ssn(rng: random.Random) -> str:
    area = rng.choice([number for number in range(1, 900) if number != 666])
    number = f"{area:03}-{rng.randrange(1, 100):02}-{rng.randrange(1, 10000):04}"
    return number if rng.random() < 0.7 else "SSN " + number.replace("-", "")


def ca_sin(rng: random.Random) -> str:
    bare = rng.choice("12345679") + draw(rng, DIGITS, 7)
    return "social insurance number " + grouped(
        bare + luhn.calc_check_digit(bare), (3, 3, 3), rng.choice((" ", "-"))
    )


def uk_nhs(rng: random.Random) -> str:
    while True:
        bare = draw(rng, DIGITS, 9)
        check = (11 - weighted(bare, tuple(range(10, 1, -1))) % 11) % 11
        if check < 10:
            return "NHS number " + grouped(bare + str(check), (3, 3, 4), rng.choice((" ", "-", "")))


def nl_bsn(rng: random.Random) -> str:
    while True:
        bare = rng.choice("123456789") + draw(rng, DIGITS, 7)
        check = weighted(bare, (9, 8, 7, 6, 5, 4, 3, 2)) % 11
        if check < 10:
            return f"BSN: {bare}{check}"


def de_tax_id(rng: random.Random) -> str:
    repeated, missing = rng.sample(DIGITS, 2)
    places = [digit for digit in DIGITS if digit != missing] + [repeated]
    while True:
        rng.shuffle(places)
        bare = "".join(places)
        if bare[0] != "0":
            number = bare + mod_11_10.calc_check_digit(bare)
            return (
                grouped(number, (2, 3, 3, 3), " ") if rng.random() < 0.5 else "Steuer-ID " + number
            )


def fr_nir(rng: random.Random) -> str:
    year, month, _ = date(rng)
    bare = (
        rng.choice("12")
        + year
        + month
        + f"{rng.randrange(1, 96):02}"
        + f"{rng.randrange(1, 990):03}{rng.randrange(1, 999):03}"
    )
    number = bare + f"{97 - int(bare) % 97:02}"
    return grouped(number, (1, 2, 2, 2, 3, 3, 2), " ") if rng.random() < 0.5 else f"NIR {number}"


def es_dni(rng: random.Random) -> str:
    number = rng.randrange(1_000_000, 99_999_999)
    return f"{number:08}{rng.choice(('', '-'))}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def es_nie(rng: random.Random) -> str:
    first, rest = rng.choice("XYZ"), rng.randrange(0, 9_999_999)
    number = int(f"{'XYZ'.index(first)}{rest:07}")
    return f"{first}-{rest:07}-{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def uk_nino(rng: random.Random) -> str:
    prefix = rng.choice(("AB", "CE", "JG", "WL", "XR", "SH"))
    number = draw(rng, DIGITS, 6)
    if len(set(number)) == 1:
        number = "102938"
    separator = rng.choice(("", " "))
    return separator.join((prefix, number[:2], number[2:4], number[4:], rng.choice("ABCD")))


_ODD = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23), strict=True))  # fmt: skip


def it_codice_fiscale(rng: random.Random) -> str:
    year, _, day = date(rng)
    consonants = "BCDFGLMNPRSTVZ"
    bare = (
        draw(rng, consonants, 6)
        + year
        + rng.choice("ABCDEHLMPRST")
        + day
        + rng.choice("ABCDEFGHIL")
        + draw(rng, DIGITS, 3)
    )
    total = sum(
        _ODD[one] if place % 2 == 0 else (int(one) if one.isdigit() else ord(one) - 65)
        for place, one in enumerate(bare)
    )
    return bare + chr(65 + total % 26)


def pl_pesel(rng: random.Random) -> str:
    bare = "".join(date(rng)) + draw(rng, DIGITS, 4)
    check = (10 - weighted(bare, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10) % 10
    return f"PESEL {bare}{check}"


def br_cpf(rng: random.Random) -> str:
    bare = draw(rng, DIGITS, 9)
    for start in (10, 11):
        rest = weighted(bare, tuple(range(start, 1, -1))) * 10 % 11 % 10
        bare += str(rest)
    formatted = f"{bare[:3]}.{bare[3:6]}.{bare[6:9]}-{bare[9:]}"
    return formatted if rng.random() < 0.6 else "CPF " + bare


def in_aadhaar(rng: random.Random) -> str:
    bare = rng.choice("23456789") + draw(rng, DIGITS, 10)
    return "Aadhaar " + grouped(
        bare + verhoeff.calc_check_digit(bare), (4, 4, 4), rng.choice((" ", "", "-"))
    )


def be_nn(rng: random.Random) -> str:
    year, month, day = date(rng)
    bare = year + month + day + f"{rng.randrange(1, 998):03}"
    number = bare + f"{97 - int(bare) % 97:02}"
    return (
        f"{number[:2]}.{number[2:4]}.{number[4:6]}-{number[6:9]}.{number[9:]}"
        if rng.random() < 0.5
        else number
    )


def ch_ahv(rng: random.Random) -> str:
    bare = "756" + draw(rng, DIGITS, 9)
    check = (10 - weighted(bare, (1, 3) * 6) % 10) % 10
    return grouped(bare + str(check), (3, 4, 4, 2), rng.choice((".", "")))


def se_personnummer(rng: random.Random) -> str:
    bare = "".join(date(rng)) + draw(rng, DIGITS, 3)
    return f"{bare[:6]}-{bare[6:]}{luhn.calc_check_digit(bare)}"


def no_fodselsnummer(rng: random.Random) -> str:
    while True:
        year, month, day = date(rng)
        bare = day + month + year + f"{rng.randrange(0, 500):03}"
        first = (11 - weighted(bare, (3, 7, 6, 1, 8, 9, 4, 5, 2)) % 11) % 11
        second = (11 - weighted(bare + str(first)[-1], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11) % 11
        if first < 10 and second < 10:
            return grouped(f"{bare}{first}{second}", (6, 5), rng.choice((" ", "")))


def fi_hetu(rng: random.Random) -> str:
    year, month, day = date(rng)
    serial = f"{rng.randrange(2, 900):03}"
    check = "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(day + month + year + serial) % 31]
    return f"{day}{month}{year}-{serial}{check}"


def dk_cpr(rng: random.Random) -> str:
    while True:
        year, month, day = date(rng)
        bare = day + month + year + "0" + draw(rng, DIGITS, 2)
        check = (11 - weighted(bare, (4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11) % 11
        if check < 10:
            return f"CPR {bare[:6]}-{bare[6:]}{check}"


def cn_ric(rng: random.Random) -> str:
    year, month, day = date(rng)
    bare = "110101" + "19" + year + month + day + draw(rng, DIGITS, 3)
    total = weighted(bare, (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2))
    return bare + "10X98765432"[total % 11]


def za_id(rng: random.Random) -> str:
    bare = "".join(date(rng)) + draw(rng, DIGITS, 4) + rng.choice("01") + "8"
    return "RSA identity number " + bare + luhn.calc_check_digit(bare)


def tr_kimlik(rng: random.Random) -> str:
    bare = rng.choice("123456789") + draw(rng, DIGITS, 8)
    odd, even = sum(map(int, bare[::2])), sum(map(int, bare[1::2]))
    tenth = (odd * 7 - even) % 10
    return f"TC kimlik no {bare}{tenth}{(odd + even + tenth) % 10}"


def kr_rrn(rng: random.Random) -> str:
    bare = (
        "".join(date(rng)) + rng.choice("12") + f"{rng.randrange(0, 96):02}" + draw(rng, DIGITS, 3)
    )
    check = (11 - weighted(bare, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10
    return f"{bare[:6]}-{bare[6:]}{check}"


def sg_nric(rng: random.Random) -> str:
    digits = draw(rng, DIGITS, 7)
    return f"S{digits}{'JZIHGFEDCBA'[weighted(digits, (2, 7, 6, 5, 4, 3, 2)) % 11]}"


def au_tfn(rng: random.Random) -> str:
    while True:
        digits = draw(rng, DIGITS, 9)
        if weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0:
            return "TFN " + grouped(digits, (3, 3, 3), " ")


def de_id_card(rng: random.Random) -> str:
    bare = rng.choice("CFGHJKLMNPRTVWXYZ") + draw(rng, "0123456789CFGHJKLMNPRTVWXYZ", 8)
    total = sum(int(one, 36) * (7, 3, 1)[place % 3] for place, one in enumerate(bare))
    return f"Personalausweis {bare}{total % 10}"


def mx_curp(rng: random.Random) -> str:
    year, month, day = date(rng)
    bare = draw(rng, "BCDFG", 1) + rng.choice("AEIOU") + draw(rng, "LMNPR", 2) + year + month + day
    bare += rng.choice("HM") + rng.choice(("DF", "JC", "NL")) + draw(rng, "BCDFG", 3) + "0"
    alphabet = "0123456789ABCDEFGHIJKLMN&OPQRSTUVWXYZ"
    total = sum(alphabet.index(one) * (18 - place) for place, one in enumerate(bare))
    return bare + str(-total % 10)


NATIONAL_IDS: dict[str, Make] = {
    make.__name__: make
    for make in (
        us_ssn, ca_sin, au_tfn, nl_bsn, uk_nhs, se_personnummer, dk_cpr, de_tax_id, pl_pesel, tr_kimlik, br_cpf,
        be_nn, no_fodselsnummer, in_aadhaar, ch_ahv, za_id, kr_rrn, fr_nir, cn_ric, uk_nino, es_dni, es_nie,
        it_codice_fiscale, fi_hetu, mx_curp, sg_nric, de_id_card,
    )
}  # fmt: skip


def jwt(rng: random.Random) -> str:
    def part(content: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    header = part({"alg": rng.choice(("HS256", "RS256", "ES256")), "typ": "JWT"})
    return f"{header}.{part({'sub': draw(rng, ALNUM, 12)})}.{draw(rng, URL_SAFE, 42)}{draw(rng, ALNUM, 1)}"


def pem(rng: random.Random) -> str:
    label = rng.choice(
        (
            "RSA PRIVATE KEY",
            "PRIVATE KEY",
            "EC PRIVATE KEY",
            "OPENSSH PRIVATE KEY",
            "ENCRYPTED PRIVATE KEY",
            "PGP PRIVATE KEY BLOCK",
        )
    )
    lines = [draw(rng, STANDARD, 64) for _ in range(rng.randrange(1, 20))]
    headers = ["Version: 2", ""] if "PGP" in label else []
    return "\n".join([f"-----BEGIN {label}-----", *headers, *lines, f"-----END {label}-----", ""])


def fareway_key(rng: random.Random) -> str:
    return make_key(rng.choice(("live", "test")), rng.randbytes).text


def email(rng: random.Random) -> str:
    return f"{draw(rng, string.ascii_lowercase, 8)}.{draw(rng, string.ascii_lowercase, 5)}@{draw(rng, string.ascii_lowercase, 9)}.{rng.choice(('com', 'de', 'co.uk', 'io'))}"


def phone(rng: random.Random) -> str:
    area, exchange, line = (
        rng.randrange(201, 980),
        rng.randrange(220, 540),
        rng.randrange(1000, 9999),
    )
    return rng.choice(
        (
            f"+49 30 {rng.randrange(1000000, 9999999)}",
            f"+44 20 7{rng.randrange(100, 999)} {rng.randrange(1000, 9999)}",
            f"+1 {area} {exchange} {line}",
            f"({area}) {exchange}-{line}",
            f"{area}-{exchange}-{line}",
            f"+33 6 {rng.randrange(10, 99)} {rng.randrange(10, 99)} {rng.randrange(10, 99)} {rng.randrange(10, 99)}",
        )
    )


def ip_address(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return f"2a00:{rng.randrange(1, 65535):x}:{rng.randrange(1, 65535):x}::{rng.randrange(1, 65535):x}"
    return f"{rng.choice((8, 23, 45, 81, 93, 141, 185))}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"


PLANTED: dict[str, Make] = {
    "payment_card": any_card,
    "iban": iban,
    "private_key": pem,
    "jwt": jwt,
    "fareway_key": fareway_key,
    "email": email,
    "phone_number": phone,
    "ip_address": ip_address,
}
"""By detector; those with kinds are beside them."""
