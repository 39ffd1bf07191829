"""What detectors cost per request, beside a plain loop over the same patterns with `re`.

    .venv/bin/python -m bench.bench_detect [--rounds N] [--json FILE]

The loop searches for each pattern of the prefilters, one after the other, in the same text: what a
program without a set of patterns would do first, before it checks anything. Each text is one whose
like the detectors have not seen, as in a service: a pass that has to remember much is slow on new
text only.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.gateway.provenance import heading
from gateway.detect.body_text import flatten, fold, to_ascii
from gateway.detect.detection import Detection, Orders
from gateway.detect.scanner import RULES

CHARACTERS = 4096
ROUNDS = 200
WARM_ROUNDS = 20

_WORDS = """
account answer before between budget bridge carry chapter circle city cloud colour common compare
corner country customer decide deliver detail different district during early engine evening
example exchange family figure follow forest forward garden general gentle gradual harbour history
hundred important interest island journal journey kitchen language letter library limit machine
manner market measure meeting message method middle minute moment mountain nature number object
office often order paper people period picture place please point policy present problem produce
product project proper question quiet reason record region remember report request result return
river sample science season second section sentence service shadow simple single small sorry
spring station story street strong summer supply surface system table teacher thank theory through
ticket today tomorrow travel under understand value village violet visit voice water weather
window winter within wonder writer yellow
"""
WORDS = _WORDS.split()
_NAMES = ("value", "index", "result", "request", "client", "item", "config", "path", "parser")

Write = Callable[[random.Random], str]


def prose(rng: random.Random) -> str:
    """Sentences of plain words."""
    words = (rng.choice(WORDS) for _ in range(14))
    return " ".join(words).capitalize() + rng.choice(".?!") + rng.choice((" ", " ", "\n"))


def source(rng: random.Random) -> str:
    """Lines like those of a program."""
    one, two = rng.choice(_NAMES), rng.choice(_NAMES)
    call = f"{rng.choice(WORDS)}_{rng.choice(WORDS)}_{one}"
    return (
        f'    if self.{one} is not None and {two}[{rng.randrange(100)}] != "{rng.choice(WORDS)}":\n'
        f"        {two} = {call}({one}, {two}={rng.randrange(10_000)})  # {prose(rng).strip()}\n"
    )


def log(rng: random.Random) -> str:
    """Lines with times, addresses and identifiers: as many numbers as text can have."""
    day, time_ = rng.randrange(1, 29), f"{rng.randrange(24):02}:{rng.randrange(60):02}:07"
    address = f"10.0.{rng.randrange(256)}.{rng.randrange(256)}"
    return (
        f"2026-{rng.randrange(1, 13):02}-{day:02} {time_} INFO request"
        f" {rng.getrandbits(64):016x} from {address} took {rng.random():.6f} s\n"
    )


def chinese(rng: random.Random) -> str:
    """Sentences of another script."""
    return (
        "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(18))
        + "\uff0c\u7248\u672c 2\u3002"
    )


KINDS: dict[str, Write] = {"prose": prose, "source": source, "log": log, "chinese": chinese}
SIZES = (200, CHARACTERS, 65_536)


def body(write: Write, rng: random.Random, characters: int) -> dict[str, msgspec.Raw]:
    """The members of a chat request with so many bytes of content in some messages."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are a helpful assistant."}]
    left = characters
    while left > 0:
        text = ""
        while len(text.encode()) < min(left, 1200):
            text += write(rng)
        left -= len(text.encode())
        messages.append({"role": ("user", "assistant")[len(messages) % 2 == 0], "content": text})
    return {
        "messages": msgspec.Raw(msgspec.json.encode(messages)),
        "max_tokens": msgspec.Raw(b"256"),
    }


def loop_of() -> Callable[[bytes], int]:
    """The same patterns, one after the other."""
    patterns = [
        re.compile(one.replace("(?i)", "").encode(), re.IGNORECASE if "(?i)" in one else 0)
        for rule in RULES
        for one in rule.prefilters
    ]
    return lambda text: sum(1 for pattern in patterns if pattern.search(text))


def cpu_us(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Processor time of each call, sorted."""
    found: list[float] = []
    for call in calls:
        started = time.thread_time_ns()
        call()
        found.append((time.thread_time_ns() - started) / 1e3)
    return sorted(found)


def measure(write: Write, characters: int, rounds: int) -> dict[str, float]:
    """Median and ninetieth percentile of requests that have not been seen before."""
    rng = random.Random(characters)
    detection, loop = Detection(Orders(timeout_s=60.0)), loop_of()
    requests = [body(write, rng, characters) for _ in range(rounds + WARM_ROUNDS)]
    texts = [to_ascii(fold(flatten(msgspec.json.encode(one)))) for one in requests]

    def look(one: dict[str, msgspec.Raw]) -> Callable[[], object]:
        return lambda: detection.look(one, has_media=False)

    def search(text: bytes) -> Callable[[], object]:
        return lambda: loop(text)

    cpu_us([look(one) for one in requests[:WARM_ROUNDS]])
    looked = cpu_us([look(one) for one in requests[WARM_ROUNDS:]])
    searched = cpu_us([search(text) for text in texts[: max(5, rounds // 20)]])
    return {
        "median_us": round(looked[len(looked) // 2], 1),
        "p90_us": round(looked[len(looked) * 9 // 10], 1),
        "us_per_4_kib": round(looked[len(looked) // 2] * CHARACTERS / characters, 1),
        "re_loop_us": round(searched[len(searched) // 2], 1),
        "re_loop_ratio": round(searched[len(searched) // 2] / looked[len(looked) // 2], 1),
    }


class _Arguments(argparse.Namespace):
    rounds: int
    json: Path | None


def main() -> None:
    """Measure each kind of text in each size and print it."""
    parser = argparse.ArgumentParser(description="Detectors beside a plain loop over patterns.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(namespace=_Arguments())
    found: dict[str, dict[str, float]] = {}
    for kind, write in KINDS.items():
        for size in SIZES:
            rounds = max(10, given.rounds * CHARACTERS // max(size, CHARACTERS))
            found[f"{kind} {size}"] = figures = measure(write, size, rounds)
            print(
                f"{kind:8s} {size:6d} bytes: {figures['median_us']:8.1f} µs (p90"
                f" {figures['p90_us']:8.1f}), {figures['us_per_4_kib']:6.1f} each 4 KiB; a loop"
                f" with re {figures['re_loop_us']:9.1f} µs, {figures['re_loop_ratio']:5.1f} times"
                " as much"
            )
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**heading("detect"), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
