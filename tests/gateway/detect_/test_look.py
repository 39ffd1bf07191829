"""One look at a body: where things stand, what is in base64, what is split, and what ends a look."""

from __future__ import annotations

import base64
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detect import digits
from gateway.detect import look as look_module
from gateway.detect.borders import seams
from gateway.detect.budget import Budget
from gateway.detect.custom import CustomDetector, CustomScanner
from gateway.detect.detection import NOTHING, Detected, Detection, Orders
from gateway.detect.encoded import DECODED_BYTES_MAX, Decoder
from gateway.detect.errors import BeyondBounds, Unfinished
from gateway.detect.hits import Hit, Rule
from gateway.detect.look import BODY_BYTES_MAX, FINDINGS_MAX, SET_ASIDE_BYTES_MIN, Look
from gateway.detect.opaque import opaque_kinds
from gateway.detect.paths import paths_of
from gateway.detect.scanner import RULES, Scanner

CARD = "4539148803436467"
SCANNER = Scanner()
TAGS = {"payment_card": frozenset({"card"}), "email": frozenset({"people"})}


def fields(**members: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(one)) for name, one in members.items()}


def user(*contents: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content} for content in contents]


def detection(scanner: Scanner = SCANNER, **orders: object) -> Detection:
    made = {"enforces": True, "tags": TAGS, "on_error": frozenset({"unknown"}), "timeout_s": 60.0}
    return Detection(Orders(**{**made, **orders}), scanner=scanner)  # type: ignore[arg-type]


def look(members: dict[str, msgspec.Raw], **orders: object) -> Detected:
    return detection(**orders).look(members, has_media=False)


def places(found: Detected) -> dict[str, int]:
    return {one.path: one.count for one in found.findings}


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_an_ordinary_request_is_nothing():
    assert look(fields(messages=user("Hello!"), temperature=0.5)) is NOTHING


def test_each_place_and_each_value_is_counted_once():
    other = "5105123412341235"[:15]
    found = look(
        fields(
            messages=user(
                f"{CARD} and {CARD[:4]} {CARD[4:8]} {CARD[8:12]} {CARD[12:]}", f"{CARD} {other}"
            )
        )
    )
    assert places(found) == {"messages[0].content": 1, "messages[1].content": 1}
    assert found.counts == {"payment_card": 1}
    assert found.tags == {"card"}


def test_tags_come_from_so_many_different_values():
    few = look(fields(messages=user("a@firm.de b@firm.de A@FIRM.de")), min_counts={"email": 3})
    assert (few.counts, few.tags) == ({"email": 2}, frozenset())
    many = look(fields(messages=user("a@firm.de b@firm.de c@firm.de")), min_counts={"email": 3})
    assert many.tags == {"people"}


def test_places_are_named_up_to_a_bound_and_values_counted_beyond_it():
    mails = [f"someone{number}@firm.de" for number in range(FINDINGS_MAX + 20)]
    found = look(fields(messages=user(*mails, f"and {CARD}")))
    assert len(found.findings) == FINDINGS_MAX
    assert found.counts == {"email": FINDINGS_MAX + 20, "payment_card": 1}
    assert found.sources["card"] == "payment_card"


DEEP = f"card {CARD}"
TWICE = b64(b64(DEEP))


def test_base64_is_looked_through_three_deep_and_no_deeper():
    assert look(fields(messages=user(b64(DEEP)))).counts == {"payment_card": 1}
    assert look(fields(messages=user(TWICE))).counts == {"payment_card": 1}
    assert look(fields(messages=user(b64(TWICE)))).counts == {"payment_card": 1}
    beyond = look(fields(messages=user(b64(b64(TWICE)))))
    assert (beyond.fault, beyond.tags) == ("bounds", {"unknown"})


