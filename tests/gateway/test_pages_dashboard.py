"""The first page: who sees what, exact figures, and what a hostile name or site can do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from gateway.ledger.views import GroupBy, SpendQuery, SpendReport
from gateway.settings.login import LoginSettings
from pricing.money import format_usd
from tests.gateway.ledger_samples import NOON_US, PRICE_PICO
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, ORIGIN, PAYMENTS_KEY, SEARCH_KEY, running_pages
from tests.support.scripted_upstream import Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio

PACKAGE = Path(__file__).resolve().parents[2] / "gateway" / "dashboard"
SESSION_S = LoginSettings().session_s
IDLE_S = LoginSettings().idle_s
SAME = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway for tests of doors."""
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        await pages.book()
        yield pages


async def log_in(client: httpx.AsyncClient, key: str, **headers: str) -> httpx.Response:
    """Fill in the form as a browser does."""
    form = PageReader((await client.get("/ui/login")).text).fields
    return await client.post("/ui/login", data={**form, "key": key}, headers={**SAME, **headers})


async def first_page(client: httpx.AsyncClient, key: str) -> PageReader:
    """Log in and read the first page."""
    assert (await log_in(client, key)).headers["location"] == "/ui"
    answer = await client.get("/ui")
    assert answer.status_code == 200
    return PageReader(answer.text)


