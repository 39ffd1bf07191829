"""Logging in and out, and everything about people, as the ledger process does it.

Passwords are checked here and nowhere else: on a thread, two at a time, behind one throttle for all
workers of the machine. Whatever is wrong with a name and a password, the answer and the time that
it takes are the same.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa

from gateway.access.passwords import Hasher, PasswordCost, password_fault
from gateway.access.people import (
    AuditLine,
    AuditQuery,
    AuditVerification,
    Caller,
    CodeState,
    CodeUse,
    FailedLogin,
    KeyLogin,
    LoginAnswer,
    LoginState,
    NewPerson,
    OidcLogin,
    PasswordChange,
    PasswordLogin,
    Passwords,
    Person,
    PersonChange,
    PersonKind,
    SessionEnd,
    SessionQuery,
    WebSession,
)
from gateway.access.throttle import LoginThrottle
from gateway.auth.keys import RandomBytes
from gateway.clock import Clock
from gateway.forms import FormSent
from gateway.ledger import forms, people, web_sessions
from gateway.ledger.audit import append_audit, read_audit, verify_audit
from gateway.ledger.errors import BadPerson
from gateway.ledger.login_audit import FailureLog, audit_failure, audit_login, audit_password
from gateway.ledger.people import StoredPerson

T = TypeVar("T")
P = ParamSpec("P")

COMPUTING_MAX = 2
"""Passwords that are checked at the same time: each takes a core and 64 MiB."""
WAITING_MAX = 32
BUSY_WAIT_S = 2


class Transaction(Protocol):
    """Runs a function in a transaction; raises `DatabaseUnavailable`."""

    async def __call__(self, run: Callable[[sa.Connection], T], /) -> T:
        """Run it and commit."""
        ...


@dataclass(slots=True, kw_only=True)
class PeopleDesk:
    """Everything about people.

    Attributes:
        read: Reads.
        write: Writes, as the only one.
        clock: Time.
        random_bytes: A cryptographic source.
        cost: Of passwords.
    """

    read: Transaction
    write: Transaction
    clock: Clock
    random_bytes: RandomBytes
    cost: PasswordCost = field(default_factory=PasswordCost)
    _throttle: LoginThrottle = field(init=False)
    _failures: FailureLog = field(init=False)
    _computing: anyio.CapacityLimiter | None = None
    _pending: int = 0
    _hasher: Hasher | None = None

    def __post_init__(self) -> None:
        """Count from nothing."""
        self._throttle = LoginThrottle(self.clock.monotonic_s)
        self._failures = FailureLog(self.clock.monotonic_s)

    async def list_people(self) -> tuple[Person, ...]:
        """Everybody, by name."""
        return await self.read(people.list_people)

    async def create_person(self, order: NewPerson) -> Person:
        """Make a local person.

        Raises:
            BadPerson: The login name, the name or a role cannot be taken.
            PersonConflict: Somebody has the login name.
        """
        person_id, now_us = self._new_id(), self.clock.wall_us()
        return await self.write(
            lambda connection: people.create_person(
                connection, order, person_id=person_id, now_us=now_us
            )
        )

    async def change_person(self, change: PersonChange) -> Person:
        """Change a person; all their sessions end.

        Raises:
            BadPerson: A role cannot be taken.
            UnknownPerson: There is nobody of that id or login name.
        """
        now_us = self.clock.wall_us()
        return await self.write(
            lambda connection: people.change_person(connection, change, now_us=now_us)
        )

    async def offer_set_up(self, code: bytes) -> bool:
        """Keep the digest of a code that makes the first administrator, unless there are people."""
        now_us = self.clock.wall_us()

        def offer(connection: sa.Connection) -> bool:
            if people.has_people(connection):
                return False
            people.put_code(connection, code, purpose=people.SET_UP, person_id="", now_us=now_us)
            return True

        return await self.write(offer)

    async def login_state(self, passwords: Passwords) -> LoginState:
        """What a login form may offer."""
        return LoginState(
            has_people=await self.read(people.has_people),
            takes_passwords=await self._takes_passwords(passwords),
        )

    async def log_in_password(self, login: PasswordLogin) -> LoginAnswer:
        """Open a session for a name and a password."""
        account, caller = login.login.strip().lower()[:128], login.caller
        if not await self._takes_passwords(login.passwords):
            return LoginAnswer(refusal="passwords_off")
        stored = await self.read(lambda connection: people.find_person(connection, account))
        if stored is not None and stored.person.login != account:
            stored = None  # found by id, which nobody types
        device = _device_of(stored, caller.device)
        wait_s = self._throttle.begin(account, caller.address, device)
        if wait_s > 0:
            return _wait(wait_s)
        kept = None if stored is None else stored.password_hash
        right = await self._compute(lambda: self._hashing().is_right(login.password, kept))
        if right is None:
            return LoginAnswer(refusal="wait", wait_s=BUSY_WAIT_S)
        if stored is None or not right or stored.person.disabled_at_us is not None:
            reason = "disabled" if right else "wrong_password"
            subject = "unknown" if stored is None else f"person:{stored.person.person_id}"
            await self._note_failure("password", reason, caller, subject=subject)
            return LoginAnswer(refusal="wrong")
        if not await self._open(stored, login):
            return LoginAnswer(refusal="wrong")
        self._throttle.succeed(account, caller.address, device)
        await self._renew_hash(stored, login.password)
        if not device:
            device = f"{stored.person.person_id}.{self.random_bytes(16).hex()}"
        return LoginAnswer(device=device)

    async def log_in_key(self, login: KeyLogin) -> LoginAnswer:
        """Open a session for a key that a worker recognised, or count one that it did not."""
        caller, now_us = login.caller, self.clock.wall_us()
        if not login.key_id:
            wait_s = self._throttle.begin("", caller.address, "")
            if wait_s > 0:
                return _wait(wait_s)
            await self._note_failure("key", "unknown_key", caller, subject="unknown")
            return LoginAnswer(refusal="wrong")

        def open_session(connection: sa.Connection) -> None:
            web_sessions.open_session(
                connection,
                login.session,
                person_id=None,
                key_id=login.key_id,
                mark=login.mark,
                lifetime_s=login.lifetime_s,
                now_us=now_us,
            )
            audit_login(connection, f"key:{login.key_id}", "key", caller, now_us=now_us)

        await self.write(open_session)
        return LoginAnswer()

    async def log_in_oidc(self, login: OidcLogin) -> LoginAnswer:
        """Open a session for somebody whom the identity provider vouches for.

        Raises:
            BadPerson: A role cannot be taken.
        """
        person_id, now_us, caller = self._new_id(), self.clock.wall_us(), login.caller

        def take(connection: sa.Connection) -> str:
            if not web_sessions.take_once(connection, login.state, now_us=now_us):
                return "used"
            person = people.take_oidc_person(connection, login, person_id=person_id, now_us=now_us)
            if person.disabled_at_us is not None:
                return "disabled"
            _open(
                connection, person, login.session, login.lifetime_s, "oidc", caller, now_us=now_us
            )
            return ""

        refusal = await self.write(take)
        if refusal:
            await self._note_failure("oidc", refusal, caller, subject="unknown")
        return LoginAnswer(refusal=refusal)

    async def note_failed_login(self, failed: FailedLogin) -> None:
        """Keep that a login through the identity provider came to nothing."""
        await self._note_failure("oidc", failed.reason[:64], failed.caller, subject="unknown")

    async def find_session(self, query: SessionQuery) -> tuple[WebSession, ...]:
        """Whose session it is; empty when there is none any more."""
        now_us = self.clock.wall_us()
        found = await self.read(
            lambda connection: web_sessions.find_session(connection, query, now_us=now_us)
        )
        if found is None:
            return ()
        session, is_touch_due = found
        if is_touch_due:
            await self.write(
                lambda connection: web_sessions.touch(connection, query.session, now_us=now_us)
            )
        return (session,)

    async def end_session(self, end: SessionEnd) -> None:
        """Log out; harmless when nobody is logged in."""
        now_us = self.clock.wall_us()

        def log_out(connection: sa.Connection) -> None:
            whose = web_sessions.end_session(
                connection, end.session, is_everywhere=end.is_everywhere
            )
            if whose is not None:
                actor = f"key:{whose[1]}" if whose[0] is None else f"person:{whose[0]}"
                action = "session.end_all" if end.is_everywhere else "session.end"
                append_audit(
                    connection, at_us=now_us, actor=actor, action=action, subject=actor, details={}
                )

        await self.write(log_out)

    async def code_state(self, code: bytes) -> CodeState:
        """What a one-time code is good for."""
        now_us = self.clock.wall_us()
        return await self.read(
            lambda connection: web_sessions.code_state(connection, code, now_us=now_us)
        )

    async def use_code(self, use: CodeUse) -> Person:
        """Set a password with a one-time code, or make the first administrator with it.

        Raises:
            BadPerson: The code is void, or the password, login name or name cannot be taken.
            BadQuery: The form was sent before, with another password.
        """
        done = await self._earlier(use.form)
        if done is not None:
            return await self.read(lambda connection: people.load_person(connection, done))
        wait_s = self._throttle.begin("", use.caller.address, "")
        if wait_s > 0:
            raise BadPerson(f"too many attempts from this address: wait {math.ceil(wait_s)} s")
        state = await self.code_state(use.code)
        if state.is_valid:
            self._throttle.succeed("", use.caller.address, "")
            if fault := password_fault(use.password, login=state.login or use.login):
                raise BadPerson(fault)
        kept = await self._compute(lambda: self._hashing().hash(use.password))
        if kept is None:
            raise BadPerson(f"too many logins at once: try again in {BUSY_WAIT_S} s")
        person_id, now_us = self._new_id(), self.clock.wall_us()

        def set_password(connection: sa.Connection) -> str:
            owner = web_sessions.take_code(connection, use.code, now_us=now_us)
            if not owner:
                first = people.create_first(
                    connection,
                    login=use.login,
                    name=use.name,
                    password_hash=kept,
                    person_id=person_id,
                    now_us=now_us,
                )
                return first.person_id
            people.set_password(connection, owner, kept)
            people.end_sessions(connection, owner)
            audit_password(connection, owner, use.caller, now_us=now_us)
            return owner

        owner = await self._once(use.form, set_password, "one-time code")
        return await self.read(lambda connection: people.load_person(connection, owner))

    async def _earlier(self, form: FormSent | None) -> str | None:
        return await self.read(lambda connection: forms.earlier(connection, form))

    async def _once(
        self, form: FormSent | None, act: Callable[[sa.Connection], str], actor: str
    ) -> str:
        """Act in a transaction, unless the form did so before; what it acted on."""
        now_us = self.clock.wall_us()
        return await self.write(
            lambda one: forms.once(one, form, lambda: act(one), actor=actor, now_us=now_us)
        )

    async def change_password(self, change: PasswordChange) -> LoginAnswer:
        """Set another password for whoever is logged in; all their other sessions end.

        Raises:
            BadPerson: They have no password, or the new one cannot be taken.
            BadQuery: The form was sent before, with other passwords.
        """
        now_us, caller = self.clock.wall_us(), change.caller
        query = SessionQuery(session=change.session, idle_s=24 * 3600)
        found = await self.read(
            lambda connection: web_sessions.find_session(connection, query, now_us=now_us)
        )
        person = None if found is None else found[0].person
        if person is None or person.kind is not PersonKind.LOCAL:
            raise BadPerson("only people who log in with a password can change it")
        if fault := password_fault(change.new, login=person.login):
            raise BadPerson(fault)
        if await self._earlier(change.form):
            return LoginAnswer()
        account = f"session of {person.person_id}"
        wait_s = self._throttle.begin(account, caller.address, "")
        if wait_s > 0:
            return _wait(wait_s)
        stored = await self.read(
            lambda connection: people.find_person(connection, person.person_id)
        )
        kept_before = None if stored is None else stored.password_hash

        def compute() -> str:
            """The new hash, empty when the old password is wrong."""
            hasher = self._hashing()
            return hasher.hash(change.new) if hasher.is_right(change.old, kept_before) else ""

        kept = await self._compute(compute)
        if kept is None:
            return LoginAnswer(refusal="wait", wait_s=BUSY_WAIT_S)
        if not kept:
            if await self._earlier(change.form):
                return LoginAnswer()  # the same form changed it while this one was looked at
            subject = f"person:{person.person_id}"
            await self._note_failure("password", "wrong_password", caller, subject=subject)
            return LoginAnswer(refusal="wrong")
        before = kept_before or ""  # never empty where the old password was right

        def set_password(connection: sa.Connection) -> str:
            if not people.replace_password(
                connection, person.person_id, before=before, password_hash=kept
            ):
                return ""
            web_sessions.end_others(connection, change.session, person.person_id)
            audit_password(connection, person.person_id, caller, now_us=now_us)
            return person.person_id

        # Nobody's where it was reset while the old one was being checked.
        if not await self._once(change.form, set_password, f"person:{person.person_id}"):
            return LoginAnswer(refusal="wrong")
        self._throttle.succeed(account, caller.address, "")
        return LoginAnswer()

    async def read_audit(self, query: AuditQuery) -> tuple[AuditLine, ...]:
        """Lines of the audit log, newest first."""
        return await self.read(lambda connection: read_audit(connection, query))

    async def verify_audit(self) -> AuditVerification:
        """Follow the whole chain."""
        return await self.read(verify_audit)

    async def _takes_passwords(self, passwords: Passwords) -> bool:
        if passwords is not Passwords.AUTO:
            return passwords is Passwords.ALWAYS
        return not await self.read(people.has_oidc_admin)

    async def _renew_hash(self, stored: StoredPerson, password: str) -> None:
        """Keep the password at today's cost."""
        hasher, kept = self._hashing(), stored.password_hash
        if kept is None or not hasher.is_outdated(kept):
            return
        renewed = await self._compute(lambda: hasher.hash(password))
        if renewed is not None:
            person_id = stored.person.person_id
            await self.write(
                lambda connection: people.replace_password(
                    connection, person_id, before=kept, password_hash=renewed
                )
            )

    async def _open(self, stored: StoredPerson, login: PasswordLogin) -> bool:
        """Open a session, unless password or person became void while it was being checked."""
        now_us, person = self.clock.wall_us(), stored.person

        def open_session(connection: sa.Connection) -> bool:
            current = people.find_person(connection, person.person_id)
            if (
                current is None
                or current.password_hash != stored.password_hash
                or current.person.disabled_at_us is not None
            ):
                return False
            _open(
                connection,
                person,
                login.session,
                login.lifetime_s,
                "password",
                login.caller,
                now_us=now_us,
            )
            return True

        return await self.write(open_session)

    async def _note_failure(self, way: str, reason: str, caller: Caller, *, subject: str) -> None:
        left_out = self._failures.take()
        if left_out is None:
            return
        now_us = self.clock.wall_us()
        await self.write(
            lambda connection: audit_failure(
                connection, way, reason, caller, subject=subject, left_out=left_out, now_us=now_us
            )
        )

    async def _compute(self, run: Callable[[], T]) -> T | None:
        """Run what takes a core for long on a thread; None when too many wait."""
        if self._computing is None:
            self._computing = anyio.CapacityLimiter(COMPUTING_MAX)
        # Counted here: a task that is about to wait is not yet among the limiter's.
        if self._pending >= COMPUTING_MAX + WAITING_MAX:
            return None
        self._pending += 1
        try:
            return await anyio.to_thread.run_sync(run, limiter=self._computing)
        finally:
            self._pending -= 1

    def _hashing(self) -> Hasher:
        if self._hasher is None:  # on the first use: it computes a hash itself
            self._hasher = Hasher(self.cost)
        return self._hasher

    def _new_id(self) -> str:
        return base64.b32encode(self.random_bytes(10)).decode("ascii").lower()[:12]


def _open(
    connection: sa.Connection,
    person: Person,
    session: bytes,
    lifetime_s: int,
    way: str,
    caller: Caller,
    *,
    now_us: int,
) -> None:
    web_sessions.open_session(
        connection,
        session,
        person_id=person.person_id,
        key_id="",
        mark=b"",
        lifetime_s=lifetime_s,
        now_us=now_us,
    )
    people.note_login(connection, person.person_id, now_us=now_us)
    audit_login(connection, f"person:{person.person_id}", way, caller, now_us=now_us)


def _device_of(stored: StoredPerson | None, device: str) -> str:
    """The browser's id, if this account's login worked in it before."""
    if stored is None or not device.startswith(f"{stored.person.person_id}."):
        return ""
    return device


def _wait(wait_s: float) -> LoginAnswer:
    return LoginAnswer(refusal="wait", wait_s=math.ceil(wait_s))
