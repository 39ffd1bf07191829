"""Load configuration text in tests, and read the problems of what is wrong with it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from textwrap import dedent

from gateway.settings.errors import ConfigError
from gateway.settings.loader import LoadedConfig, load_text

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "fareway.example.yaml"


def load_settings(text: str, *, today: date | None = None, base_dir: Path = Path("/nowhere")):
    """Load text whose indentation is that of the test around it."""
    return load_text(dedent(text), environ={}, base_dir=base_dir, name="f.yaml", today=today)


def problems_of(text: str) -> list[str]:
    """The problems of text that is wrong, each as one line; empty when nothing is."""
    try:
        load_settings(text)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def warnings_of(loaded: LoadedConfig) -> list[str]:
    """The warnings, each as one line."""
    return [str(problem) for problem in loaded.warnings]
