"""TensorZero's gateway: the compiled one that its Python wheel carries, served over HTTP.

The wheel's `patch_openai_client` starts the gateway inside a process on a port of its choosing, so
a small script runs in TensorZero's own environment and writes the base URL into a file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.gateway.cases import MODELS
from bench.gateway.targets import Launch, Place

SERVE = """\
import asyncio, sys
import openai, tensorzero

async def main(configuration, port_file):
    client = openai.AsyncOpenAI(api_key="bench")
    client = await tensorzero.patch_openai_client(
        client, config_file=configuration, clickhouse_url=None, async_setup=True
    )
    with open(port_file, "w") as file:
        file.write(str(client.base_url))
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""

HEAD = """\
[gateway]
observability.enabled = false
[object_storage]
type = "disabled"
"""
MODEL = """
[models."{model}"]
routing = ["mock"]
[models."{model}".providers.mock]
type = "openai"
model_name = "{model}"
api_base = "{upstream}/v1/"
"""


def preparer(path: Path) -> Callable[[Place], Launch]:
    """How TensorZero is started.

    Args:
        path: A virtual environment that has it and the openai package.
    """

    def prepare(place: Place) -> Launch:
        script, configuration, port_file = (
            place.folder / name for name in ("serve.py", "tensorzero.toml", "url")
        )
        script.write_text(SERVE)
        models = [MODEL.format(model=model, upstream=place.mock_url) for model in MODELS]
        configuration.write_text("\n".join([HEAD, *models]))
        return Launch(
            command=(
                str(path / "bin" / "python"),
                str(script),
                str(configuration),
                str(port_file),
            ),
            environment={"OPENAI_API_KEY": "mock"},
            path="/openai/v1/chat/completions",
            model_prefix="tensorzero::model_name::",
            port_file=port_file,
            ready_within_s=60.0,
        )

    return prepare
