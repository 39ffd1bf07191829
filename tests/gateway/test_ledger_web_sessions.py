"""Logging in and out at the desk, one-time links, changed passwords, and the audit of it all."""

from __future__ import annotations

import itertools
import threading

import anyio
import msgspec
import pytest
import sqlalchemy as sa

from gateway.access.passwords import Hasher, PasswordCost
from gateway.access.people import (
    Caller,
    CodeUse,
    KeyLogin,
    PasswordChange,
    PersonChange,
    SessionEnd,
)
from gateway.access.throttle import FREE_FAILURES, FREE_FAILURES_OF_ADDRESS
from gateway.forms import FormSent
from gateway.ledger import people, people_desk, web_sessions
from gateway.ledger.errors import BadPerson
from gateway.ledger.people_tables import login_code, membership, web_session
from tests.gateway.desk_harness import (
    ANOTHER,
    DAY_S,
    HERE,
    PASSWORD,
    code_of,
    digest,
    ledger_url,
    new_person,
    oidc_login,
    open_office,
)
from tests.gateway.ledger_samples import NOON_US
from tests.support.postgres import fetch

__all__ = ["ledger_url"]

pytestmark = pytest.mark.anyio

FULL = -people_desk.COMPUTING_MAX
"""Room for nobody, not even for one who would not have to wait."""


@pytest.fixture
async def office(ledger_url):
    async with open_office(ledger_url) as office:
        yield office


def key_login(session: str = "k", **changes) -> KeyLogin:
    values = {
        "key_id": "abcdefghjkmn",
        "mark": b"m" * 32,
        "session": digest(session),
        "lifetime_s": 8 * 3600,
        "caller": HERE,
    }
    return KeyLogin(**(values | changes))


async def rows(office, table) -> int:
    count = sa.select(sa.func.count()).select_from(table)
    return await office.read(lambda connection: connection.execute(count).scalar_one())


# --- Passwords ---------------------------------------------------------------------------------


async def test_a_right_password_opens_a_session(office):
    zoe = await office.make("zoe")
    office.time.pass_s(5)
    answer = await office.log_in("  ZOE ")
    assert answer.refusal == ""
    assert answer.device.startswith(f"{zoe.person_id}.")
    person = (await office.who()).person
    assert (person.login, person.last_login_at_us) == ("zoe", NOON_US + 5_000_000)
    assert (await office.audit())[-1] == (
        f"person:{zoe.person_id}",
        "login",
        {"way": "password", "address": HERE.address},
    )
    # A browser that is known keeps its id, unless that is somebody else's.
    for device, kept in ((answer.device, True), ("somebody.else", False)):
        caller = Caller(address=HERE.address, device=device)
        again = (await office.log_in("zoe", caller=caller)).device
        assert again.startswith(f"{zoe.person_id}.")
        assert (again == answer.device) is kept


@pytest.mark.parametrize("login", ["zoe", "nobody", "zoe\0", "\ud800", "\N{SNOWMAN}", "id"])
async def test_a_wrong_name_or_password_is_told_alike(office, login):
    zoe = await office.make("zoe")
    typed = zoe.person_id if login == "id" else login  # which nobody types
    answer = await office.log_in(typed, "not the words" if login == "zoe" else PASSWORD)
    assert (answer.refusal, answer.device) == ("wrong", "")
    assert await office.who() is None
    last = (await office.audit())[-1]
    reason = {"way": "password", "reason": "wrong_password", "address": HERE.address}
    assert last == ("nobody", "login.fail", reason)
    assert typed not in str(last[2])


async def test_whoever_was_only_invited_cannot_log_in(office):
    await office.invite("zoe")
    assert (await office.log_in("zoe", "")).refusal == "wrong"


