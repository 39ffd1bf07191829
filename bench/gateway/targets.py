"""What a target is: a program that forwards chat requests to the mock, and how it is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway.cases import MODELS
from bench.gateway.mock import Mock
from bench.gateway.processes import Running, free_port

KEY = "bench-key-of-twenty-characters"
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a target runs.

    Attributes:
        folder: Its own, empty at first.
        mock_url: Root of its upstream.
        port: A free port.
    """

    folder: Path
    mock_url: str
    port: int

    @classmethod
    def make(cls, folder: Path, mock: Mock) -> Place:
        """A place with a port of its own."""
        return cls(folder=folder, mock_url=mock.url, port=free_port())


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a target is started and reached.

    Attributes:
        command: Program and arguments.
        environment: What is added to this process's environment.
        headers: Of every request.
        path: Of the chat route.
        model_prefix: Put before a model's name.
        port_file: Where the program writes its base URL when it chooses its port itself.
        ready_within_s: Longest time until its first 200.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    path: str = CHAT_PATH
    model_prefix: str = ""
    port_file: Path | None = None
    ready_within_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something to measure.

    Attributes:
        name: What the table calls it.
        about: One line for the documents and the table's legend.
        prepare: Writes its files and says how it is started; None for the upstream itself.
        is_limit: Whether it is there to show what is possible at all, not as a gateway.
        is_fareway: Whether its ledger is held against the mock.
        durability: Fareway's, empty for others.
        cases: Names of the cases that it takes, None for all that are asked for.
    """

    name: str
    about: str
    prepare: Callable[[Place], Launch] | None
    is_limit: bool = False
    is_fareway: bool = False
    durability: str = ""
    cases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A target that runs.

    Attributes:
        target: What it is.
        running: Its process; None for the upstream itself.
        mock: Its upstream.
        launch: How it is reached.
        port: Where it listens.
        folder: Its files.
    """

    target: Target
    running: Running | None
    mock: Mock
    launch: Launch
    port: int
    folder: Path

    @property
    def root_pid(self) -> int:
        """The process whose tree is measured."""
        return self.mock.process.pid if self.running is None else self.running.pid

    @property
    def url(self) -> str:
        """The chat route."""
        return f"http://127.0.0.1:{self.port}{self.launch.path}"

    def model(self, name: str) -> str:
        """What it calls one of the mock's models."""
        return f"{self.launch.model_prefix}{name}"


def models_at(prefix: str = "") -> list[str]:
    """Every model that a target's configuration has to know."""
    return [f"{prefix}{name}" for name in MODELS]


DIRECT = Target(
    name="direct",
    about="the mock upstream itself, on the gateway's core",
    prepare=None,
    is_limit=True,
)


def first_question(model: str) -> bytes:
    """The body with which a target is asked until it answers."""
    return (
        b'{"model":"%s","messages":[{"role":"user","content":"hi"}],"max_tokens":8}'
        % model.encode()
    )
