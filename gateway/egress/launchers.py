"""What stands before a module in a child's command line, so that it begins under the guard."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.settings.egress import EgressSettings

CHILD_MODULE = "gateway.egress.child"

NO_NETWORK = (CHILD_MODULE, "--no-network")
"""For an engine: its model is a file, and its callers come over sockets that it is handed."""


def guarded_pip(egress: EgressSettings | None = None) -> Sequence[str]:
    """For pip: it connects to what it is configured with and to `egress.allow`, and nowhere else.

    Args:
        egress: Of the configuration, None without one.
    """
    given = egress or EgressSettings()
    places = [option for place in given.allow for option in ("--place", place)]
    observing = ["--observe"] if given.mode == "observe" else []
    return (CHILD_MODULE, "--pip", *observing, *places, "pip")
