"""Commitments: recorded once, corrected by further rows, drawn down from what the ledger booked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gateway.clock import to_microseconds
from gateway.finance import commitments
from gateway.finance.close import close_month
from gateway.finance.commitment_alerts import find_due, look, note_alerts, watch
from gateway.finance.commitment_messages import (
    ListCommitments,
    RecordCommitment,
    RecordReply,
    WithdrawCommitment,
)
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import NoRate, NotFound, Refused
from gateway.ledger import budget_schema, schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.finance_tables import commitment
from gateway.ledger.service import LedgerService
from pricing.commitments import CommitmentKind
from pricing.money import parse_usd
from tests.gateway.finance_books import DAY_US, OCTOBER_US, attempt, load, write, writing
from tests.gateway.ledger_samples import FakeClock, make_database
from tests.gateway.test_cli_finance import command  # noqa: F401, a fixture
from tests.gateway.test_finance_close import ALL, order, sound

pytestmark = pytest.mark.anyio

K = CommitmentKind
NOVEMBER_6 = to_microseconds(datetime(2026, 11, 6, tzinfo=UTC))
EACH = parse_usd("2.5")
"""What one attempt of the books costs."""


def bought(**changes) -> RecordCommitment:
    values = {
        "actor": "ann",
        "name": "openai-2026",
        "kind": K.CREDIT,
        "provider": "openai",
        "amount": "10",
        "first_day": "2026-10-01",
        "last_day": "2026-12-31",
    }
    return RecordCommitment(**(values | changes))


@pytest.fixture
async def books(tmp_path):
    """October's books: three attempts on the 17th, one of them elsewhere; one on the 18th."""
    attempts = [
        attempt(1),
        attempt(2, model="mini"),
        attempt(3, account="groq", model="llama"),
        attempt(4, at_us=OCTOBER_US + DAY_US),
    ]
    engine = writing(await write(tmp_path, attempts))
    yield engine
    engine.dispose()


@pytest.fixture
def empty(tmp_path):
    """Books without an attempt."""
    engine = writing(make_database(tmp_path))
    yield engine
    engine.dispose()


def record(engine: sa.Engine, *, now_us: int = NOVEMBER_6, **changes) -> RecordReply:
    with engine.begin() as connection:
        return commitments.record(connection, bought(**changes), now_us=now_us)


def standing(engine: sa.Engine, *, now_us: int = NOVEMBER_6):
    with engine.begin() as connection:
        return commitments.standings(connection, now_us=now_us)


async def test_a_credit_goes_down_with_what_the_ledger_booked(books):
    assert record(books) == RecordReply(
        name="openai-2026",
        revision=1,
        is_new=True,
        counts_from="2026-10-01",
        amount_pico_usd=parse_usd("10"),
    )
    [found] = standing(books)
    assert (found.state, found.drawn_pico_usd, found.left_pico_usd) == ("open", 3 * EACH, EACH)
    by_day = {day.day: day.drawn_pico_usd for day in found.days if day.drawn_pico_usd}
    assert by_day == {"2026-10-17": 2 * EACH, "2026-10-18": EACH}
    assert [day.left_pico_usd for day in found.days[15:18]] == [
        parse_usd("10"), parse_usd("5"), EACH
    ]  # fmt: skip
    assert found.days[-1].day == "2026-11-05", "today is not over"


async def test_only_named_deployments_are_drawn(books):
    record(books, deployments=("openai/mini",))
    record(books, name="groq-deal", provider="groq", kind=K.SPEND, amount="100")
    first, second = standing(books)
    assert (first.drawn_pico_usd, first.deployments) == (EACH, ("openai/mini",))
    assert (second.drawn_pico_usd, second.kind) == (EACH, K.SPEND)


async def test_throughput_loses_each_day_what_it_does_not_use(books):
    record(
        books, kind=K.THROUGHPUT, amount="62", first_day="2026-10-17", last_day="2026-10-18"
    )  # fmt: skip
    [found] = standing(books)
    assert (found.state, found.runs_out_on) == ("over", None)
    assert found.drawn_pico_usd == 3 * EACH
    assert found.unused_pico_usd == parse_usd("62") - 3 * EACH
    assert [day.unused_pico_usd for day in found.days] == [parse_usd("26"), parse_usd("28.5")]


