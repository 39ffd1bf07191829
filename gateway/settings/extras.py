"""Which optional packages a configuration needs that are not installed."""

from __future__ import annotations

from importlib.util import find_spec

from gateway.settings.errors import Problem
from gateway.settings.loader import LoadedConfig


def missing_extras(loaded: LoadedConfig) -> tuple[Problem, ...]:
    """What to install, a problem for each setting that needs it; nothing is imported."""
    problems: list[Problem] = []
    if loaded.settings.login.oidc is not None and not _has("authlib", "httpx"):
        place = loaded.locate("login", "oidc")
        problems.append(place.problem("needs the extra: pip install 'fareway[oidc]'"))
    return tuple(problems)


def _has(*names: str) -> bool:
    return all(find_spec(name) is not None for name in names)
