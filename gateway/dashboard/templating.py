"""The environment of all templates: escaped, strict, compiled from the package."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

_PACKAGE = "gateway.dashboard"


def make_templates() -> Environment:
    """Every template of the dashboard, compiled when it is first asked for."""
    templates = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters["shown"] = _shown
    return templates


def _shown(name: str) -> str:
    """A name that cannot disturb the page's text: control characters stand out."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
