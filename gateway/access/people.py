"""What worker, supervisor and ledger process say to each other about people and their sessions.

A session's token and a one-time code never travel to where they are kept: whoever makes one sends
its digest. A password travels to the ledger process, over a socket pair, and is nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from enum import StrEnum

import msgspec

from gateway.access.roles import Grant, Viewer
from gateway.auth.keys import RandomBytes
from gateway.forms import FormSent

LOGIN_CHARACTERS_MAX = 128
NAME_CHARACTERS_MAX = 128
GRANTS_MAX = 64
AUDIT_LINES_MAX = 500
CODE_S = 24 * 3600
"""How long a one-time link can be used."""

METHODS = (
    "list_people", "create_person", "change_person", "offer_set_up", "login_state",
    "log_in_password", "log_in_key", "log_in_oidc", "note_failed_login", "find_session",
    "end_session", "code_state", "use_code", "change_password", "read_audit", "verify_audit",
)  # fmt: skip
"""What the ledger process answers about people, and the supervisor passes on unchanged."""

_LOGIN = re.compile(r"[a-z0-9][a-z0-9._+@-]{0,127}")


class PersonKind(StrEnum):
    """How a person logs in."""

    LOCAL = "local"
    OIDC = "oidc"


class Passwords(StrEnum):
    """When people may log in with a password."""

    AUTO = "auto"
    """Until a platform admin has logged in through the identity provider."""
    ALWAYS = "always"
    NEVER = "never"


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who can log in.

    Attributes:
        person_id: 12 characters, never used again for somebody else.
        kind: How they log in.
        login: What a local person types; empty for one of the identity provider.
        name: For people.
        grants: Roles, sorted.
        has_password: Whether a local person has set one.
        created_at_us: Microseconds since the epoch, as all instants here.
        disabled_at_us: Since when they cannot log in, None while they can.
        last_login_at_us: None when they never have.
    """

    person_id: str
    kind: PersonKind
    login: str
    name: str
    grants: tuple[Grant, ...]
    has_password: bool
    created_at_us: int
    disabled_at_us: int | None
    last_login_at_us: int | None


class NewPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A local person to be made, without a password: a one-time code lets them set it.

    Attributes:
        login: What they will type.
        name: For people.
        grants: Roles; at least one.
        code: SHA-256 of the one-time code.
        actor: Who does it, for the audit log.
        form: The page's form that asks for it, which is acted on once.
    """

    login: str
    name: str
    grants: tuple[Grant, ...]
    code: bytes
    actor: str
    form: FormSent | None = None


class PersonChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a person; it ends all their sessions.

    Attributes:
        person: Person id, or login of a local person.
        grants: New roles, None to leave them.
        is_disabled: Whether they are to be kept out, None to leave that.
        code: SHA-256 of a one-time code for a new password; the old one is void. None to leave it.
        actor: Who does it.
        form: The page's form that asks for it, which is acted on once.
    """

    person: str
    grants: tuple[Grant, ...] | None = None
    is_disabled: bool | None = None
    code: bytes | None = None
    actor: str
    form: FormSent | None = None


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Where a login comes from.

    Attributes:
        address: IP address, empty when unknown.
        device: Id of a browser in which this login worked before, empty for none.
    """

    address: str = ""
    device: str = ""


class PasswordLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants in with a password.

    Attributes:
        login: As typed.
        password: As typed.
        session: SHA-256 of the new session's token.
        lifetime_s: How long the session lasts.
        passwords: When passwords are taken.
        caller: Where it comes from.
    """

    login: str
    password: str
    session: bytes
    lifetime_s: int
    passwords: Passwords = Passwords.AUTO
    caller: Caller = Caller()

    def __repr__(self) -> str:
        return f"PasswordLogin(login={self.login!r})"


class KeyLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants in with a key, which the worker has recognised, or not.

    Attributes:
        key_id: Public id of the key, `admin` for the administrator's; empty when it was refused.
        mark: Digest of what is kept of the key, so that the session ends with it.
        session: SHA-256 of the new session's token.
        lifetime_s: How long the session lasts.
        caller: Where it comes from.
    """

    key_id: str
    mark: bytes
    session: bytes
    lifetime_s: int
    caller: Caller = Caller()


class OidcLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whom the identity provider vouches for; a worker has checked the ID token.

    Attributes:
        issuer: The provider.
        subject: The person's id there; with the issuer it names the person.
        name: For people.
        grants: Roles of their groups; at least one.
        state: SHA-256 of the login's state, so that one answer of the provider counts once.
        session: SHA-256 of the new session's token.
        lifetime_s: How long the session lasts.
        caller: Where it comes from.
    """

    issuer: str
    subject: str
    name: str
    grants: tuple[Grant, ...]
    state: bytes
    session: bytes
    lifetime_s: int
    caller: Caller = Caller()


class FailedLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login through the identity provider that came to nothing.

    Attributes:
        reason: A word of ours, such as `wrong_nonce`; nothing that came from outside.
        caller: Where it came from.
    """

    reason: str
    caller: Caller = Caller()


class LoginState(msgspec.Struct, frozen=True, kw_only=True):
    """What a login form may offer.

    Attributes:
        has_people: Whether anybody was made here.
        takes_passwords: Whether a password opens a session now.
    """

    has_people: bool
    takes_passwords: bool


class LoginAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether somebody is in.

    Attributes:
        refusal: Empty when they are; else `wrong`, `wait`, `passwords_off`, `disabled` or `used`.
        wait_s: Seconds until the next attempt counts, of `wait`.
        device: What the browser may keep as `Caller.device`; empty for none.
    """

    refusal: str = ""
    wait_s: int = 0
    device: str = ""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose session is it?

    Attributes:
        session: SHA-256 of its token.
        idle_s: It has ended when nobody used it for so long.
    """

    session: bytes
    idle_s: int


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is now.

    Attributes:
        person: Whose it is, None for that of a key.
        key_id: Of a key's session, empty for a person's.
        mark: As `KeyLogin.mark`.
    """

    person: Person | None
    key_id: str = ""
    mark: bytes = b""


class SessionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Log out.

    Attributes:
        session: SHA-256 of the token.
        is_everywhere: Whether all sessions of the same person or key end with it.
    """

    session: bytes
    is_everywhere: bool = False


class CodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody sets a password with a one-time code.

    Attributes:
        code: SHA-256 of the code.
        password: The new one.
        login: Of the first administrator, who is made with it; else empty.
        name: Of the first administrator.
        caller: Where it comes from.
        form: The page's form that asks for it, which is acted on once.
    """

    code: bytes
    password: str
    login: str = ""
    name: str = ""
    caller: Caller = Caller()
    form: FormSent | None = None

    def __repr__(self) -> str:
        return f"CodeUse(login={self.login!r})"


class CodeState(msgspec.Struct, frozen=True, kw_only=True):
    """What a one-time code is good for.

    Attributes:
        is_valid: Whether it can be used now.
        login: Whose password it sets; empty where it makes the first administrator.
    """

    is_valid: bool
    login: str = ""


class PasswordChange(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is logged in sets another password; all their other sessions end.

    Attributes:
        session: SHA-256 of the token of the session that goes on.
        old: The password until now.
        new: The new one.
        caller: Where it comes from.
        form: The page's form that asks for it, which is acted on once.
    """

    session: bytes
    old: str
    new: str
    caller: Caller = Caller()
    form: FormSent | None = None

    def __repr__(self) -> str:
        return "PasswordChange()"


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of the audit log, newest first.

    Attributes:
        count: At most this many, and `AUDIT_LINES_MAX`.
        before: Only lines with a smaller number, None from the newest.
        areas: Only actions that begin with one of these and a point; none for all.
    """

    count: int
    before: int | None = None
    areas: tuple[str, ...] = ()


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line: who did what to what.

    Attributes:
        number: Its place in the chain.
        at_us: When.
        actor: Who.
        action: What.
        subject: To what or whom.
        details: What belongs to it.
        hash: SHA-256 that chains it to the line before.
    """

    number: int
    at_us: int
    actor: str
    action: str
    subject: str
    details: dict[str, object]
    hash: bytes


class AuditVerification(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the chain holds.

    Attributes:
        lines: How many there are.
        head: Hash of the last line, for comparison with a copy kept elsewhere; empty without one.
        faults: What does not hold, a sentence each.
    """

    lines: int
    head: bytes
    faults: tuple[str, ...]


def digest_of(secret: bytes) -> bytes:
    """What is kept in place of a random token or code of 128 bits or more."""
    return hashlib.sha256(secret).digest()


def new_code(random_bytes: RandomBytes) -> tuple[str, bytes]:
    """A one-time code of 160 bits as it is shown, and what is kept of it."""
    code = base64.b32encode(random_bytes(20)).decode("ascii").lower()
    return code, digest_of(code.encode("ascii"))


def login_fault(login: str) -> str:
    """What is wrong with a login name, empty when nothing is."""
    if _LOGIN.fullmatch(login):
        return ""
    return (
        f"a login name has 1 to {LOGIN_CHARACTERS_MAX} characters: a to z, digits, `.`, `_`, `-`,"
        " `+` and `@`, and begins with a letter or a digit"
    )


def name_fault(name: str) -> str:
    """What is wrong with a person's name, empty when nothing is."""
    if 0 < len(name) <= NAME_CHARACTERS_MAX and name == name.strip() and name.isprintable():
        return ""
    return f"a name has 1 to {NAME_CHARACTERS_MAX} printable characters, no space at its ends"


def viewer_of_person(person: Person) -> Viewer:
    """Whom pages and API see in a person."""
    return Viewer(
        actor=f"person:{person.person_id}",
        name=person.name,
        grants=person.grants,
        person_id=person.person_id,
    )
