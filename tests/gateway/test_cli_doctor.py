"""`fareway doctor`: each check finds what is broken, and says how to mend it."""

import json
import sqlite3
from pathlib import Path

import anyio
import msgspec
import pytest

from gateway.channel import RemoteError, method
from gateway.cli import doctor
from gateway.cli.doctor import Verdict
from gateway.cli.main import main
from gateway.clock import Clock
from gateway.ledger import migrate
from gateway.ledger.database import sqlite_path
from gateway.process.messages import ServiceStatus
from tests.gateway.settings_text import load_settings
from tests.support.admin_endpoint import admin_endpoint

STORAGE = 'storage: {database: "sqlite:///fareway.db", spool_dir: spool}\n'
LOCAL = 'providers: {local: {kind: local, models: [{id: m, source: "pypi:p==1"}]}}\n'


@pytest.fixture
def loaded(tmp_path):
    return load_settings(STORAGE, base_dir=tmp_path)


@pytest.fixture
def python_path(tmp_path, monkeypatch):
    """A folder whose modules go before installed ones in every process that is started."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def clock_of(*durations_s):
    """A clock on which the runs that are timed take so long."""
    instants, now_s = [], 0.0
    for duration_s in durations_s:
        instants += [now_s, now_s + duration_s]
        now_s += duration_s
    ticks = iter(instants)
    return Clock(wall_us=lambda: 0, monotonic_s=lambda: next(ticks))


TIMES = {
    "quick": ((0.1, 0.2, 0.3), Verdict.OK, 0.2),
    "one slow run among three": ((0.1, 9.0, 0.3), Verdict.OK, 0.3),
    "at the limit": ((0.5, 0.5, 0.5), Verdict.BROKEN, 0.5),
    "slow": ((0.1, 0.9, 0.8), Verdict.BROKEN, 0.8),
}


@pytest.mark.parametrize(("durations_s", "verdict", "median_s"), TIMES.values(), ids=TIMES.keys())
def test_the_overview_is_judged_by_the_median(durations_s, verdict, median_s):
    found = doctor.check_help(clock_of(*durations_s), ("-c", "pass"))
    assert found.verdict is verdict
    assert found.facts["median_s"] == median_s


def test_an_overview_that_fails_is_broken():
    found = doctor.check_help(clock_of(0.1), ("-c", "raise SystemExit('no overview today')"))
    assert found.verdict is Verdict.BROKEN
    assert "no overview today" in found.detail


@pytest.mark.slow
def test_a_worker_loads_nothing_heavy_and_what_it_does_load_is_found():
    found = doctor.check_imports((*doctor.KEPT_OUT, "msgspec"))
    assert found.facts == {"leaks": ["msgspec"]}
    assert found.verdict is Verdict.BROKEN
    assert found.detail == "loads msgspec"


def test_a_worker_that_cannot_be_imported_is_broken(python_path):
    (python_path / "uvloop.py").write_text("raise ImportError('torn wheel')")
    found = doctor.check_imports()
    assert found.verdict is Verdict.BROKEN
    assert "torn wheel" in found.detail


def test_versions_name_what_is_missing():
    found = doctor.check_versions()
    assert {"python", "fareway", "msgspec", "torch"} <= set(found.facts)
    assert found.facts["python"] in found.detail


TORCH = """
class cuda:
    def is_available(): return {found}
    class card: name = "H200"; total_memory = 150_000_000_000
    def get_device_properties(index): return cuda.card
