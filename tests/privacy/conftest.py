"""One gateway for all attacks of a file."""

from __future__ import annotations

import socket

import pytest

from tests.privacy.attack_range import Range, attack_range
from tests.privacy.recorders import Names
from tests.privacy.worlds import WORLD


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for all of them."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """One gateway for all of them."""
    async with attack_range(tmp_path_factory.mktemp("range")) as made:
        yield made


@pytest.fixture
async def range_(shared: Range, monkeypatch):
    """A gateway in front of one server of our own, `p0`, and four vendors, with a team that has
    the floor `private`; nobody but 127.0.0.1 has an address."""
    names = Names({})
    monkeypatch.setattr(socket, "getaddrinfo", names)
    await shared.load(WORLD)
    yield shared
    assert shared.touched() <= {"p0"}, "a vendor was reached"
    assert names.asked == [], "a name was looked up"
