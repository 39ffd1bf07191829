"""From descriptions to providers; a compatible vendor is one row."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from providers.compatible import OpenAiCompatibleProvider, Row, load_catalog
from providers.native.local import LocalProvider
from providers.registry import (
    CompatibleDescription,
    LocalDescription,
    build_providers,
    close_all,
)
from tests.providers.compatible_harness import call, chat
from tests.support.scripted_upstream import Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio


def now() -> datetime:
    return datetime(2026, 11, 30, tzinfo=UTC)


def rows(tmp_path: Path, extra: str) -> dict[str, Row]:
    shipped = Path(load_catalog.__code__.co_filename).with_name("catalog.toml").read_text()
    path = tmp_path / "catalog.toml"
    path.write_text(shipped + extra)
    return dict(load_catalog(path))


async def test_providers_are_built_by_kind() -> None:
    found = build_providers(
        [
            CompatibleDescription(name="a", base_url="http://h/v1"),
            LocalDescription(name="local", links={}),
        ],
        clock=now,
    )
    assert {name: type(provider) for name, provider in found.items()} == {
        "a": OpenAiCompatibleProvider,
        "local": LocalProvider,
    }
    assert [provider.name for provider in found.values()] == ["a", "local"]
    await close_all(found.values())


async def test_a_vendor_is_one_row(tmp_path: Path) -> None:
    async with ScriptedUpstream({"m": [Chat(text="ok")]}) as upstream:
        row = f'\n[acme]\nbase_url = "{upstream.base_url}"\nauth_header = "api-key"\nauth_prefix = ""\nasks_for_usage = false\nrenames = {{ max_completion_tokens = "max_tokens" }}\nunsupported = {{ logit_bias = "not offered" }}\n'
        [provider] = build_providers(
            [CompatibleDescription(name="acme", kind="acme", api_key="k1")],
            clock=now,
            catalog=rows(tmp_path, row),
        ).values()
        outcome = await call(provider, chat(max_completion_tokens="9"))
        await provider.close()
    assert outcome.error is None
    assert outcome.facts.adapted == ["max_completion_tokens->max_tokens"]
    [received] = upstream.requests
    assert received.headers["api-key"] == "k1"
    assert received.json() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "stream": True,
    }
    assert provider.capabilities("m").unsupported == {"logit_bias": "not offered"}


def test_every_problem_is_reported() -> None:
    descriptions = [
        CompatibleDescription(name="a", base_url="http://h/v1"),
        CompatibleDescription(name="a", base_url="http://h/v1"),
        CompatibleDescription(name="b"),
        CompatibleDescription(name="c", kind="nobody", base_url="http://h/v1"),
        CompatibleDescription(name="d", base_url="ftp://h/v1"),
    ]
    with pytest.raises(ValueError) as caught:
        build_providers(descriptions, clock=now)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["a", "b", "c", "d"]


def test_a_key_of_a_row_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(msgspec.ValidationError, match="auth_heder"):
        rows(tmp_path, '\n[acme]\nauth_heder = "x"\n')


def test_keys_do_not_show() -> None:
    description = CompatibleDescription(
        name="a", base_url="http://h/v1", api_key="sk-1", extra_headers={"x": "sk-2"}
    )
    assert "sk-" not in repr(description)


class _Broken(LocalProvider):
    async def close(self) -> None:
        raise RuntimeError("no")


async def test_one_provider_that_cannot_close_does_not_keep_the_others_open() -> None:
    closed: list[str] = []

    class _Noting(LocalProvider):
        async def close(self) -> None:
            closed.append(self.name)

    with pytest.raises(ExceptionGroup) as caught:
        await close_all([_Broken("a", {}), _Noting("b", {})])
    assert (closed, len(caught.value.exceptions)) == (["b"], 1)
