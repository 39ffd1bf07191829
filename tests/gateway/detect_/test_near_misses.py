"""What looks like a value and is none lets a request pass."""

from __future__ import annotations

import base64
import json
import random
import time

import pytest
from stdnum.iso7064 import mod_97_10

from gateway.detect.budget import CANDIDATES_PER_LOOK, Budget
from gateway.detect.errors import OutOfTime
from gateway.detect.scanner import Scanner
from tests.gateway.detect_ import planted, planted_tokens
from tests.gateway.detect_.drawing import ALNUM, HEX, STANDARD, draw

SCANNER = Scanner()
CARD = "4539148803436467"


def found(text: str) -> set[str]:
    return {span.detector for span in SCANNER.find_spans(text, limit_s=60.0)}


def b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


SIGNATURE = "Zk9uYXJhbmRvbXNpZ25hdHVyZTEyMzQ1Njc4OTA"
PEM = "-----BEGIN RSA PRIVATE KEY-----"

MISSES = {
    "one digit off": "4539148803436468",
    "no issuer's prefix": "9539148803436469",
    "one digit over and over": "4444444444444448"[:0] + "0000000000000000",
    "within a hash": f"ab{CARD}cd12",
    "a number in hexadecimal": f"0x{CARD}",
    "the decimals of a number": f"0.{CARD} and .{CARD}",
    "a number with decimals": f"{CARD}.5",
    "two halves around a point": "45391488.03436467",
    "groups with different separators": "4539 1488-0343.6467",
    "groups that are no form": "45391 488034 36467",
    "eighteen digits without a word": "622953999986980321"[:18],
    "a published test card": "4242 4242 4242 4242",
    "days and times": "2024-05-12 10:33:21 and 2025-01-01 00:00:00",
    "letters that look like digits, and no digits": "OOOO llll OOOO IIII",
    "a number with a tail of letters": "12345678lo0lI",
    "words of digits": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
    "digits one by one that are no card": "4 5 3 9 1 4 8 8 0 3 4 3 6 4 6 8",
    "a card of nineteen digits without a word": "6229539999869803207",
    "a German card's number far from the word": "Personalausweis" + " lorem ipsum" * 10 + " L01X00T471",
    "a range of years": "2019 2020 2021 2022",
    "an SSN that was never issued": "000-12-3456 and 666-12-3456 and 900-12-3456",
    "an SSN without dashes and without a word": "536904399",
    "an SSN with points": "536.90.4399",
    "an identity number with another check digit": "53690439S",
    "a NINO with a refused prefix": "GB102938A and AB111111A",
    "a NINO within a word": "xAB102938Ay",
    "an identity number in the decimals of a number": "1.12345678Z",
    "a German card's number without the word": "C01X00T478 L01X00T47A",
    "a Chinese number of no region or time": "990101199001011234 110101179001011234 110101199013011234",
    "an IBAN with other check digits": "DE12500105170648489891",
    "an IBAN that is too short": "DE1250010517064848",
    "an IBAN of another structure": "DE" + "55" + "ABCDEFGHIJKLMNOPQR",
    "an IBAN within a word": "xDE12500105170648489890",
    "an IBAN that goes on": "DE125001051706484898901",
    "the IBAN of the registry": "GB29 NWBK 6016 1331 9268 19",
    "a header without a key": f'"{PEM}" and "-----END RSA PRIVATE KEY-----"',
    "a header before a placeholder": f"{PEM}\n{'A' * 64}\n",
    "a public key": "-----BEGIN PUBLIC KEY-----\n" + "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A" * 2,
    "an age key of one letter": "AGE-SECRET-KEY-1" + "Q" * 58,
    "a token within a word": "xAKIAQWERTYUIOP234567 AKIAQWERTYUIOP234567x",
    "a key of the documentation": "AKIA" + "IOSFODNN7EXAMPLE",
    "a placeholder": "sk_live_xxxxxxxxxxxxxxxxxxxxxxxx ghp_000000000000000000000000000000000000",
    "a secret key's name without a key": "aws_secret_access_key = load_from_environment()",
    "forty characters that go on": "aws_secret_access_key=" + "aB3" * 13 + "x" * 9,
    "forty characters of one kind": "aws_secret_access_key=" + "a" * 40,
    "the token of an introduction": f"{b64({'alg': 'HS256'})}.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6Ik8ifQ.{SIGNATURE}",
    "a token without a signature": f"{b64({'alg': 'none'})}.{b64({'sub': 'x'})}.",
    "three parts whose first is no header": f"eyJub3RhaGVhZGVyIjoxfQ.{b64({'a': 1})}.{SIGNATURE}",
    "three parts whose first is no JSON": f"eyJub3QganNvbiBhdCBhbGw.{b64({'a': 1})}.{SIGNATURE}",
    "three parts whose first is no text": f"eyJ______________.{b64({'a': 1})}.{SIGNATURE}",
    "a header of another length": f"eyJ{'A' * 5000}.{b64({'a': 1})}.{SIGNATURE}",
    "a token within a word too": f"x{b64({'alg': 'HS256'})}.{b64({'a': 1})}.{SIGNATURE}",
    "one of our keys with another checksum": "fw_live_abcdefghijkl_" + "A" * 43 + "_000000",
    "addresses for examples": "me@example.com you@mail.example.org root@db.test a@b.invalid",
    "an address that is too long": "a@" + "b" * 260 + ".com",
    "a decorator and a handle": "@property @someone x@y",
    "numbers of films": "+1 212 555 0123 and 212-555-0123",
    "a sum": "x+4930123456 = 12+3456789012",
    "a number of one digit": "+11 111 111 111",
    "too few digits": "+49 30 12",
    "too many digits": "+49 30 1234567890123456",
    "a version": "v1.2.3.4 and 1.2.3.4.5 and 10.0.19041.1",
    "private addresses": "127.0.0.1 192.168.1.7 10.2.3.4 0.0.0.0 fe80::1 ::1 2001:db8::1",
    "a time of day": "12:34:56 and 01:02:03:04:05:06:07:08:09",
    "names with two colons": "std::vector and a::b::c",
}  # fmt: skip