ENCODED = {
    "for URLs, without its end": base64.urlsafe_b64encode(f"??>> {DEEP}".encode())
    .decode()
    .rstrip("="),
    "in lines": base64.encodebytes((DEEP + " " + "lorem ipsum " * 12).encode()).decode(),
    "in a data URL": f"data:text/plain;base64,{b64(DEEP)}",
    "of text that is not ASCII": b64(f"Überweisung für Ägypten: 12 {DEEP}"),
    "after other words that look like it": f"internationalisation/of/everything_there_is {b64(DEEP)}",
}


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED.keys())
def test_text_in_base64_is_found(text: str):
    assert look(fields(messages=user(text))).counts == {"payment_card": 1}


NOT_ENCODED = {
    "a long word": "antidisestablishmentarianism_and_more",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ_ABCDEF",
    "an identifier": "getUserAccountFromDatabase2ByName",
    "bytes": base64.b64encode(bytes(range(256))).decode(),
    "text with control characters": b64(f"\x01\x02{DEEP}"),
    "half a character at its end": base64.b64encode(
        "größer 123456 Öl äöüß".encode()[:-1] + b"\xc3"
    ).decode(),
    "one character over": b64(DEEP)[:20] + "A",
    "other text with control characters": b64("Überweisung 123 \x01 für alle 45"),
}


@pytest.mark.parametrize("text", NOT_ENCODED.values(), ids=NOT_ENCODED.keys())
def test_what_is_no_text_in_base64_is_passed_over(text: str):
    assert look(fields(messages=user(text))).counts == {}


def test_more_base64_than_is_decoded_is_beyond_bounds():
    text = b64("lorem ipsum " * 2000)
    decoder = Decoder(bytes_max=len(text))
    assert decoder.text_of(text.encode()) is not None
    with pytest.raises(BeyondBounds):
        decoder.text_of(text.encode())
    assert len(text) < DECODED_BYTES_MAX


def part(kind: str, **members: object) -> dict[str, object]:
    return {"type": kind, **members}


def test_long_base64_is_looked_at_by_itself():
    """What is an image stays one; text in the place of an image is looked through."""
    image = base64.b64encode(bytes(range(256)) * 400).decode()
    text = b64("All work and no play. " * 4000 + DEEP)
    assert len(image) > SET_ASIDE_BYTES_MIN
    for url, path in (
        (f"data:image/png;base64,{image}", None),
        (f"data:image/png;base64,{text}", "messages[0].content[1].image_url.url (base64)"),
    ):
        parts = [part("text", text="see"), part("image_url", image_url={"url": url})]
        found = look(fields(messages=user(parts)))
        assert places(found) == ({} if path is None else {path: 1})
    lines = base64.encodebytes(("All work and no play. " * 4000 + DEEP).encode()).decode()
    found = look(fields(messages=user([part("file", file={"file_data": f"data:;base64,{lines}"})])))
    assert found.counts == {"payment_card": 1}
    # A client may call its text `data`; it is read as text then.
    audio = part(
        "input_audio",
        input_audio={"data": f"{'no base64! ' * 8000}\\u0034{CARD[1:]}".replace("\\\\", "\\")},
    )
    found = look(fields(messages=user([part("text", text="x"), audio])))
    assert found.counts == {"payment_card": 1}


