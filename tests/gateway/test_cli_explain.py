"""`fareway explain`: what it prints is what a worker would decide, and nothing is sent."""

import io
import json
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from gateway.auth.directory import KeyRecord, KeySource
from gateway.channel import RemoteError, method
from gateway.cli.main import main
from gateway.clock import system_clock
from gateway.dialects.openai_chat import BYTES_PER_TOKEN_HIGH, TEMPLATE_TOKENS_MAX
from gateway.ledger.service import LedgerService
from gateway.ledger.views import StoredKey
from gateway.process.messages import EngineSpeed, ServiceStatus
from tests.support.admin_endpoint import admin_endpoint

CONFIG = """
server: {region: eu}
storage: {database: "sqlite:///fareway.db", spool_dir: spool}
providers:
  local: {kind: local, models: [{id: m, source: "pypi:p==1"}]}
  near:
    kind: openai_compatible
    base_url: http://127.0.0.1:9/v1
    api_key_env: A_KEY_THAT_NOBODY_SET
    trust: [no_train]
    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
  ours:
    kind: openai_compatible
    base_url: http://127.0.0.1:9/v1
    trust: [self_hosted]
    price: {input_usd_per_mtok: 3, output_usd_per_mtok: 4}
models:
  chat:
    aliases: [small]
    deployments: [near/a, {deployment: ours/b, context_window_tokens: 4096}, local/m]
  alone: {deployments: [local/m]}
teams:
  payments:
    tags: [private]
    projects: {fraud: {}}
    keys: [{name: bot, value_env: BOT_KEY, project: fraud, models: [chat]}]
  open: {}
privacy:
  tags:
    internal: {require: [no_train]}
    private: {implies: [internal], require: [self_hosted]}
    every: {}
  floor: [every]
"""


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder with a configuration; gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def explain(fareway):
    def run(*arguments):
        status, out, err = fareway("explain", "--json", *arguments)
        assert (status, err) == (0, "")
        return json.loads(out)

    return run


def record(key_id, **changes):
    fields = {
        "team": "open",
        "name": key_id,
        "digest": key_id.encode().ljust(32, b"."),
        "source": KeySource.DATABASE,
    }
    return KeyRecord(key_id=key_id, **(fields | changes))


def keep_keys(folder, *records):
    """Write keys as the gateway would, with the database of a stopped one."""

    async def keep():
        url = f"sqlite:///{folder / 'fareway.db'}"
        service = LedgerService(url, folder / "spool", clock=system_clock())
        await service.start()
        for one in records:
            await service.create_key(one, actor="test")
            if one.disabled:
                await service.revoke_key(one.key_id, actor="test")
        await service.stop(drain=False)

    anyio.run(keep)


def running(engines, keys=(), speeds=None):
    async def status(_params, _fds):
        return ServiceStatus(
            url="http://127.0.0.1:1",
            pids={},
            engines=engines,
            revision=1,
            speeds=speeds or {},
        )

    async def list_keys(_params, _fds):
        return [StoredKey(record=one, created_at_us=0, disabled_at_us=None) for one in keys]

    return {"status": method(type(None), status), "list_keys": method(type(None), list_keys)}


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def usd(millionths):
    return Decimal(millionths) / 1_000_000


def order(found):
    return [one["deployment"] for one in found["decision"]["candidates"]]


def test_candidates_come_in_order_with_exact_costs(explain):
    found = explain("--team", "open", "--model", "small", "--max-tokens", "100")
    assert (found["decision"]["asked"], found["decision"]["model"]) == ("small", "chat")
    assert order(found) == ["near/a", "ours/b", "local/m"]
    first, second, third = found["decision"]["candidates"]
    assert [one["rank"] for one in (first, second, third)] == [1, 2, 3]
    assert first["reason"] == "cheapest"
    messages = [{"role": "user", "content": "Hello!"}]
    body = {"messages": messages, "model": "small", "max_tokens": 100}
    prompt_tokens = len(compact(messages)) // BYTES_PER_TOKEN_HIGH
    most_tokens = len(compact(body)) + TEMPLATE_TOKENS_MAX
    for one, input_usd, output_usd in ((first, 1, 2), (second, 3, 4)):
        assert Decimal(one["expected_usd"]) == usd(prompt_tokens * input_usd + 100 * output_usd)
        assert Decimal(one["upper_bound_usd"]) == usd(most_tokens * input_usd + 100 * output_usd)
    assert third["unpriced"] == "no measured rates"
    assert third["expected_usd"] is None


def test_every_tag_says_where_it_comes_from(explain):
    found = explain("--team", "payments", "--model", "chat", "--tags", "every,internal")
    assert found["tags"] == {
        "every": "floor of the configuration; the request",
        "internal": "the request; implied by private",
        "private": "floor of team payments",
    }
    assert found["allowed"] == ["local/m", "ours/b"]
    assert order(found) == ["ours/b", "local/m"]
    (excluded,) = found["decision"]["excluded"]
    assert excluded == {
        "deployment": "near/a",
        "stage": "privacy",
        "reason": "lacks self_hosted",
    }


