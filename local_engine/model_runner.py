"""Loads a model on a device, sizes the KV pool and computes step plans.

This is the `step.Runner` that the engine drives. It knows devices and number formats; the decoder
and the scheduler do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch

from local_engine.attention import HeadShape, ReferenceAttention, plan_attention
from local_engine.cpu_threads import count_usable_cores
from local_engine.errors import EngineError, ModelFileError
from local_engine.gguf_tokenizer import GgufTokenizer
from local_engine.model_file import ModelFile
from local_engine.models.arch import read_arch
from local_engine.models.decoder import Decoder
from local_engine.models.loader import load_weights
from local_engine.models.rope import build_rope_table

if TYPE_CHECKING:
    from pathlib import Path

    from local_engine.attention import AttentionBackend
    from local_engine.models.arch import ArchSpec
    from local_engine.step import StepPlan

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["float32", "bfloat16"]

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MIN_THREADED_HIDDEN: Final = 256
# Rows per product, measured on two cores with AVX-512: the largest that costs a single row little.
_TILE_ROWS: Final = {torch.float32: 16, torch.bfloat16: 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelCard:
    """What the runner tells about its file."""

    spec: ArchSpec
    tokenizer: GgufTokenizer
    chat_template_source: str | None
    context_window: int
    file_digest: str


class ModelRunner:
    """Implements `step.Runner` for a GGUF file.

    Not thread-safe: one step thread calls `execute`.
    """

    def __init__(
        self,
        card: _ModelCard,
        decoder: Decoder,
        attention: AttentionBackend,
        *,
        block_size: int,
        n_blocks: int,
        device: torch.device,
    ) -> None:
        self._card = card
        self._decoder = decoder
        self._attention = attention
        self._block_size = block_size
        self._n_blocks = n_blocks
        self._device = device

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: DeviceChoice = "auto",
        dtype: DtypeChoice = "float32",
        kv_memory_bytes: int,
        max_model_len: int,
        block_size: int = 32,
        split_rule: str | None = None,
        threads: int | None = None,
    ) -> ModelRunner:
        """Load a model file and allocate its KV pool.

        Args:
            path: A GGUF file.
            device: `auto` takes a CUDA device when there is one.
            dtype: Type of weights and of the KV pool; `float32` is the reference.
            kv_memory_bytes: Upper bound of the pool's size.
            max_model_len: Longest sequence to serve; the file's own limit applies as well.
            block_size: Token slots per KV block.
            split_rule: See `GgufTokenizer.from_file`.
            threads: Threads for the whole process on a CPU; None chooses by machine and model.

        Raises:
            ModelFileError: The file cannot be served, or the pool cannot hold one full sequence.
            EngineError: The device is not there.
        """
        target = _choose_device(device)
        with ModelFile.open(path) as file:
            spec = read_arch(file)
            card = _ModelCard(
                spec=spec,
                tokenizer=_read_tokenizer(file, spec, split_rule),
                chat_template_source=_read_chat_template(file),
                context_window=min(spec.context_tokens, max_model_len),
                file_digest=file.sha256(),
            )
            n_blocks = _size_pool(
                card,
                kv_memory_bytes=kv_memory_bytes,
                block_size=block_size,
                element_bytes=_DTYPES[dtype].itemsize,
            )
            if target.type == "cpu":
                torch.set_num_threads(threads or _choose_threads(spec))
            weights = load_weights(file, spec, dtype=_DTYPES[dtype], device=target)
        rope = build_rope_table(
            spec,
            context_tokens=card.context_window,
            factors=weights.rope_factors,
            device=target,
        )
        attention = ReferenceAttention(
            HeadShape(
                layers=spec.layers,
                heads=spec.heads,
                kv_heads=spec.kv_heads,
                head_dim=spec.head_dim,
            ),
            slots=n_blocks * block_size,
            dtype=_DTYPES[dtype],
            device=target,
        )
        decoder = Decoder(spec, weights, rope, tile_rows=_TILE_ROWS[_DTYPES[dtype]])
        return cls(
            card, decoder, attention, block_size=block_size, n_blocks=n_blocks, device=target
        )

    @property
    def block_size(self) -> int:
        """Token slots per KV block."""
        return self._block_size

    @property
    def n_blocks(self) -> int:
        """Blocks in the pool, block 0 (scratch, never allocated) included."""
        return self._n_blocks

    @property
    def vocab_size(self) -> int:
        """Width of the logits; ids past the tokenizer's vocabulary are minus infinity."""
        return self._card.spec.vocab_rows

    @property
    def spec(self) -> ArchSpec:
        """Shape of the model."""
        return self._card.spec

    @property
    def tokenizer(self) -> GgufTokenizer:
        """The tokenizer that the file describes."""
        return self._card.tokenizer

    @property
    def chat_template_source(self) -> str | None:
        """The file's Jinja template, None when it has none (a base model)."""
        return self._card.chat_template_source

    @property
    def context_window(self) -> int:
        """Longest sequence, prompt and answer together, in tokens."""
        return self._card.context_window

    @property
    def file_digest(self) -> str:
        """SHA-256 of the model file in hexadecimal."""
        return self._card.file_digest

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._device

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Write the chunks' keys and values into the pool and compute logits.

        Returns:
            [N, V] float32 on the CPU: one row per chunk with `needs_logits`, in the plan's order.
        """
        with torch.inference_mode():
            token_ids, positions = self._batch(plan)
            attention_plan = plan_attention(plan, block_size=self._block_size, device=self._device)
            hidden = self._decoder.forward(
                token_ids, positions, attention=self._attention, plan=attention_plan
            )
            wanted = [
                chunk.first_row + chunk.rows - 1
                for chunk, planned in zip(attention_plan.chunks, plan.chunks, strict=True)
                if planned.needs_logits
            ]
            if not wanted:
                return torch.empty((0, self.vocab_size))
            logits = self._decoder.logits(hidden[wanted]).cpu()
            logits[:, self.tokenizer.vocab_size :] = float("-inf")
        return logits

    def _batch(self, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and positions of all chunks in order, padded to whole tiles."""
        token_ids = [token_id for chunk in plan.chunks for token_id in chunk.token_ids]
        positions = [
            position
            for chunk in plan.chunks
            for position in range(chunk.start, chunk.start + len(chunk.token_ids))
        ]
        padding = [0] * (-len(token_ids) % self._decoder.tile_rows)
        rows = torch.tensor([token_ids + padding, positions + padding], dtype=torch.int64)
        ids, places = rows.to(self._device)
        return ids, places


