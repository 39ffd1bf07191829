"""Sessions and figures as functions: forged cookies, replaced keys, shares, columns of amounts."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.directory import (
    KeyDirectory,
    KeyRecord,
    KeySnapshot,
    KeySource,
    Principal,
)
from gateway.auth.keys import hash_key
from gateway.dashboard.figures import TEAMS_MAX, day_query, request_lines, spend_table
from gateway.dashboard.protection import is_https, is_same_origin
from gateway.dashboard.sessions import COOKIE_CHARACTERS_MAX, SESSION_S, Sessions
from gateway.ledger.views import RecentRequest, SpendReport, SpendRow, SpendSums
from tests.gateway.ledger_samples import NOON_US

PEPPER = bytes(32)
ADMIN = b"administrators-key-0123456789"


def directory(token: bytes = b"team-key-0123456789ab", *, admin: bytes | None = ADMIN, **fields):
    record = KeyRecord(
        key_id="abcdefghijkl",
        digest=hash_key(PEPPER, token),
        team="payments",
        name="k",
        source=KeySource.DATABASE,
        **fields,
    )
    snapshot = KeySnapshot(
        revision=1,
        records=(record,),
        admin_digest=None if admin is None else hash_key(PEPPER, admin),
    )
    return KeyDirectory(snapshot, peppers=[PEPPER], namespace_key=bytes(32))


class Keeper:
    """Sessions over a directory and a time that a test changes."""

    def __init__(self) -> None:
        self.now_us = NOON_US
        self.keys = directory()
        self.count = 0
        self.sessions = self.of(b"k" * 32)

    def of(self, key: bytes) -> Sessions:
        return Sessions(
            key=key,
            directory=lambda: self.keys,
            wall_us=lambda: self.now_us,
            random_bytes=self.random_bytes,
        )

    def random_bytes(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big")

    def principal(self, token: bytes) -> Principal:
        found = self.keys.identify(token, now_us=self.now_us)
        assert isinstance(found, Principal)
        return found


@pytest.mark.parametrize("token", [ADMIN, b"team-key-0123456789ab"], ids=["admin", "team"])
def test_a_session_is_its_key_until_it_ends(token: bytes) -> None:
    keeper = Keeper()
    principal = keeper.principal(token)
    cookie = keeper.sessions.open(principal)
    session = keeper.sessions.read(cookie)
    assert session is not None
    assert session.principal == principal
    keeper.now_us += SESSION_S * 1_000_000
    assert keeper.sessions.read(cookie) is None


CHANGES = {
    "revoked": directory(disabled=True),
    "expired": directory(expires_at_us=NOON_US),
    "replaced by another key of the same id": directory(b"another-key-0123456789"),
    "and its team gone": KeyDirectory(
        KeySnapshot(revision=2, records=()), peppers=[PEPPER], namespace_key=bytes(32)
    ),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_a_session_ends_when_its_key_is(changed: KeyDirectory) -> None:
    keeper = Keeper()
    cookie = keeper.sessions.open(keeper.principal(b"team-key-0123456789ab"))
    assert keeper.sessions.read(cookie) is not None
    keeper.keys = changed
    assert keeper.sessions.read(cookie) is None


@pytest.mark.parametrize("admin", [None, b"the-next-admin-key-0123456789"], ids=["none", "another"])
def test_the_administrators_sessions_end_with_the_key(admin: bytes | None) -> None:
    keeper = Keeper()
    cookie = keeper.sessions.open(keeper.principal(ADMIN))
    keeper.keys = directory(admin=admin)
    assert keeper.sessions.read(cookie) is None


def test_another_master_key_ends_every_session() -> None:
    keeper = Keeper()
    cookie = keeper.sessions.open(keeper.principal(ADMIN))
    assert keeper.of(b"other" + bytes(27)).read(cookie) is None


@given(position=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=63))
def test_a_cookie_with_any_character_changed_is_nobodys(position: int, flip: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    keeper = Keeper()
    cookie = keeper.sessions.open(keeper.principal(b"team-key-0123456789ab"))
    body = cookie.rstrip("=")
    at = position % len(body)
    other = alphabet[(alphabet.index(body[at]) + flip) % 64]
    forged = body[:at] + other + body[at + 1 :] + cookie[len(body) :]
    session = keeper.sessions.read(forged)
    # The last character of base64 holds bits that mean nothing: then it is the same cookie.
    assert session is None or at == len(body) - 1


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda raw: raw.hex())))
def test_what_was_never_a_cookie_is_nobodys(text: str) -> None:
    assert Keeper().sessions.read(text) is None


def test_a_huge_cookie_is_not_even_looked_at() -> None:
    assert Keeper().sessions.read("A" * (COOKIE_CHARACTERS_MAX + 1)) is None


def test_tokens_of_forms_differ_by_session_and_purpose() -> None:
    keeper = Keeper()
    sessions = keeper.sessions
    principal = keeper.principal(ADMIN)
    first, second = (sessions.read(sessions.open(principal)) for _ in range(2))
    assert first is not None
    assert second is not None
    login = sessions.login_token(first.session_id.decode("latin-1"))
    assert len({sessions.form_token(first), sessions.form_token(second), login}) == 3


ORIGINS = {
    "the same host and port": ({"origin": "http://a:1", "host": "a:1"}, True),
    "the same host in other letters": ({"origin": "http://A.example", "host": "a.EXAMPLE"}, True),
    "TLS that ended in front of us": ({"origin": "https://a", "host": "a"}, True),
    "another port": ({"origin": "http://a:2", "host": "a:1"}, False),
    "a host that begins alike": ({"origin": "http://a.evil", "host": "a"}, False),
    "a user part that looks alike": ({"origin": "http://a@evil", "host": "a"}, False),
    "no host at all": ({"origin": "null", "host": ""}, False),
    "only the fetch site": ({"sec-fetch-site": "same-origin", "host": "a"}, True),
    "a typed address": ({"sec-fetch-site": "none", "host": "a"}, False),
}


@pytest.mark.parametrize(("headers", "is_ours"), ORIGINS.values(), ids=ORIGINS.keys())
def test_same_origin(headers: dict[str, str], is_ours: bool) -> None:
    assert is_same_origin(headers) is is_ours


def test_only_what_begins_with_https_counts_as_https() -> None:
    assert is_https("https", {})
    assert not is_https("http", {"origin": "http://https"})
    assert not is_https("http", {"x-forwarded-proto": "http"})


def sums(cost_pico_usd: int = 0, **fields: int) -> SpendSums:
    zero = dict.fromkeys(SpendSums.__struct_fields__, 0)
    return SpendSums(**(zero | {"cost_pico_usd": cost_pico_usd} | fields))


def report_of(costs: list[int]) -> SpendReport:
    rows = tuple(
        SpendRow(group=(f"t{n}",), sums=sums(cost, requests=1)) for n, cost in enumerate(costs)
    )
    return SpendReport(columns=("team",), rows=rows, total=sums(sum(costs), requests=len(costs)))


@given(st.lists(st.integers(min_value=0, max_value=10**18), max_size=8))
def test_padding_puts_decimal_points_below_each_other_and_keeps_amounts(costs: list[int]) -> None:
    table = spend_table(report_of(costs), NOON_US)
    amounts = [line.cost for line in (*table.lines, table.total) if line.cost is not None]
    assert [Decimal(one.text) * 10**12 for one in amounts] == [*costs, sum(costs)]
    behind = {len((one.text + one.pad).partition(".")[2]) for one in amounts}
    assert len(behind) == 1
    assert all(Decimal(one.text + one.pad) == Decimal(one.text) for one in amounts)


def test_more_teams_than_a_table_holds_are_one_row_with_their_sum() -> None:
    table = spend_table(report_of(list(range(TEAMS_MAX + 50, 0, -1))), NOON_US)
    assert len(table.lines) == TEAMS_MAX + 1
    last = table.lines[-1]
    assert (last.name, last.requests) == ("50 more teams", "50")
    assert Decimal(last.cost.text) * 10**12 == sum(range(1, 51))


UNPRICED = {
    "nothing was asked": (0, 0, 0, "0"),
    "every attempt was free": (2, 0, 0, "0"),
    "no attempt has a price": (2, 2, 0, None),
    "one of two has a price": (2, 1, 10**12, "1"),
}


@pytest.mark.parametrize(
    ("attempts", "unpriced", "cost", "text"), UNPRICED.values(), ids=UNPRICED.keys()
)
def test_an_unknown_price_is_not_nothing(
    attempts: int, unpriced: int, cost: int, text: str | None
) -> None:
    total = sums(cost, attempts=attempts, unpriced_attempts=unpriced)
    table = spend_table(SpendReport(columns=("team",), rows=(), total=total), NOON_US)
    assert (table.total.cost and table.total.cost.text) == text


SHARES = {
    "nothing of nothing": (0, 0, "–"),
    "nothing of something": (0, 9, "–"),
    "all": (9, 9, "100.0 %"),
    "a third, cut": (1, 3, "33.3 %"),
    "almost all is not all": (999_999, 1_000_000, "99.9 %"),
    "a trace is not nothing": (1, 10**15, "< 0.1 %"),
}


@pytest.mark.parametrize(("part", "whole", "text"), SHARES.values(), ids=SHARES.keys())
def test_the_estimated_share(part: int, whole: int, text: str) -> None:
    total = sums(whole, estimated_cost_pico_usd=part)
    table = spend_table(SpendReport(columns=("team",), rows=(), total=total), NOON_US)
    assert table.total.estimated == text


def test_what_the_cost_does_not_tell_is_told_beside_it() -> None:
    total = sums(5, unpriced_attempts=2, exposure_pico_usd=10**12, nominal_cost_pico_usd=3)
    table = spend_table(SpendReport(columns=("team",), rows=(), total=total), NOON_US)
    assert (table.has_unpriced, table.exposure, table.nominal) == (True, "1", "0.000000000003")


def request_at(at_us: int, **fields) -> RecentRequest:
    values = {
        "request_id": "0" * 32,
        "at_us": at_us,
        "team": "t",
        "project": "",
        "key_id": "k",
        "model": "m",
        "deployment": "p/m",
        "reason": "only one",
        "attempts": 1,
        "input_tokens": 1,
        "cached_input_tokens": 0,
        "output_tokens": 1,
        "cost_pico_usd": None,
        "is_estimated": False,
        "ttft_us": None,
        "duration_us": 1,
        "status": "ok",
        "error_code": "",
    }
    return RecentRequest(**(values | fields))


LINES = {
    "a request of today": (request_at(NOON_US), "12:00:00", "–"),
    "one of another day": (request_at(NOON_US - 86_400_000_000), "2026-11-27 12:00:00", "–"),
    "a quick first token": (request_at(NOON_US, ttft_us=999), "12:00:00", "0 ms"),
    "a slow first token": (request_at(NOON_US, ttft_us=9_999_999), "12:00:00", "9,999 ms"),
    "a very slow one": (request_at(NOON_US, ttft_us=12_340_000), "12:00:00", "12.3 s"),
}


@pytest.mark.parametrize(("request_", "time", "ttft"), LINES.values(), ids=LINES.keys())
def test_times_of_a_request(request_: RecentRequest, time: str, ttft: str) -> None:
    (line,) = request_lines([request_], NOON_US)
    assert (line.time, line.ttft, line.cost) == (time, ttft, None)


def test_amounts_go_to_their_own_requests() -> None:
    costs = [None, 10**12, None, 5]
    requests = [request_at(NOON_US, cost_pico_usd=cost) for cost in costs]
    shown = [line.cost and line.cost.text for line in request_lines(requests, NOON_US)]
    assert shown == [None, "1", None, "0.000000000005"]


@given(st.integers(min_value=0, max_value=4 * 10**15))
def test_the_day_is_the_utc_day_around_now(now_us: int) -> None:
    query = day_query(now_us, None)
    assert query.from_us is not None
    assert query.to_us is not None
    assert query.from_us <= now_us < query.to_us
    assert query.to_us - query.from_us == 86_400_000_000
    assert query.from_us % 86_400_000_000 == 0
