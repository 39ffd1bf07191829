"""The name of a spool root, under which a database that several machines share knows it.

Every machine has directories of the same names; what the database keeps about a directory stands
under the node's name. It lies in the spool root itself, so that it goes with what it names: to
another machine when the volume goes there, and away with it. A copy of a spool root beside its
original would be taken for the same.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

FILE = "node"


def load(spool_root: Path) -> str:
    """The prefix of a spool root's directories, `name/`; empty when it has no name yet."""
    path = spool_root / FILE
    return f"{path.read_text().strip()}/" if path.exists() else ""


def make(spool_root: Path) -> str:
    """The same; a name is given when there is none: the host's, for people, and a random part."""
    path = spool_root / FILE
    if not path.exists():
        spool_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        draft = spool_root / f".{name}"
        with draft.open("x") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        # Whole or not at all, and the first one stays.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    return load(spool_root)
