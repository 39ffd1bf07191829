"""Reports equal the upstream's bill to the picodollar, whichever way they are grouped.

What is expected comes from the upstream's bill and from what the clients asked, matched by the id
that the upstream gives to each answer; nothing of the ledger is in it.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from tests.e2e.roads import Road, deployments, events_of, running_road
from tests.faults.traffic import Answer as Seen
from tests.faults.traffic import ask
from tests.support.ledger_rows import billed_pico_usd, wait_for_rows
from tests.support.scripted_upstream import Answer, BillLine, Chat

pytestmark = pytest.mark.slow

PRICES = {
    "a/large": {
        "input_usd_per_mtok": "0.13370051",
        "cached_input_usd_per_mtok": "0.01003007",
        "output_usd_per_mtok": "0.61010033",
    },
    "a/small": {"input_usd_per_mtok": "0.0333333", "output_usd_per_mtok": "0.0999999"},
    "b/large": {"input_usd_per_mtok": "0.2000007", "output_usd_per_mtok": "0.7000003"},
    "a/busy": {"input_usd_per_mtok": "0.01", "output_usd_per_mtok": "0.01"},
    "a/broken": {"input_usd_per_mtok": "0.0123457", "output_usd_per_mtok": "0.0123457"},
}
"""Picodollars per token that are no whole numbers, so that every line is rounded."""

SCRIPTS = {
    "large": [
        Chat(text="word " * words, prompt_tokens=prompt, cached_tokens=cached)
        for words, prompt, cached in ((3, 101, 0), (7, 1009, 333), (11, 57, 56), (1, 4001, 1))
    ]
    * 50,
    "small": [Chat(text="word " * words, prompt_tokens=7 * words) for words in (1, 5, 9)] * 50,
    "busy": [Answer(status=503, body={"error": {"message": "busy"}})],
    "broken": [Answer(status=500, body={"error": {"message": "broken"}})],
}
CONFIG = {
    "providers": {"a": {"kind": "openai_compatible"}, "b": {"kind": "openai_compatible"}},
    "models": {
        "big": deployments(("a/large", PRICES["a/large"])),
        "little": deployments(("a/small", PRICES["a/small"])),
        "sure": deployments(("a/busy", PRICES["a/busy"]), ("b/large", PRICES["b/large"])),
        "broken": deployments(("a/broken", PRICES["a/broken"])),
    },
    "routing": {"retries": {"attempts": 2}},
    "teams": {"red": {"projects": {"search": {}, "chat": {}}}, "blue": {}},
}
REQUESTS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as the client knows it.

    Attributes:
        group: Values of every dimension that the client knows.
        attempts: As the answer's header says.
        line: The upstream's bill of it.
        pico_usd: What that line costs.
    """

    group: dict[str, str]
    attempts: int
    line: BillLine
    pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The road after the traffic, and what was asked on it."""

    road: Road
    asked: list[Asked]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Books]:
    rng = random.Random(seed)
    with running_road(tmp_path_factory.mktemp("money"), scripts=SCRIPTS, config=CONFIG) as road:
        keys = _keys(road)
        sent = [_send(road, keys, rng) for _ in range(REQUESTS)]
        broken = ask(road.gateway.port, keys[0]["key"], _body("broken", None))
        assert (broken.status, broken.headers["x-fareway-attempts"]) == (502, "2")
        bill = {line.id: line for line in road.upstream.bill()}
        asked = [_asked(group, answer, bill) for group, answer in sent]
        assert len(bill) == len(asked)
        wait_for_rows(road.gateway.database, sum(one.attempts for one in asked) + 2)
        yield Books(road=road, asked=asked)


def _keys(road: Road) -> list[dict[str, str]]:
    """Both fixed keys and two that were made, with what is known of each."""
    gateway = road.gateway
    listed = {
        row["team"]: row["key_id"] for row in json.loads(gateway.run("keys", "list", "--json"))
    }
    keys = [
        {"team": team, "project": "", "key": gateway.key(team), "key_id": listed[team]}
        for team in ("red", "blue")
    ]
    for team, project in (("red", "search"), ("blue", "")):
        arguments = ("keys", "create", "--team", team, "--name", "made", "--json")
        made = json.loads(gateway.run(*arguments, *(["--project", project] if project else [])))
        keys.append(
            {"team": team, "project": project, "key": made["key"], "key_id": made["key_id"]}
        )
    return keys


def _body(model: str, project: str | None, *, is_stream: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 100,
    }
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if project:
        body["metadata"] = {"fareway_project": project}
    return body


def _send(
    road: Road, keys: list[dict[str, str]], rng: random.Random
) -> tuple[dict[str, str], Seen]:
    key = rng.choice(keys)
    model = rng.choice(["big", "little", "sure"])
    project = key["project"]
    if key["team"] == "red" and not project:
        project = rng.choice(["search", "chat", ""])
    answer = ask(
        road.gateway.port,
        key["key"],
        _body(model, project or None, is_stream=rng.random() < 0.5),
    )
    assert answer.status == 200
    group = {"team": key["team"], "project": project, "model": model, "key": key["key_id"]}
    return {**group, "deployment": answer.headers["x-fareway-deployment"]}, answer


def _asked(group: dict[str, str], answer: Seen, bill: dict[str, BillLine]) -> Asked:
    first = answer.body if answer.body.startswith(b"{") else events_of(answer.body)[0]
    line = bill[json.loads(first)["id"]]
    pico_usd = billed_pico_usd(line, PRICES[group["deployment"]])
    assert answer.cost_usd is not None
    assert Decimal(answer.cost_usd) * 10**12 == pico_usd
    attempts = int(answer.headers["x-fareway-attempts"])
    return Asked(group=group, attempts=attempts, line=line, pico_usd=pico_usd)


GROUPINGS = {
    "team": ("team",),
    "project": ("team", "project"),
    "model": ("model",),
    "deployment": ("deployment",),
    "key": ("key",),
    "team,model": ("team", "model"),
    "model,deployment": ("model", "deployment"),
}


@pytest.mark.parametrize(("by", "columns"), GROUPINGS.items(), ids=GROUPINGS.keys())
def test_a_report_equals_the_bill_in_every_group(
    books: Books, by: str, columns: tuple[str, ...]
) -> None:
    expected: Counter[tuple[str, ...]] = Counter()
    tokens: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for one in books.asked:
        group = tuple(one.group[column] for column in columns)
        expected[group] += one.pico_usd
        tokens[group] += Counter(
            output_tokens=one.line.completion_tokens,
            cached_input_tokens=one.line.cached_tokens,
        )
    report = json.loads(books.road.gateway.run("spend", "report", "--by", by, "--json"))
    found = {tuple(row[column] for column in columns): row for row in report["rows"]}
    # Attempts that failed cost nothing, so a group of them alone is not on the bill.
    assert {
        group: row["cost_pico_usd"] for group, row in found.items() if row["cost_pico_usd"]
    } == {group: amount for group, amount in expected.items() if amount}
    for group, counts in tokens.items():
        assert found[group]["output_tokens"] == counts["output_tokens"]
        assert found[group]["cached_input_tokens"] == counts["cached_input_tokens"]
    total = sum(one.pico_usd for one in books.asked)
    assert report["total"]["cost_pico_usd"] == total
    assert Decimal(report["total"]["cost_usd"]) * 10**12 == total
    assert report["total"]["requests"] == len(books.asked) + 1
    assert report["total"]["attempts"] == sum(one.attempts for one in books.asked) + 2


def test_csv_and_json_tell_the_same(books: Books) -> None:
    gateway = books.road.gateway
    report = json.loads(gateway.run("spend", "report", "--by", "team,model", "--json"))
    text = gateway.run("spend", "report", "--by", "team,model", "--format", "csv")
    *rows, total = csv.DictReader(io.StringIO(text))
    assert [int(row["cost_pico_usd"]) for row in rows] == [
        row["cost_pico_usd"] for row in report["rows"]
    ]
    assert [(row["team"], row["model"]) for row in rows] == [
        (row["team"], row["model"]) for row in report["rows"]
    ]
    assert int(total["cost_pico_usd"]) == report["total"]["cost_pico_usd"]
    assert Decimal(total["cost_usd"]) * 10**12 == report["total"]["cost_pico_usd"]


def test_a_filter_leaves_the_rest_out(books: Books) -> None:
    report = json.loads(
        books.road.gateway.run("spend", "report", "--by", "model", "--team", "blue", "--json")
    )
    assert report["total"]["cost_pico_usd"] == sum(
        one.pico_usd for one in books.asked if one.group["team"] == "blue"
    )


def test_what_may_still_be_billed_is_reported_beside_the_cost(books: Books) -> None:
    report = json.loads(books.road.gateway.run("spend", "report", "--by", "model", "--json"))
    [row] = [row for row in report["rows"] if row["model"] == "broken"]
    assert (row["requests"], row["attempts"], row["cost_pico_usd"]) == (1, 2, 0)
    # Both attempts may have generated all of their 100 tokens.
    assert row["exposure_pico_usd"] > 2 * 100 * 12345
    assert row["exposure_pico_usd"] == report["total"]["exposure_pico_usd"]


def test_explain_names_where_a_request_goes_and_bounds_its_cost(books: Books) -> None:
    gateway = books.road.gateway
    before = len(books.road.upstream.requests())
    found = json.loads(
        gateway.run("explain", "--team", "red", "--model", "big", "--max-tokens", "100", "--json")
    )
    assert len(books.road.upstream.requests()) == before
    [candidate] = found["decision"]["candidates"]
    assert candidate["deployment"] == "a/large"
    assert Decimal(candidate["upper_bound_usd"]) >= Decimal(candidate["expected_usd"]) > 0
    # A hundred tokens of output at the price of the file, and some for the prompt.
    assert Decimal(candidate["upper_bound_usd"]) > Decimal("0.61010033") / 10_000


def test_the_books_hold(books: Books) -> None:
    verdict = json.loads(books.road.gateway.run("ledger", "verify", "--json"))
    assert verdict["faults"] == []
    assert verdict["cost_pico_usd"] == sum(one.pico_usd for one in books.asked)
    assert verdict["events"] == sum(one.attempts for one in books.asked) + 2
