"""Any order of appends, loads, crashes, restarts, replays and lost cursors gives the same books.

The model is a dictionary: what each attempt costs once it is settled, and its exposure while it is
lost. After every step the roll-ups must equal it, once everything is loaded.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
import sqlalchemy as sa
from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.ledger import schema, segment
from gateway.ledger.database import writing_engine
from gateway.ledger.loader import Loader
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.verify import verify
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_spool,
    settlement,
    totals,
)

EXPOSURE_PICO = 7_000_000
WRITERS = st.integers(0, 2)


class Books(RuleBasedStateMachine):
    """Three writers and one loader, each of which may die at any step."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-model-"))
        self.url = make_database(self.folder)
        self.root = self.folder / "spool"
        self.time = FakeClock()
        self.portal_context = start_blocking_portal()
        self.portal = self.portal_context.__enter__()
        self.engine = writing_engine(self.url)
        self.loader = self.make_loader()
        self.count = 0
        self.sessions = 0
        self.writers = {}
        self.open: dict[int, int] = {}
        self.settled: dict[int, int] = {}
        self.lost: set[int] = set()
        for index in range(3):
            self.start(index)

    def make_loader(self) -> Loader:
        limits = LoaderLimits(batch_records=4, grace_s=0)
        return Loader(self.engine, self.root, clock=self.time.clock, limits=limits)

    def start(self, index: int) -> None:
        self.sessions += 1
        self.writers[index] = open_spool(
            self.root / f"w{index}",
            session=self.sessions,
            clock=self.time.clock,
            segment_bytes=1_500,
            reserve_bytes=4_096,
        )

    @rule(index=WRITERS, lifetime_s=st.sampled_from([5.0, 1e6]))
    def dispatch(self, index: int, lifetime_s: float) -> None:
        self.count += 1
        record = intent(
            self.count,
            at_us=self.time.wall,
            exposure_pico_usd=EXPOSURE_PICO,
            lifetime_s=lifetime_s,
            team=f"team-{self.count % 3}",
        )
        self.writers[index].append(record)
        self.open[self.count] = index

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.integers(0, 1_000))
    def settle(self, data, tokens: int) -> None:
        n = data.draw(st.sampled_from(sorted(self.open)))
        self.writers[self.open.pop(n)].append(settlement(n, tokens=tokens))
        self.settled[n] = tokens * PRICE_PICO
        self.lost.discard(n)

    @precondition(lambda self: self.settled)
    @rule(data=st.data(), index=WRITERS)
    def settle_again(self, data, index: int) -> None:
        """A repeat, with another amount even, changes nothing that was loaded."""
        self.load_all()
        n = data.draw(st.sampled_from(sorted(self.settled)))
        self.writers[index].append(settlement(n, tokens=999))

    @rule(index=WRITERS, torn=st.integers(0, 40))
    def crash(self, index: int, torn: int) -> None:
        """The process dies, perhaps half-way through a write; another takes its directory."""
        writer = self.writers[index]
        for descriptor in (
            writer._segment.descriptor,
            writer._reserve_descriptor,
            writer._directory_descriptor,
            *writer._finished,
        ):
            os.close(descriptor)
        writer._lock.release()
        last = segment.segment_numbers(self.root / f"w{index}")[-1]
        with segment.segment_path(self.root / f"w{index}", last).open("ab") as file:
            file.write(segment.encode_frame(b"never finished" * 4)[:torn])
        for n in [n for n, owner in self.open.items() if owner == index]:
            del self.open[n]
            self.lost.add(n)
        self.start(index)

    @rule()
    def load_some(self) -> None:
        self.portal.call(self.loader.load_round)

    @rule()
    def loader_dies(self) -> None:
        self.loader = self.make_loader()

    @rule()
    def cursors_are_lost(self) -> None:
        async def lose() -> None:
            async with self.engine.begin() as connection:
                await connection.execute(sa.delete(schema.spool_cursor))

        self.portal.call(lose)
        self.loader = self.make_loader()

    @rule(seconds=st.sampled_from([-100, 1, 7, 1_000]))
    def time_passes(self, seconds: int) -> None:
        """The wall clock may jump either way; the monotonic one only forward."""
        self.time.wall += seconds * 1_000_000
        self.time.monotonic += abs(seconds)

    def load_all(self) -> None:
        self.portal.call(self.loader.flush)

    @invariant()
    def books_equal_the_model(self) -> None:
        if self.count % 5:
            return
        self.load_all()
        attempts, cost, exposure = self.portal.call(totals, self.engine)
        assert cost == sum(self.settled.values())
        still_open = self.portal.call(self.open_ids)
        expired = set(self.open) - still_open
        assert still_open <= set(self.open)
        assert attempts == len(self.settled) + len(self.lost | expired)
        assert exposure == len(self.lost | expired) * EXPOSURE_PICO

    async def open_ids(self) -> set[int]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(sa.select(schema.attempt_intent.c.event_id))
            return {int.from_bytes(row.event_id, "big") for row in rows}

    def teardown(self) -> None:
        if not hasattr(self, "portal"):
            return
        self.load_all()

        async def check():
            async with self.engine.connect() as connection:
                found = await connection.run_sync(verify, self.root)
            await self.engine.dispose()
            for writer in self.writers.values():
                await writer.close()
            return found

        found = self.portal.call(check)
        self.portal_context.__exit__(None, None, None)
        shutil.rmtree(self.folder)
        assert found.faults == ()
        assert found.cost_pico_usd == sum(self.settled.values())


def run(examples: int) -> None:
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(Books, settings=settings)


@pytest.mark.slow
def test_any_order_of_events_gives_the_books_of_the_model():
    run(8)


@pytest.mark.ci
@pytest.mark.slow
def test_many_orders_of_events_give_the_books_of_the_model():
    run(40)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_very_many_orders_of_events_give_the_books_of_the_model():
    run(1_000)
