"""Repeated keys of a chat body: an earlier value counts for nothing, not even for a refusal."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_chat import parse
from gateway.errors import InvalidRequest, UnsupportedParameter

READ_NAMES = [
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "temperature",
    "stop", "logit_bias", "tools", "metadata", "user", "x", "Model",
]  # fmt: skip
READ_VALUES = st.sampled_from(
    ["null", "true", "0", "1", "2.5", '"m"', "[]", "{}", '{"fareway_tags":"a"}', "[5]", '["a"]']
)
READ_MEMBERS = st.tuples(st.sampled_from(READ_NAMES), READ_VALUES)
MESSAGE_TEXTS = st.sampled_from(
    [
        '{"role":"user","content":"hi"}',
        '{"content":[{"type":"text"}],"role":"us\\u0065r"}',
        '{"role":"developer","content":[{"type":"image_url"}]}',
        '{"role":"assistant"}',
        '{"role":"boss","content":"hi"}',
        '{"role":"user","content":5}',
        "5",
    ]
)


def fault(raw):
    """The refusal, None when the body is taken; anything else fails the test."""
    try:
        parse(raw)
    except (InvalidRequest, UnsupportedParameter) as error:
        return error
    return None


@given(
    members=st.lists(READ_MEMBERS, max_size=6),
    messages=st.lists(MESSAGE_TEXTS, max_size=3),
    has_model=st.booleans(),
)
def test_a_value_that_does_not_count_changes_no_answer(members, messages, has_model):
    """An earlier value of a repeated key that nobody could take; the last one is what is meant."""
    parts = [f'"{name}":{value}' for name, value in members]
    parts += ['"model":"m"'] if has_model else []
    parts.append(f'"messages":[{",".join(messages)}]')
    plain = f"{{{','.join(parts)}}}".encode()
    repeated = f'{{"messages":5,{",".join(parts)}}}'.encode()
    refused, refused_too = fault(plain), fault(repeated)
    assert type(refused) is type(refused_too)
    assert str(refused) == str(refused_too)
    if refused is None:
        found, found_too = parse(plain), parse(repeated)
        assert found.prompt_tokens_max < found_too.prompt_tokens_max
        same = msgspec.structs.replace(found_too, prompt_tokens_max=found.prompt_tokens_max)
        assert found == same
