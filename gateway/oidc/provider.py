"""The identity provider over HTTP: discovery, keys, and a code for an ID token.

What goes out goes to the issuer's own host, or to one that the operator named beside it, without
redirects or proxies, within few seconds, and what comes back is bounded. Discovery and keys are
kept for a while; a key that is not among them has them fetched again, not more often than every ten
seconds. Only asymmetric signatures count, made by a key that the provider publishes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import httpx
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from gateway.oidc.authlib_parts import authorization_url, with_client_secret
from gateway.oidc.faults import OidcFault, not_trusted, unreachable
from gateway.oidc.identity import Claims
from gateway.settings.login import OidcSettings, is_loopback

T = TypeVar("T")

logger = logging.getLogger(__name__)

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures that count: no `none`, and none whose key the other side knows too."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
METADATA_S = 3600.0
KEYS_S = 900.0
STALE_S = 6 * 3600.0
"""How long what was fetched goes on to count while the provider does not answer."""
REFETCH_S = 10.0
TIMEOUT_S = 5.0
TOTAL_S = 10.0
DOCUMENT_BYTES_MAX = 256 * 1024
KEYS_MAX = 64
RSA_BITS_MIN = 2048
CALLS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What discovery said.

    Attributes:
        authorization_endpoint: Where browsers go.
        token_endpoint: Where codes become tokens.
        jwks_uri: Where the keys are.
        auth_method: How the client shows who it is.
        names_issuer: Whether answers say which provider they are from.
    """

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    auth_method: str
    names_issuer: bool


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    """Something fetched."""

    value: T
    at_s: float


