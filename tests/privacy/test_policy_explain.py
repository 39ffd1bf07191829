"""`fareway policy explain`: tags with sources, what they require and who has it; never content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from gateway.cli import main as cli

CONFIG = """
providers:
  own:
    kind: openai_compatible
    base_url: http://10.0.0.5:8000/v1
    trust: [{attribute: self_hosted, evidence: inventory}]
  vendor:
    kind: openai_compatible
    base_url: http://10.0.0.6:8000/v1
    trust: [no_train]
models:
  chat: {deployments: [vendor/llama, own/llama], aliases: [small]}
teams:
  payments: {tags: [private]}
  open: {}
privacy:
  detect: {mode: enforce, payment_card: [card]}
  tags:
    internal: {require: [no_train]}
    private: {implies: [internal], require: [self_hosted]}
    card: {implies: [private]}
    secret: {deny: true}
"""

Explain = Callable[..., tuple[object, str, str]]


@pytest.fixture
def explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Explain:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "fareway.yaml").write_text(CONFIG)

    def run(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(["policy", "explain", *arguments])
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def test_tags_have_sources_and_deployments_reasons(explain: Explain) -> None:
    code, out, _ = explain("--team", "payments", "--model", "small")
    assert code == 0
    lines = out.splitlines()
    assert lines[:7] == [
        "small for team payments",
        "tags:",
        "  internal: implied by private",
        "  private: floor of team payments",
        "required:",
        "  no_train: by internal",
        "  self_hosted: by private",
    ]
    assert "own/llama: allowed (has self_hosted)" in lines
    assert "vendor/llama: lacks self_hosted (has no_train)" in lines
    assert any(line.startswith("self_hosted gives ") and "no_train" in line for line in lines)


def test_what_detectors_find_is_told_without_the_value(explain: Explain, tmp_path: Path) -> None:
    number = "4539 1488 0343 6467"
    body = {"model": "chat", "messages": [{"role": "user", "content": f"charge {number}"}]}
    (tmp_path / "body.json").write_text(json.dumps(body))
    code, out, _ = explain("--team", "open", "--body", "body.json", "--json")
    assert code == 0
    assert "6467" not in out
    assert "charge" not in out
    told = cast("dict[str, dict[str, str]]", json.loads(out))
    assert told["tags"]["card"].startswith("detected: payment_card at messages[0].content")
    assert told["need"] == {"no_train": ["internal"], "self_hosted": ["private"]}


def test_a_tag_that_denies_is_named(explain: Explain) -> None:
    code, out, _ = explain("--team", "open", "--model", "chat", "--tags", "secret")
    assert code == 0
    assert "denied everywhere: by secret" in out
    assert "vendor/llama: denied (has no_train)" in out


def test_a_tool_that_leaves_the_machine_is_told(explain: Explain, tmp_path: Path) -> None:
    body: dict[str, object] = {
        "model": "chat",
        "messages": [{"role": "user", "content": "look it up"}],
        "web_search_options": dict[str, object](),
    }
    (tmp_path / "body.json").write_text(json.dumps(body))
    _, out, _ = explain("--team", "payments", "--body", "body.json")
    assert "tool web_search: lacks no_train, self_hosted" in out
    _, out, _ = explain("--team", "open", "--body", "body.json")
    assert "tool web_search: has all that is required" in out


@pytest.mark.parametrize("arguments", [("--model", "chat"), ("--team", "open")])
def test_who_asks_for_what_has_to_be_said(explain: Explain, arguments: tuple[str, ...]) -> None:
    code, _, err = explain(*arguments)
    assert code == 2
    assert "say w" in err
