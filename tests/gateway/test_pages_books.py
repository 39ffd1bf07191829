"""Pages of the month close: forms that are checked, sent twice, forged; roles that only look."""

from __future__ import annotations

import json
import re
from base64 import b64encode

import pytest

from gateway.finance.bill_messages import ImportedFile, ListImports
from gateway.finance.messages import ListProposals, Proposal
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import running_pages
from tests.gateway.people_harness import SAME, logged_in, make

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MONTH = "2026-10"
DAY_US = 86_400_000_000
OCTOBER_17 = 42 * DAY_US
HOSTILE = "<img src=x onerror=pwn=1>"
NO_FIELDS = {"accept-month_over", "accept-earlier_months", "accept-delay"}
"""What has to be mended elsewhere."""
MAPPING = "columns: {day: d, model: m, meter: k, units: u, amount: a}"
CSV = b"d,m,k,u,a\n2026-10-17,m,input,100,9.25\n2026-10-31,m,input,1,0.01\n"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with an October, a controller, an approver and somebody who only looks."""
    async with running_pages(tmp_path_factory.mktemp("books")) as pages:
        place = {"provider": "up", "upstream_model": "m", "deployment": "up/m"}
        for team in ("payments", ""):
            await pages.book(ago_us=OCTOBER_17, team=team, **place)
        for login, role in (
            ("carla", "finance_admin"),
            ("amir", "finance_admin"),
            ("vera", "finance_viewer"),
        ):
            await make(pages, login, role)
        yield pages


async def fields(client, path: str) -> dict[str, str]:
    """The tokens of the first form of a page that has a number of its own."""
    page = (await client.get(path)).text
    once = re.search(r'name="once" value="([0-9a-f]{32})"', page)
    assert once is not None
    return {"token": PageReader(page).fields["token"], "once": once[1]}


async def send(client, path: str, form: dict[str, str], **more):
    return await client.post(path, data=form, headers=SAME, **more)


async def proposals(pages) -> list[Proposal]:
    return await pages.ledger.call(
        "finance", ListProposals(), result_type=list[Proposal], timeout_s=10
    )


def faults(text: str) -> dict[str, str]:
    """What is said beside each field, which the field names as its description."""
    found = dict(re.findall(r'<p class="fault" id="fault-([^"]+)">([^<]*)</p>', text))
    for name in found.keys() - NO_FIELDS:
        assert f'aria-describedby="fault-{name}"' in text, name
    return found


async def take_bill(client) -> None:
    """Upload a bill with its mapping and take it."""
    form = await fields(client, "/ui/imports")
    form |= {"source": "csv", "account": "up", "month": MONTH}
    files = {"file": ("bill.csv", CSV), "mapping_file": ("m.yaml", MAPPING.encode())}
    page = await send(client, "/ui/imports", form, files=files)
    assert page.status_code == 200, page.text
    held = re.search(r'action="/ui/imports/([0-9a-f]{32})"', page.text)
    assert held is not None
    form |= await next_form(page.text)
    form |= {"mapping": MAPPING, "file_name": "bill.csv", "do": "keep"}
    answers = [await send(client, f"/ui/imports/{held[1]}", form) for _ in range(2)]
    assert {one.status_code for one in answers} == {303}
    assert len({one.headers["location"] for one in answers}) == 1


async def next_form(text: str) -> dict[str, str]:
    once = re.search(r'name="once" value="([0-9a-f]{32})"', text)
    assert once is not None
    return {"once": once[1]}


async def test_a_bill_is_taken_once_compared_and_corrected_by_two_people(tmp_path):
    async with running_pages(tmp_path) as pages:
        place = {"provider": "up", "upstream_model": "m", "deployment": "up/m"}
        await pages.book(ago_us=OCTOBER_17, **place)
        for login in ("carla", "amir"):
            await make(pages, login, "finance_admin")
        async with logged_in(pages, "carla") as carla, logged_in(pages, "amir") as amir:
            await take_bill(carla)
            listed = await pages.ledger.call(
                "finance", ListImports(), result_type=list[ImportedFile], timeout_s=10
            )
            assert [(one.row_count, one.file_name) for one in listed] == [(2, "bill.csv")]
            form = await fields(carla, f"/ui/reconciliation?month={MONTH}") | {"month": MONTH}
            answer = await send(carla, "/ui/reconciliation", form)
            assert answer.headers["location"].startswith(f"/ui/reconciliation?month={MONTH}&run=1")
            page = PageReader((await carla.get(answer.headers["location"])).text)
            assert len(page.tables["classes"]) == 1 + 9 + 1
            assert page.tables["differences"][1:]
            page = await carla.get(f"/ui/reconciliation?month={MONTH}")
            heat = PageReader(page.text).tables["heat"]
            assert len(heat[0]) == len(heat[1]) == 3 + 31
            day = re.search(r'day=([0-9-]*)#differences" title', page.text)
            assert day is not None
            listed = await carla.get(f"/ui/reconciliation?month={MONTH}&day={day[1]}")
            found = PageReader(listed.text).tables["differences"][1:]
            assert {row[0] for row in found} == {day[1]}
            assert (await carla.get(f"/ui/reconciliation?month={MONTH}&day=x")).status_code == 422
            rows = await carla.get("/ui/reconciliation/1/1")
            assert "Billed by the vendor" in rows.text
            assert (await carla.get("/ui/reconciliation/1/99")).status_code == 422
            assert (await carla.get("/ui/reconciliation?kind=odd&run=1")).status_code == 422
            found = await proposals(pages)
            number = found[0].proposal_id
            path = f"/ui/adjustments/{number}"
            own = await carla.get(path)
            assert "somebody else has to look: Amir" in own.text
            reject = await fields(carla, path)
            approve = {**reject, "do": "approve", "looked": "yes"}
            assert (
                "proposed this and cannot approve it too" in (await send(carla, path, approve)).text
            )
            form = await fields(amir, path)
            assert faults((await send(amir, path, {**form, "do": "approve"})).text) == {
                "looked": "say that you looked: a posting is never undone"
            }
            assert "reason" in faults((await send(amir, path, {**form, "do": "reject"})).text)
            for _ in range(2):
                answer = await send(amir, path, {**form, "do": "approve", "looked": "yes"})
                assert answer.headers["location"] == f"{path}?done=approve"
            assert (await proposals(pages))[0].state == "posted"
            again = await fields(amir, path.rpartition("/")[0] + "/new")
            refused = await send(amir, path, {**again, "do": "reject", "reason": "x"})
            assert "was posted by" in refused.text


async def test_rates_are_read_beside_the_configuration_wherever_the_gateway_runs(
    tmp_path, monkeypatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "rates.csv").write_text("day,base,quote,rate,source\n2026-10-17,EUR,USD,2,ECB\n")
    more = "finance: {rates_file: rates.csv}\n"
    mapping = "{columns: {day: d, amount: a}, currency: EUR}"
    content = b"d,a\n2026-10-17,3\n"
    async with running_pages(tmp_path, more=more) as pages:
        await make(pages, "carla", "finance_admin")
        async with logged_in(pages, "carla") as client:
            form = await fields(client, "/ui/imports") | {"source": "csv", "account": "up"}
            files = {"file": ("b.csv", content), "mapping_file": ("m.yaml", mapping.encode())}
            page = await send(client, "/ui/imports", form, files=files)
            assert "exactly 6" in page.text
        async with pages.admin() as client:
            bill = {"source": "csv", "account": "up", "file_name": "b.csv", "mapping": mapping,
                    "content_base64": b64encode(content).decode()}  # fmt: skip
            deal = {"name": "d", "kind": "credit", "provider": "up", "amount": "3",
                    "currency": "EUR", "first_day": "2026-10-17", "last_day": "2026-12-31"}  # fmt: skip
            for path, body in (("imports", bill), ("commitments", deal)):
                answer = await client.post(f"/admin/v1/finance/{path}", json=body)
                assert answer.status_code < 300, answer.text
                assert "6" in answer.text


async def test_a_form_without_the_pages_token_or_from_elsewhere_does_nothing(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = {**await fields(client, "/ui/unattributed"), "month": MONTH, "item": "up/m"}
        before = len(await proposals(shared))
        for data, headers in (
            ({**form, "token": "0" * 64}, SAME),
            (form, {"origin": "http://evil.test", "sec-fetch-site": "cross-site"}),
        ):
            for more in ({"data": data}, {"data": data, "files": {"file": ("x", b"1")}}):
                answer = await client.post("/ui/unattributed", headers=headers, **more)
                assert answer.status_code == 403
        assert len(await proposals(shared)) == before


async def test_spend_of_nobody_is_proposed_once_and_never_more_than_there_is(shared) -> None:
    async with logged_in(shared, "carla") as client:
        path = f"/ui/unattributed?month={MONTH}"
        page = PageReader((await client.get(path)).text)
        [row] = [one for one in page.tables["nobody"] if one[0] == "up/m"]
        free = re.search(r"up/m: ([0-9.]+) USD", (await client.get(path)).text)
        assert free is not None
        form = {**await fields(client, path), "month": MONTH}
        assert set(faults((await send(client, "/ui/unattributed", form)).text)) == {
            "item", "team", "amount", "reason"
        }  # fmt: skip
        form |= {"item": "up/m", "team": "search", "reason": HOSTILE, "amount": "1000"}
        answer = await send(client, "/ui/unattributed", form)
        assert faults(answer.text) == {"amount": f"must lie between 0 and {free[1]} USD"}
        assert 'value="1000"' in answer.text
        assert HOSTILE not in answer.text
        form["amount"] = free[1]
        answers = [await send(client, "/ui/unattributed", form) for _ in range(2)]
        assert {one.status_code for one in answers} == {303}
        assert len({one.headers["location"] for one in answers}) == 1
        found = [one for one in await proposals(shared) if one.reason == HOSTILE]
        assert [line.team for line in found[0].lines] == ["unattributed", "search"]
        assert len(found) == 1
        # As after the browser's Back: the form is the old one, and nothing else is given by it.
        for changes in ({"amount": "0.1"}, {"item": "up/none"}, {"team": "payments"}):
            other = await send(client, "/ui/unattributed", {**form, **changes})
            assert "sent before with other values" in other.text
        shown = (await client.get(answers[0].headers["location"])).text
        assert HOSTILE not in shown
        another = {**form, **await fields(client, path)}
        assert set(faults((await send(client, "/ui/unattributed", another)).text)) == {"amount"}
        odd = {**form, "once": "odd", "project": "p" * 300}
        assert (await send(client, "/ui/unattributed", odd)).status_code == 422
        long = {**another, "item": "i" * 300}
        assert set(faults((await send(client, "/ui/unattributed", long)).text)) == {"item"}


async def test_what_is_wrong_with_a_proposal_is_said_beside_each_field(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = {**await fields(client, f"/ui/adjustments/new?month={MONTH}"), "month": MONTH}
        answer = await send(client, "/ui/adjustments", form)
        assert set(faults(answer.text)) == {"kind", "reason"}
        form |= {"kind": "tax", "reason": "x"}
        assert set(faults((await send(client, "/ui/adjustments", form)).text)) == {"amount-1"}
        form |= {
            "team-1": "nobody-knows", "amount-1": "1,5", "project-2": "p" * 300,
            "amount-2": "0", "account-3": "odd", "amount-3": "1", "model-4": "m" * 300,
        }  # fmt: skip
        assert set(faults((await send(client, "/ui/adjustments", form)).text)) == {
            "team-1", "amount-1", "team-2", "project-2", "amount-2", "team-3", "account-3",
            "team-4", "model-4", "amount-4",
        }  # fmt: skip
        long = {**form, "reason": "r" * 1001}
        assert "reason" in faults((await send(client, "/ui/adjustments", long)).text)
        plain = {name: form[name] for name in ("token", "once", "month", "kind", "reason")}
        good = {**plain, "team-1": "search", "amount-1": "\N{MINUS SIGN}1.5"}
        answer = await send(client, "/ui/adjustments", {**good, "once": "odd"})
        assert "this form is not complete" in answer.text
        answer = await send(client, "/ui/adjustments", good)
        assert answer.status_code == 303
        answer = await send(client, "/ui/adjustments", {**good, "amount-1": "2"})
        assert "sent before with other values" in answer.text
        number = answer.request.url
        assert number is not None
        page = await client.get(f"/ui/adjustments?month={MONTH}")
        assert "Tax" in page.text


async def test_a_month_that_is_not_over_is_closed_by_nobody(shared) -> None:
    async with logged_in(shared, "carla") as client:
        page = await client.get("/ui/close?month=2026-11")
        assert "disabled" in page.text
        form = await fields(client, "/ui/close?month=2026-11")
        answer = await send(client, "/ui/close/2026-11", {**form, "do": "soft"})
        assert "this has to be mended first" in faults(answer.text).values()
        answer = await send(client, "/ui/close/2026-11", {**form, "do": "odd"})
        assert "does not say what to do" in answer.text
        form |= {"do": "review", "accept-reconciliation": "r" * 501}
        answer = await send(client, f"/ui/close/{MONTH}", form)
        assert faults(answer.text)["accept-reconciliation"] == "at most 500 characters"


async def test_addresses_without_a_meaning_are_answered_with_why(shared) -> None:
    async with logged_in(shared, "carla") as client:
        for path in ("close", "imports", "reconciliation", "adjustments", "adjustments/new",
                     "unattributed", "acts"):  # fmt: skip
            answer = await client.get(f"/ui/{path}?month=2026-13")
            assert answer.status_code == 422, path
            assert "is no month such as 2026-10" in answer.text, path
        for path in ("acts?before=x", "reconciliation?run=77", "adjustments/0", "adjustments/x"):
            assert (await client.get(f"/ui/{path}")).status_code == 422, path


WRONG_FILES = {
    "no file": ({}, {"file": "choose a file"}),
    "an empty file": ({"file": ("x.csv", b"")}, {"file": "the file is empty"}),
}


@pytest.mark.parametrize(("files", "said"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
async def test_an_upload_that_lacks_something_keeps_what_was_filled_in(shared, files, said) -> None:
    async with logged_in(shared, "carla") as client:
        form = await fields(client, "/ui/imports") | {"source": "csv", "number": "R-77"}
        files = files or {"other": ("x", b"1")}
        answer = await send(client, "/ui/imports", form, files=files)
        assert answer.status_code == 422
        assert faults(answer.text) == {
            **said,
            "account": "choose the provider that the file is about",
        }
        assert 'value="R-77"' in answer.text
        odd = {**form, "source": "odd", "issued_on": "2026-02-30", "number": "n" * 200}
        answer = await send(client, "/ui/imports", odd, files=files)
        assert {"source", "issued_on", "number"} <= set(faults(answer.text))


async def test_a_form_that_is_too_large_is_refused_on_a_page(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = await fields(client, "/ui/unattributed") | {"reason": "x" * 2**20}
        answer = await send(client, "/ui/unattributed", form)
        assert answer.status_code == 413
        assert "the form is over 1 MiB" in answer.text


@pytest.mark.parametrize(
    ("where", "form"),
    [("/ui/imports", {"number": "x" * (2**20 + 1)}), ("/ui/adjustments", {"reason": "a\0b"})],
    ids=["longer than a form without a file may be", "of what no database keeps"],
)
async def test_a_form_that_no_page_sends_is_none(shared, where, form) -> None:
    async with logged_in(shared, "carla") as client:
        token = await fields(client, f"/ui/imports?month={MONTH}")
        answer = await send(client, where, {**token, "month": MONTH, **form})
        assert answer.status_code == 403


async def test_an_address_or_body_with_a_nul_is_refused(shared) -> None:
    async with logged_in(shared, "carla") as client:
        for path in ("/ui/spend?team=%00", "/ui/requests/%00", "/admin/v1/spend?team=a%00"):
            answer = await client.get(path)
            assert (answer.status_code, "holds a NUL" in answer.text) == (400, True), path
    async with shared.admin() as client:
        answer = await client.post("/admin/v1/keys", json={"team": "search", "name": "a\0"})
        assert (answer.status_code, "holds a NUL" in answer.text) == (400, True)


async def test_a_mapping_that_is_no_mapping_is_not_kept_in_the_page(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = await fields(client, "/ui/imports") | {"source": "csv", "account": "up"}
        files = {"file": ("b.csv", CSV), "mapping_file": ("m.yaml", b"x" * 65_537)}
        answer = await send(client, "/ui/imports", form, files=files)
        assert faults(answer.text) == {"mapping_file": "is over 64 KiB"}


async def test_a_file_that_is_held_no_more_has_to_be_chosen_again(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = await fields(client, "/ui/imports") | {"source": "csv", "account": "up"}
        for held in ("0" * 32, "odd"):
            answer = await send(client, f"/ui/imports/{held}", {**form, "do": "check"})
            assert "choose it once more" in answer.text
            assert answer.status_code == 422


async def test_a_mapping_is_made_of_chosen_columns(shared) -> None:
    async with logged_in(shared, "carla") as client:
        form = await fields(client, "/ui/imports") | {"source": "csv", "account": "up"}
        page = await send(client, "/ui/imports", form, files={"file": ("b.csv", CSV)})
        held = re.search(r"/ui/imports/([0-9a-f]{32})", page.text)
        assert held is not None
        path = f"/ui/imports/{held[1]}"
        form |= {"file_name": "b.csv", "do": "check", "column-model": "m"}
        odd = {
            "currency": "euro",
            "units_per": "many",
            "meters": "x",
            "kinds": "a = b",
            "skip": "x",
        }
        answer = await send(client, path, {**form, **odd})
        assert set(faults(answer.text)) == {
            "column-day", "column-amount", "currency", "units_per", "meters", "kinds", "skip"
        }  # fmt: skip
        form |= {"column-day": "d", "column-amount": "a", "column-units": "u", "column-meter": "k",
                 "currency": "usd", "meters": "odd = input\n\n", "kinds": "vat = tax",
                 "skip": "k = sum\n\nk = all", "units_per": "1", "credits": "positive",
                 "zone": "UTC", "decimal": "point"}  # fmt: skip
        answer = await send(client, path, form)
        assert answer.status_code == 200
        assert "9.26 USD" in answer.text
        assert "exactly 9.26" in answer.text
        assert "Take 2 rows" in answer.text


async def test_whoever_may_only_look_finds_no_form(shared) -> None:
    async with logged_in(shared, "vera") as client:
        for path in ("close", "imports", "reconciliation", "adjustments", "unattributed", "acts"):
            answer = await client.get(f"/ui/{path}?month={MONTH}")
            assert answer.status_code == 200, path
            main = answer.text.partition('<main id="main">')[2]
            assert "<button" not in main, path
            assert 'type="text"' not in main, path
        assert (await client.get("/ui/adjustments/new")).status_code == 403
        assert "Follow the whole chain" not in (await client.get("/ui/acts")).text


async def test_a_ledger_that_is_away_is_said(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "carla", "finance_admin")
        async with logged_in(pages, "carla") as client:
            token = PageReader((await client.get("/ui/close")).text).fields["token"]
            assert json.dumps(token)
            pages.ledger_is_away = True
            for path in ("close", "imports", "reconciliation", "unattributed", "acts"):
                assert (await client.get(f"/ui/{path}")).status_code == 503, path
