"""LiteLLM's proxy: a master key, no database, no retries, no cost map from the network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bench.gateway.cases import MODELS
from bench.gateway.targets import KEY, Launch, Place

MASTER_KEY = f"sk-{KEY}"
"""LiteLLM takes no other form."""

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "HF_HUB_OFFLINE": "1",
}


def preparer(path: Path) -> Callable[[Place], Launch]:
    """How LiteLLM is started.

    Args:
        path: A virtual environment that has it, or its program.
    """
    program = path / "bin" / "litellm" if path.is_dir() else path

    def prepare(place: Place) -> Launch:
        file = place.folder / "litellm.yaml"
        # JSON is YAML.
        file.write_text(json.dumps(_configuration(place)))
        return Launch(
            command=(
                str(program),
                "--config",
                str(file),
                "--host",
                "127.0.0.1",
                "--port",
                str(place.port),
                "--num_workers",
                "1",
            ),
            environment=ENVIRONMENT,
            headers={"Authorization": f"Bearer {MASTER_KEY}"},
            ready_within_s=180.0,
        )

    return prepare


def _configuration(place: Place) -> dict[str, object]:
    return {
        "model_list": [
            {
                "model_name": model,
                "litellm_params": {
                    "model": f"openai/{model}",
                    "api_base": f"{place.mock_url}/v1",
                    "api_key": "mock",
                },
            }
            for model in MODELS
        ],
        "litellm_settings": {"num_retries": 0, "request_timeout": 60},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": MASTER_KEY},
    }