async def test_guessing_waits_and_a_success_forgets(office):
    await office.make("zoe")
    for _ in range(FREE_FAILURES + 1):
        assert (await office.log_in("zoe", "guess")).refusal == "wrong"
    waiting = await office.log_in("zoe")
    assert (waiting.refusal, waiting.wait_s) == ("wait", 1)
    office.time.pass_s(1)
    assert (await office.log_in("zoe")).refusal == ""
    assert (await office.log_in("zoe", "guess")).refusal == "wrong"
    assert (await office.log_in("zoe")).refusal == ""


async def test_a_password_kept_at_another_cost_is_kept_anew(office):
    await office.make("zoe")

    async def kept() -> str:
        stored = await office.read(lambda connection: people.find_person(connection, "zoe"))
        return stored.password_hash

    before = await kept()
    await office.log_in("zoe")
    assert await kept() == before
    office.desk = office.new_desk(PasswordCost(memory_kib=16, passes=1, lanes=1))
    await office.log_in("zoe")
    assert "m=16," in await kept()
    assert (await office.log_in("zoe")).refusal == ""


async def test_a_password_is_not_kept_anew_over_one_that_was_set_meanwhile(office):
    zoe = await office.make("zoe")
    office.desk = office.new_desk(PasswordCost(memory_kib=16, passes=1, lanes=1))
    office.before_write = [
        lambda _: None,  # the session
        lambda connection: people.set_password(connection, zoe.person_id, "set elsewhere"),
    ]
    assert (await office.log_in("zoe")).refusal == ""
    stored = await office.read(lambda connection: people.find_person(connection, "zoe"))
    assert stored.password_hash == "set elsewhere"


async def test_a_person_who_changes_while_the_password_is_checked_is_not_let_in(office):
    await office.make("zoe")
    out = PersonChange(person="zoe", is_disabled=True, actor="cli")
    office.before_write = [lambda connection: people.change_person(connection, out, now_us=NOON_US)]
    assert (await office.log_in("zoe")).refusal == "wrong"
    assert await rows(office, web_session) == 0


async def test_when_too_many_wait_for_a_check_the_next_is_told_to_come_again(office, monkeypatch):
    await office.make("zoe")
    may_go_on = threading.Event()

    class Slow(Hasher):
        def is_right(self, password, kept):
            assert may_go_on.wait(30)
            return super().is_right(password, kept)

    monkeypatch.setattr(people_desk, "Hasher", Slow)
    monkeypatch.setattr(people_desk, "COMPUTING_MAX", 1)
    monkeypatch.setattr(people_desk, "WAITING_MAX", 1)
    office.desk = office.new_desk(office.cost)
    answers = []

    async def log_in(n: int) -> None:
        answers.append((await office.log_in("zoe", session=f"s{n}")).refusal)

    try:
        async with anyio.create_task_group() as tasks:
            for n in range(4):
                tasks.start_soon(log_in, n)
            with anyio.fail_after(20):
                while len(answers) < 2:
                    await anyio.sleep(0.005)
            assert answers == ["wait", "wait"]
            may_go_on.set()
    finally:
        may_go_on.set()
    assert answers == ["wait", "wait", "", ""]


async def test_nothing_is_changed_while_too_many_wait(office, monkeypatch):
    await office.make("zoe")
    await office.invite("adam")
    await office.log_in("zoe")
    lines = await office.audit()
    monkeypatch.setattr(people_desk, "WAITING_MAX", FULL)
    with pytest.raises(BadPerson, match="too many logins at once: try again in 2 s"):
        await office.desk.use_code(CodeUse(code=code_of("adam"), password=PASSWORD))
    assert (await office.desk.code_state(code_of("adam"))).is_valid
    change = PasswordChange(session=digest("s"), old=PASSWORD, new=ANOTHER, caller=HERE)
    answer = await office.desk.change_password(change)
    assert (answer.refusal, answer.wait_s) == ("wait", 2)
    assert await office.audit() == lines


async def test_a_login_succeeds_though_keeping_the_password_anew_finds_no_room(office, monkeypatch):
    await office.make("zoe")
    office.desk = office.new_desk(PasswordCost(memory_kib=16, passes=1, lanes=1))
    # After the check, while the session is being written, a crowd comes.
    office.before_write = [lambda _: monkeypatch.setattr(people_desk, "WAITING_MAX", FULL)]
    assert (await office.log_in("zoe")).refusal == ""
    stored = await office.read(lambda connection: people.find_person(connection, "zoe"))
    assert "m=8," in stored.password_hash


