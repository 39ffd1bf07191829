"""What can be called, by configuration: names, prices, trust; and what is up, and how fast."""

from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import to_microseconds
from gateway.fleet import build_fleet, build_policy
from gateway.health import AVAILABLE, FAULT_RETRY_S, PAUSE_S_MAX, Availability, HealthBoard
from gateway.privacy.errors import PolicyError
from pricing.money import rate_per_hour_us, rate_per_mtok
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import MeasuredSpeed
from pricing.usage import Meter
from providers.contract import Capabilities
from tests.gateway.settings_text import load_settings

AT = datetime(2026, 11, 30, tzinfo=UTC)
NEXT_YEAR = datetime(2027, 6, 1, tzinfo=UTC)
USD = 10**12

PROVIDERS = """
providers:
  local: {kind: local, models: [{id: m, source: "pypi:p==1"}, {id: spare, source: "pypi:p==2"}]}
  near: {kind: openai_compatible, base_url: "http://10.0.0.9/v1"}
  ours:
    kind: openai_compatible
    base_url: http://10.0.0.5/v1
    trust: [self_hosted, "region:eu"]
    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
"""
TAGS = """
privacy:
  tags:
    kept: {require: [self_hosted]}
    quiet: {require: [no_train, zero_retention, dpa]}
    here: {require: ["region:eu"]}
    mine: {require: [local]}
"""


def settings(rest="", *, providers=PROVIDERS):
    return load_settings(providers + rest).settings


def fleet_of(deployments, **changes):
    return build_fleet(settings(f"models: {{chat: {{deployments: {deployments}}}}}", **changes))


def rate_of(deployments, meter, *, name="near/a", at=AT):
    price = fleet_of(deployments).prices.lookup(name, at)
    assert isinstance(price, PriceVersion)
    rate = price.rate_for(meter)
    return None if rate is None else Fraction(rate.pico_usd, rate.per_units)


RATES = {
    "input by the million": ("input_usd_per_mtok: 0.0375", Meter.INPUT, Fraction(37_500)),
    "a cache read": (
        "input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.1",
        Meter.CACHE_READ,
        Fraction(100_000),
    ),
    "a cache read without a discount": (
        "input_usd_per_mtok: 1",
        Meter.CACHE_READ,
        Fraction(1_000_000),
    ),
    "a cache write": (
        "input_usd_per_mtok: 1, cache_write_usd_per_mtok: 1.25",
        Meter.CACHE_WRITE,
        Fraction(1_250_000),
    ),
    "output": ("output_usd_per_mtok: 0.08", Meter.OUTPUT, Fraction(80_000)),
    "reasoning": (
        "output_usd_per_mtok: 1, reasoning_usd_per_mtok: 3",
        Meter.REASONING,
        Fraction(3_000_000),
    ),
    "a request": ("request_usd: 0.001", Meter.REQUESTS, Fraction(USD, 1000)),
    "an image": ("image_usd: 0.04", Meter.IMAGES, Fraction(USD, 25)),
    "a minute of audio": ("audio_usd_per_minute: 0.006", Meter.AUDIO_MS, Fraction(100_000)),
    "an hour of a machine": (
        "gpu_usd_per_hour: 3",
        Meter.GPU_US,
        Fraction(3 * USD, 3_600_000_000),
    ),
    "an hour of two GPUs": (
        "gpu_usd_per_hour: 3, gpus: 2",
        Meter.GPU_US,
        Fraction(6 * USD, 3_600_000_000),
    ),
    "a third of a picodollar": (
        "input_usd_per_mtok: 0.0000001",
        Meter.INPUT,
        Fraction(1, 10),
    ),
}


@pytest.mark.parametrize(("price", "meter", "pico_usd"), RATES.values(), ids=RATES.keys())
def test_a_configured_rate_is_exact(price, meter, pico_usd):
    assert rate_of(f"[{{deployment: near/a, price: {{{price}}}}}]", meter) == pico_usd


