"""What a start without the database may go by: keys and budgets of the last day, of this database."""

from __future__ import annotations

import anyio
import pytest

from gateway.auth.directory import KeyRecord, KeySource
from gateway.budgets.messages import (
    BudgetDeclaration,
    BudgetDeclarations,
    BudgetRules,
    BudgetScope,
)
from gateway.channel import RemoteError
from gateway.notices.messages import NoticeDeclarations
from gateway.process.budget_board import BudgetBoard
from gateway.process.key_board import KeyBoard
from gateway.process.last_known import FILE, FRESH_S, RENEW_S, LastKnownFile, declared_only
from gateway.process.ledger_start import LedgerStarter
from gateway.process.messages import DATABASE_UNAVAILABLE
from gateway.process.notice_board import NoticeBoard
from gateway.process.preflight import ServeError
from tests.gateway.ledger_samples import FakeClock

URL = "postgresql://fareway@db/ledger"
KEYS = [
    KeyRecord(
        key_id="abcdefghjkmn", digest=b"d" * 32, team="red", name="a", source=KeySource.DATABASE
    )
]
DECLARED = BudgetDeclarations(
    budgets=tuple(
        BudgetDeclaration(name=f"team {team}", scope=BudgetScope.TEAM, team=team, limit_pico_usd=5)
        for team in ("red", "blue")
    )
)
RULES = BudgetRules(rules=declared_only(DECLARED).rules[:1], revision=7)


def kept(folder, time: FakeClock, url: str = URL) -> LastKnownFile:
    return LastKnownFile(folder=folder, database_url=url, clock=time.clock)


def test_what_was_told_is_there_for_a_day(tmp_path):
    time = FakeClock()
    assert kept(tmp_path, time).load() is None
    kept(tmp_path, time).save(KEYS, RULES)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    time.pass_s(FRESH_S - 1)
    known = kept(tmp_path, time).load()
    assert known is not None
    assert (known.keys, known.budgets) == (KEYS, RULES)
    time.pass_s(1)
    assert kept(tmp_path, time).load() is None


@pytest.mark.parametrize("passed_s", [-3_600, FRESH_S])
def test_a_file_of_another_time_is_not_believed(tmp_path, passed_s):
    time = FakeClock()
    kept(tmp_path, time).save(KEYS, RULES)
    time.pass_s(passed_s)
    assert kept(tmp_path, time).load() is None


def test_another_databases_file_is_not_believed(tmp_path):
    time = FakeClock()
    kept(tmp_path, time).save(KEYS, RULES)
    assert kept(tmp_path, time, "postgresql://fareway@db/other").load() is None


def test_the_file_is_written_when_something_changes_or_an_hour_has_passed(tmp_path):
    time = FakeClock()
    file = kept(tmp_path, time)
    file.save(KEYS, RULES)
    (tmp_path / FILE).unlink()
    file.save(KEYS, RULES)
    assert not (tmp_path / FILE).exists()
    file.save([], RULES)
    assert (tmp_path / FILE).exists()
    (tmp_path / FILE).unlink()
    time.pass_s(RENEW_S)
    file.save([], RULES)
    assert (tmp_path / FILE).exists()


def test_a_damaged_file_and_a_folder_that_takes_none_are_warnings(tmp_path, caplog):
    time = FakeClock()
    (tmp_path / FILE).write_bytes(b"\x93nothing")
    assert kept(tmp_path, time).load() is None
    kept(tmp_path / "nowhere", time).save(KEYS, RULES)
    assert len(caplog.records) == 2


def test_budgets_of_the_configuration_have_numbers_that_no_database_gives():
    rules = declared_only(DECLARED)
    assert [rule.budget_id for rule in rules.rules] == [-1, -2]
    assert [rule.team for rule in rules.rules] == ["red", "blue"]
    assert rules.revision == 0


class _Keeper:
    """A ledger process that is never ready."""

    def __init__(self) -> None:
        self.ready = anyio.Event()
        self.fault = ""
        self.child = None


