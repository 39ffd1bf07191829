"""Cookies, proxies and figures as functions: forged cookies, made-up headers, columns of amounts."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.directory import KeyDirectory, KeyRecord, KeySnapshot, KeySource
from gateway.auth.keys import hash_key
from gateway.dashboard.figures import TEAMS_MAX, day_query, request_lines, spend_table
from gateway.dashboard.front import make_front
from gateway.dashboard.sessions import COOKIE_CHARACTERS_MAX, Sessions, cookie_name
from gateway.dashboard.shell import next_of
from gateway.ledger.views import RecentRequest, SpendReport, SpendRow, SpendSums
from gateway.settings.login import LoginSettings
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


def sessions_of(keys: KeyDirectory, *, key: bytes = b"k" * 32) -> Sessions:
    count = iter(range(1, 10_000))
    return Sessions(
        key=key, directory=lambda: keys, random_bytes=lambda size: next(count).to_bytes(size, "big")
    )


def test_a_cookie_is_known_by_the_digest_of_a_token_that_is_nowhere_else() -> None:
    sessions = sessions_of(directory())
    first, second = sessions.new(), sessions.new()
    assert sessions.digest(first.cookie) == first.digest
    assert first.digest != second.digest
    assert first.digest.hex() not in first.cookie


CHANGES = {
    "another key of the same id": directory(b"another-key-0123456789"),
    "no key": KeyDirectory(
        KeySnapshot(revision=2, records=()), peppers=[PEPPER], namespace_key=bytes(32)
    ),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_the_mark_of_a_key_changes_with_its_value(changed: KeyDirectory) -> None:
    before = sessions_of(directory()).mark("abcdefghijkl")
    assert before is not None
    assert before == sessions_of(directory(disabled=True)).mark("abcdefghijkl")
    assert before != sessions_of(changed).mark("abcdefghijkl")
    assert sessions_of(directory()).mark("admin") not in (None, before)
    assert sessions_of(directory(admin=None)).mark("admin") is None


def test_another_master_key_ends_every_session() -> None:
    cookie = sessions_of(directory()).new().cookie
    assert sessions_of(directory(), key=b"other" + bytes(27)).digest(cookie) is None


@given(position=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=63))
def test_a_cookie_with_any_character_changed_is_nobodys(position: int, flip: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    sessions = sessions_of(directory())
    cookie = sessions.new().cookie
    body = cookie.rstrip("=")
    at = position % len(body)
    other = alphabet[(alphabet.index(body[at]) + flip) % 64]
    forged = body[:at] + other + body[at + 1 :] + cookie[len(body) :]
    assert sessions.digest(forged) is None


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda raw: raw.hex())))
def test_what_was_never_a_cookie_is_nobodys(text: str) -> None:
    assert sessions_of(directory()).digest(text) is None


def test_a_huge_cookie_is_not_even_looked_at() -> None:
    sessions = sessions_of(directory())
    huge = sessions.seal("session", bytes(COOKIE_CHARACTERS_MAX))
    assert sessions.digest(huge) is None


def test_what_was_sealed_for_one_purpose_is_nothing_for_another() -> None:
    sessions = sessions_of(directory())
    assert sessions.unseal("device", sessions.seal("device", b"x")) == b"x"
    assert sessions.unseal("session", sessions.seal("device", b"x")) is None


def test_tokens_of_forms_differ_by_session_and_purpose() -> None:
    sessions = sessions_of(directory())
    first, second = sessions.new().digest, sessions.new().digest
    login = sessions.login_token(first.decode("latin-1"))
    assert len({sessions.form_token(first), sessions.form_token(second), login}) == 3


def scope(peer: str = "192.0.2.9", scheme: str = "http", **headers: str) -> dict:
    return {
        "scheme": scheme,
        "client": (peer, 1) if peer else None,
        "headers": [
            (name.replace("_", "-").encode(), value.encode("latin-1"))
            for name, value in headers.items()
        ],
    }


FRONT = make_front(LoginSettings(trusted_proxies=("10.0.0.0/8", "::1/128")))
PUBLIC = make_front(LoginSettings(public_url="https://fareway.example"))

ORIGINS = {
    "the same host and port": ({"origin": "http://a:1", "host": "a:1"}, True),
    "the same host in other letters": ({"origin": "http://A.example", "host": "a.EXAMPLE"}, True),
    "TLS that ended in front of us": ({"origin": "https://a", "host": "a"}, True),
    "another port": ({"origin": "http://a:2", "host": "a:1"}, False),
    "a host that begins alike": ({"origin": "http://a.evil", "host": "a"}, False),
    "a user part that looks alike": ({"origin": "http://a@evil", "host": "a"}, False),
    "no host at all": ({"origin": "null", "host": ""}, False),
    "no URL": ({"origin": "http://[a", "host": "a"}, False),
    "a forwarded host that we do not look at": (
        {"origin": "http://evil", "host": "a", "x_forwarded_host": "evil"},
        False,
    ),
    "only the fetch site": ({"sec_fetch_site": "same-origin", "host": "a"}, True),
    "another site": ({"sec_fetch_site": "cross-site", "origin": "http://a", "host": "a"}, False),
    "a typed address": ({"sec_fetch_site": "none", "host": "a"}, False),
    "nothing": ({"host": "a"}, False),
}


@pytest.mark.parametrize(("headers", "is_ours"), ORIGINS.values(), ids=ORIGINS.keys())
def test_same_origin(headers: dict[str, str], is_ours: bool) -> None:
    assert FRONT.is_same_origin(scope(**headers)) is is_ours


def test_over_tls_a_page_in_the_clear_is_not_ours_and_a_proxy_may_rename_the_host() -> None:
    assert not FRONT.is_same_origin(scope(scheme="https", origin="http://a", host="a"))
    assert FRONT.is_same_origin(scope(scheme="https", origin="https://a", host="a"))
    inside = scope(origin="https://fareway.example", host="10.0.0.5:8642")
    assert PUBLIC.is_same_origin(inside)
    assert not FRONT.is_same_origin(inside)


SECURE = {
    "TLS to us": (scope(scheme="https"), True),
    "a proxy of ours says so": (scope("10.1.2.3", x_forwarded_proto="https"), True),
    "a proxy of ours in IPv6": (scope("::1", x_forwarded_proto="https"), True),
    "a stranger says so": (scope("192.0.2.9", x_forwarded_proto="https"), False),
    "a stranger said so to our proxy": (scope("10.1.2.3", x_forwarded_proto="https, http"), False),
    "nobody knows who says so": (scope("", x_forwarded_proto="https"), False),
    "an origin that begins alike": (scope("10.1.2.3", origin="http://https"), False),
}


@pytest.mark.parametrize(("given_", "is_secure"), SECURE.values(), ids=SECURE.keys())
def test_only_a_trusted_proxy_says_that_there_is_tls(given_: dict, is_secure: bool) -> None:
    assert FRONT.is_secure(given_) is is_secure
    assert cookie_name("x", is_secure=is_secure) == ("__Host-x" if is_secure else "x")


def test_the_public_address_says_that_there_is_tls_for_itself_only() -> None:
    assert PUBLIC.is_secure(scope(host="Fareway.Example"))
    assert not PUBLIC.is_secure(scope(host="127.0.0.1:8642"))
    assert not PUBLIC.is_in_the_clear(scope(host="localhost:8642"))
    assert not PUBLIC.is_in_the_clear(scope(host="[::1]:8642"))
    assert PUBLIC.is_in_the_clear(scope(host="fareway.internal:8642"))


ADDRESSES = {
    "no proxy": (scope("192.0.2.9"), "192.0.2.9"),
    "a stranger makes one up": (scope("192.0.2.9", x_forwarded_for="1.1.1.1"), "192.0.2.9"),
    "behind a proxy": (scope("10.0.0.1", x_forwarded_for="192.0.2.9"), "192.0.2.9"),
    "made up before a proxy": (
        scope("10.0.0.1", x_forwarded_for="1.1.1.1, 192.0.2.9"),
        "192.0.2.9",
    ),
    "two proxies": (scope("10.0.0.1", x_forwarded_for="192.0.2.9, 10.0.0.2"), "192.0.2.9"),
    "with a port": (scope("10.0.0.1", x_forwarded_for="[2001:db8::1]:99"), "2001:db8::1"),
    "no address": (scope("10.0.0.1", x_forwarded_for="unknown"), "10.0.0.1"),
    "nobody": (scope(""), ""),
}


@pytest.mark.parametrize(("given_", "address"), ADDRESSES.values(), ids=ADDRESSES.keys())
def test_the_address_is_what_the_first_proxy_of_ours_saw(given_: dict, address: str) -> None:
    assert FRONT.address(given_) == address


NEXT = {
    "a page": ("/ui/users", "/ui/users"),
    "with a query": ("/ui/spend?by=team&from=2026-11-01", "/ui/spend?by=team&from=2026-11-01"),
    "nothing": ("", "/ui"),
    "another site": ("https://evil.example/ui", "/ui"),
    "another site without a scheme": ("//evil.example", "/ui"),
    "another site by a backslash": ("/\\evil.example", "/ui"),
    "another site after our path": ("/ui/..//evil.example", "/ui"),
    "a step up": ("/ui/../admin/v1/keys", "/ui"),
    "a host that begins alike": ("/ui.evil.example", "/ui"),
    "a line break": ("/ui/users\r\nset-cookie: a=b", "/ui"),
    "a script": ("javascript:alert(1)", "/ui"),
}


@pytest.mark.parametrize(("asked", "path"), NEXT.values(), ids=NEXT.keys())
def test_a_login_leads_to_a_page_of_ours_only(asked: str, path: str) -> None:
    assert next_of(asked) == path


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