def test_a_price_by_the_hour_charges_machine_time_only():
    fleet = fleet_of("[{deployment: near/a, price: {gpu_usd_per_hour: 3}}]")
    price = fleet.prices.lookup("near/a", AT)
    assert price.basis is Basis.GPU_TIME
    assert set(price.rates) == {Meter.GPU_US}


def test_a_public_price_stands_beside_the_contracted_one():
    price = "input_usd_per_mtok: 2, cached_input_usd_per_mtok: 1, list: {input_usd_per_mtok: 3}"
    fleet = fleet_of(f"[{{deployment: near/a, price: {{{price}}}}}]")
    version = fleet.prices.lookup("near/a", AT)
    assert version.rates[Meter.INPUT] == rate_per_mtok("2")
    assert dict(version.list_rates) == {Meter.INPUT: rate_per_mtok("3")}


def test_a_public_price_by_the_hour_is_for_the_same_gpus():
    price = "gpu_usd_per_hour: 2, gpus: 4, list: {gpu_usd_per_hour: 3}"
    version = fleet_of(f"[{{deployment: near/a, price: {{{price}}}}}]").prices.lookup("near/a", AT)
    assert version.list_rates[Meter.GPU_US] == rate_per_hour_us("3", 4)


def test_prices_change_at_the_instant_given():
    deployments = """[{deployment: near/a, price: [
        {input_usd_per_mtok: 2, valid_from: 2027-01-01},
        {input_usd_per_mtok: 3, valid_from: 2027-02-01T12:00:00Z},
        {input_usd_per_mtok: 1}]}]"""
    steps = {
        AT: 1,
        datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC): 1,
        datetime(2027, 1, 1, tzinfo=UTC): 2,
        datetime(2027, 2, 1, 11, 59, 59, 999_999, tzinfo=UTC): 2,
        datetime(2027, 2, 1, 12, tzinfo=UTC): 3,
        NEXT_YEAR: 3,
    }
    found = {at: rate_of(deployments, Meter.INPUT, at=at) for at in steps}
    assert found == {at: Fraction(usd * 1_000_000) for at, usd in steps.items()}


def test_before_its_first_price_a_deployment_is_unpriced():
    fleet = fleet_of(
        "[{deployment: near/a, price: {input_usd_per_mtok: 1, valid_from: 2027-01-01}}]"
    )
    assert isinstance(fleet.prices.lookup("near/a", AT), Unpriced)
    assert isinstance(fleet.prices.lookup("near/a", NEXT_YEAR), PriceVersion)


def test_without_a_price_a_deployment_is_unpriced_never_free():
    price = fleet_of("[near/a]").prices.lookup("near/a", AT)
    assert price == Unpriced(reason="no price configured")


def test_a_deployment_takes_its_providers_price_unless_it_has_its_own():
    assert rate_of("[ours/a]", Meter.INPUT, name="ours/a") == 1_000_000
    own = "[{deployment: ours/a, price: {output_usd_per_mtok: 5}}]"
    assert rate_of(own, Meter.INPUT, name="ours/a") is None
    assert rate_of(own, Meter.OUTPUT, name="ours/a") == 5_000_000


def test_a_local_model_without_a_price_has_a_nominal_one():
    price = fleet_of("[near/a]").prices.lookup("local/m", AT)
    assert price.is_nominal
    assert price.basis is Basis.GPU_TIME
    rate = price.rate_for(Meter.GPU_US)
    assert Fraction(rate.pico_usd, rate.per_units) == Fraction(USD, 10 * 3_600_000_000)


def test_a_local_model_with_a_price_has_no_nominal_one():
    providers = PROVIDERS.replace("kind: local,", "kind: local, price: {gpu_usd_per_hour: 0.4},")
    price = fleet_of("[near/a]", providers=providers).prices.lookup("local/m", AT)
    assert not price.is_nominal
    assert price.rate_for(Meter.GPU_US) is not None


