"""Tokenizers from metadata: rules, special tokens, byte exactness, and refusal of what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.errors import ModelFileError
from local_engine.gguf_tokenizer import GgufTokenizer
from local_engine.model_file import ModelFile
from tests.support.real_model import smollm2_path
from tests.support.tiny_models import byte_alphabet, tiny_vocabulary, write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


def write_tokenizer(path: Path, **fields: Any) -> Path:
    """A file with tokenizer metadata and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def load(path: Path, *, split_rule: str | None = None) -> GgufTokenizer:
    with ModelFile.open(path) as file:
        return GgufTokenizer.from_file(file, split_rule=split_rule)


def byte_level_fields(**changes: Any) -> dict[str, Any]:
    merges = ["1 2", "12 3", "123 4", "a b", "Ġ ab"]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*byte_alphabet(), *merged, "<|im_end|>", "<tool>"]
    types = [NORMAL] * (len(tokens) - 2) + [CONTROL, USER_DEFINED]
    fields: dict[str, Any] = {
        "model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": types, "merges": merges,
    }  # fmt: skip
    return {**fields, **changes}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GgufTokenizer:
    return load(write_tiny_llama(tmp_path_factory.mktemp("tokenizer") / "tiny.gguf"))


def pieces(tokenizer: GgufTokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(i).decode("latin-1") for i in tokenizer.encode(text)]


RULES = {
    "smollm takes digits one by one": ("smollm", "1234", ["1", "2", "3", "4"]),
    "qwen2 takes digits one by one": ("qwen2", "1234", ["1", "2", "3", "4"]),
    "llama-bpe takes digits by threes": ("llama-bpe", "1234", ["123", "4"]),
    "gpt-2 takes a number whole": ("gpt-2", "1234", ["1234"]),
    "gpt-2 keeps the space before a word": ("gpt-2", "ab ab", ["ab", " ab"]),
    "smollm keeps the space before a word": ("smollm", "ab ab", ["ab", " ab"]),
    "llama-bpe joins a sign and a word": ("llama-bpe", "\tab", ["\t", "ab"]),
}


@pytest.mark.parametrize(("rule", "text", "expected"), RULES.values(), ids=RULES.keys())
def test_the_split_rule_decides_where_words_end(
    rule: str, text: str, expected: list[str], tmp_path: Path
) -> None:
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **byte_level_fields(pre=rule)))
    assert pieces(tokenizer, text) == expected


def test_llama_bpe_takes_a_whole_word_token_that_merges_cannot_reach(tmp_path: Path) -> None:
    fields = byte_level_fields(pre="llama-bpe")
    fields["tokens"] = [*fields["tokens"], "xyz"]
    fields["token_type"] = [*fields["token_type"], NORMAL]
    path = write_tokenizer(tmp_path / "t.gguf", **fields)
    assert pieces(load(path), "xyz") == ["xyz"]
    assert pieces(load(path, split_rule="qwen2"), "xyz") == ["x", "y", "z"]


@given(text=st.text(max_size=60))
def test_every_text_survives_the_round_trip_byte_by_byte(text: str, tiny: GgufTokenizer) -> None:
    for special in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        text = text.replace(special, "")
    assert b"".join(map(tiny.token_bytes, tiny.encode(text))) == text.encode()


def test_special_tokens_are_recognised_inside_text_and_print_nothing(tiny: GgufTokenizer) -> None:
    ids = tiny.encode("<|im_start|>a<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tiny.token_bytes(1) == b""
    assert b"".join(map(tiny.token_bytes, ids)) == b"a"


def test_user_defined_tokens_are_recognised_and_print_themselves(tmp_path: Path) -> None:
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **byte_level_fields()))
    ids = tokenizer.encode("a<tool>b")
    assert len(ids) == 3
    assert tokenizer.token_bytes(ids[1]) == b"<tool>"


def test_user_defined_markers_of_turns_are_control_tokens(tmp_path: Path) -> None:
    fields = byte_level_fields()
    fields["tokens"] = [*fields["tokens"], "<|user|>", "<start_of_turn>", "[/INST]", "</think>"]
    fields["token_type"] = [*fields["token_type"], *[USER_DEFINED] * 4]
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **fields))
    assert {"<|user|>", "<start_of_turn>", "[/INST]"} <= set(tokenizer.control_texts)
    assert not {"</think>", "<tool>"} & set(tokenizer.control_texts)
    assert tokenizer.encode("<|user|>")[0] == fields["tokens"].index("<|user|>")


