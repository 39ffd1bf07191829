"""Children that start before anybody knows what they shall do, and keys read before the ledger."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from gateway.auth.directory import KeyRecord, KeySource
from gateway.cli.entry import will_serve
from gateway.clock import system_clock
from gateway.ledger import migrate
from gateway.ledger.service import LedgerService
from gateway.process import stored_keys
from gateway.process.child import adopt
from gateway.process.launch import HeadStart, launch

CHILD = "tests.gateway.keeper_child"
LINES = {
    "serve": (["serve"], True),
    "serve with a file": (["serve", "--config", "x.yaml"], True),
    "its help": (["serve", "--help"], False),
    "another command": (["keys", "list"], False),
    "nothing": ([], False),
    "serve as a value": (["config", "serve"], False),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES.keys())
def test_only_serve_gets_a_head_start(line, expected):
    assert will_serve(line) is expected


@pytest.mark.slow
def test_a_command_line_that_comes_to_nothing_leaves_no_process(tmp_path):
    (tmp_path / "fareway.yaml").write_text("nonsense: 1")
    script = (
        "import sys; sys.argv = ['fareway', 'serve'];"
        "from gateway.cli import entry; from gateway.process import fork\n"
        "real = fork.head_start\n"
        "def told():\n"
        "    started = real()\n"
        "    print(*(one.process.pid for one in started.launched.values()))\n"
        "    return started\n"
        "fork.head_start = told\n"
        "entry.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "nonsense: unknown key" in done.stderr
    (pid,) = map(int, done.stdout.split())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_head_start_is_taken_once_and_the_rest_is_given_up():
    started = HeadStart(launched={name: launch(CHILD, log_level=20) for name in ("a", "b")})
    taken, left = started.launched["a"], started.launched["b"]
    assert started.take("a") is taken
    assert started.take("a") is None
    started.close()
    assert left.process.returncode == -9
    assert taken.process.poll() is None
    taken.give_up()


def session_niceness(pid: int) -> int | None:
    """How far a process's session stands back for others; None where there are no such groups."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except FileNotFoundError:
        return None


@pytest.mark.anyio
async def test_a_child_that_was_under_way_is_adopted_and_stands_back_when_told():
    child = adopt(launch(CHILD, log_level=20), name="child", methods={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.channel.run)
        pid = await child.channel.call("hello", result_type=int, timeout_s=20)
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == mine
        assert session_niceness(pid) in (None, 0)
        child.process.stand_back(3)
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        levels = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        assert levels == {min(19, mine + 3)}
        assert session_niceness(pid) in (None, 3)
        await child.stop(grace_s=5)
        tasks.cancel_scope.cancel()
    assert child.process.returncode is not None
    child.process.stand_back(3)  # nobody is there any more


@pytest.mark.anyio
async def test_a_child_that_ended_before_it_was_adopted_is_noticed():
    launched = launch("tests.gateway.nothing_here", log_level=20)
    launched.process.wait()
    child = adopt(launched, name="child", methods={})
    with anyio.fail_after(5):
        assert await child.process.wait() == 1
    child.channel.close()


def record(key_id: str, **changes) -> KeyRecord:
    facts = {"key_id": key_id, "digest": key_id.encode() * 32, "team": "red", "name": key_id,
             "source": KeySource.DATABASE}  # fmt: skip
    return KeyRecord(**{**facts, **changes})


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_stored_keys_are_those_of_the_ledger(tmp_path):
    url = f"sqlite:///{tmp_path / 'fareway.db'}"
    service = LedgerService(url, tmp_path / "spool", clock=system_clock())
    await service.start()
    for one in (
        record("b", models=("m", "n"), project="p", expires_at_us=2**52),
        record("a", models=()),
        record("c", team="blue"),
    ):
        await service.create_key(one, actor="t")
    await service.revoke_key("a", actor="t")
    _, records = await service.load_all_keys()
    # Read while the ledger process holds the database open, as after its own restart.
    assert stored_keys.read(url) == list(records)
    await service.stop(drain=False)
    assert stored_keys.read(url) == list(records)
    assert [one.disabled for one in records] == [False, True, False]


def test_a_database_that_only_the_ledger_can_judge_is_left_to_it(tmp_path):
    path = tmp_path / "fareway.db"
    url = f"sqlite:///{path}"
    assert stored_keys.read("postgresql://u@h/d") is None
    assert stored_keys.read(f"sqlite:///{tmp_path / 'nowhere' / 'fareway.db'}") is None
    assert stored_keys.read(url) == [], "a first start has no keys"
    assert not path.exists(), "it is not made by looking"
    migrate.upgrade(url)
    assert stored_keys.read(url) == []
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert stored_keys.read(url) is None
    path.write_bytes(b"no database at all, whatever its name says" * 100)
    assert stored_keys.read(url) is None