def test_a_server_without_a_price_gets_no_nominal_one():
    assert isinstance(fleet_of("[near/a]").prices.lookup("near/a", AT), Unpriced)


def test_local_models_can_be_called_though_no_model_lists_them():
    fleet = build_fleet(
        settings("models: {chat: {aliases: [small], deployments: [near/a, local/m]}}")
    )
    assert fleet.deployments == ("near/a", "local/m", "local/spare")
    assert fleet.models == {"chat": ("near/a", "local/m")}
    assert fleet.aliases == {"small": "chat"}
    assert fleet.local == {"local/m", "local/spare"}


TWICE = {
    "the price stands in the second": (
        "[near/a]",
        "[{deployment: near/a, price: {input_usd_per_mtok: 1}}]",
    ),
    "the price stands in the first": (
        "[{deployment: near/a, price: {input_usd_per_mtok: 1}}]",
        "[near/a]",
    ),
    "trust in the first, price in the second": (
        "[{deployment: near/a, trust: [self_hosted]}]",
        "[{deployment: near/a, price: {input_usd_per_mtok: 1}}]",
    ),
    "of two prices the first holds": (
        "[{deployment: near/a, price: {input_usd_per_mtok: 1}}]",
        "[{deployment: near/a, price: {input_usd_per_mtok: 7}}]",
    ),
}


@pytest.mark.parametrize(("first", "second"), TWICE.values(), ids=TWICE.keys())
def test_a_deployment_of_two_models_has_one_price(first, second):
    fleet = build_fleet(
        settings(f"models: {{a: {{deployments: {first}}}, b: {{deployments: {second}}}}}")
    )
    price = fleet.prices.lookup("near/a", AT)
    assert price.rate_for(Meter.INPUT).pico_usd == 1_000_000


def allowed(tag, deployments="[near/a, ours/a, local/m]", *, at=AT, rest="", **changes):
    text = f"models: {{chat: {{deployments: {deployments}}}}}{TAGS}{rest}"
    return build_policy(settings(text, **changes)).allowed([tag], at=at)


LOCAL = {"local/m", "local/spare"}
TRUST = {
    "a bare server has no attribute": ("quiet", {"ours/a", *LOCAL}),
    "what is hosted here is local": ("mine", LOCAL),
    "local is self_hosted": ("kept", {"ours/a", *LOCAL}),
    "a region is claimed, and local has none without a setting": ("here", {"ours/a"}),
}


@pytest.mark.parametrize(("tag", "names"), TRUST.values(), ids=TRUST.keys())
def test_trust_by_default(tag, names):
    assert allowed(tag) == names


def test_local_stands_where_this_machine_stands():
    assert allowed("here", rest="\nserver: {region: eu}\n") == {"ours/a", *LOCAL}
    assert allowed("here", rest="\nserver: {region: us}\n") == {"ours/a"}


def test_a_deployments_trust_replaces_its_providers():
    deployments = '[{deployment: ours/a, trust: ["region:eu"]}, ours/b]'
    assert allowed("kept", deployments) == {"ours/b", *LOCAL}
    assert allowed("here", deployments) == {"ours/a", "ours/b"}
    assert allowed("here", "[{deployment: ours/a, trust: []}]") == set()


def test_a_claim_ends_with_its_day():
    deployments = "[{deployment: near/a, trust: [{attribute: self_hosted, expires: 2027-01-01}]}]"
    last = datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert "near/a" in allowed("kept", deployments, at=last)
    assert "near/a" not in allowed("kept", deployments, at=datetime(2027, 1, 1, tzinfo=UTC))


def test_a_local_model_stays_local_whatever_is_claimed_for_it():
    assert "local/m" in allowed("mine", "[{deployment: local/m, trust: []}]")