async def test_what_is_left_on_the_last_day_is_unused(books):
    record(books, last_day="2026-10-31")
    [found] = standing(books)
    assert (found.state, found.unused_pico_usd, found.left_pico_usd) == ("over", EACH, 0)


STATES = {
    "before its first day": ({"first_day": "2026-12-01"}, "coming", "10"),
    "when nothing is left": ({"amount": "5"}, "used_up", "0"),
}


@pytest.mark.parametrize(("changes", "state", "left"), STATES.values(), ids=STATES.keys())
async def test_where_it_stands(books, changes, state, left):
    record(books, **changes)
    [found] = standing(books)
    assert (found.state, found.left_pico_usd) == (state, parse_usd(left))


async def test_the_day_on_which_it_is_used_up_has_a_band(tmp_path):
    attempts = [
        attempt(n, at_us=OCTOBER_US + n * DAY_US, usage={"input": 10**6 + n % 3 * 10**5})
        for n in range(30)
    ]
    engine = writing(await write(tmp_path, attempts))
    record(engine, amount="100", first_day="2026-10-17")
    [found] = standing(engine, now_us=OCTOBER_US + 30 * DAY_US)
    engine.dispose()
    assert found.band_percent == 80
    assert "2026-11-15" < found.runs_out_early <= found.runs_out_on < "2026-12-31"


async def test_the_same_recording_twice_changes_nothing(empty):
    record(empty, deployments=("openai/b", "openai/a"))
    again = record(empty, deployments=("openai/a", "openai/b"), amount="10.00", actor="bob")
    assert (again.is_new, again.revision) == (False, 1)
    with pytest.raises(Refused, match="recorded already, with other terms"):
        record(empty, amount="11")
    with empty.begin() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(commitment)).scalar() == 1


async def test_a_correction_is_a_further_row_and_an_audited_one(books):
    record(books)
    done = record(books, amount="20", is_correction=True, reason="second tranche")
    assert (done.revision, done.counts_from) == (2, "2026-10-01")
    [found] = standing(books)
    assert (found.amount_pico_usd, found.drawn_pico_usd) == (parse_usd("20"), 3 * EACH)
    assert (found.reason, found.revision) == ("second tranche", 2)
    with books.begin() as connection:
        log = schema.audit_log
        lines = connection.execute(
            sa.select(log.c.actor, log.c.action, log.c.object).order_by(log.c.seq)
        ).all()
        assert [tuple(line) for line in lines] == [
            ("ann", "commitment.record", "openai-2026"),
            ("ann", "commitment.correct", "openai-2026"),
        ]
        assert list(audit_faults(connection)) == []


async def test_what_was_withdrawn_draws_nothing_and_is_withdrawn_once(books):
    record(books)
    gone = WithdrawCommitment(actor="ann", name="openai-2026", reason="cancelled")
    with books.begin() as connection:
        assert commitments.withdraw(connection, gone, now_us=NOVEMBER_6).is_new
        assert not commitments.withdraw(connection, gone, now_us=NOVEMBER_6).is_new
        with pytest.raises(NotFound, match="no commitment 'other'"):
            other = msgspec.structs.replace(gone, name="other")
            commitments.withdraw(connection, other, now_us=NOVEMBER_6)
    [found] = standing(books)
    assert (found.state, found.drawn_pico_usd, found.left_pico_usd) == ("withdrawn", 0, 0)
    assert record(books, is_correction=True, reason="it goes on").revision == 3


async def test_a_closed_month_stays_as_it_was(books):
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
    late = record(books)
    assert late.counts_from == "2026-11-01"
    [found] = standing(books)
    assert (found.drawn_pico_usd, found.days[0].day) == (0, "2026-11-01")
    with pytest.raises(Refused, match="in a month that is closed"):
        record(books, name="past", last_day="2026-10-31")
    with pytest.raises(Refused, match="first day of openai-2026 is in a month that is closed"):
        record(books, first_day="2026-11-01", is_correction=True, reason="later")


