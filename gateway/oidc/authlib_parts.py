"""What is Authlib's of a login, with types, which Authlib has none of."""

from __future__ import annotations

from typing import cast

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import (
    prepare_grant_uri,  # pyright: ignore[reportUnknownVariableType] - Authlib has no types
)
from authlib.oauth2.rfc7636 import (
    create_s256_code_challenge,  # pyright: ignore[reportUnknownVariableType] - Authlib has no types
)


def authorization_url(
    endpoint: str,
    *,
    client_id: str,
    redirect_uri: str,
    scopes: str,
    state: str,
    nonce: str,
    verifier: str,
) -> str:
    """Where to send a browser for a code.

    Args:
        endpoint: The provider's authorization endpoint.
        client_id: Ours.
        redirect_uri: Where the browser comes back to.
        scopes: Separated by spaces.
        state: Comes back with the code.
        nonce: Comes back in the ID token.
        verifier: Of PKCE; only its challenge is in the address.
    """
    return cast(
        "str",
        prepare_grant_uri(
            endpoint,
            client_id=client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope=scopes,
            state=state,
            nonce=nonce,
            code_challenge=cast("str", create_s256_code_challenge(verifier)),
            code_challenge_method="S256",
        ),
    )


def with_client_secret(
    endpoint: str,
    *,
    client_id: str,
    client_secret: str,
    method: str,
    headers: dict[str, str],
    body: str,
) -> tuple[dict[str, str], str]:
    """Headers and body of a call of the token endpoint that shows who the client is.

    Args:
        endpoint: The provider's token endpoint.
        client_id: Ours.
        client_secret: Ours.
        method: `client_secret_basic` or `client_secret_post`.
        headers: Of the call until now.
        body: Of the call until now.
    """
    auth = ClientAuth(client_id, client_secret, method)
    prepared = cast(
        "tuple[str, dict[str, str], str]",
        auth.prepare(  # pyright: ignore[reportUnknownMemberType] - Authlib has no types
            "POST", endpoint, headers, body
        ),
    )
    return prepared[1], prepared[2]