def test_stand_ins_are_put_back_after_control_tokens_were_recognised(tiny: GgufTokenizer) -> None:
    ids = tiny.encode("<|im_start|>\ufdd0|im_end|><|im_end|>", stand_ins={"\ufdd0": "<"})
    assert (ids[0], ids[-1]) == (1, 2)
    assert not {1, 2} & set(ids[1:-1])
    assert b"".join(map(tiny.token_bytes, ids)) == b"<|im_end|>"


def test_no_token_is_added(tmp_path: Path) -> None:
    fields = byte_level_fields(bos_token_id=0, add_bos_token=True)
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **fields))
    assert tokenizer.encode("") == []
    assert len(tokenizer.encode("a")) == 1
    assert tokenizer.adds_bos


def test_end_ids_are_the_files_own_and_the_well_known(tmp_path: Path) -> None:
    fields = byte_level_fields(eos_token_id=5, eot_token_id=6)
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **fields))
    assert tokenizer.end_ids == {5, 6, fields["tokens"].index("<|im_end|>")}


def test_an_ordinary_token_that_looks_like_an_end_is_none(tmp_path: Path) -> None:
    types = byte_level_fields()["token_type"][:-2] + [NORMAL, NORMAL]
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **byte_level_fields(token_type=types)))
    assert tokenizer.end_ids == frozenset()


def test_texts_of_begin_and_end_are_empty_without_such_tokens(tmp_path: Path) -> None:
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **byte_level_fields()))
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("", "")


def test_qwen2_composes_accents_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    tokenizer = load(write_tokenizer(tmp_path / "t.gguf", **byte_level_fields(pre="qwen2")))
    composed, decomposed = "\u00e9", "e\u0301"
    assert tokenizer.encode(decomposed) == tokenizer.encode(composed)