@pytest.mark.parametrize("text", MISSES.values(), ids=MISSES.keys())
def test_what_is_no_value_is_not_found(text: str):
    assert found(text) == set()


HITS = {
    "beside a word": (f"card{CARD}", "payment_card"),
    "before a word": (f"{CARD}thanks", "payment_card"),
    "after a point that ends a word": (f"no.{CARD}", "payment_card"),
    "with a code and a date after it": (f"{CARD} 123 12/27", "payment_card"),
    "with letters for digits": ("4539 l488 O343 6467", "payment_card"),
    "before a word that begins like a digit": (f"{CARD}lol", "payment_card"),
    "digit by digit": (" ".join(CARD), "payment_card"),
    "of nineteen digits near a word": ("card number 6229539999869803207", "payment_card"),
    "an identity number that is no card": ("RSA identity number 4601187242087", "national_id"),
    "an IBAN in small letters before a word": ("de12 5001 0517 0648 4898 90 and", "iban"),
    "a German card's number": ("Personalausweis L01X00T471", "national_id"),
    "an address in public": ("2a00:1450:4001:81b::200e, 8.8.8.8:53", "ip_address"),
    "a key for PuTTY": ("PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\n" + "aB3dE5gH7jK9" * 5, "private_key"),
    "a key whose end is missing": (f"{PEM}\n" + "aB3dE5gH7jK9mN1p" * 4, "private_key"),
    "a bare key in DER": ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7", "private_key"),
    "a token after a point": (f"({b64({'alg': 'HS256'})}.{b64({'a': 1})}.{SIGNATURE}).", "jwt"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "detector"), HITS.values(), ids=HITS.keys())
def test_what_is_a_value_is_found_however_it_stands_there(text: str, detector: str):
    assert found(text) == {detector}


def test_a_private_web_key_is_found_by_its_private_part():
    key = {"kty": "EC", "crv": "P-256", "x": draw(random.Random(1), ALNUM, 43), "d": draw(random.Random(2), ALNUM, 43)}  # fmt: skip
    text = json.dumps(key).replace('"', "\x7f")
    assert found(text) == {"private_key"}
    assert found(json.dumps({**key, "d": "A" * 43}).replace('"', "\x7f")) == set()
    del key["kty"]
    assert found(json.dumps(key).replace('"', "\x7f")) == set()


def test_an_account_within_an_account_is_one():
    bban = "2004101005" + "05DE12F5AB1" + "06"
    number = "FR" + mod_97_10.calc_check_digits(bban + "FR") + bban
    text = " ".join(number[place : place + 4] for place in range(0, len(number), 4))
    assert " DE12 " in text
    assert found(text) == {"iban"}


def test_near_cards_and_random_text_hardly_ever_look_like_values():
    """Luhn and mod 97 let one random number in ten and in a hundred pass, and forms fewer."""
    rng = random.Random("near")
    assert [one for one in (planted.near_card(rng) for _ in range(200)) if found(one)] == []
    hashes = [draw(rng, HEX, 64) for _ in range(300)] + [
        draw(rng, STANDARD, 64) for _ in range(300)
    ]
    assert sum(bool(found(one) - {"ip_address"}) for one in hashes) <= 1


def test_spans_do_not_overlap_and_lead_back_to_the_text():
    rng = random.Random("spans")
    values = [
        planted_tokens.TOKENS["github_token"](rng), planted.card(rng), "GB12 " + planted.bare_iban(rng), planted.us_ssn(rng),
    ]  # fmt: skip
    text = "；\u200b".join(values)
    spans = SCANNER.find_spans(text, limit_s=60.0)
    assert len(spans) >= 3
    for one, other in zip(spans, spans[1:], strict=False):
        assert one.end <= other.start
    assert text[spans[0].start : spans[0].end] == values[0]
    full = CARD.translate({code: code + 0xFEE0 for code in range(48, 58)})
    (span,) = SCANNER.find_spans(f"x {full}\u200b\u200b y")
    assert (span.start, span.end) == (2, 18)


def test_of_two_finds_that_overlap_the_longer_one_counts():
    (span,) = SCANNER.find_spans(f"mail me: 4539148803436467@{'mail'}.com", limit_s=60.0)
    assert span.detector == "email"


def test_time_is_looked_at_between_candidates():
    clock = iter([0.0, 0.5, 2.0])
    budget = Budget(lambda: next(clock), 1.0)
    for _ in range(2 * CANDIDATES_PER_LOOK):
        budget.note_candidate()
    with pytest.raises(OutOfTime):
        budget.note_candidate()


def test_a_text_of_many_chunks_is_looked_through_to_its_end():
    plain = "no digits in here. " * 40_000  # three chunks
    budget = Budget(time.thread_time, 60.0)
    text = (plain + CARD + ".").encode()
    assert {hit.detector for hit in SCANNER.hits(text, budget)} == {"payment_card"}
