"""How often detectors are right: false alarms on public text, and what they find of what was planted.

The text is what is installed: the standard library and the packages of this environment, sources,
documentation and licences, cut into pieces as long as a long message. What a value's own tests and
documentation hold is no false alarm, so packages about such values are left out.
"""

from __future__ import annotations

import os
import random
import sysconfig
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from gateway.detect.detection import Detection, Orders
from gateway.detect.scanner import Scanner
from tests.gateway.detect_ import planted, planted_tokens
from tests.gateway.detect_.drawing import Make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REQUESTS = 6_000
"""In the slow part; ten times as many for a figure that is published."""

PIECE_CHARACTERS = 6_000
SUFFIXES = frozenset({".py", ".pyi", ".md", ".rst", ".txt", ".json", ".toml", ".cfg", ".html", ".css", ".h", ".c", ".csv", ".yaml"})  # fmt: skip
ABOUT_VALUES = frozenset({"stdnum", "cryptography", "joserfc", "authlib", "certifi", "test"})
SHARE_MAX = 0.001
RECALL_MIN = 0.99
PLANTED_EACH = 400

IN_BULK = {"email": 5, "phone_number": 5, "ip_address": 5}

SENTENCES = (
    "Could you check whether {} is right before we send it?",
    "{}",
    "Order 4711, 2 pieces:\n{}\nThank you!",
    '{{"value": "{}", "note": "as agreed"}}',
    "请检查 {}，谢谢。",
)


def seed() -> int:
    given = int(os.environ.get("FAREWAY_SEED", "0")) or random.SystemRandom().randrange(2**32)
    print(f"seed {given}; repeat with FAREWAY_SEED={given}")
    return given


def public_files(rng: random.Random) -> list[Path]:
    """Files of the environment, in an order drawn from the seed."""
    paths = sysconfig.get_paths()
    found = {
        path
        for root in (paths["stdlib"], paths["purelib"], paths["platlib"])
        for path in Path(root).rglob("*")
        if path.suffix in SUFFIXES and ABOUT_VALUES.isdisjoint(path.parts)
    }
    files = sorted(path for path in found if path.is_file())
    rng.shuffle(files)
    return files


def pieces_of(path: Path, most: int = 8) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return []
    starts = range(0, min(len(text), most * PIECE_CHARACTERS), PIECE_CHARACTERS)
    return [text[start : start + PIECE_CHARACTERS] for start in starts]


def test_false_alarms_on_public_text_are_at_most_one_request_in_a_thousand():
    detection = Detection(Orders(timeout_s=60.0))
    requests, alarms, where = 0, Counter[str](), list[str]()
    for path in public_files(random.Random(seed())):
        for piece in pieces_of(path):
            messages = msgspec.json.encode([{"role": "user", "content": piece}])
            found = detection.look({"messages": msgspec.Raw(messages)}, has_media=False)
            requests += 1
            assert found.fault == "", path
            over = [one for one, count in found.counts.items() if count >= IN_BULK.get(one, 1)]
            alarms.update(one for one in over if one not in IN_BULK)
            if not set(over) <= set(IN_BULK):
                kinds = sorted({one.kind for one in found.findings if one.detector in over})
                where.append(f"{path}: {', '.join(kinds)}")
        if requests >= REQUESTS:
            break
    print(f"{requests} requests, {len(where)} alarms: {dict(alarms)}")
    print("\n".join(where))
    # Below the bound, and not by luck: three more than expected at the most.
    assert len(where) <= SHARE_MAX * requests + 3


MAKES: dict[str, tuple[Make, str]] = {
    **{name: (make, name) for name, make in planted.PLANTED.items()},
    **{name: (make, "national_id") for name, make in planted.NATIONAL_IDS.items()},
    **{name: (make, "access_token") for name, make in planted_tokens.TOKENS.items()},
}


def test_of_what_is_planted_by_rule_each_detector_finds_99_in_a_hundred():
    rng = random.Random(seed())
    scanner = Scanner()
    recalls: dict[str, float] = {}
    for name, (make, detector) in MAKES.items():
        found = 0
        for _ in range(PLANTED_EACH):
            text = rng.choice(SENTENCES).format(make(rng))
            found += any(one.detector == detector for one in scanner.find_spans(text, limit_s=60.0))
        recalls[name] = found / PLANTED_EACH
    below = {name: recall for name, recall in recalls.items() if recall < RECALL_MIN}
    print(f"lowest: {min(recalls.values()):.4f}; {len(recalls)} kinds, {PLANTED_EACH} of each")
    assert below == {}
