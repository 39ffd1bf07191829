"""A tokenizer built from a GGUF file's metadata alone, byte exact in both directions.

Two kinds are known: `gpt2` (byte-level BPE, merges in the file, text split first by a rule that
the file names in `tokenizer.ggml.pre`) and `llama` (SentencePiece BPE with byte fallback, merges
derived from scores). A split rule missing from the table, `default` included, is an error: a wrong
one gives plausible but wrong token counts, which nobody notices until the bill.

Source: the rules' names are llama.cpp's, the rules those of the models' own `tokenizer.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
)

from local_engine.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from local_engine.content_guard import StandIns
    from local_engine.model_file import ModelFile

MAX_MERGE_TOKEN_CHARS: Final = 256


class TokenType(IntEnum):
    """ggml's kinds of token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How text is cut into words before merges apply.

    Attributes:
        patterns: Applied one after the other; each match and each gap becomes a word of its own.
        prefers_whole_words: A word that is a token is taken as it is, without replaying its merges.
        composes_unicode: Text is brought to NFC first, as the model's own tokenizer does.
    """

    patterns: tuple[str, ...]
    prefers_whole_words: bool = False
    composes_unicode: bool = False


_GPT2_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS: Final = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

_LLAMA3: Final = SplitRule(patterns=(_LLAMA3_WORDS,), prefers_whole_words=True)

SPLIT_RULES: Final[Mapping[str, SplitRule]] = {
    "gpt-2": SplitRule(patterns=(_GPT2_WORDS,)),
    "smollm": SplitRule(patterns=(r"\p{N}", _GPT2_WORDS)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": SplitRule(patterns=(_QWEN2_WORDS,), composes_unicode=True),
}

_END_TOKENS: Final = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "</s>",
    }
)
_END_ID_KEYS: Final = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
_SPACE_MARK: Final = "\u2581"
_NO_STAND_INS: Final[StandIns] = MappingProxyType({})
# Some files call markers of turns user-defined; whatever looks like one is a control token here.
_CONTROL_LOOK: Final = re.compile(r"<\|.+\|>|<(start|end)_of_turn>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """Checked tokens of the file: texts and kinds in id order."""

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]

    def ids(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    def control_ids(self) -> dict[str, int]:
        """Tokens that steer the model, recognised as a whole in prompts but never in contents."""
        return {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token and self._is_control(token, kind)
        }

    def added(self) -> list[AddedToken]:
        """Other tokens that are recognised as a whole wherever they stand in a text."""
        return [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if token and kind == TokenType.USER_DEFINED and not self._is_control(token, kind)
        ]

    @staticmethod
    def _is_control(token: str, kind: TokenType) -> bool:
        if kind == TokenType.USER_DEFINED:
            return token in _END_TOKENS or _CONTROL_LOOK.fullmatch(token) is not None
        return kind in {TokenType.CONTROL, TokenType.UNKNOWN}


class GgufTokenizer:
    """Implements `step.Tokenizer` on a `tokenizers.Tokenizer`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        control_ids: Mapping[str, int],
        token_bytes: Sequence[bytes],
        end_ids: frozenset[int],
        bos_text: str,
        eos_text: str,
        adds_bos: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._control_ids = control_ids
        # The longest goes first; the group makes `split` keep what it splits at.
        longest_first = sorted(control_ids, key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._token_bytes = token_bytes
        self._end_ids = end_ids
        self._bos_text = bos_text
        self._eos_text = eos_text
        self._adds_bos = adds_bos

    @classmethod
    def from_file(cls, file: ModelFile, *, split_rule: str | None = None) -> GgufTokenizer:
        """Build the tokenizer that a model file describes.

        Args:
            file: An open model file.
            split_rule: Name in `SPLIT_RULES` to use instead of the file's own `tokenizer.ggml.pre`,
                for files that carry a wrong one.

        Raises:
            ModelFileError: The metadata is damaged, contradictory or of an unknown kind.
        """
        vocabulary = _read_vocabulary(file)
        kind = file.text("tokenizer.ggml.model")
        if kind == "gpt2":
            rule = _find_split_rule(file, split_rule)
            tokenizer = _build_byte_level(vocabulary, file.texts("tokenizer.ggml.merges"), rule)
            token_bytes = _byte_level_bytes(vocabulary)
        elif kind == "llama":
            tokenizer = _build_sentence_piece(file, vocabulary)
            token_bytes = _sentence_piece_bytes(vocabulary)
        else:
            raise ModelFileError(
                f"model file {file.path}: tokenizer kind {kind!r} is not supported "
                "(gpt2 and llama are): choose another model"
            )
        tokenizer.add_tokens(vocabulary.added())
        bos_id = _find_id(file, "tokenizer.ggml.bos_token_id", len(vocabulary.tokens))
        eos_id = _find_id(file, "tokenizer.ggml.eos_token_id", len(vocabulary.tokens))
        return cls(
            tokenizer,
            control_ids=vocabulary.control_ids(),
            token_bytes=token_bytes,
            end_ids=_find_end_ids(file, vocabulary),
            bos_text="" if bos_id is None else vocabulary.tokens[bos_id],
            eos_text="" if eos_id is None else vocabulary.tokens[eos_id],
            adds_bos=file.flag("tokenizer.ggml.add_bos_token", default=kind == "llama"),
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self._token_bytes)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a generation: the file's own and every well-known end-of-turn token."""
        return self._end_ids

    @property
    def bos_text(self) -> str:
        """Text of the begin-of-sequence token, empty when the model has none."""
        return self._bos_text

    @property
    def eos_text(self) -> str:
        """Text of the end-of-sequence token, empty when the model has none."""
        return self._eos_text

    @property
    def adds_bos(self) -> bool:
        """True when a raw completion prompt wants `bos_text` in front; chat templates write it."""
        return self._adds_bos

    @property
    def control_texts(self) -> Sequence[str]:
        """Texts of the tokens that steer the model."""
        return tuple(self._control_ids)

    def encode(self, text: str, *, stand_ins: StandIns = _NO_STAND_INS) -> list[int]:
        """Encode text in which control tokens are recognised; no token is added.

        Args:
            text: What a template or a caller made.
            stand_ins: Characters to put back once control tokens have been recognised.
        """
        if not self._control_ids:
            return self._encode_plain(text, stand_ins)
        ids: list[int] = []
        for number, piece in enumerate(self._control.split(text)):
            if number % 2:
                ids.append(self._control_ids[piece])
            elif piece:
                ids += self._encode_plain(piece, stand_ins)
        return ids

    def _encode_plain(self, text: str, stand_ins: StandIns) -> list[int]:
        """Encode text in which no control token is recognised."""
        if stand_ins:
            text = text.translate(str.maketrans(dict(stand_ins)))
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token adds to the output; empty for special (control) tokens."""
        return self._token_bytes[token_id]


def _read_vocabulary(file: ModelFile) -> _Vocabulary:
    tokens = file.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFileError(f"model file {file.path}: the vocabulary is empty: fetch it again")
    if len(set(tokens)) != len(tokens):
        raise ModelFileError(
            f"model file {file.path}: the vocabulary lists a token twice: choose another file"
        )
    key = "tokenizer.ggml.token_type"
    numbers = file.integers(key) if key in file.metadata else (TokenType.NORMAL,) * len(tokens)
    if len(numbers) != len(tokens):
        raise ModelFileError(
            f"model file {file.path}: {len(tokens)} tokens but {len(numbers)} token types: "
            "the file is damaged, fetch it again"
        )
    known = set(TokenType)
    # 0 means undefined and is treated as ordinary text; so is a kind that ggml may add later.
    types = tuple(TokenType(n) if n in known else TokenType.NORMAL for n in numbers)
    return _Vocabulary(tokens=tokens, types=types)


def _find_split_rule(file: ModelFile, override: str | None) -> SplitRule:
    name = file.text("tokenizer.ggml.pre", default="default") if override is None else override
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise ModelFileError(
            f"model file {file.path}: tokenizer split rule {name!r} is not in the table "
            f"({', '.join(sorted(SPLIT_RULES))}); a guess would miscount tokens: choose a file "
            "with a known rule or name one explicitly"
        )
    return rule


def _find_id(file: ModelFile, key: str, vocab_size: int) -> int | None:
    if key not in file.metadata:
        return None
    return file.integer(key, minimum=0, maximum=vocab_size - 1)


def _find_end_ids(file: ModelFile, vocabulary: _Vocabulary) -> frozenset[int]:
    found = {_find_id(file, key, len(vocabulary.tokens)) for key in _END_ID_KEYS}
    special = {TokenType.CONTROL, TokenType.USER_DEFINED}
    named = {
        token_id
        for token_id, token in enumerate(vocabulary.tokens)
        if token in _END_TOKENS and vocabulary.types[token_id] in special
    }
    return frozenset(named | {token_id for token_id in found if token_id is not None})


def _build_byte_level(
    vocabulary: _Vocabulary, merge_lines: Sequence[str], rule: SplitRule
) -> Tokenizer:
    ids = vocabulary.ids()
    merges = [_parse_merge(line, ids) for line in merge_lines]
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=rule.prefers_whole_words)
    tokenizer = Tokenizer(model)
    if rule.composes_unicode:
        tokenizer.normalizer = normalizers.NFC()
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    return tokenizer


def _parse_merge(line: str, ids: Mapping[str, int]) -> tuple[str, str]:
    first, _, second = line.partition(" ")
    if first not in ids or second not in ids or first + second not in ids:
        raise ModelFileError(
            f"tokenizer merge {line!r} names a token outside the vocabulary: "
            "the file is damaged, fetch it again"
        )
    return first, second


def _build_sentence_piece(file: ModelFile, vocabulary: _Vocabulary) -> Tokenizer:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise ModelFileError(
            f"model file {file.path}: {len(vocabulary.tokens)} tokens but {len(scores)} scores: "
            "the file is damaged, fetch it again"
        )
    unknown = [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind == TokenType.UNKNOWN
    ]
    model = models.BPE(
        vocab=vocabulary.ids(),
        merges=_merges_from_scores(vocabulary, scores),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE_MARK)]
    if file.flag("tokenizer.ggml.add_space_prefix", default=True):
        steps.insert(0, normalizers.Prepend(_SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _merges_from_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to build a token from two others, best token first, as SentencePiece merges."""
    ids = vocabulary.ids()
    ranked = sorted(
        (
            token_id
            for token_id, kind in enumerate(vocabulary.types)
            if kind == TokenType.NORMAL
            and 2 <= len(vocabulary.tokens[token_id]) <= MAX_MERGE_TOKEN_CHARS
        ),
        key=lambda token_id: (-scores[token_id], token_id),
    )
    merges: list[tuple[str, str]] = []
    for token_id in ranked:
        token = vocabulary.tokens[token_id]
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges.extend((left, right) for left, right in halves if left in ids and right in ids)
    return merges


def _byte_level_bytes(vocabulary: _Vocabulary) -> tuple[bytes, ...]:
    alphabet = {character: byte for byte, character in enumerate(_byte_characters())}

    def to_bytes(token: str, kind: TokenType) -> bytes:
        if kind in {TokenType.CONTROL, TokenType.UNKNOWN}:
            return b""
        if kind == TokenType.USER_DEFINED or not alphabet.keys() >= set(token):
            return token.encode()
        return bytes(alphabet[character] for character in token)

    return tuple(map(to_bytes, vocabulary.tokens, vocabulary.types))


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE.

    Source: GPT-2 (Radford et al., 2019): printable Latin-1 is itself, the rest is shifted up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(0x100, 0x200))
    own = set(printable)
    return [chr(byte if byte in own else next(shifted)) for byte in range(0x100)]


def _sentence_piece_bytes(vocabulary: _Vocabulary) -> tuple[bytes, ...]:
    def to_bytes(token: str, kind: TokenType) -> bytes:
        if kind in {TokenType.CONTROL, TokenType.UNKNOWN}:
            return b""
        if kind == TokenType.BYTE:
            return _parse_byte_token(token)
        return token.replace(_SPACE_MARK, " ").encode()

    return tuple(map(to_bytes, vocabulary.tokens, vocabulary.types))


def _parse_byte_token(token: str) -> bytes:
    digits = token.removeprefix("<0x").removesuffix(">")
    try:
        (value,) = bytes.fromhex(digits)
    except ValueError as error:
        raise ModelFileError(
            f"byte token {token!r} is not of the form <0xNN>: the file is damaged, fetch it again"
        ) from error
    return bytes([value])