def test_two_models_cannot_lend_a_deployment_trust():
    text = """
models:
  a: {deployments: [{deployment: near/a, trust: [self_hosted, no_train]}]}
  b: {deployments: [{deployment: near/a, trust: [no_train]}]}
"""
    policy = build_policy(settings(text + TAGS))
    assert "near/a" not in policy.allowed(["kept"], at=AT)
    assert "near/a" in policy.allowed([], at=AT)


def test_a_policy_that_contradicts_itself_is_refused():
    bad = settings(TAGS)
    unsound = bad.model_copy(
        update={"privacy": bad.privacy.model_copy(update={"floor": ("no-such-tag",)})}
    )
    with pytest.raises(PolicyError, match="no-such-tag"):
        build_policy(unsound)


class Able:
    """A provider as far as a snapshot asks it."""

    def capabilities(self, model_id):
        return Capabilities(context_window_tokens=len(model_id))


class Ticker:
    """A clock that goes when told."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def ticker():
    return Ticker()


@pytest.fixture
def board(ticker):
    return HealthBoard(monotonic_s=ticker)


def test_a_snapshot_joins_configuration_providers_and_health(board):
    fleet = build_fleet(settings("server: {region: eu}\nmodels: {chat: {deployments: [ours/abc]}}"))
    speed = MeasuredSpeed(prefill_tps=1000, decode_tps=50)
    board.set_fault("local/spare", "its engine is starting")
    board.note_speed("local/m", prefill_tps=1000.0, decode_tps=50.0)
    everyone = dict.fromkeys(("local", "near", "ours"), Able())
    found = fleet.snapshot(providers=everyone, health=board, at=AT)
    assert set(found.deployments) == {"ours/abc", "local/m", "local/spare"}
    ours, mine, spare = (found.deployments[name] for name in ("ours/abc", "local/m", "local/spare"))
    assert ours.capabilities.context_window_tokens == 3
    assert isinstance(ours.price, PriceVersion)
    assert (ours.region, ours.speed, ours.is_available) == (None, None, True)
    assert (mine.region, mine.speed, mine.is_available) == ("eu", speed, True)
    assert (spare.is_available, spare.unavailable_reason) == (False, "its engine is starting")
    assert found.models == {"chat": ("ours/abc",)}


class Steady:
    known = Capabilities()

    def capabilities(self, model_id):
        return self.known


def test_a_view_is_kept_until_something_about_its_deployment_changes(board):
    fleet = fleet_of(
        "[{deployment: near/a, price: [{input_usd_per_mtok: 1},"
        " {input_usd_per_mtok: 2, valid_from: 2027-01-01}]}, local/m]"
    )
    everyone = dict.fromkeys(("local", "near", "ours"), Steady())

    def look(name, at=AT):
        return fleet.snapshot(providers=everyone, health=board, at=at).deployments[name]

    first = look("near/a")
    assert look("near/a") is first
    assert look("near/a", NEXT_YEAR).price != first.price
    assert look("near/a").price == first.price
    board.set_fault("near/a", "gone")
    assert not look("near/a").is_available
    board.set_fault("near/a", None)
    assert look("near/a").is_available
    before = look("local/m")
    board.note_speed("local/m", prefill_tps=1000.0, decode_tps=50.0)
    assert before.speed is None
    assert look("local/m").speed is not None


def test_a_snapshot_lists_the_whole_fleet_and_no_stranger(board):
    fleet = fleet_of("[near/a]")
    everyone = dict.fromkeys(("local", "near", "ours"), Able())
    found = fleet.snapshot(providers=everyone, health=board, at=AT).deployments
    assert tuple(found) == fleet.deployments
    assert len(found) == len(fleet.deployments)
    assert found["near/a"] is found["near/a"]
    assert "near/a" in found
    assert "near/b" not in found
    with pytest.raises(KeyError):
        found["near/b"]


def test_a_fault_lasts_until_it_is_taken_back(board):
    assert board.state("a/m") is AVAILABLE
    board.set_fault("a/m", "gone")
    assert board.state("a/m") == Availability(
        is_available=False, reason="gone", retry_after_s=FAULT_RETRY_S
    )
    assert board.state("b/m") is AVAILABLE
    board.set_fault("a/m", None)
    board.set_fault("a/m", None)
    assert board.state("a/m") is AVAILABLE


def test_a_pause_ends_by_itself_and_excludes_nothing(board, ticker):
    assert not board.is_paused("a/m")
    board.note_lack("a/m", asked_s=5, is_quota=False)
    assert board.is_paused("a/m")
    assert board.state("a/m") is AVAILABLE
    ticker.now_s += 4.9
    assert board.is_paused("a/m")
    ticker.now_s += 0.1
    assert not board.is_paused("a/m")
    ticker.now_s -= 2
    assert not board.is_paused("a/m")


def test_a_shorter_pause_does_not_end_a_longer_one(board, ticker):
    board.note_lack("a/m", asked_s=60, is_quota=False)
    board.note_lack("a/m", asked_s=1, is_quota=False)
    ticker.now_s += 59
    assert board.is_paused("a/m")


def test_no_upstream_can_pause_itself_for_ever(board, ticker):
    board.note_lack("a/m", asked_s=10**9, is_quota=False)
    ticker.now_s += PAUSE_S_MAX
    assert not board.is_paused("a/m")


def test_a_measured_speed_is_a_running_average(board):
    assert board.speed("a/m") is None
    board.note_speed("a/m", prefill_tps=1000.0, decode_tps=100.0)
    board.note_speed("a/m", prefill_tps=2000.0, decode_tps=50.0)
    assert board.speed("a/m") == MeasuredSpeed(prefill_tps=1200, decode_tps=90)


def test_a_speed_is_known_once_both_of_its_parts_are(board):
    board.note_speed("a/m", prefill_tps=1000.0, decode_tps=None)
    assert board.speed("a/m") is None
    board.note_speed("a/m", prefill_tps=None, decode_tps=0.2)
    assert board.speed("a/m") == MeasuredSpeed(prefill_tps=1000, decode_tps=1)


@given(st.lists(st.floats(1, 10**6), min_size=1, max_size=50))
def test_the_average_stays_between_the_measurements(values):
    board = HealthBoard(monotonic_s=lambda: 0.0)
    for value in values:
        board.note_speed("a/m", prefill_tps=value, decode_tps=value)
    found = board.speed("a/m")
    assert round(min(values)) <= found.decode_tps <= round(max(values))
    assert found.prefill_tps == found.decode_tps


BASELINES = {
    "a deployment of the models, at its price": ("near/a", "near/a", Fraction(3_000_000)),
    "another one of a provider with a price": ("ours/b", "ours/b", Fraction(1_000_000)),
    "any other one with a price of its own": (
        "{deployment: openai/gpt, price: {input_usd_per_mtok: 9}}",
        "openai/gpt",
        Fraction(9_000_000),
    ),
}


@pytest.mark.parametrize(("entry", "name", "rate"), BASELINES.values(), ids=BASELINES.keys())
def test_baselines_have_the_price_of_the_deployment_they_name(entry, name, rate):
    models = (
        "models: {chat: {deployments: [{deployment: near/a, price: {input_usd_per_mtok: 3}}]}}\n"
    )
    fleet = build_fleet(settings(f"{models}finance: {{baseline: {{models: {{chat: {entry}}}}}}}"))
    found = fleet.baseline("chat", to_microseconds(AT))
    assert found is not None
    assert found.deployment == name
    assert isinstance(found.price, PriceVersion)
    priced = found.price.rate_for(Meter.INPUT)
    assert priced is not None
    assert Fraction(priced.pico_usd, priced.per_units) == rate
    assert fleet.baseline("other", to_microseconds(AT)) is None
    assert name == "near/a" or name not in fleet.deployments, "nothing is ever sent there"
