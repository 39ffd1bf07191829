"""Section `privacy.detect`: what it takes, and what becomes of it."""

from __future__ import annotations

import pytest

from gateway.detect.detection import Orders
from gateway.detect.published import PUBLISHED
from gateway.detect.scanner import DETECTORS as BUILT
from gateway.detection_setup import build_detection, orders_of
from gateway.settings.detect import DETECTORS, DetectSettings
from gateway.settings.errors import ConfigError
from tests.gateway.settings_text import load_settings

TAGS = "privacy: {tags: {a: {}, b: {}, c: {}}, detect: "


def detect(text: str) -> DetectSettings:
    section = load_settings(f"{TAGS}{text}}}").settings.privacy.detect
    assert section is not None
    return section


def test_every_detector_has_its_setting():
    assert set(DETECTORS) == set(BUILT)


def test_without_the_section_detectors_observe():
    assert build_detection(None).orders == Orders()
    assert not build_detection(None).orders.enforces


def test_what_the_section_says_is_what_is_done():
    orders = orders_of(
        detect(
            "{mode: enforce, iban: [a], email: [b], opaque_parts: {audio: [c]}, min_count: {email: 3},"
            " allow: ['DE12 5001-0517.0648 4898 90'], published_examples: detect, timeout_ms: 2.5,"
            " custom: [{name: own, pattern: 'x[0-9]', check: luhn, tags: [c], min_count: 2}]}"
        )
    )
    assert orders.enforces
    assert orders.tags["iban"] == {"a"}
    assert orders.tags["own"] == {"c"}
    assert orders.tags["jwt"] == frozenset()
    assert orders.opaque == {"image": frozenset(), "audio": {"c"}, "file": frozenset()}
    assert orders.min_counts == {"email": 3, "phone_number": 5, "ip_address": 5, "own": 2}
    assert orders.allowed == {b"DE12500105170648489890"}
    assert orders.timeout_s == 0.0025
    assert [(one.name, one.check) for one in orders.custom] == [("own", "luhn")]


ON_ERROR = {
    "unset: all that might have been added": ("iban: [a], opaque_parts: {file: [b]}", {"a", "b"}),
    "as it is said": ("iban: [a], on_error: [c]", {"c"}),
    "nothing, where that is said": ("iban: [a], on_error: []", set()),
}


@pytest.mark.parametrize(("text", "tags"), ON_ERROR.values(), ids=ON_ERROR.keys())
def test_tags_of_what_could_not_be_looked_through(text, tags):
    orders = orders_of(detect(f"{{{text}}}"))
    assert orders.on_error == tags
    assert orders.allowed == PUBLISHED


REFUSED = {
    "a look ahead": ("custom: [{name: own, pattern: '(?=a)'}]", "custom[0].pattern", "is no RE2 pattern"),
    "a pattern of nothing": ("custom: [{name: own, pattern: 'a*'}]", "custom[0].pattern", "empty text"),
    "no pattern": ("custom: [{name: own, pattern: ''}]", "custom[0].pattern", "1 to 1000 characters"),
    "the name of a built-in one": ("custom: [{name: iban, pattern: a}]", "custom[0].name", "built-in"),
    "one name twice": ("custom: [{name: x, pattern: a}, {name: x, pattern: b}]", "detect", "two custom detectors"),
    "an unknown tag": ("custom: [{name: x, pattern: a, tags: [d]}]", "custom[0].tags[0]", "unknown tag"),
    "another check": ("custom: [{name: x, pattern: a, check: crc}]", "custom[0].check", "luhn"),
    "a misspelt detector": ("payment_cards: [a]", "payment_cards", "payment_card"),
    "no time at all": ("timeout_ms: 0", "timeout_ms", "greater than 0"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_used_is_refused_with_its_place(text, place, said):
    with pytest.raises(ConfigError) as caught:
        detect(f"{{{text}}}")
    (problem,) = caught.value.problems
    assert place in problem.key_path
    assert said in str(problem)


def test_patterns_that_are_too_large_together_are_refused():
    pattern = "[a-z]{1000}" * 80
    many = ", ".join(f"{{name: n{number}, pattern: '{number}x{pattern}'}}" for number in range(12))
    with pytest.raises(ConfigError, match="too large"):
        detect(f"{{custom: [{many}]}}")