class HttpProvider:
    """One provider; `gateway.oidc.flow.Provider`.

    Args:
        settings: The operator's.
        client_secret: Empty for a public client.
        redirect_uri: Where it sends browsers back.
        monotonic_s: For ages.
    """

    def __init__(
        self,
        settings: OidcSettings,
        *,
        client_secret: str,
        redirect_uri: str,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._client_secret = client_secret
        self._redirect_uri = redirect_uri
        self._monotonic_s = monotonic_s
        self._hosts = frozenset({_host(settings.issuer), *settings.hosts})
        self._metadata: _Kept[Metadata] | None = None
        self._keys: _Kept[Sequence[_Key]] | None = None
        self._tried_s: dict[str, float] = {}
        self._lock: anyio.Lock | None = None
        self._calls: anyio.CapacityLimiter | None = None

    def __repr__(self) -> str:
        return f"HttpProvider({self._settings.issuer!r})"

    async def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where to send the browser.

        Raises:
            OidcFault: The provider does not answer.
        """
        metadata = await self._get_metadata()
        return authorization_url(
            metadata.authorization_endpoint,
            client_id=self._settings.client_id,
            redirect_uri=self._redirect_uri,
            scopes=" ".join(self._settings.scopes),
            state=state,
            nonce=nonce,
            verifier=verifier,
        )

    async def names_issuer_in_answers(self) -> bool:
        """Whether its answers say which provider they are from (RFC 9207)."""
        return (await self._get_metadata()).names_issuer

    async def claims(self, *, code: str, verifier: str) -> Claims:
        """The claims of the ID token for a code, its signature checked and nothing else.

        Raises:
            OidcFault: The code is void, or the token is not signed by the provider.
        """
        metadata = await self._get_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
            "client_id": self._settings.client_id,
        }
        body = str(httpx.QueryParams(form))
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        if self._client_secret:
            headers, body = with_client_secret(
                metadata.token_endpoint,
                client_id=self._settings.client_id,
                client_secret=self._client_secret,
                method=metadata.auth_method,
                headers=headers,
                body=body,
            )
        answer = await self._fetch("POST", metadata.token_endpoint, headers=headers, body=body)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise unreachable("no_id_token")
        return await self._verified(token)

    async def _verified(self, token: str) -> Claims:
        try:
            header = jws.extract_compact(token.encode("ascii")).headers()
        except (JoseError, ValueError, UnicodeEncodeError) as error:
            raise not_trusted("malformed_token") from error
        if header.get("alg") not in ALGORITHMS:
            raise not_trusted("wrong_algorithm")
        keys = await self._get_keys()
        found = _fitting(keys, header)
        if not found:
            found = _fitting(await self._get_keys(is_known_old=True), header)
        for key in found:
            try:
                signed = jws.deserialize_compact(token, key.key, algorithms=list(ALGORITHMS))
            except (JoseError, ValueError):
                continue
            payload = signed.payload
            return _object(payload or b"", "malformed_token")
        raise not_trusted("wrong_signature" if found else "unknown_key")

    async def _get_metadata(self) -> Metadata:
        async with self._one_at_a_time():
            kept = self._metadata
            if kept is not None and self._monotonic_s() - kept.at_s < METADATA_S:
                return kept.value
            try:
                url = self._settings.issuer.rstrip("/") + DISCOVERY_PATH
                value = self._read_metadata(await self._fetch_now_and_then(url))
            except OidcFault:
                if kept is not None and self._monotonic_s() - kept.at_s < STALE_S:
                    return kept.value
                raise
            self._metadata = _Kept(value, self._monotonic_s())
            return value

    async def _get_keys(self, *, is_known_old: bool = False) -> Sequence[_Key]:
        """The provider's keys.

        Args:
            is_known_old: Whether a token names a key that is not among those that are kept.
        """
        metadata = await self._get_metadata()
        async with self._one_at_a_time():
            kept, now_s = self._keys, self._monotonic_s()
            if kept is not None and now_s - kept.at_s < (REFETCH_S if is_known_old else KEYS_S):
                return kept.value
            try:
                value = _read_keys(await self._fetch_now_and_then(metadata.jwks_uri))
            except OidcFault:
                if kept is not None and now_s - kept.at_s < STALE_S:
                    return kept.value
                raise
            self._keys = _Kept(value, now_s)
            return value

    async def _fetch_now_and_then(self, url: str) -> Mapping[str, object]:
        """A document that failed a moment ago is not asked for again at once."""
        tried_s = self._tried_s.get(url)
        if tried_s is not None and self._monotonic_s() - tried_s < REFETCH_S / 2:
            raise unreachable("provider_away")
        try:
            document = await self._fetch("GET", url, headers={"accept": "application/json"})
        except OidcFault:
            self._tried_s[url] = self._monotonic_s()
            raise
        self._tried_s.pop(url, None)
        return document

    async def _fetch(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None
    ) -> Mapping[str, object]:
        """One call; its answer is a JSON object of a bounded size.

        Raises:
            OidcFault: There is no such answer, or the address is none to go to.
        """
        self._check_address(url)
        if self._calls is None:
            self._calls = anyio.CapacityLimiter(CALLS_MAX)
        content = b""
        try:
            with anyio.fail_after(TOTAL_S):
                async with (
                    self._calls,
                    httpx.AsyncClient(
                        timeout=TIMEOUT_S, trust_env=False, follow_redirects=False
                    ) as client,
                    client.stream(method, url, headers=dict(headers), content=body) as answer,
                ):
                    async for chunk in answer.aiter_bytes():
                        content += chunk
                        if len(content) > DOCUMENT_BYTES_MAX:
                            raise unreachable("answer_too_large")
                    status = answer.status_code
        except (httpx.HTTPError, TimeoutError) as error:
            logger.warning("the identity provider: %s", type(error).__name__)
            raise unreachable("provider_away") from error
        if method == "POST" and status in (400, 401, 403):
            raise not_trusted("code_refused")
        if status != 200:
            logger.warning("the identity provider answered with status %d", status)
            raise unreachable("provider_status")
        return _object(content, "provider_answer")

    def _read_metadata(self, document: Mapping[str, object]) -> Metadata:
        if document.get("issuer") != self._settings.issuer:
            raise unreachable("wrong_issuer")
        places = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        found = [document.get(name) for name in places]
        for url in found:
            if not isinstance(url, str):
                raise unreachable("bad_discovery")
            self._check_address(url)
        authorization_endpoint, token_endpoint, jwks_uri = cast("list[str]", found)
        methods = document.get("token_endpoint_auth_methods_supported")
        takes_basic = not isinstance(methods, list) or "client_secret_basic" in methods
        return Metadata(
            authorization_endpoint=authorization_endpoint,
            token_endpoint=token_endpoint,
            jwks_uri=jwks_uri,
            auth_method="client_secret_basic" if takes_basic else "client_secret_post",
            names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        )

    def _check_address(self, url: str) -> None:
        """Refuse every host but the provider's."""
        host = _host(url)
        scheme = url.partition(":")[0]
        if scheme != "https" and not (scheme == "http" and is_loopback(host)):
            raise unreachable("address_in_the_clear")
        if host not in self._hosts:
            logger.warning(
                "the identity provider's discovery names %r, which is neither the issuer's host nor"
                " in login.oidc.hosts",
                host[:253],
            )
            raise unreachable("foreign_host")

    def _one_at_a_time(self) -> anyio.Lock:
        if self._lock is None:
            self._lock = anyio.Lock()
        return self._lock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A public key of the provider's."""

    key: RSAKey | ECKey | OKPKey
    key_id: str
    algorithm: str


def _read_keys(document: Mapping[str, object]) -> Sequence[_Key]:
    """The public keys for signatures; what is none of these is left out."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise unreachable("bad_keys")
    found: list[_Key] = []
    for entry in cast("list[object]", listed)[:KEYS_MAX]:
        if not isinstance(entry, dict):
            continue
        described = cast("dict[str, Any]", entry)
        if described.get("kty") not in ("RSA", "EC", "OKP") or described.get("use") == "enc":
            continue
        try:
            key = JWKRegistry.import_key(described)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(key, RSAKey | ECKey | OKPKey) or not _is_strong(key):
            continue
        found.append(
            _Key(
                key=key,
                key_id=str(cast("object", described.get("kid", ""))),
                algorithm=str(cast("object", described.get("alg", ""))),
            )
        )
    return found


def _is_strong(key: RSAKey | ECKey | OKPKey) -> bool:
    return not isinstance(key, RSAKey) or key.public_key.key_size >= RSA_BITS_MIN


def _fitting(keys: Sequence[_Key], header: Mapping[str, object]) -> Sequence[_Key]:
    """The keys that a token's header may mean; the one it names, where it names one."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    return [
        key
        for key in keys
        if (key_id is None or key.key_id == key_id) and key.algorithm in ("", algorithm)
    ]


def _object(content: bytes, reason: str) -> Mapping[str, object]:
    try:
        document = cast("object", json.loads(content))
    except (ValueError, RecursionError) as error:
        raise unreachable(reason) from error
    if not isinstance(document, dict):
        raise unreachable(reason)
    return cast("Mapping[str, object]", document)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
