"""The first worker: a copy of the process that keeps it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from gateway.process.fork import SHARED_MODULES
from tests.style.tree import REPOSITORY

CHILD = "tests.gateway.keeper_child"


def told(program: str, *words: str) -> object:
    """What a fresh interpreter that runs a program prints, as JSON."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        stdin=subprocess.PIPE,
    )
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def modules(*imported: str) -> set[str]:
    """What is loaded after a fresh interpreter imported some modules."""
    program = f"import json, sys, {', '.join(imported)}; print(json.dumps(list(sys.modules)))"
    return set(told(program))


COPY = f"""
import json, os, anyio
from pathlib import Path
from gateway.process import fork
from gateway.process.child import adopt
launched = fork.divide({CHILD!r}, log_level=20)
async def main():
    child = adopt(launched, name="child", methods={{}})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.channel.run)
        pid = await child.channel.call("hello", result_type=int, timeout_s=20)
        proc = Path(f"/proc/{{pid}}")
        facts = {{
            "is the child": pid == child.process.pid != os.getpid(),
            "words": proc.joinpath("cmdline").read_bytes().decode().strip("\\0").split("\\0"),
            "own words": Path("/proc/self/cmdline").read_bytes().decode().split("\\0")[1],
            "session": os.getsid(pid) == pid,
            "stdin": os.readlink(proc / "fd" / "0"),
            "sockets": sum(os.readlink(one).startswith("socket:") and int(one.name) > 2
                           for one in (proc / "fd").iterdir()),
            "status before": child.process.returncode,
        }}
        {{end}}
        tasks.cancel_scope.cancel()
    print(json.dumps(facts | {{"status": child.process.returncode}}))
anyio.run(main)
"""
LONG = "a-command-line-with-room-for-the-words-of-a-child-and-more-than-that-to-be-sure"


def test_a_copy_runs_a_module_with_a_session_and_words_of_its_own():
    facts = told(COPY.replace("{end}", "await child.stop(grace_s=5)"), LONG)
    assert isinstance(facts, dict)
    words = facts.pop("words")
    assert words[:4] == ["fareway", CHILD, "--control-fd", words[3]]
    status = facts.pop("status")
    assert status in (0, -signal.SIGTERM), "its channel ended, or it was asked to end"
    assert facts == {
        "is the child": True,
        "own words": "-c",
        "session": True,
        "stdin": os.devnull,
        # The channel, and the pair with which its event loop wakes itself.
        "sockets": 3,
        "status before": None,
    }


DEATHS = {
    "killed": ("child.process.kill()", -signal.SIGKILL),
    "asked to end": ("child.process.terminate()", -signal.SIGTERM),
}


@pytest.mark.parametrize(("end", "status"), DEATHS.values(), ids=DEATHS.keys())
def test_the_end_of_a_copy_is_noticed(end, status):
    facts = told(COPY.replace("{end}", f"{end}; await child.process.wait(); {end}"), LONG)
    assert isinstance(facts, dict)
    assert facts["status"] == status


MODULE_FAILS = """
from gateway.process import fork
launched = fork.divide("tests.gateway.nothing_here", log_level=20)
print(launched.process.wait(), launched.process.wait())
"""


def test_a_copy_whose_module_fails_ends_with_a_traceback():
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            MODULE_FAILS,
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout == "1 1\n"
    assert "No module named 'tests.gateway.nothing_here'" in ended.stderr


WORDS = {
    "room for all": (60, ["fareway", "gateway.process.worker", "--control-fd"]),
    "room for two": (32, ["fareway", "gateway.process.worker"]),
}


@pytest.mark.parametrize(("room", "shown"), WORDS.values(), ids=WORDS.keys())
def test_as_many_words_are_shown_as_there_is_room_for(room, shown):
    program = (
        "import json\n"
        "from pathlib import Path\n"
        "from gateway.process.fork import show_as\n"
        "show_as('fareway', 'gateway.process.worker', '--control-fd')\n"
        "print(json.dumps(Path('/proc/self/cmdline').read_text().strip('\\0').split('\\0')))"
    )
    # The program comes on standard input, so that the room is the name's alone.
    ended = subprocess.run(
        ["p" * (room - 3), "-"],  # with the two ends
        executable=sys.executable,
        input=program,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout) == shown


def test_a_process_with_threads_is_not_copied():
    program = (
        "import json, threading\n"
        "from pathlib import Path\n"
        "from gateway.process.fork import head_start\n"
        "release = threading.Event()\n"
        "threading.Thread(target=release.wait).start()\n"
        "started = head_start()\n"
        "(one,) = started.launched.values()\n"
        "words = one.process.args\n"
        "started.close()\n"
        "release.set()\n"
        "print(json.dumps(words[1:4]))"
    )
    assert told(program) == ["-m", "gateway.boot", "gateway.process.worker"]


@pytest.mark.slow
def test_what_is_loaded_before_the_copy_is_needed_by_both():
    shared = modules(*SHARED_MODULES)
    assert shared <= modules("gateway.process.worker")
    assert shared <= modules("gateway.cli.serve")
