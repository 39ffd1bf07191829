"""Which models a key may ask for: literal globs, matched whole, without regular expressions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyScope:
    """What a key (with its team) may ask for.

    Attributes:
        models: Patterns of model, alias and deployment names; None for no restriction, empty for
            nothing at all. `*` stands for any characters, everything else for itself.
    """

    models: tuple[str, ...] | None = None

    def names(self, name: str) -> bool:
        """Whether a pattern matches the name."""
        if self.models is None:
            return True
        # Most are plain names; lists of models ask about each name of the fleet.
        return name.isprintable() and any(
            one == name or ("*" in one and matches_glob(one, name)) for one in self.models
        )

    def spells_out(self, name: str) -> bool:
        """Whether the name itself, not a pattern that happens to cover it, is listed."""
        return "*" not in name and name in (self.models or ())


def matches_glob(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern as a whole, in time linear in the name for each `*`.

    Control characters match nothing, so that a line break cannot end a name early elsewhere.
    """
    if not name.isprintable():
        return False
    first, *others = pattern.split("*")
    if not others:
        return pattern == name
    *middle, last = others
    if not name.startswith(first) or not name.endswith(last):
        return False
    start, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, start, max(start, end))
        if found < 0:
            return False
        start = found + len(piece)
    return start <= end
