"""Base64 that is set aside changes nothing that is read, sent or refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import openai_chat
from gateway.dialects.long_strings import RUNS_MAX, set_aside
from gateway.dialects.openai_chat import SET_ASIDE_BYTES_MIN
from gateway.errors import InvalidRequest, UnsupportedParameter

RUN = "QUJD" * 10
LEAST = 20


def aside(body: bytes):
    return set_aside(body, run_bytes_min=LEAST)


TAKEN = {
    "an image's data URL": '{"url":"data:image/png;base64,RUN"}',
    "audio, whose key says it": '{"input_audio":{"data":"RUN","format":"wav"}}',
    "spaces about the colon": '{"data" :\n "RUN"}',
    "an escaped quotation mark before the sign": r'{"text":"see \"data:x;base64,RUN"}',
    "escapes in the run": r'{"data":"RUN\\nRUN"}',
}


def body_of(text: str) -> bytes:
    return text.replace("RUN", RUN).encode()


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN.keys())
def test_a_run_of_base64_is_set_aside_and_comes_back(text) -> None:
    body = body_of(text)
    found = aside(body)
    assert found is not None
    assert found.spared_bytes == len(body) - len(found.text)
    assert RUN.encode() not in found.text
    assert found.holds_all(found.text)
    assert found.restore(found.text) == body
    assert str(msgspec.json.decode(found.text)).count(found.mark.decode()) == len(found.runs)


LEFT = {
    "short": '{"url":"data:image/png;base64,AAAA"}',
    "text": json.dumps({"text": "lorem ipsum " * 30}),
    "a string that nothing calls base64": '{"text":"RUN"}',
    "a run that never ends": '{"url":"data:image/png;base64,RUN',
    "a run that ends in an escape": r'{"data":"RUN\"}',
    "a control character in the run": '{"data":"RUN\nRUN"}',
    "an escape that does not exist": r'{"data":"RUN\qRUN"}',
    "a key": '{"x;base64,RUN" : 1}',
    "a media type longer than any": '{"url":"data:' + "x" * 300 + ';base64,RUN"}',
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT.keys())
def test_what_is_no_long_run_of_base64_stays(text) -> None:
    assert aside(body_of(text)) is None


def test_more_runs_than_are_worth_it_are_left() -> None:
    part = '{"data":"RUN"}'.replace("RUN", RUN)
    assert aside(("[" + ",".join([part] * RUNS_MAX) + "]").encode()) is not None
    assert aside(("[" + ",".join([part] * (RUNS_MAX + 1)) + "]").encode()) is None


def test_a_mark_that_was_dropped_with_a_repeated_key_stays_away() -> None:
    other = RUN.replace("A", "z")
    body = b'{"data":"%s","data":"%s"}' % (RUN.encode(), other.encode())
    found = aside(body)
    assert found is not None
    kept = msgspec.json.encode(msgspec.json.decode(found.text, type=dict[str, msgspec.Raw]))
    assert not found.holds_all(kept)
    assert found.restore(kept) == b'{"data":"%s"}' % other.encode()


PIECES = st.sampled_from(
    [
        '"',
        "\\",
        "\\\\",
        '\\"',
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\n",
        '"data":"',
        '{"data":"',
        ";base64,",
        '"data:image/png;base64,',
        RUN,
        RUN + '"',
        "x",
        "\u2028",
        "é",
    ]
)


def loaded(body: bytes) -> object:
    """What a reader makes of a body, marks taken back; None where it is refused."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None


def put_back(value: object, found) -> object:
    """The same value with each mark's run in its place, as a reader would have read it."""
    if isinstance(value, str):
        quoted = found.restore(b'"' + json.dumps(value, ensure_ascii=False)[1:-1].encode() + b'"')
        return msgspec.json.decode(quoted)
    if isinstance(value, list):
        return [put_back(each, found) for each in value]
    if isinstance(value, dict):
        return {put_back(key, found): put_back(each, found) for key, each in value.items()}
    return value


@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_text_is_read_alike_with_and_without(text) -> None:
    body = text.encode()
    found = aside(body)
    if found is None:
        return
    assert found.restore(found.text) == body
    whole, short = loaded(body), loaded(found.text)
    assert (whole is None) == (short is None)
    assert put_back(short, found) == whole