REFUSALS = {
    "an unknown model": (("--model", "chta"), "model_not_found"),
    "a low ceiling": (
        ("--model", "chat", "--max-tokens", "9", "--max-usd", "0.0000001"),
        "max_usd_exceeded",
    ),
    "a long answer": (("--model", "ours/b", "--max-tokens", "5000"), "context_length_exceeded"),
}


@pytest.mark.parametrize(("arguments", "code"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_explained_with_its_code(explain, fareway, arguments, code):
    found = explain("--team", "open", *arguments)
    assert found["decision"]["refusal"]["code"] == code
    assert found["decision"]["candidates"] == []
    status, out, _ = fareway("explain", "--team", "open", *arguments)
    assert status == 0
    assert f"refused with {code}: " in out


FAULTS = {
    "an unknown team": (("--team", "nobody", "--model", "chat"), "no team 'nobody'"),
    "an unknown tag": (
        ("--team", "open", "--model", "chat", "--tags", "privat"),
        "refused with 400 invalid_request_error: unknown privacy tag 'privat'",
    ),
    "a project of nobody": (
        ("--team", "open", "--model", "chat", "--project", "golf"),
        "no project 'golf'",
    ),
    "a negative bound": (
        ("--team", "open", "--model", "chat", "--max-tokens", "-1"),
        "max_tokens",
    ),
    "an unknown key": (("--key-id", "nothing", "--model", "chat"), "no key 'nothing'"),
    "a body that is not there": (("--team", "open", "--body", "none.json"), "cannot be read"),
}


@pytest.mark.parametrize(("arguments", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_never_gets_to_routing_is_a_fault(fareway, monkeypatch, arguments, said):
    monkeypatch.setenv("BOT_KEY", "a-key-from-somewhere-else")
    status, out, err = fareway("explain", *arguments)
    assert (status, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


USAGE = {
    "nobody asks": ("--model", "chat"),
    "nothing is asked for": ("--team", "open"),
    "two questions": ("--team", "open", "--prompt", "a", "--body", "b.json"),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE.keys())
def test_half_a_question_is_wrong_usage(fareway, arguments):
    assert fareway("explain", *arguments)[0] == 2


def test_a_body_is_read_as_a_client_would_send_it(explain, tmp_path):
    body = {
        "model": "chat",
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}
        ],
        "metadata": {"fareway_tags": "private", "fareway_project": "fraud"},
    }
    path = tmp_path / "body.json"
    path.write_text(json.dumps(body))
    found = explain("--team", "payments", "--body", str(path))
    assert found["project"] == "fraud"
    assert found["tags"]["private"] == "floor of team payments; the request"
    stages = {one["deployment"]: one["stage"] for one in found["decision"]["excluded"]}
    assert stages == {"near/a": "privacy", "local/m": "ability"}


def test_what_detectors_add_is_explained_without_the_value(fareway, explain, tmp_path):
    """As in a worker; observing adds nothing, and what is found is told all the same."""
    card = "4539148803436467"
    section = "  detect: {mode: MODE, payment_card: [private]}\n"
    for mode, tags in (("enforce", {"every", "internal", "private"}), ("observe", {"every"})):
        (tmp_path / "fareway.yaml").write_text(CONFIG + section.replace("MODE", mode))
        asked = ("--team", "open", "--model", "chat", "--prompt", f"charge {card}")
        found = explain(*asked)
        assert set(found["tags"]) == tags
        assert found["detected"] == [
            {
                "detector": "payment_card",
                "kind": "payment_card",
                "path": "messages[0].content",
                "count": 1,
            }
        ]
        _, out, _ = fareway("explain", *asked)
        assert "found: payment_card at messages[0].content, 1" in out
        assert ("private: detected: payment_card at messages[0].content" in out) == (
            mode == "enforce"
        )
        assert card not in out


def test_options_replace_members_of_a_body(explain, tmp_path):
    path = tmp_path / "body.json"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(json.dumps({"model": "x", "max_completion_tokens": 9999, "messages": messages}))
    found = explain("--team", "open", "--body", str(path), "--model", "ours/b", "--max-tokens", "1")
    assert order(found) == ["ours/b"]


def test_a_broken_body_says_what_a_client_would_hear(fareway, monkeypatch):
    class Typed:
        buffer = io.BytesIO(b'{"model": ')

    monkeypatch.setattr("sys.stdin", Typed)
    status, _, err = fareway("explain", "--team", "open", "--body", "-", "--model", "chat")
    assert status == 1
    assert "400 invalid_request_error: the body is not valid JSON" in err


def test_the_text_names_everything_that_the_json_does(fareway):
    status, out, _ = fareway(
        "explain", "--team", "payments", "--model", "small", "--project", "fraud"
    )
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "team payments, project fraud"
    assert "  private: floor of team payments" in lines
    assert "allowed by them: local/m, ours/b" in lines
    assert any(line.startswith("  1. ours/b: cheapest; expected 0.00") for line in lines)
    assert "  2. local/m: unpriced (no measured rates), ranks last" in out
    assert "  no near/a: privacy: lacks self_hosted" in lines
    assert lines[-1].startswith("(no gateway of this configuration runs")


def test_a_key_of_the_database_brings_team_project_and_models(explain, tmp_path):
    keep_keys(
        tmp_path, record("k1", team="payments", project="fraud", models=("chat",)), record("k2")
    )
    found = explain("--key-id", "k1", "--model", "chat")
    assert (found["team"], found["key_id"], found["project"]) == ("payments", "k1", "fraud")
    assert order(found) == ["ours/b", "local/m"]
    refused = explain("--key-id", "k1", "--model", "alone")
    assert refused["decision"]["refusal"]["code"] == "model_not_allowed"
    assert order(explain("--key-id", "k2", "--model", "alone")) == ["local/m"]


def test_a_key_of_the_file_is_found_by_its_id(fareway, explain, monkeypatch):
    monkeypatch.setenv("BOT_KEY", "a-key-from-somewhere-else")
    rows = json.loads(fareway("keys", "list", "--json")[1])
    found = explain("--key-id", rows[0]["key_id"], "--model", "chat")
    assert (found["team"], found["project"]) == ("payments", "fraud")


VOID = {
    "revoked": (record("k", disabled=True), "k", "was revoked"),
    "expired": (record("k", expires_at_us=1), "k", "has expired"),
    "of another team": (record("k", team="payments"), "k", "belongs to team 'payments'"),
}


@pytest.mark.parametrize(("kept", "key_id", "said"), VOID.values(), ids=VOID.keys())
def test_a_key_that_a_worker_would_not_take_is_a_fault(fareway, tmp_path, kept, key_id, said):
    keep_keys(tmp_path, kept)
    status, _, err = fareway("explain", "--team", "open", "--key-id", key_id, "--model", "chat")
    assert status == 1
    assert said in err


def test_without_a_gateway_every_deployment_counts_as_up(explain, tmp_path):
    found = explain("--team", "open", "--model", "alone")
    assert order(found) == ["local/m"]
    assert "taken to be up" in found["health"]
    assert not (tmp_path / "fareway.db").exists()
    assert not (tmp_path / "spool").exists()


def test_states_of_engines_are_those_of_the_running_gateway(explain, tmp_path):
    spool = tmp_path / "spool"
    with admin_endpoint(spool, running({"local/m": "the file is broken"}, [record("live")])):
        found = explain("--key-id", "live", "--model", "alone")
    assert found["decision"]["refusal"]["code"] == "no_healthy_deployment"
    assert "the file is broken" in found["decision"]["refusal"]["message"]
    assert "running gateway" in found["health"]
    with admin_endpoint(spool, running({"local/m": "ready"})):
        assert order(explain("--team", "open", "--model", "alone")) == ["local/m"]


def test_a_machine_that_the_running_gateway_measured_is_quoted(explain, tmp_path):
    speeds = {"local/m": EngineSpeed(prefill_tps=1_000, decode_tps=10)}
    with admin_endpoint(tmp_path / "spool", running({"local/m": "ready"}, speeds=speeds)):
        found = explain("--team", "open", "--model", "alone", "--max-tokens", "36")
    # Nominal 0.10 USD per hour: 36 tokens at 10 a second are a thousandth of an hour.
    (only,) = found["decision"]["candidates"]
    assert Decimal("0.0001") <= Decimal(only["expected_usd"]) < Decimal("0.000101")


def test_a_gateway_that_does_not_answer_is_a_fault(fareway, tmp_path):
    async def refuse(_params, _fds):
        raise RemoteError("busy", "not now")

    with admin_endpoint(tmp_path / "spool", {"status": method(type(None), refuse)}):
        status, _, err = fareway("explain", "--team", "open", "--model", "chat")
    assert status == 1
    assert "not now" in err


def test_a_kind_that_is_not_built_is_named_with_its_line(fareway):
    text = CONFIG.replace("models:\n  chat:", "  far: {kind: groq}\nmodels:\n  chat:", 1)
    Path("fareway.yaml").write_text(text)
    status, _, err = fareway("explain", "--team", "open", "--model", "chat")
    assert status == 1
    line = text[: text.index("far:")].count("\n") + 1
    assert f"fareway.yaml:{line}: providers of kind groq are not built yet" in err