def get_num_threads(): return 6
"""
DEVICES = {
    "a processor": ("False", "torch back end on cpu, 6 threads", ("cpu", 0)),
    "a GPU": ("True", "torch back end on H200 (cuda)", ("cuda", 150_000_000_000)),
}


@pytest.mark.parametrize(("is_found", "detail", "facts"), DEVICES.values(), ids=DEVICES.keys())
def test_the_device_is_the_one_that_the_back_end_sees(python_path, is_found, detail, facts):
    (python_path / "torch.py").write_text(TORCH.format(found=is_found))
    engine, model = doctor.check_engine(needs_engine=True)
    assert (engine.verdict, engine.detail) == (Verdict.OK, detail)
    assert (engine.facts["device"], engine.facts["memory_bytes"]) == facts
    if facts[1]:
        assert "150.0 GB" in model.detail


NO_TORCH = {
    "not installed": ("No module named 'torch'", "pip install 'fareway[local]'"),
    "broken": ("libcuda.so.1 is torn", "libcuda.so.1 is torn"),
}


@pytest.mark.parametrize(("said", "detail"), NO_TORCH.values(), ids=NO_TORCH.keys())
@pytest.mark.parametrize("needs_engine", [True, False])
def test_a_back_end_that_is_not_there_matters_to_local_models(
    python_path, said, detail, needs_engine
):
    (python_path / "torch.py").write_text(f"raise ImportError({said!r})")
    (found,) = doctor.check_engine(needs_engine=needs_engine)
    assert found.verdict is (Verdict.BROKEN if needs_engine else Verdict.NOTE)
    assert detail in found.detail


MEMORIES = {
    "a small machine": (2 * 10**9, Verdict.NOTE, "none larger"),
    "a large one": (64 * 10**9, Verdict.OK, "Llama-3.1-8B-Instruct needs 33.2 GB"),
}


@pytest.mark.parametrize(("total_bytes", "verdict", "said"), MEMORIES.values(), ids=MEMORIES.keys())
def test_the_model_that_fits_comes_with_its_arithmetic(total_bytes, verdict, said):
    found = doctor.fitting_model(total_bytes)
    assert found.verdict is verdict
    assert said in found.detail
    assert f"x 4 B + 1.1 GB within 70% of {total_bytes / 1e9:.1f} GB" in found.detail


def test_what_cannot_be_served_yet_is_noted(loaded, tmp_path):
    assert doctor.check_configuration(loaded).verdict is Verdict.OK
    later = load_settings("storage: {content_log: hashes}\n", base_dir=tmp_path)
    found = doctor.check_configuration(later)
    assert found.verdict is Verdict.NOTE
    assert "refuses 1 settings" in found.detail
    assert "a content log" in found.detail


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("api_key_file: nothing", "providers.s.api_key_file: secret file"),
        ("tls: {ca_file: nothing.pem}", "providers.s.tls.ca_file: cannot read"),
    ],
)
def test_a_file_without_which_nothing_is_served_is_noted(tmp_path, setting, said):
    server = f"{{kind: openai_compatible, base_url: 'https://10.0.0.5/v1', {setting}}}"
    config = load_settings(f"providers: {{s: {server}}}", base_dir=tmp_path)
    found = doctor.check_configuration(config)
    assert found.verdict is Verdict.NOTE
    assert said in found.detail


def test_free_disk_is_that_of_the_journals_place(loaded, tmp_path):
    found = doctor.check_spool(loaded, free_bytes_min=1)
    assert found.verdict is Verdict.OK
    assert found.facts["path"] == str(tmp_path / "spool")
    assert not (tmp_path / "spool").exists()
    full = doctor.check_spool(loaded, free_bytes_min=2**62)
    assert full.verdict is Verdict.BROKEN
    assert "storage.spool_dir" in full.detail


def test_a_database_that_is_not_made_yet_is_no_fault(loaded, tmp_path):
    found = doctor.check_database(loaded)
    assert found.verdict is Verdict.NOTE
    assert "`fareway serve` makes it" in found.detail
    assert not (tmp_path / "fareway.db").exists()


def test_a_database_is_read(loaded):
    migrate.upgrade(loaded.database_url)
    found = doctor.check_database(loaded)
    assert found.verdict is Verdict.OK
    assert "0 keys" in found.detail


STATE = (
    '{"finished_at_us": 1795867200000000, "days": 3, "findings": %d, "told": %s, "faulty_days": %s}'
)


def test_the_daily_check_is_told_and_broken_with_findings(loaded):
    assert list(doctor.check_daily(loaded)) == [], "there is no database yet"
    migrate.upgrade(loaded.database_url)
    assert list(doctor.check_daily(loaded)) == [], "there was no check yet"
    for state, verdict, told in (
        (STATE % (0, "[]", "[]"), Verdict.OK, "2026-11-28 12:00 UTC, 3 days, 0 findings"),
        (STATE % (1, '["x is wrong"]', "[]"), Verdict.BROKEN, "1 findings: x is wrong"),
        (STATE % (1, "[]", "[0]"), Verdict.BROKEN, "ledger verify --rebuild"),
    ):
        with sqlite3.connect(sqlite_path(loaded.database_url)) as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('check', ?)", (state,))
        connection.close()
        [found] = doctor.check_daily(loaded)
        assert found.verdict is verdict
        assert told in found.detail


def test_a_database_of_an_older_release_is_named(loaded):
    migrate.upgrade(loaded.database_url)
    migrate.downgrade(loaded.database_url, "base")
    found = doctor.check_database(loaded)
    assert found.verdict is Verdict.BROKEN
    assert "`fareway serve` brings it up to date" in found.detail


def test_a_file_that_is_no_database_is_broken(loaded, tmp_path):
    (tmp_path / "fareway.db").write_bytes(b"not a database at all" * 100)
    found = doctor.check_database(loaded)
    assert found.verdict is Verdict.BROKEN
    assert "not a database" in found.detail


def test_a_database_server_that_does_not_answer_is_broken(tmp_path):
    other = load_settings(
        'storage: {database: "postgresql://u@127.0.0.1:9/d"}\n', base_dir=tmp_path
    )
    found = doctor.check_database(other)
    assert found.verdict is Verdict.BROKEN
    assert "the database did not answer" in found.detail


def test_a_postgresql_with_a_ledger_in_it_is_fine(tmp_path, postgres_ledger_url):
    loaded = load_settings(f"storage: {{database: '{postgres_ledger_url}'}}\n", base_dir=tmp_path)
    found = doctor.check_database(loaded)
    assert (found.verdict, found.detail) == (
        Verdict.OK,
        f"{postgres_ledger_url} answers, 0 keys made here",
    )


def test_a_missing_database_password_is_told_by_its_name(tmp_path):
    text = "storage: {database: 'postgresql://u@h/d', database_password_env: NO_SUCH_VARIABLE}\n"
    found = doctor.check_database(load_settings(text, base_dir=tmp_path))
    assert found.verdict is Verdict.BROKEN
    assert "NO_SUCH_VARIABLE is not set" in found.detail


def gateway_at(folder, answer):
    async def status(_params, _fds):
        return answer()

    return admin_endpoint(folder, {"status": method(type(None), status)})


def status_of(engines):
    return ServiceStatus(
        url="http://127.0.0.1:8642", pids={"supervisor": 7}, engines=engines, revision=1
    )


ENGINES = {
    "none": ({}, Verdict.OK, "engines: none"),
    "ready and starting": (
        {"local/a": "ready", "local/b": "starting"},
        Verdict.OK,
        "local/a ready, local/b starting",
    ),
    "one that cannot run": (
        {"local/a": "ready", "local/b": "the file is torn"},
        Verdict.BROKEN,
        "engines: local/b: the file is torn",
    ),
}


@pytest.mark.parametrize(("engines", "verdict", "said"), ENGINES.values(), ids=ENGINES.keys())
def test_the_running_gateway_is_asked(loaded, tmp_path, engines, verdict, said):
    with gateway_at(tmp_path / "spool", lambda: status_of(engines)):
        found = anyio.run(doctor.check_gateway, loaded)
    assert found.verdict is verdict
    assert said in found.detail
    assert "http://127.0.0.1:8642; processes supervisor 7" in found.detail


def test_a_configuration_that_was_not_taken_is_a_fault_with_its_reason():
    refused = msgspec.structs.replace(status_of({}), reload_fault="f.yaml:3: port: unknown key")
    found = doctor.judge_status(refused)
    assert found.verdict is Verdict.BROKEN
    assert "not taken: f.yaml:3: port: unknown key" in found.detail


def test_a_gateway_that_hears_nothing_of_other_machines_is_broken(loaded, tmp_path):
    async def status(_params, _fds):
        return status_of({})

    async def stats(_params, _fds):
        return told

    told = {"news_fault": "the database did not answer", "pool_fault": ""}
    methods = {"status": method(type(None), status), "stats": method(type(None), stats)}
    with admin_endpoint(tmp_path / "spool", methods):
        found = anyio.run(doctor.check_gateway, loaded)
        assert found.verdict is Verdict.BROKEN
        assert "are not heard of: the database did not answer" in found.detail
        told = {"news_fault": "", "pool_fault": "no answer within 100 ms"}
        found = anyio.run(doctor.check_gateway, loaded)
        assert found.verdict is Verdict.NOTE
        assert "by the database alone, without Redis: no answer within 100 ms" in found.detail


def test_a_gateway_that_does_not_run_is_no_fault(loaded):
    assert anyio.run(doctor.check_gateway, loaded).verdict is Verdict.NOTE


def test_a_gateway_that_does_not_answer_is_broken(loaded, tmp_path):
    def refuse():
        raise RemoteError("busy", "not now")

    with gateway_at(tmp_path / "spool", refuse):
        found = anyio.run(doctor.check_gateway, loaded)
    assert found.verdict is Verdict.BROKEN
    assert "not now" in found.detail


@pytest.fixture
def fareway(tmp_path, monkeypatch, capsys):
    """Run the command in a folder of its own; gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAREWAY_STATE_DIR", str(tmp_path / "state"))

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(("doctor", *arguments))
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


