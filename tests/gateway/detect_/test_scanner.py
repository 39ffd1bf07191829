"""Each detector finds what is made by its rule, and lets pass what misses by little."""

from __future__ import annotations

import random
import time

import pytest

from gateway.detect.body_text import to_ascii
from gateway.detect.budget import Budget
from gateway.detect.scanner import DETECTORS, RULES, Scanner
from gateway.detect.tokens import FORMS
from tests.gateway.detect_ import planted, planted_tokens

SCANNER = Scanner()
SECONDS = 60.0
PER_RULE = 15


def detectors_in(text: str) -> set[str]:
    return {span.detector for span in SCANNER.find_spans(text, limit_s=SECONDS)}


def kinds_in(text: str) -> set[str]:
    return {span.kind for span in SCANNER.find_spans(text, limit_s=SECONDS)}


@pytest.mark.parametrize("detector", planted.PLANTED)
def test_what_is_made_by_rule_is_found(detector: str):
    rng = random.Random(f"planted {detector}")
    made = [planted.PLANTED[detector](rng) for _ in range(PER_RULE)]
    missed = [text for text in made if detector not in detectors_in(f"Look at {text} please.")]
    assert missed == []


@pytest.mark.parametrize("kind", planted.NATIONAL_IDS)
def test_identity_numbers_are_found(kind: str):
    rng = random.Random(f"planted {kind}")
    made = [planted.NATIONAL_IDS[kind](rng) for _ in range(PER_RULE)]
    missed = [text for text in made if "national_id" not in detectors_in(f"it is {text}, yes")]
    assert missed == []


@pytest.mark.parametrize("kind", planted_tokens.TOKENS)
def test_tokens_are_found_by_their_form(kind: str):
    rng = random.Random(f"planted {kind}")
    made = [planted_tokens.TOKENS[kind](rng) for _ in range(PER_RULE)]
    assert [text for text in made if kind not in kinds_in(f"key: {text}\n")] == []


def test_every_form_of_a_token_has_a_rule_that_makes_one():
    assert {form.kind for form in FORMS} | {"aws_secret_key"} == set(planted_tokens.TOKENS)
    assert len(FORMS) >= 40


def test_every_detector_has_a_rule_that_makes_its_values():
    with_kinds = {"national_id", "access_token"}
    assert set(planted.PLANTED) | with_kinds == set(DETECTORS)


def test_a_prefilter_matches_wherever_its_rule_finds_anything():
    """Only what a prefilter lets through is looked at, so none may be narrower than its rule."""
    rng = random.Random("prefilters")
    makes = [
        *planted.PLANTED.values(),
        *planted.NATIONAL_IDS.values(),
        *planted_tokens.TOKENS.values(),
    ]
    budget = Budget(time.thread_time, SECONDS)
    for make in makes:
        text = to_ascii(f"{make(rng)} and {make(rng)}")
        candidates = SCANNER.candidates(text, budget)
        finding = [rule for rule in RULES if list(rule.find(text, budget))]
        assert finding
        assert [rule for rule in finding if rule not in candidates] == []
