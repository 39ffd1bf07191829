"""The connection to Redis, by redis-py; imported only where `storage.redis` is set."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from gateway.limits import scripts
from gateway.limits.shared import CONNECT_S, ScriptCall, Unreachable, digest_of

CLOSE_S: Final = 0.5
LIMITS: Final = (scripts.TAKE, scripts.GIVE, scripts.BEAT)
_FAULTS = (RedisError, OSError, TimeoutError, EOFError)
_BAD_URL = (ValueError, TypeError)
"""What the library says to parameters of a URL that it does not know, or not so."""


class RedisLink:
    """One connection that knows our scripts.

    Args:
        client: Its client.
        digests: By script, for each that may be run.
    """

    def __init__(self, client: Redis, digests: Mapping[str, str]) -> None:
        self._client = client
        self._digests = digests

    @classmethod
    async def connect(
        cls, url: str, password: str | None, known: Sequence[str] = LIMITS
    ) -> RedisLink:
        """Connect, authenticate and hand the scripts over.

        Args:
            url: `redis://` or `rediss://`, without a password.
            password: The password, None for none.
            known: The scripts that may be run.

        Raises:
            Unreachable: None of that within a second, or Redis refused.
        """
        try:
            client = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # untyped options
                url,
                password=password,
                single_connection_client=True,
                socket_connect_timeout=CONNECT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except _BAD_URL as error:
            raise _unreachable(error) from error
        made = cls(client, {script: digest_of(script) for script in known})
        try:
            async with asyncio.timeout(CONNECT_S):
                await made._load()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await made.close()
            if isinstance(error, (*_FAULTS, *_BAD_URL)):
                raise _unreachable(error) from error
            raise
        return made

    async def run(self, calls: Sequence[ScriptCall]) -> Sequence[Sequence[int] | int]:
        """Run scripts in order and return their answers.

        Raises:
            Unreachable: It did not answer, or refused.
        """
        try:
            answers = await self._send(calls)
            lost = [place for place, one in enumerate(answers) if isinstance(one, NoScriptError)]
            if lost:  # somebody emptied its memory of scripts; nothing of these was run
                await self._load()
                again = await self._send([calls[place] for place in lost])
                for place, answer in zip(lost, again, strict=True):
                    answers[place] = answer
        except _FAULTS as error:
            raise _unreachable(error) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise _unreachable(answer) from answer
        return answers

    async def close(self) -> None:
        """Close the connection; never raises and never waits long."""
        with contextlib.suppress(*_FAULTS), anyio.move_on_after(CLOSE_S):
            await self._client.aclose()

    async def _load(self) -> None:
        for script in self._digests:
            await self._client.script_load(script)

    async def _send(self, calls: Sequence[ScriptCall]) -> list[Sequence[int] | int]:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.evalsha(
                self._digests[call.script], len(call.keys), *call.keys, *map(str, call.arguments)
            )
        return await pipeline.execute(raise_on_error=False)


def _unreachable(error: BaseException) -> Unreachable:
    """Say what happened; servers and the library name no password in their errors."""
    words = str(error).strip().partition("\n")[0][:200]
    return Unreachable(f"{type(error).__name__}: {words}" if words else type(error).__name__)
