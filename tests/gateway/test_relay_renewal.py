"""A later attempt is one of its own instant: of what may be reached then, at the price in force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.clock import Clock, to_microseconds
from providers.errors import Overloaded
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import body, running_gateway

pytestmark = pytest.mark.anyio

CHANGE = datetime(2101, 1, 1, tzinfo=UTC)
TEXT = """
providers:
  a: {kind: openai_compatible, base_url: "http://127.0.0.1:9", trust: [dpa]}
  b: {kind: openai_compatible, base_url: "http://127.0.0.1:9", trust: [dpa]}
models:
  chat:
    deployments:
      - {deployment: a/m, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}
      - deployment: b/m
        price:
          - {input_usd_per_mtok: 2, output_usd_per_mtok: 2}
          - {input_usd_per_mtok: 5, output_usd_per_mtok: 5, valid_from: 2101-01-01}
teams:
  apps: {tags: [contract], keys: [{name: app, value_env: APP_KEY}]}
privacy: {tags: {contract: {require: [dpa]}}}
"""
EXPIRING = (
    '"http://127.0.0.1:9", trust: [{attribute: dpa, evidence: x, expires: 2101-01-01}]}\nmodels'
)


def changing_while(provider: FakeProvider) -> Clock:
    """A clock that passes the change once a provider was called."""

    def wall_us() -> int:
        return to_microseconds(CHANGE if provider.calls else CHANGE - timedelta(seconds=1))

    return Clock(wall_us=wall_us, monotonic_s=lambda: 0.0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_a_claim_no_longer_covers_is_not_called_after_a_failure(tmp_path, stream):
    text = TEXT.replace('"http://127.0.0.1:9", trust: [dpa]}\nmodels', EXPIRING)
    assert text != TEXT
    failing = FakeProvider(name="a", scripts=[[Overloaded("busy")]])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    providers = {"a": failing, "b": other}
    async with running_gateway(tmp_path, {}, text=text, providers=providers) as gateway:
        gateway.service.clock = changing_while(failing)
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 503
        assert got.headers["x-fareway-deployment"] == "a/m"
        assert got.headers["x-fareway-attempts"] == "1"
        assert len(await gateway.settled()) == 1
    assert other.calls == []


async def test_a_later_attempt_is_charged_with_the_price_that_is_in_force_then(tmp_path):
    failing = FakeProvider(name="a", scripts=[[Overloaded("busy")]])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    providers = {"a": failing, "b": other}
    async with running_gateway(tmp_path, {}, text=TEXT, providers=providers) as gateway:
        gateway.service.clock = changing_while(failing)
        assert (await gateway.post(body())).status_code == 200
        _, (served, _) = await gateway.settled()
        price = gateway.service.admission.fleet.prices.lookup("b/m", CHANGE)
    assert served.price_version == price.version_id
    assert served.deployment == "b/m"


class Parting(FakeProvider):
    """Whoever calls it finds the other one down."""

    health = None

    def stream(self, *args, **kwargs):
        self.health.set_fault("b/m", "gone")
        return super().stream(*args, **kwargs)


async def test_what_is_down_by_now_is_still_tried(tmp_path):
    """Whether it serves is for the attempt to find out; its price is known from before."""
    failing = Parting(name="a", scripts=[[Overloaded("busy")]])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    providers = {"a": failing, "b": other}
    async with running_gateway(tmp_path, {}, text=TEXT, providers=providers) as gateway:
        failing.health = gateway.service.admission.health
        assert (await gateway.post(body())).status_code == 200
    assert len(other.calls) == 1
