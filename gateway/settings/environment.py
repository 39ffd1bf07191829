"""The process environment: the only place that reads it (style 7)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

CONFIG_VARIABLE = "FAREWAY_CONFIG"
DEFAULT_CONFIG = "fareway.yaml"
STATE_VARIABLE = "FAREWAY_STATE_DIR"
DEVICE_VARIABLE = "FAREWAY_DEVICE"

VENDOR_VARIABLES: Mapping[str, str] = {
    "ANTHROPIC_API_KEY": "anthropic",
    "AWS_ACCESS_KEY_ID": "bedrock",
    "AWS_BEARER_TOKEN_BEDROCK": "bedrock",
    "AWS_PROFILE": "bedrock",
    "AZURE_AI_API_KEY": "azure",
    "AZURE_AI_ENDPOINT": "azure",
    "CEREBRAS_API_KEY": "cerebras",
    "FIREWORKS_API_KEY": "fireworks",
    "GROQ_API_KEY": "groq",
    "OPENAI_API_KEY": "openai",
    "OPENROUTER_API_KEY": "openrouter",
    "REPLICATE_API_TOKEN": "replicate",
    "TOGETHER_API_KEY": "together",
}
"""Variables by which vendors' own tools are set up, and the kind of provider each stands for."""


def process_environ() -> Mapping[str, str]:
    """The environment that this process was started with, live."""
    return os.environ  # noqa: TID251 - this module is the one reader


def state_dir(environ: Mapping[str, str]) -> Path:
    """The folder for what Fareway keeps on this machine; it may not exist yet."""
    given = environ.get(STATE_VARIABLE)
    if given:
        return Path(given).absolute()
    return platformdirs.user_data_path("fareway", appauthor=False)


def config_path(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The file that is read when the caller names none.

    Args:
        environ: `FAREWAY_CONFIG` names the file, whether or not it exists.
        folder: Where `fareway.yaml` is looked for otherwise.

    Returns:
        The path, None when there is no file and the built-in defaults apply.
    """
    given = environ.get(CONFIG_VARIABLE)
    if given:
        return Path(given)
    path = folder / DEFAULT_CONFIG
    return path if path.is_file() else None
