"""Chat bodies: what is refused and at which member, and that what was checked is what is sent."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_chat import (
    OUTPUT_TOKENS_MAX,
    TEMPLATE_TOKENS_MAX,
    parse,
)
from gateway.errors import InvalidRequest, UnsupportedParameter

HELLO = '"messages":[{"role":"user","content":"hi"}]'


def body(extra="", *, model='"m"', messages=HELLO):
    parts = [f'"model":{model}', extra, messages]
    return f"{{{','.join(part for part in parts if part)}}}".encode()


def with_messages(text):
    return body(messages=f'"messages":{text}')


def refusal(raw):
    with pytest.raises(InvalidRequest) as caught:
        parse(raw)
    return caught.value


def fault(raw):
    """The refusal, None when the body is taken; anything else fails the test."""
    try:
        parse(raw)
    except (InvalidRequest, UnsupportedParameter) as error:
        return error
    return None


def sent(raw):
    return {name: bytes(value) for name, value in parse(raw).fields.items()}


NO_JSON = {
    "an empty body": b"",
    "blanks": b" \n ",
    "a body that was cut": b'{"model":"m"',
    "a body with something behind it": body() + b"x",
    "a byte order mark": b"\xef\xbb\xbf" + body(),
    "a byte that is no UTF-8": b'{"model":"m\xff"}',
    "such a byte in what is passed on": b'{"model":"m","x":"\xff",%s}' % HELLO.encode(),
    "such a byte in a message": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "UTF-8 that was cut": b'{"model":"\xc3"}',
    "an encoded surrogate": b'{"model":"\xed\xa0\x80"}',
    "half a surrogate pair in an escape": body('"x":"\\ud800"'),
    "half a surrogate pair in a key": body('"\\ud800":1'),
    "an unknown escape in what is not inspected": body('"x":"\\q"'),
    "an unknown escape in a role": with_messages('[{"role":"us\\qer","content":"hi"}]'),
    "an unknown escape in a control": body('"metadata":{"fareway_tags":"\\q"}'),
    "a control character in a string": body('"x":"\x01"'),
    "NaN in a member that is passed on": body('"x":NaN'),
    "NaN in a member that is read": body('"temperature":NaN'),
    "Infinity": body('"x":Infinity'),
    "a number with a leading zero": body('"x":01'),
    "single quotes": b"{'model':'m'}",
    "deep nesting in what is passed on": body('"x":' + "[" * 100_000 + "]" * 100_000),
    "deep nesting in messages": with_messages("[" * 100_000 + "]" * 100_000),
    "an array": b"[]",
    "null": b"null",
    "a string": b'"model"',
}


@pytest.mark.parametrize("raw", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_object_is_refused_without_a_member(raw):
    error = refusal(raw)
    assert error.param is None
    assert error.message
    assert len(error.message) < 200


WRONG = {
    "no model": (b"{%s}" % HELLO.encode(), "model"),
    "no messages": (b'{"model":"m"}', "messages"),
    "a number for a model": (body(model="5"), "model"),
    "an empty model": (body(model='""'), "model"),
    "a null model": (body(model="null"), "model"),
    "an endless model": (body(model=f'"{"m" * 513}"'), "model"),
    "text for messages": (with_messages('"hi"'), "messages"),
    "no message": (with_messages("[]"), "messages"),
    "null for messages": (with_messages("null"), "messages"),
    "a number for a message": (
        with_messages('[{"role":"user","content":"a"},5]'),
        "messages[1]",
    ),
    "a message without a role": (with_messages('[{"content":"hi"}]'), "messages[0].role"),
    "a number for a role": (with_messages('[{"role":1,"content":"hi"}]'), "messages[0].role"),
    "an unknown role": (with_messages('[{"role":"boss","content":"hi"}]'), "messages[0].role"),
    "a question without content": (with_messages('[{"role":"user"}]'), "messages[0].content"),
    "a question of null": (
        with_messages('[{"role":"user","content":null}]'),
        "messages[0].content",
    ),
    "a number for content": (with_messages('[{"role":"user","content":5}]'), "messages[0].content"),
    "an object for content": (
        with_messages('[{"role":"user","content":{"type":"text"}}]'),
        "messages[0].content",
    ),
    "no part": (with_messages('[{"role":"user","content":[]}]'), "messages[0].content"),
    "a number for a part": (
        with_messages('[{"role":"user","content":[{"type":"text"},5]}]'),
        "messages[0].content[1]",
    ),
    "a part without a type": (
        with_messages('[{"role":"user","content":[{"text":"hi"}]}]'),
        "messages[0].content[0].type",
    ),
    "a number for a part's type": (
        with_messages('[{"role":"user","content":[{"type":1}]}]'),
        "messages[0].content[0].type",
    ),
    "text for stream": (body('"stream":"yes"'), "stream"),
    "text for stream_options": (body('"stream":true,"stream_options":"x"'), "stream_options"),
    "stream_options without a stream": (
        body('"stream_options":{"include_usage":true}'),
        "stream_options",
    ),
    "a number for include_usage": (
        body('"stream":true,"stream_options":{"include_usage":1}'),
        "stream_options.include_usage",
    ),
    "negative max_tokens": (body('"max_tokens":-1'), "max_tokens"),
    "a fraction of a token": (body('"max_tokens":1.5'), "max_tokens"),
    "text for max_tokens": (body('"max_tokens":"5"'), "max_tokens"),
    "true for max_tokens": (body('"max_tokens":true'), "max_tokens"),
    "more tokens than any model gives": (
        body(f'"max_tokens":{OUTPUT_TOKENS_MAX + 1}'),
        "max_tokens",
    ),
    "more digits than any number needs": (body(f'"max_tokens":{"9" * 5000}'), "max_tokens"),
    "two bounds that differ": (body('"max_tokens":5,"max_completion_tokens":6'), "max_tokens"),
    "no choice": (body('"n":0'), "n"),
    "a thousand choices": (body('"n":1000'), "n"),
    "a hot temperature": (body('"temperature":2.1'), "temperature"),
    "a temperature out of range": (body('"temperature":1e400'), "temperature"),
    "a negative top_p": (body('"top_p":-0.1'), "top_p"),
    "a large penalty": (body('"presence_penalty":3'), "presence_penalty"),
    "a small penalty": (body('"frequency_penalty":-3'), "frequency_penalty"),
    "a seed of text": (body('"seed":"x"'), "seed"),
    "a number for stop": (body('"stop":5'), "stop"),
    "a number among stops": (body('"stop":["a",5]'), "stop[1]"),
    "text for logprobs": (body('"logprobs":"yes"'), "logprobs"),
    "many top_logprobs": (body('"top_logprobs":21'), "top_logprobs"),
    "text in logit_bias": (body('"logit_bias":{"1":"x"}'), "logit_bias[...]"),
    "an object for tools": (body('"tools":{}'), "tools"),
    "text among tools": (body('"tools":["x"]'), "tools[0]"),
    "text for metadata": (body('"metadata":"x"'), "metadata"),
    "a number for user": (body('"user":5'), "user"),
    "a model in another case": (body('"Model":"other"'), "Model"),
    "messages in capitals": (body('"MESSAGES":[]'), "MESSAGES"),
    "a long s": (body('"ſtream":true'), "ſtream"),
    "an escaped name in another case": (body('"Max_\\u0054okens":5'), "Max_Tokens"),
    "a control beside metadata": (body('"fareway_tags":"private"'), "fareway_tags"),
    "a header's name in the body": (body('"x-fareway-tags":"private"'), "x-fareway-tags"),
    "a thousand keys of metadata and one": (
        body(f'"metadata":{{{",".join(f"{chr(34)}k{n}{chr(34)}:1" for n in range(1001))}}}'),
        "metadata",
    ),
}


@pytest.mark.parametrize(("raw", "param"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_member_is_refused_by_name(raw, param):
    error = refusal(raw)
    assert error.param == param
    assert param.partition("[...]")[0] in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize("name", ["api_base", "base_url", "fallbacks", "models", "route", "Models"])
def test_a_member_that_steers_a_router_behind_us_is_refused(name):
    with pytest.raises(UnsupportedParameter) as caught:
        parse(body(f'"{name}":["other"]'))
    assert caught.value.param == name


def test_more_members_than_any_api_has_are_refused():
    members = ",".join(f'"k{n}":1' for n in range(1000))
    with pytest.raises(InvalidRequest, match="over 1000 members"):
        parse(body(members))


MANY_KEYS = ",".join(f'"{n}":1' for n in range(400_000))
CROWDED = {
    "members": MANY_KEYS,
    "metadata": f'"metadata":{{{MANY_KEYS}}}',
    "a bias": f'"logit_bias":{{{MANY_KEYS}}}',
}


@pytest.mark.parametrize("members", CROWDED.values(), ids=CROWDED.keys())
def test_millions_of_keys_are_refused_undecoded(members):
    with pytest.raises(InvalidRequest, match="not messages"):
        parse(body(members))


def test_messages_may_be_large():
    assert parse(with_messages(f'[{{"role":"user","content":"{"a" * 5_000_000}"}}]')).model == "m"


def test_no_depth_of_nesting_gets_past_the_first_check():
    """A later stage decodes parts again, from deeper in the stack."""
    accepted = 0
    for depth in range(400, 1100):
        inner = "[" * depth + "]" * depth
        raw = with_messages(f'[{{"role":"user","content":[{{"type":"text","x":{inner}}}]}}]')
        error = fault(raw)
        accepted += error is None
        assert error is None or "nested too deeply" in error.message
    assert 0 < accepted < 700


def test_a_large_body_is_parsed_and_counted():
    text = "x" * 3_000_000
    found = parse(with_messages(f'[{{"role":"user","content":"{text}"}}]'))
    assert found.prompt_tokens_low < found.prompt_tokens_estimate < found.prompt_tokens_max
    assert found.prompt_tokens_low >= 500_000
    assert found.prompt_tokens_max >= 3_000_000 + TEMPLATE_TOKENS_MAX


REPEATED = {
    "a repeated bound": ('"max_tokens":1,"max_tokens":7', "max_tokens", b"7"),
    "a repeated key in another spelling": (
        '"max_tokens":1,"max\\u005ftokens":7',
        "max_tokens",
        b"7",
    ),
    "a bound taken back": ('"max_tokens":1,"max_tokens":null', "max_tokens", b"null"),
    "a repeated member that the gateway does not know": ('"x":1,"x":2', "x", b"2"),
}


@pytest.mark.parametrize(("extra", "name", "value"), REPEATED.values(), ids=REPEATED.keys())
def test_of_a_repeated_key_the_value_that_was_checked_is_sent_once(extra, name, value):
    found = parse(body(extra))
    assert bytes(found.fields[name]) == value
    if name == "max_tokens":
        assert found.max_output_tokens == json.loads(value)


def test_a_repeated_model_means_one_model():
    found = parse(b'{"model":"a","model":"b",%s}' % HELLO.encode())
    assert found.model == "b"
    assert "model" not in found.fields


INNER_REPEATS = {
    "a role": (
        '[{"role":"system","role":"user","content":"hi"}]',
        [{"role": "user", "content": "hi"}],
    ),
    "an image behind text": (
        '[{"role":"user","content":[{"type":"image_url","image_url":{}}],"content":"hi"}]',
        [{"role": "user", "content": "hi"}],
    ),
    "the type of a part": (
        '[{"role":"user","content":[{"type":"image_url","type":"text","text":"hi"}]}]',
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    ),
}


@pytest.mark.parametrize(("text", "meant"), INNER_REPEATS.values(), ids=INNER_REPEATS.keys())
def test_a_repeated_key_inside_messages_cannot_hide_anything_from_the_check(text, meant):
    found = parse(with_messages(text))
    raw = bytes(found.fields["messages"])
    assert json.loads(raw, object_pairs_hook=list) == json.loads(
        json.dumps(meant), object_pairs_hook=list
    )
    assert not found.has_media


def test_values_that_nothing_inspects_keep_their_bytes():
    extra = '"seed": 12345678901234567 ,"x":{ "a" : 1.0e2, "a": [ ] },"stop":[ "t" ]'
    assert sent(body(extra)) == {
        "seed": b"12345678901234567",
        "x": b'{ "a" : 1.0e2, "a": [ ] }',
        "stop": b'[ "t" ]',
        "messages": b'[{"role":"user","content":"hi"}]',
    }


def test_members_keep_the_order_of_the_client():
    assert list(sent(body('"z":1,"a":2'))) == ["z", "a", "messages"]


def test_what_the_gateway_sets_itself_is_taken_out():
    raw = body('"stream":true,"stream_options":{"include_usage":true}')
    found = parse(raw)
    assert found.is_stream
    assert found.wants_usage
    assert set(found.fields) == {"messages"}


USAGE = {
    "asked for": ('"stream":true,"stream_options":{"include_usage":true}', True),
    "declined": ('"stream":true,"stream_options":{"include_usage":false}', False),
    "left to null": ('"stream":true,"stream_options":{"include_usage":null}', False),
    "left out": ('"stream":true,"stream_options":{}', False),
    "null options": ('"stream":true,"stream_options":null', False),
    "beside an option that asks for nothing": (
        '"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}',
        True,
    ),
    "no stream": ('"stream":false', False),
}


@pytest.mark.parametrize(("extra", "wanted"), USAGE.values(), ids=USAGE.keys())
def test_usage_in_the_stream_is_what_the_client_said(extra, wanted):
    assert parse(body(extra)).wants_usage is wanted


def test_a_stream_option_that_would_be_lost_is_refused():
    with pytest.raises(UnsupportedParameter) as caught:
        parse(body('"stream":true,"stream_options":{"continuous_usage_stats":true}'))
    assert caught.value.param == "stream_options.continuous_usage_stats"


BOUNDS = {
    "none": ("", None),
    "zero": ('"max_tokens":0', 0),
    "the old name": ('"max_tokens":5', 5),
    "the new name": ('"max_completion_tokens":5', 5),
    "both alike": ('"max_tokens":5,"max_completion_tokens":5', 5),
    "null": ('"max_tokens":null', None),
    "the largest": (f'"max_tokens":{OUTPUT_TOKENS_MAX}', OUTPUT_TOKENS_MAX),
}


@pytest.mark.parametrize(("extra", "bound"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_bound_on_output(extra, bound):
    assert parse(body(extra)).max_output_tokens == bound


MEDIA = {
    "text": ('[{"role":"user","content":"hi"}]', False),
    "a part of text": ('[{"role":"user","content":[{"type":"text","text":"a"}]}]', False),
    "a refusal of before": (
        '[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]',
        False,
    ),
    "an image": ('[{"role":"user","content":[{"type":"text"},{"type":"image_url"}]}]', True),
    "a kind that nobody knows": ('[{"role":"user","content":[{"type":"hologram"}]}]', True),
    "an image in the past": (
        '[{"role":"user","content":[{"type":"image_url"}]},{"role":"user","content":"so?"}]',
        True,
    ),
}


@pytest.mark.parametrize(("text", "has_media"), MEDIA.values(), ids=MEDIA.keys())
def test_anything_but_text_is_media(text, has_media):
    assert parse(with_messages(text)).has_media is has_media


WITHOUT_CONTENT = {
    "an assistant that calls a tool": '{"role":"assistant","tool_calls":[{"id":"1"}]}',
    "an assistant of null": '{"role":"assistant","content":null}',
    "a tool that says nothing": '{"role":"tool","tool_call_id":"1","content":null}',
}


@pytest.mark.parametrize("text", WITHOUT_CONTENT.values(), ids=WITHOUT_CONTENT.keys())
def test_only_a_question_needs_content(text):
    raw = with_messages(f'[{{"role":"user","content":"hi"}},{text}]')
    assert json.loads(sent(raw)["messages"])[1] == json.loads(text)


METADATA = {
    "only ours": ('{"fareway_tags":"a","fareway_project":"p"}', None),
    "ours and theirs": ('{"run":"7","fareway_tags":"a","step":"x"}', b'{"run":"7","step":"x"}'),
    "only theirs": ('{ "run": "7" }', b'{ "run": "7" }'),
    "empty": ("{}", None),
}


@pytest.mark.parametrize(("text", "left"), METADATA.values(), ids=METADATA.keys())
def test_control_keys_never_go_upstream(text, left):
    found = parse(body(f'"metadata":{text}'))
    assert (None if left is None else left) == (
        bytes(found.fields["metadata"]) if "metadata" in found.fields else None
    )
    assert set(found.metadata) == set(json.loads(text))
    assert ("metadata" in found.fields_used) is (left is not None)


def test_null_members_are_sent_and_ask_for_nothing():
    found = parse(body('"temperature":null,"metadata":null,"x":null,"top_p":1'))
    assert set(found.fields) == {"temperature", "metadata", "x", "top_p", "messages"}
    assert found.fields_used == {"top_p", "messages"}
    assert found.metadata is None


NEUTRAL = {
    "one choice": '"n":1',
    "no tool": '"tools":[ ]',
    "the format that is meant anyway": '"response_format":{"type": "text"}',
    "no penalty": '"presence_penalty":0',
}


@pytest.mark.parametrize("extra", NEUTRAL.values(), ids=NEUTRAL.keys())
def test_what_means_the_same_as_leaving_it_out_asks_for_nothing_and_is_sent(extra):
    found = parse(body(extra))
    assert found.fields_used == {"messages"}
    assert len(found.fields) == 2


def test_choices_default_to_one():
    assert parse(body()).choices == 1
    assert parse(body('"n":null')).choices == 1
    assert parse(body('"n":3')).choices == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
READ = {
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n",
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs",
    "top_logprobs", "logit_bias", "tools", "metadata", "user",
}  # fmt: skip
REFUSED = re.compile("model|fareway|base|fallbacks|route|provider|key", re.IGNORECASE)
unread = st.text().filter(lambda name: name.casefold() not in READ and REFUSED.search(name) is None)


@given(extra=st.dictionaries(unread, json_values, max_size=5), text=st.text())
def test_unknown_members_and_any_text_arrive_as_they_were_sent(extra, text):
    messages = [{"role": "user", "content": text}]
    raw = json.dumps({"model": "m", **extra, "messages": messages}).encode()
    fields = {name: json.loads(value) for name, value in sent(raw).items()}
    assert fields == {**extra, "messages": messages}


@given(raw=st.binary(max_size=200))
def test_no_bytes_whatever_end_in_anything_but_a_refusal(raw):
    error = fault(raw)
    assert error is None or error.message


@given(value=json_values)
def test_no_value_of_messages_ends_in_anything_but_a_refusal(value):
    error = fault(json.dumps({"model": "m", "messages": value}).encode())
    assert error is None or error.param is None or error.param.startswith("messages")
