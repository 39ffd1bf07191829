"""The cost in an upstream's answer: one splice says what taking the answer apart would."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dialects import answer_cost
from gateway.dialects.answer_cost import answer_with_cost
from gateway.dialects.openai_answer import with_cost

COUNTS = b'{"prompt_tokens":20,"completion_tokens":64,"prompt_tokens_details":{"cached_tokens":0}}'


def is_spliced(raw: bytes, counts: bytes) -> bool:
    return answer_cost.end_of_usage(raw, counts) is not None


SPLICED = {
    "usage at the end": b'{"id":"x","usage":%b}',
    "usage at the start": b'{"usage":%b,"id":"x"}',
    "white space is kept": b'{ "id": "x",\n "usage" : %b ,\t"z": [ ] }\n',
    "objects behind it": b'{"usage":%b,"x_groq":{"id":"req"},"more":[{"a":{}}]}',
    "the word in a text": b'{"choices":[{"message":{"content":"my \\"usage\\" of usage: {}"}}],"usage":%b}',
    "escapes that spell no letter of a name": b'{"a":"caf\\u00e9 \\n \\u2028","usage":%b}',
}


@pytest.mark.parametrize("raw", SPLICED.values(), ids=SPLICED.keys())
def test_one_plain_usage_gets_the_cost_and_every_other_byte_stays(raw):
    priced = COUNTS[:-1] + b',"cost_usd":"0.25"}'
    assert is_spliced(raw % COUNTS, COUNTS)
    assert answer_with_cost(raw % COUNTS, COUNTS, b"0.25") == raw % priced
    assert answer_with_cost(raw % COUNTS, COUNTS, None) == raw % COUNTS


ODD = {
    "a second usage": (b'{"usage":%b,"usage":{"a":1}}', b'{"a":1}'),
    "a second usage before it": (b'{"usage":{"a":1},"usage":%b}', COUNTS),
    "a second usage, spelt with an escape": (b'{"\\u0075sage":{"a":1},"usage":%b}', COUNTS),
    "usage spelt with an escape": (b'{"us\\u0061ge":%b}', COUNTS),
    "usage inside, too": (b'{"x":{"usage":{"a":1}},"usage":%b}', COUNTS),
    "the counts of a vendor's own member": (b'{"id":1,"x_groq":{"usage":%b}}', COUNTS),
    "the same behind another null": (b'{"x_groq":{"usage":%b},"us\\u0061ge":null}', COUNTS),
    "the word at the end of a name": (b'{"x":{"y\\"usage":%b},"us\\u0061ge":%b}', COUNTS),
}


@pytest.mark.parametrize(("raw", "counts"), ODD.values(), ids=ODD.keys())
def test_what_is_not_certain_is_taken_apart(raw, counts):
    made = raw.replace(b"%b", COUNTS)
    assert not is_spliced(made, counts)
    assert answer_with_cost(made, counts, b"0.25") == with_cost(made, "0.25", None)


def test_an_answer_whose_counts_are_unknown_is_taken_apart():
    raw = b'{"usage":%b}' % COUNTS
    assert answer_with_cost(raw, None, b"0.25") == with_cost(raw, "0.25", None)


SHAPES = {
    "counts": (b'{"a":1,"b":22}', True),
    "fractions, exponents and signs": (b'{"a":0.25,"b":1E+2,"c":-3.5e-7}', True),
    "words": (b'{"a":null,"b":true,"c":false,"d":"e 1 {}"}', True),
    "objects inside, once": (b'{"a":{"x":1,"y":null},"b":{},"c":{ "z" : 1 }}', True),
    "white space": (b'{ "a" : 1 ,\r\n\t"b" : 2 }', True),
    "nothing": (b"{}", False),
    "no object": (b"null", False),
    "a list": (b'{"a":[1]}', False),
    "objects inside, twice": (b'{"a":{"b":{}}}', False),
    "a name twice": (b'{"a":1,"b":2,"a":3}', False),
    "names that only digits tell apart": (b'{"a1":1,"a2":2}', False),
    "an upstream's own cost": (b'{"a":1,"cost_usd":"9"}', False),
    "an escape in a name": (b'{"\\u0061":1}', False),
    "an escape in a text": (b'{"a":"\\n"}', False),
    "more than is looked at": (b'{"a":"' + b"x" * 3000 + b'"}', False),
}


@pytest.mark.parametrize(("counts", "takes"), SHAPES.values(), ids=SHAPES.keys())
def test_counts_whose_shape_takes_a_cost(counts, takes):
    raw = b'{"id":"x","usage":%b}' % counts
    assert is_spliced(raw, counts) is takes
    assert answer_with_cost(raw, counts, b"0.5").endswith(b'"cost_usd":"0.5"}}') is (
        counts != b"null"
    )


HOSTILE_SHAPES = {
    "white space": b'{"a":' + b" " * 1900 + b"x",
    "white space in every member": b"{" + b'"a" :   ,' * 200 + b"x",
    "white space in every member of an inner object": b'{"a":{' + b'"b" :   ,' * 200 + b"x",
    "texts without an end": b"{" + b'"a":"' * 380,
}


@pytest.mark.parametrize("shape", HOSTILE_SHAPES.values(), ids=HOSTILE_SHAPES.keys())
def test_no_shape_takes_long(shape):
    started_s = time.process_time()
    for turn in range(5):
        assert not answer_cost._takes_a_cost(shape + b" " * turn)
    assert time.process_time() - started_s < 0.05


# Names and texts out of few letters, so that they meet; values that look like other parts.
names = st.sampled_from(
    ["usage", "u", "cost_usd", "prompt_tokens", "a1", "a2", 'x"usage', "x_groq", "é", "\\u0075sage"]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-20, 10**9),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(alphabet='usage":{}\\é\n\u2028', max_size=12),
)


class Members(list):
    """A JSON object with its members in order, names that come twice included."""


values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(st.tuples(names, inner), max_size=4).map(Members)
    ),
    max_leaves=12,
)


@st.composite
def encoded(draw, value) -> bytes:
    """JSON of a value, with white space and escapes where they may be."""
    gap = draw(st.sampled_from(["", "", " ", "\n\t"]))

    def text_of(part) -> str:
        if isinstance(part, Members):
            pairs = [f"{gap}{name_of(n)}{gap}:{gap}{text_of(v)}" for n, v in part]
            return "{" + ",".join(pairs) + gap + "}"
        if isinstance(part, list):
            return "[" + f",{gap}".join(map(text_of, part)) + "]"
        return json.dumps(part, ensure_ascii=draw(st.booleans()))

    def name_of(name: str) -> str:
        shown = json.dumps(name)
        return shown.replace("u", "\\u0075", 1) if is_spelt_oddly and draw(st.booleans()) else shown

    is_spelt_oddly = draw(st.integers(0, 3)) == 3

    return text_of(value).encode()


members = st.lists(st.tuples(names, values), max_size=3)
counts_members = st.lists(
    st.tuples(
        st.sampled_from(["prompt_tokens", "total", "cost_usd", "a1", "details"]),
        st.one_of(st.integers(0, 10**9), st.none(), st.floats(0, 1), values),
    ),
    min_size=1,
    max_size=3,
).map(Members)
answers = st.builds(
    lambda before, counts, after: Members([*before, *counts, *after]),
    members.filter(lambda some: all(name != "usage" for name, _ in some)),
    st.lists(st.tuples(st.just("usage"), counts_members), max_size=1),
    members,
)


@given(data=st.data(), answer=answers, cost_usd=st.one_of(st.none(), st.just(b"0.0001234")))
def test_the_splice_means_what_taking_apart_means(data, answer, cost_usd):
    raw = data.draw(encoded(answer))
    found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    groq = dict(answer).get("x_groq")
    counts = bytes(found.get("usage", b""))
    if counts in {b"", b"null"} and isinstance(groq, Members):
        inner = msgspec.json.decode(found["x_groq"], type=dict[str, msgspec.Raw])
        counts = bytes(inner.get("usage", b""))
    made = answer_with_cost(raw, counts or None, cost_usd)
    careful = with_cost(raw, cost_usd and cost_usd.decode(), None)
    assert json.loads(made) == json.loads(careful)
    if counts and is_spliced(raw, counts):
        put_in = b"" if cost_usd is None else b',"cost_usd":"0.0001234"'
        assert len(made) == len(raw) + len(put_in)
        assert made.replace(put_in, b"", 1) == raw
        # A name that comes twice means two things; none is left at the top of what was spliced.
        seen = json.loads(raw, object_pairs_hook=lambda pairs: pairs)
        assert [name for name, _ in seen].count("usage") == 1


@given(
    prompt=st.integers(0, 10**9), cached=st.integers(0, 10**6), text=st.text(max_size=60)
)  # fmt: skip
@example(prompt=20, cached=0, text='said "usage"')
def test_what_vendors_send_is_spliced(prompt, cached, text):
    counts = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    for separators in ((",", ":"), (", ", ": ")):
        body = {"choices": [{"message": {"content": text}}], "usage": counts, "service": {"a": 1}}
        raw = json.dumps(body, separators=separators, ensure_ascii=False).encode()
        told = json.dumps(counts, separators=separators).encode()
        assert is_spliced(raw, told) or b"\\u00" in raw
        assert json.loads(answer_with_cost(raw, told, b"0.5")) == json.loads(
            with_cost(raw, "0.5", None)
        )
