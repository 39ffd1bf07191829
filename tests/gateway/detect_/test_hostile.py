"""Whoever writes a text cannot make the detectors take more than linear time in it.

What takes time is counted: candidates, each looked at by itself, and the bytes that are searched for
the end of something.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec
import pytest

from gateway.detect.budget import Budget
from gateway.detect.custom import CustomDetector, CustomScanner
from gateway.detect.look import Look
from gateway.detect.scanner import Scanner

SCANNER = Scanner()
CUSTOM = CustomScanner([CustomDetector(name="own", pattern="(a+)+b", check=None)])
UNIT = 400
PEM = "-----BEGIN PRIVATE KEY-----\n" + "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8cF0hJ5kL7" * 2 + "\n"

HOSTILE: dict[str, Callable[[int], list[str]]] = {
    "digits": lambda n: ["1" * n * 20],
    "digits and spaces": lambda n: ["4 " * n * 10],
    "groups of four": lambda n: ["4539 " * n * 4],
    "groups of every size": lambda n: [" ".join("1" * (1 + place % 17) for place in range(n))],
    "letters that look like digits": lambda n: ["4l" * n * 8, "4" + "O" * n * 10],
    "beginnings of accounts": lambda n: ["DE12 " * n * 4, "GB29NWBK" * n],
    "beginnings of tokens": lambda n: ["ghp_sk-AKIA" * n, "eyJeyJ" * n * 2, "eyJhbGciOiJ." * n],
    "headers of keys": lambda n: ["-----BEGIN PRIVATE KEY-----" * n],
    "keys without an end": lambda n: [PEM * (n // 8)],
    "parts of private web keys": lambda n: [('{"kty":"EC","d":"' + "aB3dE5gH7j" * 4 + '"}') * (n // 8)],
    "addresses": lambda n: ["a@b.cc" * n * 2, "a@" * n * 8, "a." * n * 8 + "@x.de", "x@y.d" * n],
    "plus signs": lambda n: ["+1" * n * 8, "+49 30 " * n],
    "points and colons": lambda n: ["1." * n * 8, "a:" * n * 8, "::1" * n * 4],
    "words as long as base64": lambda n: ["antidisestablishmentarianism " * n],
    "base64": lambda n: [base64.b64encode(b"lorem ipsum " * n).decode(), "QUJDREVGR0hJSktMTU5P " * n],
    "escapes": lambda n: ["\\" * n * 8, "\\u0034" * n * 2, "\\\\u005c" * n],
    "odd characters": lambda n: ["４\u200b" * n * 4, "о" * n * 8, "оa" * n * 4, "\u0301" * n * 8],
    "messages of one digit": lambda n: ["4"] * n,
    "messages that go on": lambda n: ["12345678"] * (n // 2),
    "many strings": lambda n: ["a" * 20] * (n // 2),
}  # fmt: skip


def work(texts: list[str]) -> tuple[int, int]:
    """How many candidates are looked at, and in how many bytes."""
    messages = [{"role": "user", "content": text} for text in texts]
    budget = Budget(lambda: 0.0, 1.0)
    look = Look(scanner=SCANNER, custom=CUSTOM, allowed=frozenset(), budget=budget)
    body = msgspec.json.encode({"messages": messages})
    look.at_body(body)
    return budget.candidates, len(body)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_work_grows_with_the_text_and_no_faster(make: Callable[[int], list[str]]):
    (small, _), (large, size) = work(make(UNIT)), work(make(4 * UNIT))
    assert large <= 4 * small + 40
    assert large <= size // 2


def test_the_end_of_a_key_is_searched_once():
    """Without it, each of many keys in one string would be searched for to the end of the string."""
    spans = SCANNER.find_spans(PEM * 50, limit_s=60.0)
    assert [(one.detector, one.start, one.end) for one in spans] == [
        ("private_key", 0, len(PEM) * 50)
    ]
