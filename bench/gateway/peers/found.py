"""Which peers are there: given by name and path, found in the cache folder or on the `PATH`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.compiled import cache_folder
from bench.gateway.faults import BenchFault
from bench.gateway.peers import litellm, nginx, portkey, tensorzero
from bench.gateway.targets import KEY, Launch, Place, Target

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A gateway that may be installed.

    Attributes:
        name: What the user and the table call it.
        about: One line.
        program: Looked for on the `PATH` when no path is given, empty for none.
        makes: From the path to what prepares it.
        is_limit: Whether it is a plain proxy.
    """

    name: str
    about: str
    makes: Callable[[Path], Callable[[Place], Launch]]
    program: str = ""
    is_limit: bool = False

    def at(self, path: Path) -> Target:
        """The peer as a target."""
        return Target(
            name=self.name,
            about=self.about,
            prepare=self.makes(path),
            is_limit=self.is_limit,
        )


PEERS: tuple[Peer, ...] = (
    Peer(
        name="nginx",
        about="nginx as a plain proxy, no key, no policy: the limit",
        makes=nginx.preparer,
        program="nginx",
        is_limit=True,
    ),
    Peer(
        name="litellm",
        about="LiteLLM's proxy with a master key, no database",
        makes=litellm.preparer,
    ),
    Peer(
        name="portkey",
        about="Portkey's gateway on Node, no key check",
        makes=portkey.preparer,
    ),
    Peer(
        name="tensorzero",
        about="TensorZero's gateway (Rust), observability off, no key check",
        makes=tensorzero.preparer,
    ),
)
NAMES = tuple(peer.name for peer in PEERS)

SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"


def least() -> Target:
    """The building block; it is always there."""

    def prepare(place: Place) -> Launch:
        return Launch(
            command=(
                sys.executable,
                "-m",
                "bench.gateway.least_gateway",
                place.mock_url,
                str(place.port),
                KEY,
            ),
            environment={"PYTHONPATH": str(REPOSITORY)},
            headers={"Authorization": f"Bearer {KEY}"},
        )

    return Target(
        name="least",
        about="uvicorn and aiohttp with a key check, nothing else: the floor of the same parts",
        prepare=prepare,
    )


def find(given: Mapping[str, Path], *, folder: Path | None = None) -> list[Target]:
    """The peers that are there, in the order of the table.

    Args:
        given: Path by name: a virtual environment, a folder with `node_modules`, a program.
        folder: Where a peer of each name is looked for otherwise; the cache folder when None.

    Raises:
        BenchFault: A name is none of ours, or nothing is at a given path.
    """
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise BenchFault(f"there is no peer {unknown[0]!r}; known are {', '.join(NAMES)}")
    missing = [f"{name} at {path}" for name, path in given.items() if not path.exists()]
    if missing:
        raise BenchFault(f"nothing is there: {', '.join(missing)}")
    base = folder or cache_folder() / "peers"
    found: list[Target] = []
    for peer in PEERS:
        path = given.get(peer.name) or _beside(peer, base)
        if path is not None:
            found.append(peer.at(path.absolute()))
    return found


def _beside(peer: Peer, base: Path) -> Path | None:
    if (base / peer.name).exists():
        return base / peer.name
    if not peer.program:
        return None
    program = shutil.which(peer.program) or shutil.which(peer.program, path=SYSTEM_FOLDERS)
    return None if program is None else Path(program)
