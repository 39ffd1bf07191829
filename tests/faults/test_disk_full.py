"""No room for the spool: new requests are refused, attempts under way still settle, it recovers.

The spool lies on a small file system of its own, which takes the rights of root to mount.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger.errors import SpoolFull
from tests.e2e.roads import CHEAP, deployments, readyz
from tests.faults.traffic import Answer, ask
from tests.gateway.ledger_samples import FakeClock, intent, open_spool, settlement
from tests.support.gateway_process import GatewayProcess
from tests.support.ledger_rows import billed_pico_usd, ledger_rows
from tests.support.scripted_upstream import Chat, UpstreamProcess

pytestmark = pytest.mark.slow

SIZE_MIB = 8
SCRIPTS = {
    "quick": [Chat(text="Yes.", prompt_tokens=9)],
    "slow": [Chat(text="word " * 40, prompt_tokens=21, frame_delay_s=0.1)],
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def chat(model: str, *, is_stream: bool = False) -> dict:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 100,
        "stream": is_stream,
    }


def ask_until(
    gateway: GatewayProcess, status: int, *, every_s: float, timeout_s: float = 10.0
) -> list[Answer]:
    """Ask again and again until the answer has that status; every answer."""
    deadline = time.monotonic() + timeout_s
    answers = [ask(gateway.port, gateway.key("red"), chat("quick"))]
    while answers[-1].status != status:
        assert time.monotonic() < deadline, answers[-1]
        time.sleep(every_s)
        answers.append(ask(gateway.port, gateway.key("red"), chat("quick")))
    return answers


def test_a_full_disk_refuses_new_attempts_settles_old_ones_and_recovers(
    tmp_path: Path, small_disk: Path
) -> None:
    with UpstreamProcess(SCRIPTS, folder=tmp_path) as upstream:
        config = {
            "storage": {"spool_dir": str(small_disk / "spool")},
            "providers": {"up": {"kind": "openai_compatible", "base_url": upstream.base_url}},
            "models": {name: deployments((f"up/{name}", CHEAP)) for name in SCRIPTS},
            "teams": {"red": {}},
        }
        with GatewayProcess(tmp_path / "gateway", config) as gateway:
            answers = _survive(gateway, upstream, filler=small_disk / "filler")
            assert gateway.stop() == 0
            rows = ledger_rows(gateway.database)
            gateway.run("ledger", "verify")
        bill = {line.attempt_id: line for line in upstream.bill()}
    # What was answered is booked, once, at the upstream's price; what was refused is nowhere.
    assert len(answers) == len(bill) == len(rows)
    assert {one.request_id for one in answers} == {row.request_id for row in rows}
    for row in rows:
        assert row.status == "ok"
        assert row.cost_pico_usd == billed_pico_usd(bill[row.event_id], CHEAP)


def _survive(gateway: GatewayProcess, upstream: UpstreamProcess, *, filler: Path) -> list[Answer]:
    """Fill the disk under a stream, and make room again; the answers with status 200."""
    streamed: list[Answer] = []
    stream = threading.Thread(
        target=lambda: streamed.append(
            ask(gateway.port, gateway.key("red"), chat("slow", is_stream=True))
        )
    )
    stream.start()
    while not upstream.calls_in_play():
        time.sleep(0.01)
    fill(filler)
    refused = ask_until(gateway, 503, every_s=0)  # the last page of the segment has room for some
    body = json.loads(refused[-1].body)["error"]
    assert body["code"] == "ledger_unavailable"
    assert str(filler.parent) not in body["message"]
    status, shown = readyz(gateway)
    assert status == 503
    assert "no room" in shown["reasons"][0]
    stream.join(timeout=20)
    assert streamed[0].is_complete
    filler.unlink()
    deadline = time.monotonic() + 5
    while readyz(gateway)[0] != 200:  # without any request: a load balancer sends none
        assert time.monotonic() < deadline
        time.sleep(0.1)
    taken = ask_until(gateway, 200, every_s=0.2)
    return [one for one in (*streamed, *refused, *taken) if one.status == 200]


def test_the_spool_really_was_on_the_small_disk(small_disk: Path) -> None:
    """Guards the test above: a mount that holds more would never fill."""
    assert os.statvfs(small_disk).f_blocks * os.statvfs(small_disk).f_frsize == SIZE_MIB << 20


@pytest.mark.anyio
async def test_a_disk_that_is_full_is_told_as_full_although_the_reserve_is_whole(
    small_disk: Path,
) -> None:
    clock = FakeClock()
    writer = open_spool(small_disk / "w", clock=clock.clock, reserve_bytes=1 << 20)
    fill(small_disk / "filler")
    with pytest.raises(SpoolFull):
        for n in range(100):  # each is over before the next begins, as in a quiet hour
            writer.append(intent(n))
            writer.append(settlement(n))
    for _ in range(3):
        clock.pass_s(2)
        assert "no room" in writer.fault()
    (small_disk / "filler").unlink()
    clock.pass_s(2)
    assert writer.fault() == ""
    await writer.close()