def test_a_body_beyond_bounds_is_not_looked_through():
    found = look(fields(messages=user("lorem ipsum " * (BODY_BYTES_MAX // 12 + 1))))
    assert (found.fault, found.tags, found.counts) == ("bounds", {"unknown"}, {})
    assert found.sources == {"unknown": "detectors did not finish (bounds)"}


def test_a_body_that_is_long_is_not_looked_at_here():
    made = detection()
    assert made.look_here(fields(messages=user("x" * 40_000)), has_media=False) is None
    assert made.look_here(fields(messages=user("hi")), has_media=False) is NOTHING


def test_what_takes_long_here_is_left_to_a_thread_unless_it_may_not_take_longer_anyway():
    seconds = iter([float(number) for number in range(1000)])
    busy = fields(messages=user(" ".join(["2024-05-12 10:33:21"] * 200)))
    late = Detection(Orders(timeout_s=60.0), scanner=SCANNER, cpu_s=lambda: next(seconds))
    assert late.look_here(busy, has_media=False) is None
    short = Detection(Orders(timeout_s=0.001), scanner=SCANNER, cpu_s=lambda: next(seconds))
    found = short.look_here(busy, has_media=False)
    assert found is not None
    assert found.fault == "timeout"


def test_parts_that_cannot_be_read_are_told_by_their_kind():
    parts = [
        part("text", text="x"),
        part("image_url", image_url={"url": "x"}),
        part("input_audio", input_audio={}),
        part("hologram"),
        part("refusal", refusal="no"),
    ]
    members = fields(messages=[*user(parts), {"role": "assistant", "content": None}])
    made = detection(opaque={"image": frozenset({"seen"}), "file": frozenset({"kept"})})
    found = made.look(members, has_media=True)
    assert found.opaque == ("audio", "file", "image")
    assert found.sources == {
        "kept": "file parts cannot be read",
        "seen": "image parts cannot be read",
    }
    assert opaque_kinds({}) == ()


class Broken(Exception):
    """Holds what was looked at, as many errors of libraries do."""


def test_a_detector_that_fails_adds_the_tags_of_errors_and_tells_nobody_what_it_saw(caplog):
    def find(text: bytes, _budget: Budget):
        raise Broken(text.decode())
        yield Hit("x", "x", 0, 1)

    scanner = Scanner([*RULES, Rule(prefilters=("[0-9]{4}",), find=find)])
    found = look(fields(messages=user(f"charge {CARD}")), scanner=scanner)
    assert found.fault == Unfinished.reason
    assert "unknown" in found.tags
    assert "a detector failed with Broken" in caplog.text
    assert CARD not in caplog.text


def test_on_error_may_be_nothing_where_the_operator_says_so():
    big = fields(messages=user("lorem ipsum " * (BODY_BYTES_MAX // 12 + 1)))
    assert look(big, on_error=frozenset()).tags == frozenset()
    assert look(big, enforces=False).tags == frozenset()


SPLIT = {
    "two messages": user(f"it is {CARD[:7]}", f"{CARD[7:]} ok"),
    "with spaces at the border": user(f"it is {CARD[:8]}  ", f"\n {CARD[8:]}"),
    "groups cut anywhere": user("4539 1488 03", "43 6467"),
    "with a dash at the border": user("4539-1488-", "0343-6467"),
    "three messages": user(CARD[:5], CARD[5:9], CARD[9:]),
    "parts and messages": [*user([part("text", text=CARD[:5]), part("text", text=CARD[5:9])]), *user(CARD[9:])],
    "with an image between parts": user([part("text", text=CARD[:5]), part("image_url", image_url={"url": "x"}), part("text", text=CARD[5:])]),
    "behind a long text": user("lorem ipsum " * 50 + CARD[:7], CARD[7:] + " lorem ipsum" * 50),
    "with look-alikes": user("４５３９1488", "0343\u200b6467"),
}  # fmt: skip


@pytest.mark.parametrize("messages", SPLIT.values(), ids=SPLIT.keys())
def test_a_number_split_over_neighbours_is_found_once(messages):
    found = look(fields(messages=messages))
    assert found.counts == {"payment_card": 1}
    (path,) = places(found)
    assert " to messages[" in path


WHOLE = {
    "a sentence between": user(f"it is {CARD[:7]}.", f"Then {CARD[7:]}"),
    "nothing on one side": user("", f"{CARD[7:]}"),
    "only words": user("what is the capital of France", "The capital is Paris"),
    "many that follow each other": user("1", "2", "3" * 300, "4", "!", "5"),
    "messages without content": [{"role": "assistant", "tool_calls": []}, *user("1", "2")],
}  # fmt: skip


@pytest.mark.parametrize("messages", WHOLE.values(), ids=WHOLE.keys())
def test_what_is_not_split_is_not_put_together(messages):
    assert look(fields(messages=messages)).counts == {}


def test_a_long_key_that_is_split_is_found_by_its_words_length():
    token = "ghp_" + "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8cF0hJ5kL7"
    assert "access_token" in look(fields(messages=user(token[:20], token[20:]))).counts


@given(st.lists(st.text("49 -.ab", max_size=300), max_size=6))
def test_every_reading_of_a_seam_has_its_borders_within_it(texts):
    for seam in seams(msgspec.json.encode({"messages": user(*texts)})):
        for text, borders in seam.readings():
            assert list(borders) == sorted(borders)
            assert all(0 <= border <= len(text) for border in borders)


def test_paths_are_right_for_any_document():
    document = {
        "messages": [{"a": ["x", {"content": "here"}]}, "y"],
        "zz": {"tools": "there", "metadata": 12},
    }
    text = json.dumps(document).replace('"', "\x7f").encode()
    offsets = [text.index(sign) for sign in (b"here", b"y\x7f]", b"there", b"12")]
    assert paths_of(text, offsets) == [
        "messages[0].(member 1)[1].content", "messages[1]", "(member 2).tools", "(member 2).metadata",
    ]  # fmt: skip
    for other in (b"no document] ,", b"x", b", ] \x7fx\x7f", b"]]"):
        assert paths_of(other, [len(other) - 1]) == ["the body"]
    many = b"[" + b"0," * 60 + b"\x7fhere\x7f]"
    assert paths_of(many, [many.index(b"here")], tokens_max=50) == ["[49]"]


def test_a_scanner_may_have_rules_of_one_group_only():
    (span,) = Scanner([digits.RULE]).find_spans(f"{CARD} ghp_{'aB3dE5' * 6}")
    assert span.detector == "payment_card"
    assert list(Decoder().texts(b"no run", Budget(time.thread_time, 60.0))) == []


def custom(*detectors: CustomDetector) -> CustomScanner:
    return CustomScanner(detectors)


CHECKS = {
    "luhn": (CARD, CARD[:-1] + "8"),
    "mod97": ("DE12 5001", "DE12500105170648489890"),
    "verhoeff": ("123451", "123450"),
}


def test_checks_of_custom_detectors():
    budget = Budget(time.thread_time, 60.0)
    for check, pattern, right, wrong in (
        ("luhn", "[0-9]{16}", CARD, CARD[:-1] + "8"),
        ("mod97", "[A-Z0-9]{22}", "500105170648489890DE12", "500105170648489890DE13"),
        ("verhoeff", "[0-9]{6}", "123451", "123450"),
        ("luhn", "x", "x", "y"),
    ):
        scanner = custom(CustomDetector(name="own", pattern=pattern, check=check))
        assert bool(list(scanner.hits(right, budget))) == (right != "x")
        assert list(scanner.hits(wrong, budget)) == []


def test_custom_detectors_see_each_string_as_it_is_and_folded():
    own = (
        CustomDetector(name="street", pattern="^(?i)straße [0-9]+$"),
        CustomDetector(name="code", pattern="^AB-4$"),
    )
    made = detection(custom=own, tags={"street": frozenset({"s"}), "code": frozenset({"c"})})
    found = made.look(
        fields(messages=user("Straße 5", "АB-４", b64("AB-4 is not alone in here"))),
        has_media=False,
    )
    assert places(found) == {"messages[0].content": 1, "messages[1].content": 1}
    whole = made.look(
        fields(messages=user([part("text", text="AB"), part("text", text="-4")])), has_media=False
    )
    assert whole.counts == {"code": 1}
    hidden = made.look(fields(messages=user(b64("\n".join(["x"] * 20)))), has_media=False)
    assert hidden.counts == {}
    assert look_module.Finding(detector="a", kind="b", path="c", count=1).count == 1


def test_values_that_the_operator_allows_do_not_count():
    found = look(
        fields(messages=user(f"{CARD[:4]}-{CARD[4:8]}-{CARD[8:12]}-{CARD[12:]}")),
        allowed=frozenset({CARD.encode()}),
    )
    assert found is NOTHING


def test_a_look_may_be_without_custom_detectors():
    one = Look(
        scanner=SCANNER, custom=None, allowed=frozenset(), budget=Budget(time.thread_time, 60.0)
    )
    one.at_body(b'{"messages":[]}')
    assert one.findings() == ()
