"""What every test shares: one printed seed, hypothesis profiles, a clean environment, fixtures.

Every random choice of a run follows from one seed, printed at the top and at the end of a failing
run; `FAREWAY_SEED=<seed> make test` repeats it. Without the variable each run draws a new one.

Coroutine tests carry `@pytest.mark.anyio` and run on asyncio.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests.support import tiers

# Fixtures: real databases.
from tests.support.postgres import (
    in_slow_part,
    ledger_template,
    postgres_ledger_url,
    postgres_server,
    postgres_url,
    shared_postgres,
)
from tests.support.redis import redis_server, redis_url, shared_redis

__all__ = (
    "in_slow_part",
    "ledger_template",
    "postgres_ledger_url",
    "postgres_server",
    "postgres_url",
    "redis_server",
    "redis_url",
    "shared_postgres",
    "shared_redis",
)

# Nobody's timing on a shared machine is a reason to fail (style 9): no deadlines, no health check
# that measures time.
_ANY_SPEED = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("dev", _ANY_SPEED, max_examples=20)
hypothesis.settings.register_profile("ci", _ANY_SPEED, max_examples=50)
hypothesis.settings.register_profile("soak", _ANY_SPEED, max_examples=2_000)

# Threads of a parallel region that spin while they wait take the cores from whatever else runs, and
# on a shared machine slow each other down tenfold. Read once, when torch loads its OpenMP runtime.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SEED = pytest.StashKey[int]()

# Markers whose tests run only when `-m` names them.
ON_REQUEST = ("soak", "gpu", "live")

VENDOR_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "CEREBRAS_API_KEY",
    "FIREWORKS_API_KEY",
    "GROQ_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENROUTER_API_KEY",
    "REPLICATE_API_TOKEN",
    "TOGETHER_API_KEY",
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed before hypothesis reads its own, and hide the developer's keys from tests."""
    if config.getoption("hypothesis_profile", default=None) is None:
        hypothesis.settings.load_profile("dev")
    seed = int(os.environ.get("FAREWAY_SEED") or secrets.randbelow(2**31))
    config.stash[SEED] = seed
    os.environ["FAREWAY_SEED"] = str(seed)  # for the processes that share the tests of this run
    if config.getoption("hypothesis_seed", default=None) is None:
        config.option.hypothesis_seed = str(seed)
    for name in tuple(os.environ):
        is_kept = name == "FAREWAY_SEED" or name.startswith("FAREWAY_TEST_")
        if name in VENDOR_VARIABLES or (name.startswith("FAREWAY_") and not is_kept):
            del os.environ[name]


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed where a log begins."""
    return f"seed: {config.stash[SEED]} (FAREWAY_SEED repeats it)"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the seed again where a failing log ends."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        terminalreporter.write_line(f"repeat with FAREWAY_SEED={config.stash[SEED]}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which the selection needs no test."""
    needless = tiers.is_needless(collection_path, config.getoption("markexpr"))
    return True if needless else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Place each test in its part of the suite."""
    tiers.place(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs hours, a GPU or a vendor's network, unless `-m` was given."""
    if config.getoption("markexpr"):
        return
    left_out = [item for item in items if any(map(item.get_closest_marker, ON_REQUEST))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Let the garbage collector rest while modules are imported: what they make stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Hide what collecting made from the collector: it is most of the heap, and it stays.

    From here on it looks less often than by default: a short-lived process with memory to spare
    gains nothing from looking at every 700 new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    """Coroutine tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed."""
    return request.config.stash[SEED]


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    """Random numbers that depend on the run's seed and on the test, not on the tests before it."""
    return random.Random(f"{seed}:{request.node.nodeid}")


@pytest.fixture
def new_id(rng: random.Random) -> Callable[[], bytes]:
    """A source of 16-byte ids that repeats with the seed."""
    return lambda: rng.randbytes(16)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[1]