async def test_a_stranger_is_sent_to_the_form(shared) -> None:
    async with shared.browser() as client:
        for path in ("/ui", "/ui/"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
        form = await client.get("/ui/login")
        assert form.status_code == 200
        assert "API key" in PageReader(form.text).text


async def test_the_administrator_sees_every_team_and_the_ledgers_own_totals(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await pages.book(tokens=1_234_567, changes={"usage": {"input": 7, "cache_read": 5}})
        await pages.book(tokens=10, changes={"quality": "estimated"})
        await pages.book(team="search", project="", changes={"cost_pico_usd": None, "lines": ()})
        await pages.book(tokens=9, ago_us=86_400_000_000)
        page = await first_page(client, ADMIN_KEY)
        day_us = NOON_US - NOON_US % 86_400_000_000
        report = await pages.ledger.call(
            "spend_report",
            SpendQuery(group_by=(GroupBy.TEAM,), from_us=day_us),
            result_type=SpendReport,
            timeout_s=10,
        )
        header, *rows, total = page.tables["spend"]
        assert header[0] == "Team"
        shown = {row[0]: row for row in rows}
        assert set(shown) == {"payments", "search"}
        assert shown["payments"][-1] == format_usd(report.rows[0].sums.cost_pico_usd)
        for row in report.rows:
            assert shown[row.group[0]][1] == f"{row.sums.requests:,}"
        assert shown["search"][5] == "1"
        assert shown["search"][-1] == "unpriced"
        assert total[-1] == format_usd(report.total.cost_pico_usd)
        assert total[-1] == format_usd((1_234_567 + 10) * PRICE_PICO)
        assert shown["payments"][2:4] == ["22", "5"]
        assert shown["payments"][6] == "< 0.1 %"
        assert "UTC day 2026-11-28, read at 12:00:00 UTC" in page.text
        assert len(page.tables["requests"]) == 1 + 4


async def test_a_request_is_told_with_where_why_and_how_much(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await pages.book(tokens=2_000)
        page = await first_page(client, ADMIN_KEY)
        header, row = page.tables["requests"]
        assert dict(zip(header, row, strict=True)) == {
            "Time": "12:00:00",
            "Team": "payments",
            "Project": "fraud",
            "Model": "chat-small",
            "Deployment": "groq/llama-3.1-8b-instant",
            "Reason": "cheapest",
            "Status": "ok",
            "Tokens in": "2,000",
            "Cached": "0",
            "Out": "7",
            "TTFT": "120 ms",
            "Cost, USD": format_usd(2_000 * PRICE_PICO),
        }


async def test_at_most_fifty_requests_are_shown(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        for _ in range(53):
            await pages.book(tokens=1)
        page = await first_page(client, ADMIN_KEY)
        assert len(page.tables["requests"]) == 1 + 50
        assert page.tables["spend"][-1][1] == "53"


async def test_a_team_sees_nothing_of_another(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await pages.book(tokens=3, project="secret-project", model="secret-model")
        await pages.book(team="", project="", tokens=5, key_id="admin")
        for _ in range(60):
            await pages.book(tokens=7, deployment="up/elsewhere")
        await pages.book(team="search", project="", tokens=4)
        await first_page(client, SEARCH_KEY)
        answer = await client.get("/ui")
        page = PageReader(answer.text)
        assert [row[0] for row in page.tables["spend"]] == ["Team", "search", "Total"]
        assert page.tables["spend"][-1][-1] == format_usd(4 * PRICE_PICO)
        assert [row[1] for row in page.tables["requests"]] == ["Team", "search"]
        for word in ("payments", "secret-project", "secret-model", "elsewhere", "fixed0"):
            assert word not in answer.text


async def test_an_empty_ledger_is_said_in_words(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        page = await first_page(client, PAYMENTS_KEY)
        assert "Nothing has been spent since midnight UTC." in page.text
        assert "No request has ended yet." in page.text
        assert page.tables["spend"][-1][-1] == "0"


BAD_KEYS = {
    "a key that nobody has": ("nobodys-key-0123456789", "is not known here"),
    "nothing": ("  ", "malformed"),
    "a Fareway key with a typing error": ("fw_live_" + "a" * 63, "malformed"),
    "text that no header carries": ("kéy with späces", "malformed"),
}


@pytest.mark.parametrize(("key", "message"), BAD_KEYS.values(), ids=BAD_KEYS.keys())
async def test_a_bad_key_opens_nothing(shared, key, message) -> None:
    async with shared.browser() as client:
        answer = await log_in(client, key)
        assert answer.status_code == 401
        assert message in PageReader(answer.text).text
        assert "fareway_session" not in client.cookies
        if key.strip():
            assert key not in answer.text


FOREIGN = {
    "another origin": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "another origin from an old browser": {"origin": "https://evil.example"},
    "a subdomain": {"origin": ORIGIN, "sec-fetch-site": "same-site"},
    "an opaque origin": {"origin": "null"},
    "nothing that tells": {},
    "an origin that is no URL": {"origin": "http://[fareway.test"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN.keys())
async def test_a_form_from_elsewhere_does_nothing(shared, headers) -> None:
    async with shared.browser() as client:
        form = PageReader((await client.get("/ui/login")).text).fields
        answer = await client.post("/ui/login", data={**form, "key": ADMIN_KEY}, headers=headers)
        assert answer.status_code == 403
        assert "fareway_session" not in client.cookies
        page = await first_page(client, ADMIN_KEY)
        out = await client.post("/ui/logout", data=page.fields, headers=headers)
        assert out.status_code == 403
        assert (await client.get("/ui")).status_code == 200


async def test_a_form_needs_the_token_of_its_own_page(shared) -> None:
    async with shared.browser() as client:
        other = PageReader((await client.get("/ui/login")).text).fields
        client.cookies.clear()
        await client.get("/ui/login")
        for fields in ({}, {"token": ""}, {"token": "0" * 64}, other, {"token": "é"}):
            answer = await client.post("/ui/login", data={**fields, "key": ADMIN_KEY}, headers=SAME)
            assert answer.status_code == 403, fields
        await first_page(client, ADMIN_KEY)
        for fields in ({}, other):
            assert (await client.post("/ui/logout", data=fields, headers=SAME)).status_code == 403
        assert (await client.get("/ui/logout")).status_code == 405


async def test_a_body_that_is_no_form_opens_nothing(shared) -> None:
    async with shared.browser() as client:
        await client.get("/ui/login")
        form = {"content-type": "application/x-www-form-urlencoded"}
        for body, headers in (
            (b'{"key": "x"}', {"content-type": "application/json"}),
            (b"&".join(b"a=%d" % n for n in range(100)), form),
            (b"token=\xff\xfe", form),
        ):
            answer = await client.post("/ui/login", content=body, headers={**SAME, **headers})
            assert answer.status_code == 403
        huge = await client.post("/ui/login", content=b"a" * 1_048_577, headers={**SAME, **form})
        assert huge.status_code == 413


async def test_logging_out_ends_the_browsers_session(shared) -> None:
    async with shared.browser() as client:
        page = await first_page(client, ADMIN_KEY)
        out = await client.post("/ui/logout", data=page.fields, headers=SAME)
        assert (out.status_code, out.headers["location"]) == (303, "/ui/login")
        assert "fareway_session" not in client.cookies
        assert (await client.get("/ui")).status_code == 303


async def test_a_session_ends_after_its_time(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await first_page(client, ADMIN_KEY)
        for _ in range(SESSION_S // 1200 - 1):
            pages.time.pass_s(1200)
            assert (await client.get("/ui")).status_code == 200
        pages.time.pass_s(1199)
        assert (await client.get("/ui")).status_code == 200
        pages.time.pass_s(1)
        assert (await client.get("/ui")).status_code == 303


async def test_a_session_that_nobody_uses_ends_sooner(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await first_page(client, ADMIN_KEY)
        pages.time.pass_s(IDLE_S - 1)
        assert (await client.get("/ui")).status_code == 200
        pages.time.pass_s(IDLE_S)
        assert (await client.get("/ui")).status_code == 303


async def test_revoking_a_key_ends_its_sessions_at_once(tmp_path) -> None:
    async with (
        running_pages(tmp_path) as pages,
        pages.browser() as client,
        pages.admin() as admin,
    ):
        made = (await admin.post("/admin/v1/keys", json={"team": "search", "name": "ui"})).json()
        page = await first_page(client, made["key"])
        await admin.delete(f"/admin/v1/keys/{made['key_id']}")
        assert (await client.get("/ui")).headers["location"] == "/ui/login"
        late = await client.post("/ui/logout", data=page.fields, headers=SAME)
        assert late.headers["location"] == "/ui/login"
        again = await log_in(client, made["key"])
        assert "has been revoked" in PageReader(again.text).text


async def test_an_expired_key_ends_its_sessions(tmp_path) -> None:
    async with (
        running_pages(tmp_path) as pages,
        pages.browser() as client,
        pages.admin() as admin,
    ):
        order = {"team": "search", "name": "ui", "expires_at": "2026-11-28T13:00:00Z"}
        made = (await admin.post("/admin/v1/keys", json=order)).json()
        await first_page(client, made["key"])
        pages.time.pass_s(3600)
        assert (await client.get("/ui")).status_code == 303


COOKIES = {
    "plain HTTP on loopback": ({}, False),
    "a proxy that ends TLS": ({"x-forwarded-proto": "https"}, True),
    "a browser that only says https": ({"origin": ORIGIN.replace("http:", "https:")}, False),
}


@pytest.mark.parametrize(("headers", "is_secure"), COOKIES.values(), ids=COOKIES.keys())
async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(
    shared, headers, is_secure
) -> None:
    async with shared.browser() as client:
        proxied = {name: headers[name] for name in headers if name != "origin"}
        form = PageReader((await client.get("/ui/login")).text).fields
        if is_secure:  # the client keeps no Secure cookie of plain http, as no browser does
            headers = {**headers, "origin": ORIGIN.replace("http:", "https:")}
            answer = await client.get("/ui/login", headers=proxied)
            form = PageReader(answer.text).fields
            headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
            assert headers["cookie"].startswith("__Host-fareway_login=")
        answer = await client.post(
            "/ui/login", data={**form, "key": ADMIN_KEY}, headers={**SAME, **headers}
        )
        assert answer.status_code == 303
        cookies = answer.headers.get_list("set-cookie")
        prefix = "__Host-" if is_secure else ""
        (cookie,) = [one for one in cookies if one.startswith(f"{prefix}fareway_session=")]
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=lax", "path=/", f"max-age={SESSION_S}"} <= attributes
        assert not any(attribute.startswith("domain") for attribute in attributes)
        assert ("secure" in attributes) is is_secure
        assert ADMIN_KEY not in cookie


async def test_every_answer_forbids_scripts_of_others_frames_and_caches(shared) -> None:
    async with shared.browser() as client:
        await first_page(client, ADMIN_KEY)
        for path in ("/ui", "/ui/login", "/ui/static/fareway.css", "/ui/nothing", "/openapi.json"):
            headers = (await client.get(path)).headers
            policy = {
                name: value
                for name, _, value in (
                    part.strip().partition(" ")
                    for part in headers["content-security-policy"].split(";")
                )
            }
            assert policy["default-src"] == "'none'"
            assert policy["frame-ancestors"] == "'none'"
            assert policy["base-uri"] == "'none'"
            assert policy["script-src"] == "'self'"
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            kept = "no-cache" if path.endswith(".css") else "no-store"
            assert headers["cache-control"] == kept
            assert len(headers["x-fareway-request-id"]) == 32


HOSTILE = (
    "<script>window.pwn=1</script>",
    '"><img src=x onerror=pwn=1>',
    '<iframe srcdoc="<script>top.pwn=1</script>"></iframe>',
    "{{ 7*7 }}",
    '=HYPERLINK("http://x","y")',
    "a\u202egpj.exe",
    "line\nbreak\x00",
)


async def test_hostile_names_are_shown_and_never_run(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        for name in HOSTILE:
            await pages.book(
                team=name, project=name, model=name, deployment=f"up/{name}", reason=name
            )
        await pages.book(changes={"status": "rejected", "error_code": HOSTILE[0]})
        page = await first_page(client, ADMIN_KEY)
        allowed = {"html", "head", "meta", "title", "link", "body", "header", "a", "p", "form"}
        allowed |= {"input", "button", "main", "div", "h1", "time", "dl", "dt", "dd", "table"}
        allowed |= {"caption", "thead", "tbody", "tfoot", "tr", "th", "td", "bdi", "span", "ul"}
        allowed |= {"nav", "li", "abbr", "script", "select", "option"}
        assert {tag for tag, _ in page.tags} <= allowed
        attributes = {name for _, given in page.tags for name in given}
        assert not {name for name in attributes if name.startswith("on") or name == "style"}
        scripts = [given for tag, given in page.tags if tag == "script"]
        assert all(given["src"].startswith("/ui/static/") for given in scripts)
        teams = {row[0] for row in page.tables["spend"]}
        assert set(HOSTILE[:5]) <= teams
        assert "a\ufffdgpj.exe" in teams
        assert "line\ufffdbreak\ufffd" in teams
        assert f"rejected: {HOSTILE[0]}" in {row[6] for row in page.tables["requests"]}


async def test_no_prompt_and_no_answer_is_anywhere_on_the_page(tmp_path) -> None:
    scripts = {"m": [Chat(text="ANSWER-CANARY of the upstream")]}
    async with (
        ScriptedUpstream(scripts) as upstream,
        running_pages(tmp_path, upstream=upstream.base_url) as pages,
        pages.browser() as client,
    ):
        asked = await client.post(
            "/v1/chat/completions",
            json={"model": "small", "messages": [{"role": "user", "content": "PROMPT-CANARY"}]},
            headers={"authorization": f"Bearer {PAYMENTS_KEY}"},
        )
        assert "ANSWER-CANARY" in asked.text
        await first_page(client, ADMIN_KEY)
        answer = await client.get("/ui")
        assert asked.headers["x-fareway-request-id"] in answer.text
        assert "CANARY" not in answer.text
        row = PageReader(answer.text).tables["requests"][1]
        assert row[1:5] == ["payments", "fraud", "chat-small", "up/m"]
        assert row[-1] == asked.json()["usage"]["cost_usd"]


async def test_without_the_ledger_the_page_says_so(shared) -> None:
    async with shared.browser() as client:
        await first_page(client, ADMIN_KEY)
        shared.ledger_is_away = True
        answer = await client.get("/ui")
        assert answer.status_code == 503
        assert "The ledger process does not answer" in PageReader(answer.text).text
        shared.ledger_is_away = False
        assert (await client.get("/ui")).status_code == 200


async def test_a_ledger_that_is_behind_shows_what_it_has_and_says_so(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        await pages.book(tokens=3)
        page = await first_page(client, ADMIN_KEY)
        assert "catching up" not in page.text
        pages.ledger_is_behind = True
        page = PageReader((await client.get("/ui")).text)
        assert "catching up" in page.text
        assert page.tables["spend"][-1][-1] == format_usd(3 * PRICE_PICO)


async def test_tables_tell_what_they_are_without_eyes(shared) -> None:
    async with shared.browser() as client:
        page = await first_page(client, ADMIN_KEY)
        assert set(page.captions) == {"spend", "requests"}
        assert all(len(caption) > 20 for caption in page.captions.values())
        headers = [given for tag, given in page.tags if tag == "th"]
        assert all(given.get("scope") in ("col", "row") for given in headers)
        ids = {given["id"] for _, given in page.tags if "id" in given}
        named = {given["aria-labelledby"] for _, given in page.tags if "aria-labelledby" in given}
        assert named <= ids


def test_scripts_are_files_of_ours_and_nothing_comes_from_elsewhere() -> None:
    shipped = [path for path in PACKAGE.rglob("*") if path.suffix in (".html", ".css", ".js")]
    for path in shipped:
        if path.parent.name == "vendor":
            continue  # compared with its digest in test_pages_assets
        text = path.read_text()
        assert not re.search(r"javascript:|\sstyle=|\son\w+=|@import|url\(", text), path
        assert not re.search(r"(https?:)?//\w", text.replace("<!doctype", "")), path
        assert "|safe" not in text.replace(" ", ""), path
        for tag in re.findall(r"<script[^>]*>", text):
            assert re.fullmatch(
                r"""<script (defer )?src="\{\{ asset\('[\w./]+'\) \}\}">|<script type="application/json">""",
                tag,
            ), (path, tag)