# --- Keys and sessions -------------------------------------------------------------------------


async def test_a_keys_session_says_whose_it_is_and_ends_with_all_of_the_key(office):
    for session in ("k", "l"):
        assert (await office.desk.log_in_key(key_login(session))).refusal == ""
    await office.desk.log_in_key(key_login("other", key_id="other"))
    found = await office.who("k")
    assert (found.person, found.key_id, found.mark) == (None, "abcdefghjkmn", b"m" * 32)
    await office.desk.end_session(SessionEnd(session=digest("k"), is_everywhere=True))
    assert [await office.who(session) for session in "kl"] == [None, None]
    assert (await office.who("other")).key_id == "other"
    assert (await office.audit())[-1] == ("key:abcdefghjkmn", "session.end_all", {})


async def test_unknown_keys_are_counted_by_address(office):
    for _ in range(FREE_FAILURES_OF_ADDRESS + 1):
        assert (await office.desk.log_in_key(key_login(key_id=""))).refusal == "wrong"
    assert (await office.desk.log_in_key(key_login(key_id=""))).refusal == "wait"
    assert (await office.audit())[-1][2]["reason"] == "unknown_key"
    assert await office.who("k") is None


async def test_logging_out_ends_one_session_or_all_of_the_person(office):
    zoe = await office.make("zoe")
    for session in "abc":
        await office.log_in("zoe", session=session)
    await office.desk.end_session(SessionEnd(session=digest("a")))
    assert await office.who("a") is None
    assert (await office.who("b")).person.login == "zoe"
    assert (await office.audit())[-1] == (f"person:{zoe.person_id}", "session.end", {})
    await office.desk.end_session(SessionEnd(session=digest("b"), is_everywhere=True))
    assert await rows(office, web_session) == 0
    lines = await office.audit()
    await office.desk.end_session(SessionEnd(session=digest("b")))  # again
    assert await office.audit() == lines


async def test_a_session_ends_when_idle_and_after_its_lifetime(office):
    await office.make("zoe")
    await office.log_in("zoe", session="a", lifetime_s=3600)
    await office.log_in("zoe", session="b", lifetime_s=3600)
    for _ in range(5):
        office.time.pass_s(599)
        assert await office.who("a", idle_s=600) is not None  # each use is a touch
    assert await office.who("b", idle_s=600) is None
    office.time.pass_s(604)
    assert await office.who("a", idle_s=600) is None
    office.time.pass_s(1)
    assert await office.who("a", idle_s=10_000) is None
    await office.log_in("zoe", session="c")
    assert await rows(office, web_session) == 1  # those that ended are swept


async def test_use_is_written_down_once_a_minute(office):
    await office.make("zoe")
    await office.log_in("zoe")

    async def seen_at_us() -> int:
        statement = sa.select(web_session.c.seen_at_us)
        return await office.read(lambda connection: connection.execute(statement).scalar_one())

    office.time.pass_s(59)
    await office.who()
    assert await seen_at_us() == NOON_US
    office.time.pass_s(1)
    await office.who()
    assert await seen_at_us() == NOON_US + 60_000_000


async def test_the_oldest_of_very_many_sessions_end(office):
    await office.desk.log_in_key(key_login("elsewhere", key_id="other"))
    for n in range(web_sessions.SESSIONS_MAX + 2):
        office.time.pass_s(1)
        await office.desk.log_in_key(key_login(f"s{n}"))
    assert [await office.who(f"s{n}") is not None for n in range(4)] == [False, False, True, True]
    assert await office.who("elsewhere") is not None


async def test_a_person_without_any_role_has_no_session(office):
    await office.make("zoe")
    await office.log_in("zoe")
    await office.write(lambda connection: connection.execute(sa.delete(membership)) and None)
    assert await office.who() is None


