"""The configuration on its way from the supervisor to a worker.

Workers do not read the files again: a file that was edited, well or badly, since the supervisor
read it must neither stop a worker that is started anew nor give it other rules than its siblings.
"""

from __future__ import annotations

from pathlib import Path

from gateway.process.messages import ConfigSnapshot
from gateway.settings import nodes
from gateway.settings.document import Settings
from gateway.settings.loader import DEFAULTS_NAME, LoadedConfig, digest


class SnapshotMismatch(Exception):
    """The settings arrived as something else than was sent."""


def take(config: LoadedConfig) -> ConfigSnapshot:
    """Pack a configuration."""
    return ConfigSnapshot(
        settings_json=config.settings.model_dump_json().encode(),
        digest=config.digest,
        name=str(config.files[0]) if config.files else DEFAULTS_NAME,
        base_dir=str(config.base_dir),
        state_dir=str(config.state_dir),
    )


def restore(snapshot: ConfigSnapshot) -> LoadedConfig:
    """Unpack it; it knows no lines any more, and its warnings have been shown.

    Raises:
        SnapshotMismatch: Its digest is another one.
    """
    settings = Settings.model_validate_json(snapshot.settings_json)
    if digest(settings) != snapshot.digest:
        raise SnapshotMismatch("the settings do not have the digest that they were sent with")
    return LoadedConfig(
        settings=settings,
        files=(),
        base_dir=Path(snapshot.base_dir),
        state_dir=Path(snapshot.state_dir),
        digest=snapshot.digest,
        warnings=(),
        tree=nodes.Mapping(entries={}, file=snapshot.name, line=1),
    )