CHECKS = [
    "fareway --help", "worker imports", "versions", "configuration", "engine", "fitting model",
    "spool", "database", "gateway",
]  # fmt: skip


@pytest.mark.slow
def test_the_whole_examination(fareway):
    Path("fareway.yaml").write_text(STORAGE + LOCAL)
    status, out, _ = fareway("--json")
    document = json.loads(out)
    assert [check["name"] for check in document["checks"]] == CHECKS
    verdicts = {check["name"]: check["verdict"] for check in document["checks"]}
    # How long the overview takes depends on what else this machine does just now.
    del verdicts["fareway --help"]
    assert "broken" not in verdicts.values()
    assert status == (0 if document["ok"] else 1)


@pytest.mark.slow
def test_a_broken_configuration_is_one_finding_and_ends_with_1(fareway, python_path):
    (python_path / "torch.py").write_text(TORCH.format(found="False"))
    Path("fareway.yaml").write_text("servr: {}\n")
    status, out, _ = fareway()
    assert status == 1
    lines = [line for line in out.splitlines() if line.startswith(("ok ", "note ", "broken "))]
    assert [line[8:].partition(": ")[0] for line in lines] == CHECKS[:6]
    (broken,) = [line for line in lines if line[8:].startswith("configuration")]
    assert broken.startswith("broken")
    assert "server" in out
