"""From the login page to an identity provider and back, as a browser goes."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from gateway.settings.login import LoginSettings
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, running_pages
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, identity_provider

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def provider():
    async with identity_provider(now_s=FakeClock().wall / 1e6) as running:
        yield running


@pytest.fixture
async def pages(tmp_path, provider):
    login = LoginSettings.model_validate(
        {
            "public_url": "http://127.0.0.1:8642",
            "oidc": {
                "issuer": provider.issuer,
                "client_id": CLIENT_ID,
                "client_secret_env": "OIDC_SECRET",
                "label": "Acme",
                "groups": [
                    {"group": "finance", "role": "finance_viewer"},
                    {"group": "payments", "role": "team_member", "team": "payments"},
                ],
            },
        }
    )
    async with running_pages(tmp_path, login=login) as running:
        running.service.oidc_secret = CLIENT_SECRET
        await running.book(team="payments", tokens=3)
        await running.book(team="search", tokens=5)
        yield running


async def go(client, provider, wanted="/ui/month"):
    """Press the button, log in there, come back."""
    begun = await client.get(f"/ui/login/oidc?{urlencode({'next': wanted})}")
    assert begun.status_code == 303
    answer = provider.log_in(begun.headers["location"])
    return await client.get(f"/ui/login/oidc/callback?{urlencode(answer)}")


async def test_the_way_there_and_back_ends_on_the_page_that_was_asked_for(pages, provider) -> None:
    async with pages.browser() as client:
        assert "Log in with Acme" in PageReader((await client.get("/ui/login")).text).text
        back = await go(client, provider)
        assert (back.status_code, back.headers["location"]) == (303, "/ui/month")
        month = await client.get("/ui/month")
        assert {row[0] for row in PageReader(month.text).tables["teams"]} >= {"payments", "search"}
        assert (await client.get("/ui/users")).status_code == 403


async def test_a_member_of_a_team_sees_that_team_only(pages, provider) -> None:
    provider.claims = {"groups": ["payments"]}
    async with pages.browser() as client:
        await go(client, provider)
        month = await client.get("/ui/month")
        assert "search" not in month.text
        assert "payments" in month.text


async def test_a_role_that_is_taken_away_there_is_gone_with_the_next_login(pages, provider) -> None:
    async with pages.browser() as client:
        await go(client, provider)
        provider.claims = {"groups": []}
        back = await go(client, provider)
        assert back.status_code == 403
        assert "none of your groups has a role here" in PageReader(back.text).text


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/ui/../admin/v1", "x"]
)
async def test_nobody_is_sent_elsewhere_afterwards(pages, provider, wanted) -> None:
    async with pages.browser() as client:
        assert (await go(client, provider, wanted)).headers["location"] == "/ui"


async def test_an_answer_in_another_browser_logs_nobody_in(pages, provider) -> None:
    async with pages.browser() as mine, pages.browser() as theirs:
        begun = await mine.get("/ui/login/oidc")
        answer = provider.log_in(begun.headers["location"])
        back = await theirs.get(f"/ui/login/oidc/callback?{urlencode(answer)}")
        assert back.status_code == 403
        assert (await theirs.get("/ui/month")).headers["location"].startswith("/ui/login")
        assert answer["code"] not in back.text


async def test_an_answer_counts_once(pages, provider) -> None:
    async with pages.browser() as client:
        begun = await client.get("/ui/login/oidc")
        answer = provider.log_in(begun.headers["location"])
        address = f"/ui/login/oidc/callback?{urlencode(answer)}"
        assert (await client.get(address)).status_code == 303
        again = await client.get(address)
        assert again.status_code in (303, 403)
        async with pages.browser() as other:
            assert (await other.get(address)).status_code == 403


async def test_a_provider_that_is_away_is_a_page_and_the_operators_key_still_opens(
    pages, provider
) -> None:
    provider.is_away = True
    async with pages.browser() as client:
        answer = await client.get("/ui/login/oidc")
        assert answer.status_code == 502
        assert "does not answer as it should" in PageReader(answer.text).text
        spend = await client.get(
            "/admin/v1/spend", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        assert spend.status_code == 200


async def test_logins_and_refusals_are_in_the_audit_log_without_secrets(pages, provider) -> None:
    async with pages.browser() as client:
        await go(client, provider)
        provider.claims = {"nonce": "canary"}
        await go(client, provider)
        audit = await client.get(
            "/admin/v1/audit", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        told = json.dumps(audit.json())
        assert "login" in told
        assert "canary" not in told
        assert CLIENT_SECRET not in told
