"""An OpenID Connect provider on loopback: honest, or wrong in one way that a test chooses.

Discovery, authorization endpoint, token endpoint and keys over real HTTP; codes are good once, for
the client, the address and the PKCE verifier that they were made for. Tokens are signed with
joserfc. What a test sets in `claims`, `header` or `sign_with` goes into the next ID token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "fareway"
CLIENT_SECRET = "the client's secret: with a colon"


def new_key(key_id: str) -> RSAKey:
    return RSAKey.generate_key(2048, parameters={"kid": key_id, "use": "sig", "alg": "RS256"})


@dataclass(kw_only=True)
class IdentityProvider:
    """What a test looks at and changes."""

    now_s: float
    issuer: str = ""
    keys: list[RSAKey] = field(default_factory=lambda: [new_key("first")])
    claims: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    sign_with: Any = None
    discovery: dict[str, Any] = field(default_factory=dict)
    is_away: bool = False
    key_fetches: int = 0
    discoveries: int = 0
    refused: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def log_in(self, url: str) -> dict[str, str]:
        """Do at the authorization endpoint what a browser and its person do; the callback's query."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{self.issuer}/authorize?")
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return {"code": code, "state": asked["state"]}

    async def discover(self, _request: web.Request) -> web.Response:
        if self.is_away:
            return web.Response(status=503)
        self.discoveries += 1
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        return web.json_response({**document, **self.discovery})

    async def publish(self, _request: web.Request) -> web.Response:
        if self.is_away:
            return web.Response(status=503)
        self.key_fetches += 1
        return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys]})

    async def give_token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        asked = self._codes.pop(form.get("code", ""), None)
        fault = self._fault(request, form, asked)
        if fault or asked is None:
            self.refused.append(fault)
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": "subject-1",
            "nonce": asked["nonce"],
            "iat": int(self.now_s),
            "exp": int(self.now_s) + 300,
            "name": "Anna",
            "groups": ["finance"],
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return web.json_response({"token_type": "Bearer", "id_token": self._sign(claims)})

    def _fault(
        self, request: web.Request, form: dict[str, str], asked: dict[str, str] | None
    ) -> str:
        if asked is None:
            return "the code is void"
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if challenge != asked["code_challenge"]:
            return "the verifier is another one"
        if form.get("redirect_uri") != asked["redirect_uri"]:
            return "the address is another one"
        given = request.headers.get("authorization", "").partition(" ")[2]
        wanted = f"{CLIENT_ID}:{CLIENT_SECRET}"
        decoded = base64.b64decode(given).decode() if given else ""
        return "" if _unquoted(decoded) == wanted else "the client is another one"

    def _sign(self, claims: dict[str, Any]) -> str:
        if self.sign_with == "none":
            return f"{_coded({'alg': 'none', 'typ': 'JWT'})}.{_coded(claims)}."
        if isinstance(self.sign_with, bytes):  # a shared secret, which no library would take
            signed = f"{_coded({'alg': 'HS256', 'kid': self.keys[0].kid})}.{_coded(claims)}"
            mac = hmac.digest(self.sign_with, signed.encode(), "sha256")
            return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        if isinstance(self.sign_with, str):
            return self.sign_with
        key = self.sign_with or self.keys[0]
        header = {"alg": "RS256", "kid": key.kid, **self.header}
        return jwt.encode({k: v for k, v in header.items() if v is not None}, claims, key)


def _coded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def _unquoted(pair: str) -> str:
    """A client's name and secret, which some clients write as forms do and some do not."""
    name, _, secret = pair.partition(":")
    return f"{unquote_plus(name)}:{unquote_plus(secret)}"


@asynccontextmanager
async def identity_provider(*, now_s: float) -> AsyncIterator[IdentityProvider]:
    """Run one on a port of its own."""
    provider = IdentityProvider(now_s=now_s)
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", provider.discover)
    app.router.add_get("/keys", provider.publish)
    app.router.add_post("/token", provider.give_token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    provider.issuer = f"http://127.0.0.1:{port}"
    try:
        yield provider
    finally:
        await runner.cleanup()
