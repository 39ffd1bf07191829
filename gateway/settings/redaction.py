"""The settings as they may be shown.

Secrets are never in the file, so the settings hold only names of variables, files and store
entries. What remains to be hidden is the user name in a database or Redis address.
"""

from __future__ import annotations

import re

from gateway.settings.document import Settings

_USER_IN_URL = re.compile(r"(?<=://)[^/@]*@")


def shown(settings: Settings) -> dict[str, object]:
    """The settings as plain JSON values, defaults included; amounts are decimal strings."""
    storage = settings.storage
    hidden = storage.model_copy(
        update={
            "database": _without_user(storage.database),
            "redis": None if storage.redis is None else _without_user(storage.redis),
        }
    )
    return settings.model_copy(update={"storage": hidden}).model_dump(mode="json")


def _without_user(address: str) -> str:
    return _USER_IN_URL.sub("***@", address)
