"""Who may call: an immutable snapshot of all keys, and the lookup in it.

A snapshot travels to every worker as msgpack (`KeySnapshot`); a worker wraps it in a
`KeyDirectory` together with the peppers, which never travel with it. A revoked key is a new
snapshot; no entry of an old one outlives it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from gateway.auth.credentials import RawHeaders, Refusal, is_sendable, token_of
from gateway.auth.keys import (
    FIXED_KEY_BYTES_MIN,
    TOKEN_BYTES_MAX,
    fixed_key_id,
    hash_key,
    looks_like_key,
    parse_key_id,
)
from gateway.limits.amounts import LimitAmounts

ADMIN_KEY_ID = "admin"
NAMESPACE_BYTES = 16
SEEN_MAX = 10_000
"""Headers and tokens that are recognised when they come again; only valid ones are among them."""


class KeySource(StrEnum):
    """Where a key was declared, which is where it can be changed."""

    FILE = "file"
    DATABASE = "database"


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a key.

    Attributes:
        key_id: Its public id.
        digest: HMAC-SHA256 of the key with a pepper, 32 bytes.
        team: The team it belongs to, empty for none.
        project: The project of its requests, empty for none.
        name: What it is for.
        models: Models that it may use, of those of its team; None for all of them.
        tags: Privacy tags that each of its requests carries, sorted.
        disabled: Whether it was revoked.
        expires_at_us: Microseconds since the epoch from which it is void, None for never.
        limits: Its own rate limits, None for none.
        source: Where it was declared.
    """

    key_id: str
    digest: bytes
    team: str
    name: str
    source: KeySource
    project: str = ""
    models: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    disabled: bool = False
    expires_at_us: int | None = None
    limits: LimitAmounts | None = None


class KeySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All keys at one moment.

    Attributes:
        revision: Grows with every change.
        records: Every key, the administrator's apart.
        admin_digest: HMAC-SHA256 of the administrator's key, None when there is none.
        is_complete: Whether there is no other key; else one that is not here may still be right.
    """

    revision: int
    records: tuple[KeyRecord, ...]
    admin_digest: bytes | None = None
    is_complete: bool = True


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request.

    Attributes:
        key_id: The key's public id, `admin` for the administrator.
        team: Team name, empty for none.
        project: Project name, empty for none.
        key_name: What the key is for.
        models: Models that the key may use, of those of its team; None for all of them.
        tags: Privacy tags that each of its requests carries.
        is_admin: Whether this is the administrator.
        limits: The key's own rate limits, None for none.
    """

    key_id: str
    team: str
    project: str
    key_name: str
    models: frozenset[str] | None
    tags: frozenset[str] = frozenset()
    is_admin: bool = False
    limits: LimitAmounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthFailure:
    """A request was not authenticated.

    Attributes:
        reason: For counters and logs.
        message: For the client: what is wrong and the mend; nothing of the key.
    """

    reason: Refusal
    message: str


_MESSAGES: Mapping[Refusal, str] = {
    Refusal.MISSING: "no API key: send `Authorization: Bearer <key>`, `x-api-key` or `api-key`",
    Refusal.MALFORMED: "the API key is malformed: check that it was copied whole",
    Refusal.CONFLICTING: "the request carries different API keys: send one",
    Refusal.UNKNOWN: "the API key is not known here",
    Refusal.UNCHECKED: "the API key cannot be looked up now: the database does not answer",
    Refusal.DISABLED: "the API key has been revoked",
    Refusal.EXPIRED: "the API key has expired",
}
_FAILURES = {
    reason: AuthFailure(reason=reason, message=message) for reason, message in _MESSAGES.items()
}
_ADMIN = Principal(
    key_id=ADMIN_KEY_ID, team="", project="", key_name="admin", models=None, is_admin=True
)


