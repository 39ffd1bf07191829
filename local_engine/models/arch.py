"""What the engine must know about a model's shape, read from a GGUF file and checked.

One parametric decoder serves every family in `_FAMILIES`; a family is a few switches, not a module.
Everything that would change the result and is not implemented is refused here, by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from local_engine.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from local_engine.model_file import ModelFile

MAX_LAYERS: Final = 1_024
MAX_WIDTH: Final = 1 << 20
MAX_HEADS: Final = 4_096
MAX_CONTEXT_TOKENS: Final = 1 << 24
ROPE_FACTORS_TENSOR: Final = "rope_freqs.weight"
EMBEDDING_TENSOR: Final = "token_embd.weight"
HEAD_TENSOR: Final = "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Switches by which an architecture's files differ.

    Attributes:
        permutes_rope_rows: Rows of q and k lie interleaved for adjacent-pair rotation and must be
            put back into halves.
    """

    permutes_rope_rows: bool


_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(permutes_rope_rows=True),
    "qwen2": _Family(permutes_rope_rows=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchSpec:
    """Shape of a decoder-only transformer.

    Attributes:
        architecture: Name in the file, for example `llama`.
        hidden: Width of the residual stream.
        inter: Width inside the feed-forward part.
        vocab_rows: Rows of the embedding; may exceed the tokenizer's vocabulary by padding.
        context_tokens: Longest sequence that the model was made for.
        rope_theta: Base of the rotary frequencies.
        rope_scale: Positions are divided by it (1.0: not scaled).
        has_rope_factors: The file carries one divisor per rotary frequency.
        qkv_bias: The q, k and v projections add a bias.
        ties_head: The embedding matrix serves as output matrix.
        permutes_rope_rows: Rows of q and k in the file are interleaved.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab_rows: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scale: float
    has_rope_factors: bool
    qkv_bias: bool
    ties_head: bool
    permutes_rope_rows: bool

    @property
    def q_width(self) -> int:
        """Rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.layers * self.kv_width * element_bytes


def read_arch(file: ModelFile) -> ArchSpec:
    """Read a model's shape.

    Raises:
        ModelFileError: The architecture or a feature of it is not supported, or numbers contradict
            each other.
    """
    name = file.text("general.architecture")
    family = _FAMILIES.get(name)
    if family is None:
        raise ModelFileError(
            f"model file {file.path}: architecture {name!r} is not supported "
            f"({', '.join(sorted(_FAMILIES))} are): choose another model"
        )
    _refuse_unsupported(file, name)
    hidden = file.integer(f"{name}.embedding_length", minimum=1, maximum=MAX_WIDTH)
    heads = file.integer(f"{name}.attention.head_count", minimum=1, maximum=MAX_HEADS)
    spec = ArchSpec(
        architecture=name,
        layers=file.integer(f"{name}.block_count", minimum=1, maximum=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=file.integer(
            f"{name}.attention.head_count_kv", minimum=1, maximum=heads, default=heads
        ),
        head_dim=file.integer(
            f"{name}.attention.key_length", minimum=2, maximum=MAX_WIDTH, default=hidden // heads
        ),
        inter=file.integer(f"{name}.feed_forward_length", minimum=1, maximum=MAX_WIDTH),
        vocab_rows=_count_vocab_rows(file),
        context_tokens=_read_context(file, name),
        norm_eps=file.number(f"{name}.attention.layer_norm_rms_epsilon", minimum=1e-12, maximum=1),
        rope_theta=file.number(f"{name}.rope.freq_base", minimum=1, maximum=1e12, default=1e4),
        rope_scale=_read_rope_scale(file, name),
        has_rope_factors=ROPE_FACTORS_TENSOR in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        ties_head=HEAD_TENSOR not in file.tensors,
        permutes_rope_rows=family.permutes_rope_rows,
    )
    _check_shape(file, spec)
    return spec


def _refuse_unsupported(file: ModelFile, name: str) -> None:
    if file.integer(f"{name}.expert_count", minimum=0, maximum=1 << 16, default=0):
        raise ModelFileError(
            f"model file {file.path}: mixture-of-experts models are not supported: "
            "choose a dense model"
        )
    scaling = file.text(f"{name}.rope.scaling.type", default="none")
    if scaling not in {"none", "linear"}:
        raise ModelFileError(
            f"model file {file.path}: rope scaling {scaling!r} is not supported "
            "(none and linear are): choose another model"
        )


def _count_vocab_rows(file: ModelFile) -> int:
    tensor = file.tensors.get(EMBEDDING_TENSOR)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelFileError(
            f"model file {file.path}: no embedding matrix {EMBEDDING_TENSOR!r}: "
            "the file is incomplete, fetch it again"
        )
    return tensor.shape[0]


def _read_context(file: ModelFile, name: str) -> int:
    context = file.integer(f"{name}.context_length", minimum=1, maximum=MAX_CONTEXT_TOKENS)
    window = file.integer(
        f"{name}.attention.sliding_window", minimum=0, maximum=MAX_CONTEXT_TOKENS, default=0
    )
    # Up to the window, windowed and full attention are the same; beyond it they are not.
    return min(context, window) if window else context


def _read_rope_scale(file: ModelFile, name: str) -> float:
    if file.text(f"{name}.rope.scaling.type", default="none") == "none":
        return 1.0
    return file.number(f"{name}.rope.scaling.factor", minimum=1, maximum=1e6)


def _check_shape(file: ModelFile, spec: ArchSpec) -> None:
    rotated = file.integer(
        f"{spec.architecture}.rope.dimension_count",
        minimum=1,
        maximum=MAX_WIDTH,
        default=spec.head_dim,
    )
    value_dim = file.integer(
        f"{spec.architecture}.attention.value_length",
        minimum=1,
        maximum=MAX_WIDTH,
        default=spec.head_dim,
    )
    problems = {
        f"{spec.heads} heads cannot share {spec.kv_heads} kv heads": spec.heads % spec.kv_heads,
        f"heads of odd size {spec.head_dim} cannot be rotated": spec.head_dim % 2,
        f"only {rotated} of {spec.head_dim} dimensions rotate": rotated != spec.head_dim,
        f"keys of {spec.head_dim} and values of {value_dim} differ": value_dim != spec.head_dim,
    }
    for problem, is_present in problems.items():
        if is_present:
            raise ModelFileError(
                f"model file {file.path}: {problem}: the file is damaged or of an unsupported kind"
            )
