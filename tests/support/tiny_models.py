"""Tiny random GGUF models, written at test time by the `gguf` package, so that no test needs the network.

The models are real in every respect but sense: a working byte-level tokenizer with merges and special tokens,
a ChatML template, the tensor names, layouts and block types of files found in the wild.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyVocabulary:
    """Tokens in id order, their GGUF types and the merges that build the longer ones."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order (GPT-2, Radford et al., 2019)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def tiny_vocabulary(size: int) -> TinyVocabulary:
    """Special tokens, the 256 bytes, then merged pairs of letters; what remains is marked unused."""
    alphabet = byte_alphabet()
    if size < len(SPECIAL_TOKENS) + len(alphabet):
        raise ValueError(
            f"a vocabulary of {size} cannot hold the {len(alphabet)} bytes and the special tokens"
        )
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    space = alphabet[ord(" ")]
    pairs = [(space, letter) for letter in letters]
    pairs += [(first, second) for first in letters for second in letters]
    pairs = pairs[: size - len(SPECIAL_TOKENS) - len(alphabet)]
    tokens = [*SPECIAL_TOKENS, *alphabet, *(first + second for first, second in pairs)]
    types = [_CONTROL] * len(SPECIAL_TOKENS) + [_NORMAL] * (len(tokens) - len(SPECIAL_TOKENS))
    for number in range(size - len(tokens)):
        tokens.append(f"<|unused_{number}|>")
        types.append(_UNUSED)
    return TinyVocabulary(
        tokens=tokens, types=types, merges=[f"{first} {second}" for first, second in pairs]
    )


def write_tiny_llama(
    path: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    inter: int = 96,
    vocab: int = 512,
    context: int = 1024,
    quant: str = "F32",
    seed: int = 0,
    architecture: str = "llama",
    tied: bool = True,
    pre: str = "smollm",
    chat_template: str | None = CHATML,
    padded_rows: int = 0,
    biases: bool = False,
    rope_factors: bool = False,
    metadata: dict[str, object] | None = None,
) -> Path:
    """Write a random model that decodes, batches and chats like a large one.

    Args:
        path: The file to write; its folder exists.
        hidden: Width of the residual stream; a multiple of 32 so that every block type fits.
        quant: Block type of the matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1. Norms and biases stay F32.
        architecture: `llama` or `qwen2` (which adds biases to q, k and v).
        tied: True leaves out the output matrix, so that the embedding serves as the head.
        padded_rows: Rows of the embedding past the vocabulary, as files padded for alignment have.
        biases: Add biases to q, k and v, as `qwen2` always has.
        rope_factors: Add one divisor per rotary frequency, as Llama 3 files have.
        metadata: Further keys; a value is an int (uint32), float (float32), str or bool.

    Returns:
        `path`.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inter)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab + padded_rows)
    for key, value in (metadata or {}).items():
        _add_metadata(writer, key, value)
    _add_tokenizer(writer, tiny_vocabulary(vocab), pre)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def matrix(name: str, rows: int, columns: int, *, scale: float = 1.0) -> None:
        values = rng.normal(0.0, scale / np.sqrt(columns), (rows, columns)).astype(np.float32)
        _add_matrix(writer, name, values, quant)

    def vector(name: str, size: int, *, centre: float) -> None:
        writer.add_tensor(name, (centre + rng.normal(0.0, 0.1, size)).astype(np.float32))

    kv_width = hidden // heads * kv_heads
    matrix("token_embd.weight", vocab + padded_rows, hidden, scale=float(np.sqrt(hidden)))
    for layer in range(layers):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", hidden, centre=1.0)
        vector(f"{block}.ffn_norm.weight", hidden, centre=1.0)
        matrix(f"{block}.attn_q.weight", hidden, hidden, scale=2.0)
        matrix(f"{block}.attn_k.weight", kv_width, hidden, scale=2.0)
        matrix(f"{block}.attn_v.weight", kv_width, hidden, scale=2.0)
        matrix(f"{block}.attn_output.weight", hidden, hidden, scale=2.0)
        matrix(f"{block}.ffn_gate.weight", inter, hidden, scale=2.0)
        matrix(f"{block}.ffn_up.weight", inter, hidden, scale=2.0)
        matrix(f"{block}.ffn_down.weight", hidden, inter, scale=2.0)
        if biases or architecture == "qwen2":
            vector(f"{block}.attn_q.bias", hidden, centre=0.0)
            vector(f"{block}.attn_k.bias", kv_width, centre=0.0)
            vector(f"{block}.attn_v.bias", kv_width, centre=0.0)
    vector("output_norm.weight", hidden, centre=1.0)
    if rope_factors:
        factors = np.linspace(1.0, 8.0, hidden // heads // 2, dtype=np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    if not tied:
        matrix("output.weight", vocab + padded_rows, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: TinyVocabulary, pre: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(SPECIAL_TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(SPECIAL_TOKENS.index("<|im_end|>"))
    writer.add_add_bos_token(False)


def _add_metadata(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        raise TypeError(f"{key}: no GGUF form for {value!r}")


def _add_matrix(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quant: str) -> None:
    kind = gguf.GGMLQuantizationType[quant]
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
        return
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