# --- One-time links ----------------------------------------------------------------------------


async def test_the_set_up_link_makes_the_first_administrator_once(office):
    first, second = digest("first"), digest("second")
    assert await office.desk.offer_set_up(first)
    assert await office.desk.offer_set_up(second)
    assert not (await office.desk.code_state(first)).is_valid
    assert (await office.desk.code_state(second)).is_valid
    use = CodeUse(code=second, password=PASSWORD, login="root", name="Root", caller=HERE)
    root = await office.desk.use_code(use)
    assert [grant.text for grant in root.grants] == ["platform_admin"]
    assert root.has_password
    assert (await office.audit())[0][0] == "set-up-link"
    assert (await office.log_in("root")).refusal == ""
    with pytest.raises(BadPerson, match="was used or is too old"):
        await office.desk.use_code(use)
    assert not await office.desk.offer_set_up(digest("third"))
    assert not (await office.desk.code_state(digest("third"))).is_valid


async def test_a_set_up_link_is_void_once_there_are_people(office):
    await office.desk.offer_set_up(digest("link"))
    await office.invite("zoe")
    assert not (await office.desk.code_state(digest("link"))).is_valid
    with pytest.raises(BadPerson, match="was used or is too old"):
        await office.desk.use_code(
            CodeUse(code=digest("link"), password=PASSWORD, login="root", name="Root")
        )


async def test_a_link_sets_a_password_and_ends_the_sessions(office):
    zoe = await office.make("zoe")
    await office.log_in("zoe")
    await office.write(
        lambda connection: people.put_code(
            connection,
            digest("link"),
            purpose=people.PASSWORD,
            person_id=zoe.person_id,
            now_us=NOON_US,
        )
    )
    use = CodeUse(code=digest("link"), password=ANOTHER, caller=HERE)
    assert (await office.desk.use_code(use)).has_password
    assert (await office.audit())[-1] == (
        f"person:{zoe.person_id}",
        "person.set_password",
        {"address": HERE.address},
    )
    assert await office.who() is None
    assert (await office.log_in("zoe")).refusal == "wrong"
    assert (await office.log_in("zoe", ANOTHER)).refusal == ""


async def test_a_link_is_void_after_a_day_and_for_whoever_is_kept_out(office):
    await office.invite("zoe")
    office.time.pass_s(DAY_S - 1)
    assert (await office.desk.code_state(code_of("zoe"))).login == "zoe"
    out = PersonChange(person="zoe", is_disabled=True, actor="cli")
    await office.desk.change_person(out)
    assert not (await office.desk.code_state(code_of("zoe"))).is_valid
    await office.desk.change_person(PersonChange(person="zoe", is_disabled=False, actor="cli"))
    office.time.pass_s(1)
    assert not (await office.desk.code_state(code_of("zoe"))).is_valid
    await office.invite("adam")
    assert await rows(office, login_code) == 1  # the old one is swept


async def test_a_remembered_answer_of_the_provider_is_no_link(office):
    await office.desk.log_in_oidc(oidc_login("state"))
    assert not (await office.desk.code_state(digest("state"))).is_valid


async def test_a_weak_password_does_not_use_the_link_up(office):
    await office.invite("zoe")
    with pytest.raises(BadPerson, match="12 characters or more"):
        await office.desk.use_code(CodeUse(code=code_of("zoe"), password="short"))
    await office.desk.use_code(CodeUse(code=code_of("zoe"), password=PASSWORD))
    assert (await office.log_in("zoe")).refusal == ""


async def test_guessing_links_waits(office):
    for _ in range(FREE_FAILURES_OF_ADDRESS + 1):
        with pytest.raises(BadPerson, match="was used or is too old"):
            await office.desk.use_code(CodeUse(code=b"g" * 32, password=PASSWORD, caller=HERE))
    with pytest.raises(BadPerson, match="too many attempts from this address: wait 1 s"):
        await office.desk.use_code(CodeUse(code=b"g" * 32, password=PASSWORD, caller=HERE))