class KeyDirectory:
    """Finds the principal of a request; immutable, so that it is replaced as a whole."""

    __slots__ = (
        "_admin_digest", "_bearer_tags", "_by_digest", "_by_id", "_is_complete", "_namespace_key",
        "_namespaces", "_peppers", "_seen", "_token_tags", "revision",
    )  # fmt: skip

    def __init__(
        self, snapshot: KeySnapshot, *, peppers: Sequence[bytes], namespace_key: bytes
    ) -> None:
        """Index a snapshot.

        Args:
            snapshot: All keys.
            peppers: What keys are hashed with, the current one first.
            namespace_key: What tenant namespaces are derived with.

        Raises:
            ValueError: Two records have the same id or the same key; the message names their teams
                and names.
        """
        self.revision = snapshot.revision
        self._peppers = tuple(peppers)
        self._namespace_key = namespace_key
        self._admin_digest = snapshot.admin_digest
        self._is_complete = snapshot.is_complete
        self._namespaces: dict[tuple[str, str], bytes] = {}
        # A tag of 128 bits under a key that nobody knows and that ends with this directory: as good
        # as what is hashed for finding who it was the last time, and kept in its place.
        tag_key = secrets.token_bytes(32)
        self._token_tags = hashlib.blake2b(key=tag_key, digest_size=16, person=b"token")
        self._bearer_tags = hashlib.blake2b(key=tag_key, digest_size=16, person=b"bearer")
        self._seen: dict[bytes, tuple[Principal, int | None]] = {}
        self._by_id: dict[str, KeyRecord] = {}
        self._by_digest: dict[bytes, KeyRecord] = {}
        for record in snapshot.records:
            other = self._by_id.get(record.key_id) or self._by_digest.get(record.digest)
            if other is not None:
                raise ValueError(
                    f"key `{record.name}` of team `{record.team}` is the same as "
                    f"`{other.name}` of team `{other.team}`"
                )
            if _equal(snapshot.admin_digest, record.digest):
                raise ValueError(
                    f"key `{record.name}` of team `{record.team}` is the administrator's key"
                )
            self._by_id[record.key_id] = record
            self._by_digest[record.digest] = record

    def authenticate(self, headers: RawHeaders, *, now_us: int) -> Principal | AuthFailure:
        """Find out who sends a request.

        Args:
            headers: The raw headers, names in lower case.
            now_us: Microseconds since the epoch, for keys that expire.
        """
        token = token_of(headers)
        if isinstance(token, Refusal):
            return _FAILURES[token]
        return self.identify(token, now_us=now_us)

    def authenticate_bearer(self, authorization: bytes, *, now_us: int) -> Principal | AuthFailure:
        """Find out who sends a request whose only header that can hold a key is `Authorization`.

        Args:
            authorization: That header's value.
            now_us: Microseconds since the epoch, for keys that expire.
        """
        tag = _tag(self._bearer_tags, authorization)
        return self._recognise(tag, now_us) or self._remember(
            tag, self.authenticate([(b"authorization", authorization)], now_us=now_us)
        )

    def identify(self, token: bytes, *, now_us: int) -> Principal | AuthFailure:
        """Find out whose key a token is.

        Args:
            token: What the client sent as its key.
            now_us: Microseconds since the epoch, for keys that expire.
        """
        tag = _tag(self._token_tags, token)
        return self._recognise(tag, now_us) or self._remember(tag, self._identify(token, now_us))

    def _recognise(self, tag: bytes, now_us: int) -> Principal | None:
        """Who was found the last time, unless the key has expired since."""
        seen = self._seen.get(tag)
        if seen is not None and (seen[1] is None or now_us < seen[1]):
            return seen[0]
        return None

    def _remember(self, tag: bytes, found: Principal | AuthFailure) -> Principal | AuthFailure:
        if isinstance(found, Principal) and not found.is_admin:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen[tag] = (found, self._by_id[found.key_id].expires_at_us)
        return found

    def _identify(self, token: bytes, now_us: int) -> Principal | AuthFailure:
        key_id = parse_key_id(token)
        if key_id is None and looks_like_key(token):
            return _FAILURES[Refusal.MALFORMED]
        digests = [hash_key(pepper, token) for pepper in self._peppers]
        if any(_equal(self._admin_digest, digest) for digest in digests):
            return _ADMIN
        record = self._find(key_id, digests)
        if record is None and not self._is_complete:
            return _FAILURES[Refusal.UNCHECKED]
        return _standing(record, now_us)

    def recall(self, key_id: str, *, now_us: int) -> Principal | AuthFailure:
        """Find out who a key belongs to now that was shown before; sessions ask at every page.

        Args:
            key_id: What `Principal.key_id` was then.
            now_us: Microseconds since the epoch, for keys that expire.
        """
        if key_id == ADMIN_KEY_ID:
            return _FAILURES[Refusal.UNKNOWN] if self._admin_digest is None else _ADMIN
        return _standing(self._by_id.get(key_id), now_us)

    def digest(self, key_id: str) -> bytes | None:
        """What is kept of a key, the administrator's included; None when there is none."""
        if key_id == ADMIN_KEY_ID:
            return self._admin_digest
        record = self._by_id.get(key_id)
        return None if record is None else record.digest

    def _find(self, key_id: str | None, digests: list[bytes]) -> KeyRecord | None:
        """The record whose digest is one of `digests`, by id first, then by the digest itself."""
        candidates = [] if key_id is None else [self._by_id.get(key_id)]
        # Keys brought along have no id in them. What is looked up is a keyed hash, so the time that
        # the table takes tells nothing about the key.
        candidates += [self._by_digest.get(digest) for digest in digests]
        for record in candidates:
            if record is not None and any(_equal(record.digest, digest) for digest in digests):
                return record
        return None

    @property
    def records(self) -> Collection[KeyRecord]:
        """Every key, the administrator's apart."""
        return self._by_id.values()

    def record(self, key_id: str) -> KeyRecord | None:
        """The record of a key, None when there is none."""
        return self._by_id.get(key_id)

    def namespace(self, principal: Principal) -> bytes:
        """16 bytes that separate the principal's tenant in every cache that Fareway owns.

        The tenant is the team, or the key where there is no team.
        """
        tenant = ("team", principal.team) if principal.team else ("key", principal.key_id)
        known = self._namespaces.get(tenant)
        if known is None:  # as many as there are teams and keys
            text = "\0".join(tenant).encode()
            known = hmac.digest(self._namespace_key, text, "sha256")[:NAMESPACE_BYTES]
            self._namespaces[tenant] = known
        return known