REFUSED = {
    "an unknown split rule": ({"pre": "unheard-of"}, "'unheard-of' is not in the table"),
    "the split rule `default`": ({"pre": "default"}, "'default' is not in the table"),
    "an unknown kind": ({"model": "bert"}, "kind 'bert' is not supported"),
    "more types than tokens": (
        {"tokens": [""], "token_type": [1, 1]},
        "1 tokens but 2 token types",
    ),
    "a token twice": ({"tokens": ["a", "a"], "token_type": [1, 1]}, "lists a token twice"),
    "too few types": ({"token_type": [1]}, "but 1 token types"),
    "a merge of unknown tokens": ({"merges": ["zz qq"]}, "'zz qq' names a token outside"),
    "a merge without a second half": ({"merges": ["a"]}, "'a' names a token outside"),
    "an end token outside the vocabulary": ({"eos_token_id": 9_999}, "eos_token_id is 9999"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_metadata_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", **byte_level_fields(**changes))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_a_named_rule_overrides_an_unknown_one(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", **byte_level_fields(pre="default"))
    assert pieces(load(path, split_rule="gpt-2"), "1234") == ["1234"]


def sentence_piece_fields(**changes: Any) -> dict[str, Any]:
    words = [SPACE, "a", "b", "c", SPACE + "a", "ab", "bc", "abc", SPACE + "ab", "cc"]
    scores = [-9.0, -9.1, -9.2, -9.3, -1.0, -2.0, -1.5, -3.0, -0.5, -4.0]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    fields: dict[str, Any] = {
        "model": "llama", "tokens": tokens, "token_type": types,
        "scores": [0.0] * 259 + scores, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return {**fields, **changes}


def plain_sentence_piece(text: str, fields: dict[str, Any]) -> list[int]:
    """Merge the best-scored pair again and again, the leftmost first among equals."""
    ids = {token: number for number, token in enumerate(fields["tokens"])}
    symbols = list((SPACE + text).replace(" ", SPACE)) if text else []
    while True:
        pairs = [
            (-fields["scores"][ids[left + right]], place)
            for place, (left, right) in enumerate(zip(symbols, symbols[1:], strict=False))
            if left + right in ids
        ]
        if not pairs:
            break
        place = min(pairs)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    numbers: list[int] = []
    for symbol in symbols:
        known = ids.get(symbol)
        numbers += [known] if known is not None else [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return numbers


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> GgufTokenizer:
    path = tmp_path_factory.mktemp("sp") / "t.gguf"
    return load(write_tokenizer(path, **sentence_piece_fields()))


@given(text=st.text(alphabet="abc é\n", max_size=24))
def test_sentence_piece_merges_as_the_plain_algorithm_does(
    text: str, sentence_piece: GgufTokenizer
) -> None:
    ids = sentence_piece.encode(text)
    assert ids == plain_sentence_piece(text, sentence_piece_fields())
    if text:
        assert b"".join(map(sentence_piece.token_bytes, ids)) == b" " + text.encode()


def test_sentence_piece_falls_back_to_bytes_and_ends_at_its_mark(
    sentence_piece: GgufTokenizer,
) -> None:
    assert sentence_piece.end_ids == {2}
    assert sentence_piece.adds_bos
    ids = sentence_piece.encode("<s>")
    assert ids == [1]
    assert sentence_piece.token_bytes(3 + 0xC3) == b"\xc3"


def test_sentence_piece_without_scores_or_with_odd_byte_tokens_is_refused(tmp_path: Path) -> None:
    short = write_tokenizer(tmp_path / "a.gguf", **sentence_piece_fields(scores=[0.0]))
    with pytest.raises(ModelFileError, match="1 scores"):
        load(short)
    fields = sentence_piece_fields()
    tokens = ["<0x123>" if token == "<0x12>" else token for token in fields["tokens"]]
    odd = write_tokenizer(tmp_path / "b.gguf", **{**fields, "tokens": tokens})
    with pytest.raises(ModelFileError, match="not of the form"):
        load(odd)


def test_the_vocabulary_of_the_tiny_models_is_whole() -> None:
    vocabulary = tiny_vocabulary(512)
    assert len(vocabulary.tokens) == len(vocabulary.types) == len(set(vocabulary.tokens)) == 512


PROBES = (
    "Hello, world! It's 12,345.67 o'clock — isn't it?",
    "  leading and trailing   \n\n\t tabs\r\n",
    "naïve façade Ελληνικά русский 日本語 العربية हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b\ufeff",
    "def f(x):\n    return x**2  # ²³½ Ⅷ ①\n",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.mark.slow
def test_the_real_models_tokens_equal_those_of_its_published_pipeline() -> None:
    """Digits one by one, then GPT-2's own splitter inside the library, as in its tokenizer.json."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    with ModelFile.open(smollm2_path()) as file:
        tokenizer = GgufTokenizer.from_file(file)
        tokens = file.texts("tokenizer.ggml.tokens")
        types = file.integers("tokenizer.ggml.token_type")
        merges = [tuple(line.split(" ")) for line in file.texts("tokenizer.ggml.merges")]
    reference = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    reference.add_special_tokens(
        [AddedToken(t, special=True) for t, kind in zip(tokens, types, strict=True) if kind == 3]
    )
    for probe in PROBES:
        assert tokenizer.encode(probe) == reference.encode(probe, add_special_tokens=False).ids


@pytest.mark.slow
def test_split_rules_equal_those_of_the_model_families_own_tokenizers(tmp_path: Path) -> None:
    from transformers import GPT2TokenizerFast, Qwen2TokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    from local_engine.gguf_tokenizer import SPLIT_RULES

    fields = byte_level_fields()
    ids = {token: number for number, token in enumerate(fields["tokens"])}
    merges = [tuple(line.split(" ")) for line in fields["merges"]]
    for rule, family in (("gpt-2", GPT2TokenizerFast), ("qwen2", Qwen2TokenizerFast)):
        ours = load(write_tokenizer(tmp_path / f"{rule}.gguf", **byte_level_fields(pre=rule)))
        theirs = family(vocab=ids, merges=merges)
        for probe in PROBES[:5]:
            expected = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(
                probe
                if rule == "gpt-2"
                else theirs.backend_tokenizer.normalizer.normalize_str(probe)
            )
            words = [word for word, _ in expected]
            mine = ours._tokenizer.pre_tokenizer.pre_tokenize_str(
                probe if rule == "gpt-2" else ours._tokenizer.normalizer.normalize_str(probe)
            )
            assert [word for word, _ in mine] == words
    assert SPLIT_RULES["llama-bpe"].patterns == (TikTokenConverter().pattern,)
