"""Posting a signed document to a webhook, once."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import msgspec

from gateway.budgets.messages import AlertWebhook
from gateway.budgets.signatures import signed_headers

POST_S = 10.0
_FAILURE_CHARACTERS_MAX = 200


async def post_signed(
    session: aiohttp.ClientSession,
    webhook: AlertWebhook,
    *,
    message_id: str,
    document: Mapping[str, object],
    timestamp_s: int,
) -> str:
    """Post a document with its id; why it was not taken, empty when it was.

    Args:
        session: With a time limit.
        webhook: Where to.
        message_id: The same for each try.
        document: What is posted, as JSON.
        timestamp_s: Whole seconds since the epoch.
    """
    body = msgspec.json.encode({"id": message_id, **document})
    headers = signed_headers(
        webhook.secret, alert_id=message_id, timestamp_s=timestamp_s, body=body
    )
    try:
        # A redirect would take the document to an address that nobody has configured.
        async with session.post(
            webhook.url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            is_taken = 200 <= answer.status < 300
            return "" if is_taken else f"it answered {answer.status}"
    except aiohttp.ClientResponseError as error:  # its text has the URL, which may be a secret
        return f"it answered no HTTP: {error.message!r}"[:_FAILURE_CHARACTERS_MAX]
    # A host such as `a..b`, which cannot be looked up, is a UnicodeError.
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
        return f"{type(error).__name__}: {error}"[:_FAILURE_CHARACTERS_MAX]