async def test_late_usage_is_drawn_where_it_counts(tmp_path, books):
    record(books)
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
    clock = FakeClock()
    await load(tmp_path, str(books.url), [attempt(9)], clock=clock, session=2)
    [found] = standing(books)
    by_day = {day.day: day.drawn_pico_usd for day in found.days if day.drawn_pico_usd}
    assert by_day == {"2026-10-17": 2 * EACH, "2026-10-18": EACH, "2026-11-01": EACH}


REFUSED = {
    "an end before the beginning": ({"last_day": "2026-09-30"}, "before it begins"),
    "a day that is none": ({"last_day": "2026-02-30"}, "2026-02-30"),
    "a day too early": ({"first_day": "0206-10-01", "last_day": "0206-12-31"}, "cannot be meant"),
    "a day too late": ({"first_day": "9999-10-01", "last_day": "9999-12-31"}, "cannot be meant"),
    "a term without end": ({"last_day": "2099-01-01"}, "lasts longer than"),
    "a deployment of somebody else": (
        {"deployments": ("groq/llama",)}, "groq/llama is no deployment of openai",
    ),
    "nothing": ({"amount": "0"}, "must be above 0"),
    "money back": ({"amount": "-1"}, "must be above 0"),
    "more than the books hold": ({"amount": "99999999"}, "at most 9000000 USD"),
    "no amount": ({"amount": "ten"}, "amount 'ten'"),
    "a correction without a reason": ({"is_correction": True, "reason": " "}, "needs a reason"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_means_nothing_is_refused(empty, changes, sentence):
    with pytest.raises(Refused, match=sentence):
        record(empty, **changes)


async def test_corrections_keep_kind_and_need_something_to_correct(empty):
    with pytest.raises(NotFound, match="no commitment 'openai-2026' to correct"):
        record(empty, is_correction=True, reason="x")
    record(empty)
    with pytest.raises(Refused, match="is of kind credit; withdraw it"):
        record(empty, kind=K.SPEND, is_correction=True, reason="x")


async def test_amounts_in_other_currencies_are_converted_once(empty):
    with pytest.raises(NoRate, match="EUR to USD for 2026-10-01"):
        record(empty, currency="EUR")
    rates = "day,base,quote,rate,source\n2026-09-30,EUR,USD,1.1,ECB\n"
    assert record(empty, currency="EUR", rates=rates).amount_pico_usd == parse_usd("11")
    with empty.begin() as connection:
        table = commitment
        kept = connection.execute(sa.select(table.c.rate_day, table.c.rate_source)).one()
    assert tuple(kept) == ("2026-09-30", "ECB")


@pytest.mark.parametrize(
    "statement", ["UPDATE commitment SET amount = '1'", "DELETE FROM commitment"]
)
async def test_recordings_can_be_neither_changed_nor_deleted(empty, statement):
    record(empty)
    with empty.connect() as connection, pytest.raises(IntegrityError, match="append-only"):
        connection.exec_driver_sql(statement)


async def test_the_desk_answers_on_both_databases(postgres_ledger_url, tmp_path):
    clock = FakeClock()
    service = LedgerService(postgres_ledger_url, tmp_path / "spool", clock=clock.clock)
    await load(tmp_path, postgres_ledger_url, [attempt(1)], clock=clock)
    await service.start()
    try:
        desk = FinanceDesk(service, clock=clock.clock)
        assert (await desk.answer(bought())).is_new
        [found] = await desk.answer(ListCommitments())
        assert found.drawn_pico_usd == EACH
        gone = WithdrawCommitment(actor="ann", name="openai-2026", reason="cancelled")
        assert (await desk.answer(gone)).revision == 2
    finally:
        await service.stop(drain=False)


DEAL = (
    "--kind", "credit", "--provider", "openai", "--amount", "10",
    "--from", "2026-10-01", "--to", (datetime.now(UTC) + timedelta(days=300)).date().isoformat(),
)  # fmt: skip


async def test_commitments_on_the_command_line(command):  # noqa: F811
    code, out, err = command("commitments")
    assert (code, out, err) == (0, "", "no commitment is recorded\n")
    code, out, _ = command("commitments", "record", "deal", *DEAL)
    assert (code, out) == (0, "deal, revision 1: 10 USD, counts from 2026-10-01\n")
    assert "nothing changed" in command("commitments", "record", "deal", *DEAL)[1]
    [found] = json.loads(command("commitments", "--json")[1])
    assert (found["drawn_pico_usd"], found["state"]) == (2 * EACH, "open")
    out = command("commitments")[1]
    assert "deal  credit  open  10 USD  2026-10-01" in out
    assert "drawn 5, left 5, unused 0 of 10 USD" in out
    code, out, _ = command("commitments", "withdraw", "deal", "--reason", "over")
    assert (code, out) == (0, "deal draws nothing from 2026-10-01 on\n")
    assert "withdrawn before" in command("commitments", "withdraw", "deal", "--reason", "x")[1]
    assert command("commitments", "record", "a b", *DEAL)[0] == 2
    assert command("commitments", "record", "x", *DEAL[:3], "nobody", *DEAL[4:])[0] == 2


def alerts(engine: sa.Engine, now_us: int) -> list[tuple[str, str]]:
    """What was told by then, once more looked for."""
    with engine.begin() as connection:
        due = find_due(connection, now_us=now_us)
        note_alerts(connection, due, now_us=now_us)
        note_alerts(connection, due, now_us=now_us)
        assert find_due(connection, now_us=now_us) == ()
        table = budget_schema.budget_alert
        found = connection.execute(sa.select(table.c.document).order_by(table.c.id)).scalars().all()
    return [(one["type"], one["commitment"]) for one in found]


async def test_webhooks_hear_once_that_a_credit_will_be_used_up_and_that_it_is(tmp_path):
    days = [attempt(n, at_us=OCTOBER_US + n * DAY_US) for n in range(20)]
    engine = writing(await write(tmp_path, days))
    assert alerts(engine, OCTOBER_US) == []
    record(engine, amount="50", first_day="2026-10-17", last_day="2027-10-16")
    record(
        engine,
        name="wide",
        kind=K.THROUGHPUT,
        amount="1",
        first_day="2027-01-01",
        last_day="2027-01-02",
    )
    assert alerts(engine, OCTOBER_US) == [], "nothing is known of its pace"
    known = [("commitment.run_out", "openai-2026")]
    assert alerts(engine, OCTOBER_US + 8 * DAY_US) == known
    assert alerts(engine, OCTOBER_US + 16 * DAY_US) == known * 2, "at 30 and at 7 days"
    used_up = [*known * 2, ("commitment.used_up", "openai-2026")]
    assert alerts(engine, OCTOBER_US + 21 * DAY_US) == used_up
    record(
        engine,
        amount="51",
        first_day="2026-10-17",
        last_day="2026-11-28",
        is_correction=True,
        reason="more",
    )
    engine.dispose()


async def test_webhooks_hear_once_that_something_will_lapse(books):
    record(books, amount="900")
    assert alerts(books, NOVEMBER_6) == []
    december = NOVEMBER_6 + 30 * DAY_US
    assert alerts(books, december) == [("commitment.lapse", "openai-2026")]
    assert alerts(books, december + DAY_US) == [("commitment.lapse", "openai-2026")]


async def test_the_watch_goes_on_when_the_database_is_away(books):
    looks: list[int] = []

    class Ledger:
        async def read_apart(self, run):
            looks.append(len(looks))
            if len(looks) == 1:
                raise DatabaseUnavailable("away")
            with books.begin() as connection:
                return run(connection)

    with anyio.move_on_after(5), pytest.raises(TimeoutError):
        with anyio.fail_after(0.2):
            await watch(Ledger(), clock=FakeClock().clock, look_s=0.01)
    assert len(looks) >= 2


async def test_the_usage_of_a_commitment_is_not_read_where_everybody_waits(books, monkeypatch):
    writes: list[int] = []

    class Ledger:
        async def read_apart(self, run):
            with books.connect() as connection:
                return run(connection)

        async def write_apart(self, run):
            monkeypatch.setattr("gateway.finance.commitments.standings", None)
            with books.begin() as connection:
                writes.append(run(connection))
            monkeypatch.undo()

    record(books, amount="900")
    for now_us in (NOVEMBER_6, *[NOVEMBER_6 + 30 * DAY_US] * 2):
        await look(Ledger(), now_us=now_us)
    assert writes == [1], "nothing is written where there is nothing to be told"