def fixed_key_record(
    value: str,
    *,
    pepper: bytes,
    team: str,
    name: str,
    project: str = "",
    models: tuple[str, ...] | None = None,
    tags: Sequence[str] = (),
    limits: LimitAmounts | None = None,
) -> KeyRecord:
    """The record of a key brought along from elsewhere.

    Args:
        value: The key itself; not kept.
        pepper: The current pepper.
        team: Its team.
        name: Its name, unique in the team.
        project: The project of its requests, empty for none.
        models: Models that it may use, None for all of its team's.
        tags: Privacy tags that each of its requests carries.
        limits: Its own rate limits, None for none.

    Raises:
        ValueError: The key is too short or too long, has characters that no header carries, or is a
            Fareway key with a wrong checksum; the message names the key by team and name only.
    """
    token = _checked_token(value, f"the fixed key `{name}` of team `{team}`")
    key_id = parse_key_id(token)
    return KeyRecord(
        key_id=key_id or fixed_key_id(team, name),
        digest=hash_key(pepper, token),
        team=team,
        project=project,
        name=name,
        models=models,
        tags=tuple(sorted(set(tags))),
        limits=limits,
        source=KeySource.FILE,
    )


def admin_key_digest(value: str, *, pepper: bytes) -> bytes:
    """What is kept of the administrator's key.

    Args:
        value: The key itself; not kept.
        pepper: The current pepper.

    Raises:
        ValueError: The key has not the form that `fixed_key_record` asks for.
    """
    return hash_key(pepper, _checked_token(value, "the administrator's key"))


def _checked_token(value: str, said: str) -> bytes:
    token = value.encode("utf-8", "surrogatepass")
    if not FIXED_KEY_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise ValueError(f"{said} must have {FIXED_KEY_BYTES_MIN} to {TOKEN_BYTES_MAX} characters")
    if not is_sendable(token):
        raise ValueError(f"{said} must be printable ASCII without spaces")
    if looks_like_key(token) and parse_key_id(token) is None:
        raise ValueError(f"{said} has the form of a Fareway key, but its checksum is wrong")
    return token


def _tag(tagging: hashlib.blake2b, shown: bytes) -> bytes:
    """A tag of what a client showed, under the key that `tagging` was made with."""
    made = tagging.copy()
    made.update(shown)
    return made.digest()


def _standing(record: KeyRecord | None, now_us: int) -> Principal | AuthFailure:
    """Whom a found record stands for at an instant, or why for nobody."""
    if record is None:
        return _FAILURES[Refusal.UNKNOWN]
    if record.disabled:
        return _FAILURES[Refusal.DISABLED]
    if record.expires_at_us is not None and record.expires_at_us <= now_us:
        return _FAILURES[Refusal.EXPIRED]
    return Principal(
        key_id=record.key_id,
        team=record.team,
        project=record.project,
        key_name=record.name,
        models=None if record.models is None else frozenset(record.models),
        tags=frozenset(record.tags),
        limits=record.limits,
    )


def _equal(kept: bytes | None, digest: bytes) -> bool:
    return kept is not None and hmac.compare_digest(kept, digest)
