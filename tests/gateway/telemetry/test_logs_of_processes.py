"""Every process of a running gateway writes lines of one form, and none holds content."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from local_engine.log_lines import EngineLines
from tests.e2e.roads import CHEAP, deployments, running_road
from tests.faults.traffic import ask
from tests.gateway.telemetry.test_logs import json_line, written
from tests.support.scripted_upstream import Answer, Chat

CANARY = "canary-prompt-7f3a"
CONFIG = {
    "server": {"workers": 2},
    "providers": {"up": {"kind": "openai_compatible"}},
    "models": {"m": deployments(("up/m", CHEAP))},
    "teams": {"red": {}},
}


def logged(text: str) -> list[str]:
    """Lines of log, without what `serve` says to whoever started it."""
    said = ("fareway is ready", "first administrator, once")
    return [line for line in text.splitlines() if not line.startswith(said)]


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_every_process_writes_one_form_without_content(tmp_path: Path, log_format) -> None:
    config = {**CONFIG, "telemetry": {"log_format": log_format, "access_log": True}}
    scripts = {"m": [Answer(status=500, body={"error": {"message": CANARY}}), Chat(text=CANARY)]}
    body = {"model": "m", "messages": [{"role": "user", "content": CANARY}]}
    with running_road(tmp_path, scripts=scripts, config=config) as road:
        gateway = road.gateway
        for _ in range(4):
            ask(gateway.port, gateway.key("red"), body)
        gateway.kill_role("worker")
        gateway.kill_role("ledger")
        gateway.wait_ready()
        gateway.stop()
        text = gateway.log()
        secrets = (CANARY, gateway.key("red"), gateway.environ["FAREWAY_ADMIN_KEY"])
    lines = logged(text)
    assert lines
    assert not [secret for secret in secrets if secret in text]
    if log_format == "text":
        assert not [line for line in lines if line.startswith("{")]
        return
    told = [json.loads(line) for line in lines]
    members = ("time", "level", "process", "pid", "logger", "message")
    assert all(tuple(line)[: len(members)] == members for line in told)
    assert {"supervisor"} < {line["process"] for line in told}


@pytest.mark.slow
def test_a_reload_leaves_the_form_of_lines_as_it_is(tmp_path: Path) -> None:
    config = {**CONFIG, "telemetry": {"log_format": "json", "access_log": True}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with running_road(tmp_path, scripts={"m": [Chat(text="y")]}, config=config) as road:
        gateway = road.gateway
        file = gateway.folder / "fareway.yaml"
        file.write_text(re.sub(r"(log_format\W+)json", r"\1text", file.read_text()))
        gateway.signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while "reloaded the configuration" not in gateway.log():
            assert time.monotonic() < deadline, gateway.log()
            time.sleep(0.05)
        ask(gateway.port, gateway.key("red"), body)
        gateway.stop()
        lines = logged(gateway.log())
    assert "gateway.access" in [json.loads(line)["logger"] for line in lines]


def test_the_engine_writes_the_gateways_form():
    def fail(logger):
        try:
            int(CANARY)
        except ValueError:
            logger.exception("a step\nfailed")

    ours = json_line(fail, handles_content=True)
    engines = json.loads(written(EngineLines("engine-m", is_json=True), fail))
    assert list(engines) == list(ours)
    assert CANARY not in json.dumps(engines)
    assert engines["traceback"].endswith("ValueError")
    text = written(EngineLines("engine-m", is_json=False), fail)
    assert text.count("\n") == 1
    assert CANARY not in text