async def test_of_two_machines_one_can_use_a_link(postgres_ledger_url):
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    refused = []
    async with open_office(postgres_ledger_url) as one, open_office(postgres_ledger_url) as other:
        await one.desk.create_person(new_person("zoe"))

        async def use() -> None:
            try:
                await other.desk.use_code(CodeUse(code=code_of("zoe"), password=ANOTHER))
            except BadPerson as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks, one.writer.begin() as connection:
            owner = await connection.run_sync(
                lambda c: web_sessions.take_code(c, code_of("zoe"), now_us=NOON_US)
            )
            tasks.start_soon(use)
            with anyio.fail_after(20):
                while not fetch(postgres_ledger_url, waiting)[0][0]:
                    await anyio.sleep(0.02)
        (zoe,) = await one.desk.list_people()
        assert owner == zoe.person_id
        assert not zoe.has_password
    assert len(refused) == 1
    assert "was used" in refused[0]


# --- Changed passwords -------------------------------------------------------------------------


def change_of(old: str = PASSWORD, new: str = ANOTHER, session: str = "s") -> PasswordChange:
    return PasswordChange(session=digest(session), old=old, new=new, caller=HERE)


async def test_a_changed_password_ends_the_other_sessions(office):
    await office.make("zoe")
    await office.log_in("zoe", session="s")
    await office.log_in("zoe", session="t")
    assert (await office.desk.change_password(change_of())).refusal == ""
    assert await office.who("s") is not None
    assert await office.who("t") is None
    assert (await office.actions())[-1] == "person.set_password"
    assert (await office.log_in("zoe", ANOTHER, session="u")).refusal == ""


async def test_the_old_password_is_asked_for_and_guessing_it_waits(office):
    await office.make("zoe")
    await office.log_in("zoe")
    for _ in range(FREE_FAILURES + 1):
        assert (await office.desk.change_password(change_of("guess"))).refusal == "wrong"
    assert (await office.desk.change_password(change_of())).refusal == "wait"
    assert (await office.audit())[-1][2]["reason"] == "wrong_password"
    assert (await office.log_in("zoe")).refusal == ""  # that is counted apart


async def test_a_reset_while_the_old_password_is_checked_wins(office):
    await office.make("zoe")
    await office.log_in("zoe")
    reset = PersonChange(person="zoe", code=digest("link"), actor="cli")
    office.before_write = [
        lambda connection: people.change_person(connection, reset, now_us=NOON_US)
    ]
    assert (await office.desk.change_password(change_of())).refusal == "wrong"
    (zoe,) = await office.desk.list_people()
    assert not zoe.has_password
    assert (await office.desk.code_state(digest("link"))).is_valid


async def test_who_has_no_password_cannot_change_it(office):
    await office.desk.log_in_key(key_login())
    await office.desk.log_in_oidc(oidc_login(session="o"))
    for session in ("k", "o", "nobody's"):
        with pytest.raises(BadPerson, match="only people who log in with a password"):
            await office.desk.change_password(change_of(session=session))


async def test_a_weak_new_password_is_refused(office):
    await office.make("zoe")
    await office.log_in("zoe")
    with pytest.raises(BadPerson, match="12 characters or more"):
        await office.desk.change_password(change_of(new="short"))
    assert (await office.log_in("zoe")).refusal == ""


async def test_the_same_form_that_was_quicker_does_not_make_the_old_password_wrong(office):
    await office.make("zoe")
    await office.log_in("zoe")
    change = msgspec.structs.replace(change_of(), form=FormSent(number=b"1", content=b"2"))
    reads = itertools.count()

    async def read(run):
        if next(reads) == 2:  # the form was not known yet, and the password is looked up next
            assert (await office.desk.change_password(change)).refusal == ""
        return await office.read(run)

    office.desk.read = read
    assert (await office.desk.change_password(change)).refusal == ""
    assert (await office.actions()).count(
        "person.set_password"
    ) == 2  # of the link, and of the form
