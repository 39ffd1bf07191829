"""Logins at an identity provider over real HTTP: who gets in, and everything that must not."""

from __future__ import annotations

import random

import pytest

from gateway.access.roles import Grant, Role
from gateway.oidc.faults import OidcFault
from gateway.oidc.flow import TRANSACTION_S, make_flow
from gateway.settings.login import OidcSettings
from tests.gateway.ledger_samples import FakeClock
from tests.support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    identity_provider,
    new_key,
)

pytestmark = pytest.mark.anyio
CALLBACK = "https://fareway.example.com/ui/login/oidc/callback"


class Login:
    """A gateway's side of logins at one provider."""

    def __init__(self, provider, clock: FakeClock, **settings) -> None:
        self.provider, self.clock = provider, clock
        described = {
            "issuer": provider.issuer,
            "client_id": CLIENT_ID,
            "client_secret_env": "OIDC_SECRET",
            "groups": [{"group": "finance", "role": "finance_viewer"}],
            **settings,
        }
        self.flow = make_flow(
            OidcSettings.model_validate(described),
            client_secret=CLIENT_SECRET,
            redirect_uri=CALLBACK,
            clock=clock.clock,
            random_bytes=random.Random(7).randbytes,
        )

    async def run(self, **changed):
        """Begin, log in there, come back with the answer."""
        begun = await self.flow.begin("/ui/month")
        answer = {**self.provider.log_in(begun.url), **changed}
        return await self.flow.finish(answer, begun.kept)

    async def reason(self, **changed) -> str:
        """Why a login comes to nothing."""
        with pytest.raises(OidcFault) as raised:
            await self.run(**changed)
        return raised.value.reason


@pytest.fixture
async def provider():
    async with identity_provider(now_s=FakeClock().wall / 1e6) as running:
        yield running


@pytest.fixture
def login(provider):
    return Login(provider, FakeClock())


async def test_a_person_of_a_group_gets_its_role_and_the_page_that_was_asked_for(login) -> None:
    identity = await login.run()
    assert (identity.subject, identity.name) == ("subject-1", "Anna")
    assert identity.grants == (Grant(role=Role.FINANCE_VIEWER),)
    assert identity.next_path == "/ui/month"
    assert identity.issuer == login.provider.issuer
    assert login.provider.refused == []


async def test_discovery_and_keys_are_fetched_once_for_many_logins(login) -> None:
    for _ in range(3):
        await login.run()
    assert (login.provider.discoveries, login.provider.key_fetches) == (1, 1)


WRONG_CLAIMS = {
    "another nonce": ({"nonce": "other"}, "wrong_nonce"),
    "no nonce": ({"nonce": None}, "wrong_nonce"),
    "another issuer": ({"iss": "https://evil.example"}, "wrong_issuer"),
    "another audience": ({"aud": "somebody-else"}, "wrong_audience"),
    "two audiences, not for us": ({"aud": [CLIENT_ID, "x"], "azp": "x"}, "wrong_audience"),
    "no audience": ({"aud": None}, "wrong_audience"),
    "expired": ({"exp": 1}, "expired"),
    "no times": ({"exp": None}, "no_times"),
    "times that are words": ({"iat": "now"}, "no_times"),
    "issued tomorrow": ({"iat": 4_000_000_000, "exp": 4_000_000_300}, "not_yet_valid"),
    "no subject": ({"sub": None}, "no_subject"),
    "a group without a role": ({"groups": ["others"]}, "no_role"),
    "groups left out": ({"groups": None, "_claim_names": {"groups": "x"}}, "groups_left_out"),
}


@pytest.mark.parametrize(("claims", "reason"), WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
async def test_a_token_that_is_not_of_this_login_lets_nobody_in(login, claims, reason) -> None:
    login.provider.claims = claims
    assert await login.reason() == reason


async def test_a_token_without_a_signature_lets_nobody_in(login) -> None:
    login.provider.sign_with = "none"
    assert await login.reason() == "wrong_algorithm"


async def test_the_public_key_as_a_shared_secret_lets_nobody_in(login) -> None:
    login.provider.sign_with = login.provider.keys[0].as_pem(private=False)
    assert await login.reason() == "wrong_algorithm"


async def test_a_stranger_who_takes_the_keys_name_lets_nobody_in(login) -> None:
    login.provider.sign_with = new_key("first")
    assert await login.reason() == "wrong_signature"


async def test_a_key_that_is_not_published_lets_nobody_in(login) -> None:
    login.provider.sign_with = new_key("unheard of")
    assert await login.reason() == "unknown_key"


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "ä.ö.ü", "a" * 5000])
async def test_what_is_no_token_lets_nobody_in(login, token) -> None:
    login.provider.sign_with = token or "."
    assert await login.reason() == "malformed_token"


async def test_a_new_key_is_fetched_when_a_token_names_it_but_not_all_the_time(login) -> None:
    await login.run()
    login.provider.keys = [new_key("second")]
    assert await login.reason() == "unknown_key"  # asked a moment ago
    login.clock.pass_s(11)
    login.provider.now_s += 11
    assert (await login.run()).subject == "subject-1"
    assert login.provider.key_fetches == 2


