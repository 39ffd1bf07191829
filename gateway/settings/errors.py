"""What can be wrong with a configuration, said with file, line and key.

SettingsError
  ConfigError      the file is wrong: show every problem, keep the old configuration
  SecretError      a secret that the file points to cannot be read
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to mend in the configuration.

    Attributes:
        file: The file as the operator named it, empty for the built-in defaults.
        line: Counted from 1, None when the problem belongs to no line.
        key_path: The key, for example `providers.groq.kind`; empty for the file as a whole.
        message: One sentence; never a value that could be a secret.
    """

    file: str
    line: int | None
    key_path: str
    message: str

    def __str__(self) -> str:
        """The problem on one line, in the form that editors can jump to."""
        place = self.file or "built-in defaults"
        if self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.key_path, self.message) if part)


class SettingsError(Exception):
    """Root of what this package raises."""


class ConfigError(SettingsError):
    """The configuration cannot be used.

    Attributes:
        problems: Everything that was found, in the order of the files.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Keep the problems; the text of the error lists them, one a line."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class SecretError(SettingsError):
    """A secret is missing, too short, or kept in a place that others can read."""
