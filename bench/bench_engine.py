"""The embedded engine beside transformers on the same file and machine, in the same run.

    .venv/bin/python -m bench.bench_engine [--dtype float32|bfloat16] [--rounds N] [--json FILE]

decode N    tokens per second of N sequences that decode together, sampling included
ttft        seconds from a prompt of 500 tokens to its first token

Both sides compute greedily, in the same number format and with the same number of threads, and take
turns round by round, so that other work on the machine meets both; medians are compared. A ratio
above 1 means that the engine is faster. Transformers decodes with its own cache and no scheduler.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from local_engine.engine import Engine, Job
from local_engine.loading import load_model
from local_engine.model_store import DEFAULT_SOURCE, ModelStore, default_root
from local_engine.prefix_cache import ChainHasher
from local_engine.protocol import Done, EngineConfig
from local_engine.sampling import SamplingParameters
from local_engine.scheduler import SchedulerLimits

BATCHES = (1, 4, 8)
PROMPT_TOKENS = 16
LONG_PROMPT_TOKENS = 500


class Ours:
    """The engine's core on the real runner, without process and sockets."""

    def __init__(self, path: Path, dtype: str) -> None:
        # Before torch is imported: this sets how its threads wait, on both sides.
        model = load_model(
            EngineConfig(
                model_id="bench",
                path=str(path),
                namespace_key=b"k" * 32,
                device="cpu",
                dtype=dtype,
                kv_memory_bytes=256 << 20,
                max_model_len=1024,
            )
        )
        self._engine = Engine(
            model.runner,
            token_bytes=model.tokenizer.token_bytes,
            limits=SchedulerLimits(is_caching=False),
            hasher=ChainHasher(b"k" * 32, model_identity=b"bench"),
            clock_ns=time.monotonic_ns,
        )
        self._n_jobs = 0

    def decode_s(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Seconds that the tokens after the first take."""
        for prompt in prompts:
            self._submit(prompt, new_tokens + 1)
        self._engine.step()
        started = time.perf_counter()
        self._drain(len(prompts))
        return time.perf_counter() - started

    def ttft_s(self, prompt: list[int]) -> float:
        """Seconds to the first token."""
        started = time.perf_counter()
        self._submit(prompt, 1)
        self._drain(1)
        return time.perf_counter() - started

    def _submit(self, prompt: list[int], output_tokens: int) -> None:
        self._n_jobs += 1
        self._engine.submit(
            Job(
                key=self._n_jobs,
                request_id=str(self._n_jobs),
                namespace=b"bench",
                prompt=prompt,
                output_tokens_max=output_tokens,
                sampling=SamplingParameters(seed=0, temperature=0.0, end_ids=frozenset()),
                end_ids=frozenset(),
                stops=(),
                received_ns=time.monotonic_ns(),
            )
        )

    def _drain(self, n_jobs: int) -> None:
        while n_jobs:
            self._engine.step()
            n_jobs -= sum(isinstance(each.message, Done) for each in self._engine.take_outputs())


class Theirs:
    """Transformers' model with the weights of the same file."""

    def __init__(self, path: Path, dtype: str) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        facts = load_gguf_checkpoint(str(path), return_tensors=False)["config"]
        config = AutoConfig.for_model(**facts)
        model = AutoModelForCausalLM.from_config(config).eval()
        tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
        model.load_state_dict(
            {name: torch.as_tensor(values) for name, values in tensors["tensors"].items()},
            strict=False,
        )
        model.tie_weights()
        self._model: Any = model.to(getattr(torch, dtype))
        self._torch = torch

    def decode_s(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Seconds that the tokens after the first take."""
        with self._torch.inference_mode():
            answer = self._model(self._torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            started = time.perf_counter()
            for _ in range(new_tokens):
                tokens = answer.logits[:, -1].argmax(-1, keepdim=True)
                answer = self._model(tokens, cache=answer.cache, use_cache=True, logits_to_keep=1)
            answer.logits[:, -1].argmax(-1)
            return time.perf_counter() - started

    def ttft_s(self, prompt: list[int]) -> float:
        """Seconds to the first token."""
        started = time.perf_counter()
        with self._torch.inference_mode():
            tokens = self._torch.tensor([prompt])
            self._model(tokens, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
        return time.perf_counter() - started


def compare(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median seconds per side; one round warms up."""
    seconds: dict[str, list[float]] = {side: [] for side in measures}
    for number in range(rounds + 1):
        for side, measure in measures.items():
            took_s = measure()
            if number:
                seconds[side].append(took_s)
    return {side: statistics.median(values) for side, values in seconds.items()}


def run(dtype: str, *, rounds: int, new_tokens: int) -> dict[str, Any]:
    """Measure everything, and print each line when it is known."""
    path = ModelStore(default_root()).pull(DEFAULT_SOURCE, on_progress=lambda *_: None).path
    ours, theirs = Ours(path, dtype), Theirs(path, dtype)
    rng = random.Random(1)
    found: dict[str, Any] = {}

    def prompt(n_tokens: int) -> list[int]:
        return [rng.randrange(100, 40_000) for _ in range(n_tokens)]

    for batch in BATCHES:
        prompts = [prompt(PROMPT_TOKENS) for _ in range(batch)]
        took = compare(
            {
                "ours": lambda prompts=prompts: ours.decode_s(prompts, new_tokens),
                "theirs": lambda prompts=prompts: theirs.decode_s(prompts, new_tokens),
            },
            rounds,
        )
        tps = {side: batch * new_tokens / took_s for side, took_s in took.items()}
        found[f"decode {batch}"] = {**tps, "ratio": tps["ours"] / tps["theirs"]}
        print(f"decode {batch:<3} {tps['ours']:8.1f} tokens/s, transformers {tps['theirs']:8.1f}, "
              f"ratio {found[f'decode {batch}']['ratio']:.2f}", flush=True)  # fmt: skip
    long = prompt(LONG_PROMPT_TOKENS)
    took = compare(
        {"ours": lambda: ours.ttft_s(long), "theirs": lambda: theirs.ttft_s(long)}, rounds
    )
    found["ttft"] = {**took, "ratio": took["theirs"] / took["ours"]}
    print(f"ttft       {took['ours']:8.3f} s, transformers {took['theirs']:8.3f}, "
          f"ratio {found['ttft']['ratio']:.2f}", flush=True)  # fmt: skip
    return found


def version_of_torch() -> str:
    """Name and version, without importing it."""
    return f"torch {metadata.version('torch')}"


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{arguments.dtype}, {os.cpu_count()} cores, load {load}, {version_of_torch()}")
    found = run(arguments.dtype, rounds=arguments.rounds, new_tokens=arguments.new_tokens)
    if arguments.json is not None:
        facts = {
            "dtype": arguments.dtype,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": load,
        }
        arguments.json.write_text(json.dumps({**facts, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