def _choose_device(choice: DeviceChoice) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if choice == "cuda" and not has_cuda:
        raise EngineError(
            "device cuda was asked for, but torch sees none: set device to auto or cpu, "
            "or install a CUDA build of torch and its driver"
        )
    if choice == "auto":
        choice = "cuda" if has_cuda else "cpu"
    return torch.device(choice)


def _choose_threads(spec: ArchSpec) -> int:
    # Threads that share a product of a few microseconds mostly wait for each other; on a busy
    # machine they slow a tiny model down tenfold.
    return 1 if spec.hidden < _MIN_THREADED_HIDDEN else count_usable_cores()


def _read_tokenizer(file: ModelFile, spec: ArchSpec, split_rule: str | None) -> GgufTokenizer:
    tokenizer = GgufTokenizer.from_file(file, split_rule=split_rule)
    if tokenizer.vocab_size > spec.vocab_rows:
        raise ModelFileError(
            f"model file {file.path}: {tokenizer.vocab_size} tokens but only {spec.vocab_rows} "
            "rows of embeddings: the file is damaged, fetch it again"
        )
    return tokenizer


def _read_chat_template(file: ModelFile) -> str | None:
    key = "tokenizer.chat_template"
    return file.text(key) if key in file.metadata else None


def _size_pool(
    card: _ModelCard, *, kv_memory_bytes: int, block_size: int, element_bytes: int
) -> int:
    block_bytes = card.spec.kv_bytes_per_token(element_bytes) * block_size
    n_blocks = kv_memory_bytes // block_bytes
    # Block 0 is scratch and holds no sequence.
    needed = 1 + -(-card.context_window // block_size)
    if n_blocks < needed:
        raise ModelFileError(
            f"a sequence of {card.context_window} tokens needs {needed * block_bytes} bytes of "
            f"KV memory, {kv_memory_bytes} are allowed: raise kv_memory_gib or lower max_model_len"
        )
    return n_blocks