async def test_a_code_is_good_once(login) -> None:
    begun = await login.flow.begin("/ui")
    answer = login.provider.log_in(begun.url)
    await login.flow.finish(answer, begun.kept)
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish(answer, begun.kept)
    assert raised.value.reason == "code_refused"
    assert login.provider.refused == ["the code is void"]


async def test_another_browsers_answer_matches_nothing(login) -> None:
    mine, theirs = await login.flow.begin("/ui"), await login.flow.begin("/ui")
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish(login.provider.log_in(theirs.url), mine.kept)
    assert raised.value.reason == "wrong_state"
    # Their code under my state: the verifier is mine, the challenge theirs.
    stolen = login.provider.log_in(theirs.url)["code"]
    state = login.provider.log_in(mine.url)["state"]
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish({"code": stolen, "state": state}, mine.kept)
    assert raised.value.reason == "code_refused"
    assert login.provider.refused == ["the verifier is another one"]


async def test_an_answer_without_a_login_or_too_late_is_refused(login) -> None:
    begun = await login.flow.begin("/ui")
    answer = login.provider.log_in(begun.url)
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish(answer, None)
    assert raised.value.reason == "no_transaction"
    login.clock.pass_s(TRANSACTION_S + 1)
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish(answer, begun.kept)
    assert raised.value.reason == "too_slow"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"state": ""}, "wrong_state"),
        ({"state": "\ud800"}, "wrong_state"),
        ({"iss": "https://evil.example"}, "wrong_issuer"),
        ({"code": ""}, "no_code"),
        ({"code": "c" * 5000}, "no_code"),
        ({"error": "access_denied"}, "denied"),
        ({"error": "server_error"}, "provider_error"),
    ],
)
async def test_an_answer_that_is_wrong_is_refused(login, changed, reason) -> None:
    assert await login.reason(**changed) == reason


async def test_a_provider_that_names_itself_in_answers_has_to_do_so(login) -> None:
    login.provider.discovery = {"authorization_response_iss_parameter_supported": True}
    assert await login.reason() == "no_issuer"
    assert (await login.run(iss=login.provider.issuer)).subject == "subject-1"


DISCOVERIES = {
    "another issuer": ({"issuer": "https://evil.example"}, "wrong_issuer"),
    "a foreign token endpoint": ({"token_endpoint": "https://evil.example/t"}, "foreign_host"),
    "foreign keys": ({"jwks_uri": "https://evil.example/k"}, "foreign_host"),
    "in the clear": ({"token_endpoint": "http://evil.example/t"}, "address_in_the_clear"),
    "no address": ({"token_endpoint": 7}, "bad_discovery"),
}


@pytest.mark.parametrize(("document", "reason"), DISCOVERIES.values(), ids=DISCOVERIES)
async def test_discovery_cannot_send_secrets_elsewhere(login, document, reason) -> None:
    login.provider.discovery = document
    assert await login.reason() == reason


async def test_what_was_fetched_counts_while_the_provider_is_away_and_not_for_ever(login) -> None:
    await login.run()
    login.provider.is_away = True
    login.clock.pass_s(2 * 3600)
    login.provider.now_s += 2 * 3600
    assert (await login.run()).subject == "subject-1"
    login.clock.pass_s(5 * 3600)
    assert await login.reason() == "provider_status"


async def test_a_provider_that_is_away_is_not_asked_all_the_time(login) -> None:
    login.provider.is_away = True
    assert await login.reason() == "provider_status"
    login.provider.is_away = False
    assert await login.reason() == "provider_away"
    login.clock.pass_s(6)
    login.provider.now_s += 6
    assert (await login.run()).subject == "subject-1"


async def test_nobody_listens(login) -> None:
    away = Login(login.provider, FakeClock(), issuer="http://127.0.0.1:9")
    with pytest.raises(OidcFault) as raised:
        await away.flow.begin("/ui")
    assert raised.value.reason == "provider_away"


async def test_only_addresses_of_a_domain_get_in_and_only_those_that_are_vouched_for(
    provider,
) -> None:
    login = Login(provider, FakeClock(), email_domains=["example.com"])
    assert await login.reason() == "wrong_email_domain"
    provider.claims = {"email": "anna@evil.example", "email_verified": True}
    assert await login.reason() == "wrong_email_domain"
    provider.claims = {"email": "anna@example.com"}
    assert await login.reason() == "unverified_email"
    provider.claims = {"email": "Anna@Example.com", "email_verified": True}
    assert (await login.run()).subject == "subject-1"


async def test_groups_can_be_inside_another_claim(provider) -> None:
    login = Login(provider, FakeClock(), groups_claim="realm_access.roles")
    provider.claims = {"groups": None, "realm_access": {"roles": ["finance"]}}
    assert (await login.run()).grants == (Grant(role=Role.FINANCE_VIEWER),)


async def test_no_secret_is_in_what_a_fault_says(login) -> None:
    login.provider.claims = {"nonce": "canary-nonce"}
    begun = await login.flow.begin("/ui")
    answer = login.provider.log_in(begun.url)
    with pytest.raises(OidcFault) as raised:
        await login.flow.finish(answer, begun.kept)
    told = f"{raised.value} {raised.value.sentence} {raised.value.mend} {login.flow!r}"
    assert answer["code"] not in told
    assert CLIENT_SECRET not in told
    assert "canary" not in told