def starter(folder, time: FakeClock, *, has_file: bool = True) -> LedgerStarter:
    async def nobody():
        raise RemoteError("ledger_unavailable", "not there")

    made = LedgerStarter(
        order=lambda: None,
        board=KeyBoard(members=list),
        budgets=BudgetBoard(
            members=list, ledger=nobody, monotonic_s=time.clock.monotonic_s, declared=DECLARED
        ),
        notices=NoticeBoard(environ={}, ledger=nobody, declared=NoticeDeclarations()),
        monotonic_s=time.clock.monotonic_s,
        file=kept(folder, time) if has_file else None,
    )
    made._note_outage("the database did not answer: gone")
    return made


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr("gateway.process.ledger_start.PATIENCE_S", 0.01)
    monkeypatch.setattr("gateway.process.ledger_start.START_TIMEOUT_S", 0.01)


@pytest.mark.anyio
async def test_a_start_goes_by_what_was_known_last_and_keeps_nothing_of_that(tmp_path, hurried):
    time = FakeClock()
    kept(tmp_path, time).save(KEYS, RULES)
    before = (tmp_path / FILE).read_bytes()
    time.pass_s(60)
    made = starter(tmp_path, time)
    await made.wait(_Keeper())
    assert made.board.keys == KEYS
    assert not made.board.is_complete
    assert made.budgets.rules == RULES
    assert (tmp_path / FILE).read_bytes() == before
    await made.take_keys(KEYS)
    assert made.board.is_complete, "the database has told them"


@pytest.mark.anyio
async def test_with_nothing_known_the_configuration_is_served(tmp_path, hurried):
    made = starter(tmp_path, FakeClock())
    await made.wait(_Keeper())
    assert made.board.keys == []
    assert made.budgets.rules == declared_only(DECLARED)


@pytest.mark.anyio
async def test_without_a_server_to_wait_for_a_start_that_fails_is_a_sentence(tmp_path, hurried):
    made = starter(tmp_path, FakeClock(), has_file=False)
    with pytest.raises(ServeError, match="the database did not answer: gone"):
        await made.wait(_Keeper())


class _Child:
    """A ledger process whose database answers at the third call."""

    def __init__(self, *errors: RemoteError) -> None:
        self.channel = self
        self.errors = list(errors)

    async def call(self, name: str, *_: object, **__: object) -> object:
        if self.errors:
            raise self.errors.pop(0)
        return KEYS if name in ("start", "load_keys") else RULES


@pytest.mark.anyio
async def test_a_database_that_comes_is_waited_for_in_the_process_that_is_there(tmp_path):
    made = starter(tmp_path, FakeClock())
    away = RemoteError(DATABASE_UNAVAILABLE, "gone")
    await made.set_up(_Child(away, away))
    assert not made.unreachable.is_set()
    assert (made.outage, made.budgets.rules) == ("", RULES)
    known = made.file.load()
    assert known is not None
    assert (known.keys, known.budgets) == (KEYS, RULES)


@pytest.mark.anyio
async def test_what_is_kept_gets_older_while_the_database_does_not_answer(tmp_path):
    time = FakeClock()
    made = starter(tmp_path, time)
    child = _Child()

    async def ready():
        return child

    made.budgets.ledger = ready
    await made.set_up(child)
    time.pass_s(FRESH_S - 1)
    child.errors.append(RemoteError(DATABASE_UNAVAILABLE, "gone"))
    await made.confirm(child)
    time.pass_s(1)
    assert made.file.load() is None
    await made.board.publish([])
    await made.confirm(child)
    assert made.board.keys == KEYS
    assert made.file.load() is not None


@pytest.mark.anyio
async def test_the_database_is_asked_from_time_to_time(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.process.ledger_start.KEEP_S", 0.001)
    made = starter(tmp_path, FakeClock())
    keeper, child = _Keeper(), _Child()
    asked = anyio.Event()

    async def ready():
        asked.set()
        return child

    made.budgets.ledger = ready
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.keep, keeper)
        await anyio.sleep(0.01)
        keeper.child = child
        with anyio.fail_after(5):
            await asked.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("code", ["unusable_database", "budget_conflict"])
async def test_what_waiting_does_not_mend_is_a_refusal(tmp_path, hurried, code):
    made = starter(tmp_path, FakeClock())
    with pytest.raises(RemoteError):
        await made.set_up(_Child(RemoteError(code, "no such thing")))
    with pytest.raises(ServeError, match="no such thing"):
        await made.wait_for_budgets(_Keeper())
