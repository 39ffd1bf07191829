"""What the guard of a process raises, as the kinds of error that libraries expect in its place.

EgressRefused        a connection, a look-up or a child process; an OSError
EgressImportRefused  a library that connects past the guard; an ImportError
"""

from __future__ import annotations

import errno


class EgressRefused(PermissionError):
    """The process may not connect there; libraries take it for a network that says no.

    Attributes:
        place: `host:port`, or what else was refused.
        asked_by: The modules that asked.
    """

    def __init__(self, place: str, asked_by: str, reason: str) -> None:
        """Say where, who and what to do."""
        super().__init__(errno.EACCES, f"{place} is refused to {asked_by}: {reason}")
        self.place = place
        self.asked_by = asked_by


class EgressImportRefused(ImportError):
    """The module opens connections with code of its own, which no guard in this process sees."""
