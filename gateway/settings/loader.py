"""Read the configuration: files to tree, tree to models, models to checked settings.

All problems of all files are reported together. Nothing here looks at the network, and the
environment comes in as a parameter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path

from gateway.settings import merge, nodes, reader, references, validation
from gateway.settings.document import Settings
from gateway.settings.environment import (
    DEVICE_VARIABLE,
    VENDOR_VARIABLES,
    config_path,
    state_dir,
)
from gateway.settings.errors import ConfigError, Problem
from gateway.settings.providers import LocalProvider
from gateway.settings.storage import SQLITE_PREFIX

DEFAULTS_NAME = "built-in defaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """Settings that were checked, and what they were read from.

    Attributes:
        settings: The whole configuration.
        files: The file and those that it includes; empty with the built-in defaults.
        base_dir: Where relative paths begin: the file's folder, or the state directory.
        state_dir: What Fareway keeps on this machine.
        digest: SHA-256 in hex over the settings; equal settings have equal digests, however they
            are written.
        warnings: What is legal but deserves a look.
        tree: The joined files, for `locate`.
    """

    settings: Settings
    files: tuple[Path, ...]
    base_dir: Path
    state_dir: Path
    digest: str
    warnings: tuple[Problem, ...]
    tree: nodes.Mapping

    def resolve(self, path: str) -> Path:
        """Make a path of the settings absolute."""
        return (self.base_dir / Path(path).expanduser()).absolute()

    @property
    def spool_dir(self) -> Path:
        """The journal's folder."""
        return self.resolve(self.settings.storage.spool_dir)

    @property
    def database_url(self) -> str:
        """The database with its path made absolute, without a password."""
        url = self.settings.storage.database
        if not url.startswith(SQLITE_PREFIX):
            return url
        return SQLITE_PREFIX + str(self.resolve(url.removeprefix(SQLITE_PREFIX)))

    def locate(self, *path: str | int) -> nodes.Place:
        """Where a setting stands; the nearest key around it when it is not in the file."""
        return nodes.locate(self.tree, path)


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    folder: Path | None = None,
    today: date | None = None,
) -> LoadedConfig:
    """Load the configuration.

    Args:
        path: The file; None looks for `$FAREWAY_CONFIG`, then `fareway.yaml` in `folder`, and
            falls back to the built-in defaults.
        environ: The environment, as `environment.process_environ()` gives it.
        folder: Where to look; the current folder when None.
        today: For claims that expired; None leaves them unchecked.

    Raises:
        ConfigError: With every problem that was found.
    """
    chosen = path or config_path(environ, folder or Path())
    if chosen is None:
        return _load_defaults(environ, today)
    root, problems = merge.read(chosen)
    base_dir = chosen.absolute().parent
    tree, included, more = merge.with_includes(root, base_dir, own_path=chosen)
    return _checked(
        tree,
        problems=(*problems, *more),
        files=(chosen, *included),
        base_dir=base_dir,
        environ=environ,
        today=today,
    )


def load_text(
    text: str,
    *,
    environ: Mapping[str, str],
    base_dir: Path,
    name: str = "fareway.yaml",
    today: date | None = None,
) -> LoadedConfig:
    """Load a configuration from text, as `load` does from a file.

    Args:
        text: The YAML; globs of `include` begin at `base_dir`.
        environ: The environment.
        base_dir: Where relative paths begin.
        name: The file's name in problems.
        today: For claims that expired.

    Raises:
        ConfigError: With every problem that was found.
    """
    root, problems = reader.parse(text.encode("utf-8", "surrogatepass"), name)
    tree, included, more = merge.with_includes(root, base_dir)
    return _checked(
        tree,
        problems=(*problems, *more),
        files=included,
        base_dir=base_dir,
        environ=environ,
        today=today,
    )


def template(name: str) -> str:
    """The text of a file that is shipped beside this module."""
    return resources.files("gateway.settings").joinpath(name).read_text(encoding="utf-8")


def _load_defaults(environ: Mapping[str, str], today: date | None) -> LoadedConfig:
    loaded = load_text(
        template("default.yaml"),
        environ=environ,
        base_dir=state_dir(environ),
        name=DEFAULTS_NAME,
        today=today,
    )
    found = (
        Problem(
            file="",
            line=None,
            key_path=variable,
            message=f"is set, but providers of kind {kind} are not built yet; it is not used",
        )
        for variable, kind in sorted(VENDOR_VARIABLES.items())
        if environ.get(variable)
    )
    return LoadedConfig(
        settings=loaded.settings,
        files=(),
        base_dir=loaded.base_dir,
        state_dir=loaded.state_dir,
        digest=loaded.digest,
        warnings=(*loaded.warnings, *found),
        tree=loaded.tree,
    )


def _checked(
    tree: nodes.Mapping,
    *,
    problems: tuple[Problem, ...],
    files: tuple[Path, ...],
    base_dir: Path,
    environ: Mapping[str, str],
    today: date | None,
) -> LoadedConfig:
    settings, faults, sound = validation.validate(tree)
    errors, warnings = [*problems, *faults], list[Problem]()
    for finding in references.check(settings, names=_names(tree), today=today):
        problem = nodes.locate(sound, finding.path).problem(finding.message)
        (errors if finding.is_error else warnings).append(problem)
    settings, device_problem = _with_device(settings, environ)
    if device_problem is not None:
        errors.append(device_problem)
    if errors:
        order = {str(path): position for position, path in enumerate(files)}
        raise ConfigError(
            tuple(
                sorted(
                    dict.fromkeys(errors),
                    key=lambda problem: (order.get(problem.file, -1), problem.line or 0),
                )
            )
        )
    return LoadedConfig(
        settings=settings,
        files=files,
        base_dir=base_dir,
        state_dir=state_dir(environ),
        digest=digest(settings),
        warnings=tuple(dict.fromkeys(warnings)),
        tree=tree,
    )


def digest(settings: Settings) -> str:
    """SHA-256 in hex of the settings in canonical form."""
    canonical = json.dumps(
        settings.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _names(tree: nodes.Mapping) -> references.Names:
    return references.Names(
        providers=_keys(tree, "providers"),
        models=_keys(tree, "models"),
        tags=_keys(tree, "privacy", "tags"),
    )


def _keys(tree: nodes.Mapping, *path: str) -> frozenset[str]:
    node: nodes.Node = tree
    for step in path:
        entry = node.entries.get(step) if isinstance(node, nodes.Mapping) else None
        if entry is None:
            return frozenset()
        node = entry.node
    return frozenset(node.entries) if isinstance(node, nodes.Mapping) else frozenset()


def _with_device(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, Problem | None]:
    """Let `FAREWAY_DEVICE` decide for providers whose device is `auto`."""
    device = environ.get(DEVICE_VARIABLE) or "auto"
    if device not in ("auto", "cpu", "cuda"):
        message = f"must be auto, cpu or cuda{validation.hint(device, ('auto', 'cpu', 'cuda'))}"
        return settings, Problem(file="", line=None, key_path=DEVICE_VARIABLE, message=message)
    if device == "auto":
        return settings, None
    providers = {
        name: provider.model_copy(update={"device": device})
        if isinstance(provider, LocalProvider) and provider.device == "auto"
        else provider
        for name, provider in settings.providers.items()
    }
    return settings.model_copy(update={"providers": providers}), None
