"""Real clients against a running gateway: the shared conformance kit, where it is at hand.

The kit lies beside the checkout, not in it; without it the test is skipped. Its clients are the
official OpenAI SDK, a strict schema checker, raw HTTP and curl, all from this environment.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = REPOSITORY.parent / "shared" / "conformance"
HERE = Path(__file__).parent
CLIENTS = ("openai-py", "schema", "http", "curl")
RETRIES = 2

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not KIT.is_dir(), reason="the conformance kit is not beside the checkout"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    kit = folder / "kit"
    # The kit's client environments are left behind: this environment has the same SDKs.
    shutil.copytree(KIT, kit, ignore=shutil.ignore_patterns("v", "node", "codex", "logs"))
    for path in [kit, *kit.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    shutil.copy(HERE / "built_part.py", kit / "adapters" / "built_part.py")
    (kit / "v").mkdir()
    (kit / "v" / "sdk").symlink_to(sys.prefix)
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "run.py", "--adapter", "built_part", "--clients", ",".join(CLIENTS),
         "--retries", str(RETRIES), "--json", str(report)],
        cwd=kit,
        env={
            **os.environ,
            "FAREWAY_BIN": str(Path(sys.executable).with_name("fareway")),
            "FAREWAY_STATE_DIR": str(folder / "state"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return {case["id"]: case for case in json.loads(report.read_text())["cases"]}


@pytest.fixture(scope="module")
def not_yet():
    tables = tomllib.loads((HERE / "not_yet.toml").read_text())
    return {case for table in tables.values() for case in table["cases"]}


@pytest.mark.timeout(700)
def test_clients_get_what_they_expect(results, not_yet):
    failures = {
        name: case["reason"]
        for name, case in results.items()
        if case["result"] != "PASS" and name not in not_yet
    }
    assert failures == {}


def test_nothing_passes_that_is_listed_as_not_built(results, not_yet):
    assert {name for name in not_yet if results[name]["result"] == "PASS"} == set()


def test_the_kit_was_really_run(results):
    assert sum(case["result"] == "PASS" for case in results.values()) >= 70