VALUES = st.recursive(
    st.one_of(
        st.text(max_size=30),
        st.builds(
            lambda n, kind: f"data:{kind};base64," + "QUJD" * n, st.integers(0, 30), st.text()
        ),
        st.just(RUN),
        st.integers(),
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "url", "x", "a;base64," + RUN]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_any_json_is_read_alike_with_and_without(value, ascii_only) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = aside(body)
    if found is None:
        return
    assert found.restore(found.text) == body
    assert put_back(loaded(found.text), found) == loaded(body)


LONG = "QUJD" * 5000
PART = st.one_of(
    st.builds(
        lambda kind, end: {
            "type": "image_url",
            "image_url": {"url": f"data:{kind};base64,{LONG}{end}"},
        },
        st.sampled_from(["image/png", "a;b=c", ""]),
        st.sampled_from(["", "x", '"', "\n"]),
    ),
    st.builds(
        lambda name: {"type": name, "input_audio": {"data": LONG, "format": "wav"}},
        st.sampled_from(["input_audio", "text", "", "LONG"]),
    ),
    st.just({"type": "text", "text": LONG}),
    st.just({"data": LONG}),
)
MESSAGE = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "nobody"]),
    st.lists(PART, max_size=3) | st.just(LONG),
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=3)},
    optional={
        "model": st.just("m"),
        "metadata": st.just({"data": LONG}),
        "prediction": st.just({"data": LONG}),
        "temperature": st.sampled_from([1, "hot"]),
        "Model": st.just("n"),
    },
)


def plainly(body: bytes) -> openai_chat.ParsedChat:
    """What `parse` does of a body from which nothing is set aside."""
    openai_chat._check_utf8(body)
    return openai_chat._parse(body)


def outcome(read, body: bytes) -> object:
    try:
        return read(body)
    except (InvalidRequest, UnsupportedParameter) as error:
        return type(error), str(error), error.param


@given(BODY.map(lambda body: {"model": "m", **body}), st.integers(0, 3), st.booleans())
def test_a_large_body_is_checked_and_sent_as_if_nothing_were_set_aside(body, cut, twice) -> None:
    text = json.dumps(body, indent=cut or None)
    if twice:  # a repeated member: the last one counts
        text = text[:-1] + f',"messages":[{{"role":"user","content":[{{"data":"{LONG}"}}]}}]}}'
    data = text.encode() + b" " * SET_ASIDE_BYTES_MIN
    for each in (data, data[: len(text) - cut], data.replace(b"QUJ", b"QU\xff", 1)):
        assert outcome(openai_chat.parse, each) == outcome(plainly, each)


def test_a_body_of_media_is_what_gets_set_aside() -> None:
    url = "data:image/png;base64," + LONG * 4
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    parsed = openai_chat.parse(json.dumps(body).encode())
    assert msgspec.json.decode(parsed.fields["messages"]) == body["messages"]
    assert parsed.has_media
    assert parsed.prompt_tokens_estimate >= len(LONG)


HELD_BYTES_MAX = 4 * 1024 * 1024
LONG_RUNS = {
    "base64": ("QUJD", True),
    "with its slashes escaped": ("Q\\/J", True),
    "with its plus signs escaped": ("Q\\u002bJ", True),
    "of nothing but escapes": ("\\/", True),
    "of nothing but backslashes": ("\\\\", True),
    "of an odd row of backslashes and more": ("\\\\\\/", True),
    "of escapes of both lengths": ("\\/\\u002f", True),
    "with a control character": ("QUJD", False),
}


@pytest.mark.parametrize(("unit", "is_valid"), LONG_RUNS.values(), ids=LONG_RUNS.keys())
def test_a_run_that_is_looked_through_in_parts_comes_back(unit, is_valid) -> None:
    # At every place of a unit the first part would end.
    for shift in range(len(unit)):
        run = "Q" * shift + unit * (HELD_BYTES_MAX * 5 // 4 // len(unit))
        body = b'{"data":"%b%b"}' % (run.encode(), b"" if is_valid else b"\x01")
        found = set_aside(body)
        assert (found is not None) is is_valid
        if found is not None:
            assert found.restore(found.text) == body
