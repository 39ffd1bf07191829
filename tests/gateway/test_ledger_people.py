"""People and their roles at the desk: made, changed, vouched for by a provider, and audited."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gateway.access.people import (
    AUDIT_LINES_MAX,
    GRANTS_MAX,
    AuditQuery,
    FailedLogin,
    Passwords,
    PersonChange,
    PersonKind,
)
from gateway.access.roles import Grant, Role
from gateway.ledger.errors import BadPerson, PersonConflict, UnknownPerson
from tests.gateway.desk_harness import (
    HERE,
    code_of,
    digest,
    grants,
    ledger_url,
    new_person,
    oidc_login,
    open_office,
)
from tests.gateway.ledger_samples import NOON_US

__all__ = ["ledger_url"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def office(ledger_url):
    async with open_office(ledger_url) as office:
        yield office


async def test_people_come_back_by_name_as_they_were_made(office):
    assert await office.desk.list_people() == ()
    zoe = await office.invite("zoe", "team_owner@search", "auditor")
    adam = await office.invite("adam", "finance_admin")
    assert await office.desk.list_people() == (adam, zoe)
    assert zoe.grants == grants("auditor", "team_owner@search")
    assert (zoe.kind, zoe.login, zoe.name) == (PersonKind.LOCAL, "zoe", "Zoe")
    assert (zoe.created_at_us, zoe.disabled_at_us, zoe.last_login_at_us) == (NOON_US, None, None)
    assert not zoe.has_password
    assert len(zoe.person_id) == 12
    assert zoe.person_id != adam.person_id
    assert (await office.audit())[:2] == [
        ("cli", "person.create", {"kind": "local", "login": "zoe"}),
        ("cli", "person.set_role", {"before": "", "after": "auditor team_owner@search"}),
    ]


async def test_a_login_name_in_use_is_a_conflict_that_changes_nothing(office):
    made = await office.invite("zoe")
    with pytest.raises(PersonConflict, match="'zoe' already"):
        await office.desk.create_person(new_person("zoe", name="Another", code=b"n" * 32))
    assert await office.desk.list_people() == (made,)
    assert (await office.desk.code_state(code_of("zoe"))).login == "zoe"
    assert not (await office.desk.code_state(b"n" * 32)).is_valid
    assert await office.actions() == ["person.create", "person.set_role"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"login": "Zoe"}, "a login name has"),
        ({"name": " Zoe"}, "a name has"),
        ({"name": "Z\0e"}, "a name has"),
        ({"grants": ()}, "at least one role"),
        ({"grants": (Grant(role=Role.ADMINISTRATOR),)}, "not a role that a person can be given"),
        ({"grants": grants("platform_admin", "policy_approver")}, "two people"),
        (
            {"grants": grants(*(f"team_member@t{n}" for n in range(GRANTS_MAX + 1)))},
            f"at most {GRANTS_MAX} roles",
        ),
    ],
)
async def test_who_cannot_be_made_is_not_made(office, changes, why):
    with pytest.raises(BadPerson, match=why):
        await office.desk.create_person(new_person("zoe", **changes))
    assert await office.desk.list_people() == ()
    assert await office.audit() == []


async def test_other_roles_are_audited_and_end_the_sessions(office):
    zoe = await office.make("zoe", "auditor")
    await office.make("adam", "auditor")
    await office.log_in("zoe", session="z")
    await office.log_in("adam", session="a")
    change = PersonChange(person="zoe", grants=grants("team_owner@search"), actor="person:adam")
    changed = await office.desk.change_person(change)
    assert changed.grants == grants("team_owner@search")
    assert (await office.audit())[-1] == (
        "person:adam",
        "person.set_role",
        {"before": "auditor", "after": "team_owner@search"},
    )
    assert await office.who("z") is None
    assert (await office.who("a")).person.login == "adam"
    lines = await office.audit()
    by_id = PersonChange(person=zoe.person_id, grants=grants("team_owner@search"), actor="cli")
    assert await office.desk.change_person(by_id) == changed
    assert await office.audit() == lines  # nothing changed, nothing is told


async def test_whoever_is_kept_out_stays_out_until_let_in(office):
    await office.make("zoe")
    await office.log_in("zoe")
    out = PersonChange(person="zoe", is_disabled=True, actor="cli")
    office.time.pass_s(60)
    assert (await office.desk.change_person(out)).disabled_at_us == NOON_US + 60_000_000
    office.time.pass_s(60)
    assert (await office.desk.change_person(out)).disabled_at_us == NOON_US + 60_000_000
    assert await office.who() is None
    assert (await office.log_in("zoe")).refusal == "wrong"
    back = PersonChange(person="zoe", is_disabled=False, actor="cli")
    assert (await office.desk.change_person(back)).disabled_at_us is None
    assert (await office.log_in("zoe", session="back")).refusal == ""
    assert (await office.who("back")).person.login == "zoe"
    told = [(action, details.get("reason")) for _, action, details in await office.audit()]
    assert told[-4:] == [
        ("person.disable", None),
        ("login.fail", "disabled"),
        ("person.enable", None),
        ("login", None),
    ]


async def test_a_new_link_voids_the_password_and_the_link_before(office):
    await office.make("zoe")
    for n in (1, 2):
        change = PersonChange(person="zoe", code=digest(f"link {n}"), actor="cli")
        assert not (await office.desk.change_person(change)).has_password
    assert (await office.actions())[-2:] == ["person.reset_password"] * 2
    assert (await office.log_in("zoe")).refusal == "wrong"
    assert not (await office.desk.code_state(digest("link 1"))).is_valid
    assert (await office.desk.code_state(digest("link 2"))).login == "zoe"


@pytest.mark.parametrize("name", ["nobody", "", "zoe\0", "\ud800", "Zoe"])
async def test_nobody_of_that_name_can_be_changed(office, name):
    await office.invite("zoe")
    with pytest.raises(UnknownPerson, match="no person with the id or login name"):
        await office.desk.change_person(PersonChange(person=name, is_disabled=True, actor="cli"))


async def test_a_provider_makes_a_person_once_and_brings_them_up_to_date(office):
    assert (await office.desk.log_in_oidc(oidc_login())).refusal == ""
    (olga,) = await office.desk.list_people()
    assert (olga.kind, olga.login, olga.name) == (PersonKind.OIDC, "", "Olga")
    assert olga.last_login_at_us == NOON_US
    assert (await office.who()).person == olga
    await office.desk.log_in_oidc(oidc_login("again", "t"))
    assert await office.actions() == ["person.create", "person.set_role", "login", "login"]
    await office.desk.log_in_oidc(
        oidc_login("third", "u", name="Olga\n R.", grants=grants("finance_admin"))
    )
    (changed,) = await office.desk.list_people()
    assert (changed.person_id, changed.name) == (olga.person_id, "Olga R.")
    assert changed.grants == grants("finance_admin")
    assert [await office.who(session) for session in "st"] == [None, None]
    assert (await office.who("u")).person == changed
    await office.desk.log_in_oidc(oidc_login("fourth", subject="0043", name="\0\n"))
    assert [person.name for person in await office.desk.list_people()] == ["0043", "Olga R."]


async def test_an_answer_of_the_provider_counts_once(office):
    assert (await office.desk.log_in_oidc(oidc_login(session="s"))).refusal == ""
    assert (await office.desk.log_in_oidc(oidc_login(session="t"))).refusal == "used"
    assert await office.who("t") is None
    assert (await office.audit())[-1] == (
        "nobody",
        "login.fail",
        {"way": "oidc", "reason": "used", "address": HERE.address},
    )
    # Later than any answer is good for, it is forgotten.
    office.time.pass_s(3600)
    assert (await office.desk.log_in_oidc(oidc_login(session="u"))).refusal == ""


async def test_the_providers_people_are_changed_there(office):
    await office.desk.log_in_oidc(oidc_login())
    (olga,) = await office.desk.list_people()
    for what, why in (
        ({"grants": grants("auditor")}, "come from the groups of the identity provider"),
        ({"code": digest("link")}, "logs in at the identity provider"),
    ):
        with pytest.raises(BadPerson, match=why):
            await office.desk.change_person(
                PersonChange(person=olga.person_id, **what, actor="cli")
            )
    assert await office.desk.list_people() == (olga,)
    out = PersonChange(
        person=olga.person_id, grants=olga.grants[::-1], is_disabled=True, actor="cli"
    )
    assert (await office.desk.change_person(out)).disabled_at_us == NOON_US
    assert (await office.desk.log_in_oidc(oidc_login("again"))).refusal == "disabled"
    assert await office.who() is None


async def test_roles_that_cannot_be_taken_let_nobody_in(office):
    with pytest.raises(BadPerson, match="two people"):
        await office.desk.log_in_oidc(
            oidc_login(grants=grants("platform_admin", "policy_approver"))
        )
    assert await office.desk.list_people() == ()
    assert await office.who() is None


async def test_passwords_end_with_the_first_platform_admin_of_the_provider(office):
    async def takes(passwords: Passwords = Passwords.AUTO) -> bool:
        return (await office.desk.login_state(passwords)).takes_passwords

    assert not (await office.desk.login_state(Passwords.AUTO)).has_people
    await office.make("zoe", "platform_admin")
    assert (await office.desk.login_state(Passwords.AUTO)).has_people
    await office.desk.log_in_oidc(oidc_login())
    assert await takes()  # a viewer cannot look after people
    await office.desk.log_in_oidc(oidc_login("again", grants=grants("platform_admin")))
    assert not await takes()
    assert (await office.log_in("zoe", passwords=Passwords.AUTO)).refusal == "passwords_off"
    assert (await takes(Passwords.ALWAYS), await takes(Passwords.NEVER)) == (True, False)
    olga = next(p for p in await office.desk.list_people() if p.kind is PersonKind.OIDC)
    await office.desk.change_person(
        PersonChange(person=olga.person_id, is_disabled=True, actor="cli")
    )
    assert await takes()


async def test_what_came_to_nothing_at_the_provider_is_kept_cut(office):
    await office.desk.note_failed_login(FailedLogin(reason="r" * 100, caller=HERE))
    assert await office.audit() == [
        ("nobody", "login.fail", {"way": "oidc", "reason": "r" * 64, "address": HERE.address})
    ]


async def test_failed_logins_do_not_flood_the_audit_log(office):
    for _ in range(125):
        await office.desk.note_failed_login(FailedLogin(reason="wrong_nonce"))
    assert len(await office.audit(500)) == 120
    office.time.pass_s(1)
    for _ in range(2):
        await office.desk.note_failed_login(FailedLogin(reason="wrong_nonce"))
    lines = await office.audit(500)
    assert len(lines) == 121
    assert lines[-1][2]["left_out_before"] == 5
    assert "left_out_before" not in lines[-2][2]
    office.time.pass_s(1)
    await office.desk.note_failed_login(FailedLogin(reason="wrong_nonce"))
    assert (await office.audit(500))[-1][2]["left_out_before"] == 1


async def test_the_audit_log_is_read_in_pages_from_the_newest(office):
    for n in range(3):
        await office.invite(f"p{n}")
    newest = await office.desk.read_audit(AuditQuery(count=2))
    older = await office.desk.read_audit(AuditQuery(count=100, before=newest[-1].number))
    numbers = [line.number for line in newest + older]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 6
    assert await office.desk.read_audit(AuditQuery(count=-1)) == ()
    assert len(await office.desk.read_audit(AuditQuery(count=10 * AUDIT_LINES_MAX))) == 6
    line = older[-1]
    people_ = await office.desk.list_people()
    assert (line.at_us, line.actor, line.action) == (NOON_US, "cli", "person.create")
    assert line.subject == f"person:{people_[0].person_id}"


async def test_an_edit_of_the_audit_log_shows(office):
    assert (await office.desk.verify_audit()).head == b""
    await office.invite("zoe")
    verified = await office.desk.verify_audit()
    assert (verified.lines, verified.faults) == (2, ())

    def edit(connection: sa.Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("DROP TRIGGER audit_log_no_update")
        else:
            connection.exec_driver_sql("ALTER TABLE audit_log DISABLE TRIGGER USER")
        connection.exec_driver_sql("UPDATE audit_log SET actor = 'me' WHERE seq = 1")
        connection.exec_driver_sql("UPDATE audit_log SET previous_hash = hash WHERE seq = 2")

    await office.write(edit)
    edited = await office.desk.verify_audit()
    assert (edited.lines, edited.head) == (2, verified.head)
    assert edited.faults == (
        "audit line 1 was changed",
        "audit line 2 does not follow the line before it",
        "audit line 2 was changed",
    )
