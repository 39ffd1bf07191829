"""Request controls: one grammar by header and by field, merged so that they only narrow."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.controls import (
    CONTROL_MARK,
    NO_CONTROLS,
    Controls,
    read_controls,
    without_controls,
)
from gateway.errors import InvalidRequest, UnsupportedParameter

USD = 10**12


def headers(*pairs):
    return [
        (b"accept", b"*/*"),
        *((f"x-fareway-{name}".encode(), value.encode()) for name, value in pairs),
    ]


def fields(**values):
    return {
        f"fareway_{name}": msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()
    }


def read(pairs=(), values=None):
    return read_controls(headers(*pairs), None if values is None else fields(**values))


def refusal(pairs=(), values=None, kind=InvalidRequest):
    with pytest.raises(kind) as caught:
        read(pairs, values)
    return caught.value


def tagged(*tags):
    return Controls(tags=frozenset(tags), tags_given=tags)


GRAMMAR = {
    "no control": ([], Controls()),
    "one tag": ([("tags", "private")], tagged("private")),
    "tags with blanks and an empty place": (
        [("tags", " a ,b,, c-1 ")],
        tagged("a", "b", "c-1"),
    ),
    "no tag at all": ([("tags", " , ")], Controls()),
    "a tag with a colon": ([("tags", "region:eu")], tagged("region:eu")),
    "two headers of tags": (
        [("tags", "b,a"), ("tags", "a,c")],
        tagged("b", "a", "c"),
    ),
    "cost tags, sorted": (
        [("cost-tags", "feature=search, env=Prod 1/2")],
        Controls(cost_tags=(("env", "Prod 1/2"), ("feature", "search"))),
    ),
    "the same cost tag twice": (
        [("cost-tags", "env=prod"), ("cost-tags", "env=prod")],
        Controls(cost_tags=(("env", "prod"),)),
    ),
    "a strategy": ([("strategy", "cheapest")], Controls(strategy="cheapest")),
    "a ceiling": ([("max-usd", "0.02")], Controls(max_pico_usd=USD // 50)),
    "a ceiling of nothing": ([("max-usd", "0")], Controls(max_pico_usd=0)),
    "a ceiling of a picodollar": ([("max-usd", "1e-12")], Controls(max_pico_usd=1)),
    "a project": ([("project", "fraud")], Controls(project="fraud")),
}


@pytest.mark.parametrize(("pairs", "meant"), GRAMMAR.values(), ids=GRAMMAR.keys())
def test_a_control_means_the_same_by_header_and_by_field(pairs, meant):
    assert read(pairs) == meant
    if len(pairs) == 1:
        ((name, value),) = pairs
        assert read(values={name.replace("-", "_"): value}) == meant


def test_without_controls_nothing_is_made():
    assert read_controls([(b"authorization", b"x")], None) is NO_CONTROLS
    assert read_controls([], {"run": msgspec.Raw(b'"7"')}) is NO_CONTROLS


BAD_VALUES = {
    "a tag in capitals": ("tags", "Private"),
    "a tag with a blank": ("tags", "a b"),
    "an endless tag": ("tags", "a" * 65),
    "too many tags": ("tags", ",".join(f"t{n}" for n in range(65))),
    "a cost tag without a value": ("cost-tags", "env"),
    "a cost tag with an empty value": ("cost-tags", "env="),
    "a cost tag without a name": ("cost-tags", "=prod"),
    "a cost tag with a semicolon": ("cost-tags", "env=a;b"),
    "an endless cost tag": ("cost-tags", "env=" + "a" * 65),
    "a cost tag with two values": ("cost-tags", "env=a,env=b"),
    "too many cost tags": ("cost-tags", ",".join(f"t{n}=x" for n in range(65))),
    "an unknown strategy": ("strategy", "luckiest"),
    "an empty strategy": ("strategy", ""),
    "a ceiling below nothing": ("max-usd", "-0.01"),
    "a ceiling of text": ("max-usd", "cheap"),
    "a ceiling of NaN": ("max-usd", "NaN"),
    "an endless ceiling": ("max-usd", "Infinity"),
    "a ceiling beyond all money": ("max-usd", "1e50"),
    "a ceiling finer than a picodollar": ("max-usd", "1e-13"),
    "an empty ceiling": ("max-usd", ""),
    "an empty project": ("project", ""),
    "a project with a slash": ("project", "a/b"),
}


@pytest.mark.parametrize(("name", "value"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_a_value_outside_its_grammar_is_refused_where_it_stands(name, value):
    assert refusal([(name, value)]).param == f"x-fareway-{name}"
    field = name.replace("-", "_")
    assert refusal(values={field: value}).param == f"metadata.fareway_{field}"


TO_COME = {
    "an SLA": ("sla", "ttft_ms=500"),
    "the fastest": ("strategy", "fastest"),
    "a balance": ("strategy", "balanced"),
}


@pytest.mark.parametrize(("name", "value"), TO_COME.values(), ids=TO_COME.keys())
def test_what_is_not_built_is_refused_as_that(name, value):
    error = refusal([(name, value)], kind=UnsupportedParameter)
    assert error.param == f"x-fareway-{name}"
    assert "not available" in error.message


UNKNOWN = {
    "a missing s": ("tag", "tags"),
    "a missing hyphen": ("costtags", "cost-tags"),
    "another currency": ("max-eur", "max-usd"),
    "another word": ("projekt", "project"),
}


@pytest.mark.parametrize(("name", "nearest"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_control_is_refused_with_the_nearest_name(name, nearest):
    by_header = refusal([(name, "x")])
    assert by_header.param == f"x-fareway-{name}"
    assert f"'x-fareway-{nearest}'" in by_header.message
    field = name.replace("-", "_")
    by_field = refusal(values={field: "x"})
    assert by_field.param == f"metadata.fareway_{field}"
    assert f"'fareway_{nearest.replace('-', '_')}'" in by_field.message


MISSPELT_HEADERS = (
    "x_fareway_tags",
    "x-fareway_tags",
    "x-fareway.tags",
    "x-farewaytags",
    "fareway-tags",
    "fareway_tags",
)
MISSPELT_FIELDS = (
    " fareway_tags",
    "fareway.tags",
    "fareway tags",
    "Fareway_Tags",
    "FAREWAY_TAGS",
    "fareway-tags",
    "x-fareway-tags",
    "x_fareway_tags",
)


@pytest.mark.parametrize("name", MISSPELT_HEADERS)
def test_a_header_that_was_meant_to_be_a_control_is_refused(name):
    with pytest.raises(InvalidRequest) as caught:
        read_controls([(name.encode(), b"private")], None)
    assert caught.value.param == name
    assert "'x-fareway-tags'" in caught.value.message


@given(
    start=st.sampled_from(["x-fareway-", "x_fareway", "x-fareway_", "fareway-", "fareway_", "x-"]),
    rest=st.text("-_abfagrstwy", max_size=8),
)
def test_a_name_without_the_mark_is_no_control(start, rest):
    """Requests whose names lack the mark are not looked at for controls."""
    pairs = [(f"{start}{rest}".encode(), b"a")]
    try:
        is_control = read_controls(pairs, None) != NO_CONTROLS
    except InvalidRequest:
        is_control = True
    assert CONTROL_MARK in pairs[0][0] or not is_control


@pytest.mark.parametrize("name", MISSPELT_FIELDS)
def test_a_field_that_was_meant_to_be_a_control_is_refused(name):
    with pytest.raises(InvalidRequest) as caught:
        read_controls([], {name: msgspec.Raw(b'"private"')})
    assert caught.value.param == f"metadata.{name}"
    assert "'fareway_tags'" in caught.value.message


def test_metadata_of_the_client_s_own_is_none_of_ours():
    own = {name: msgspec.Raw(b"1") for name in ("far", "fareway", "x_far", "Farewaytags", "")}
    assert read_controls([(b"x-far", b"1"), (b"farewell", b"1")], own) == NO_CONTROLS


def test_an_endless_name_is_cut_and_compared_in_no_time():
    error = refusal(values={"tags" * 2_000_000: "x"})
    assert len(error.message) < 300
    assert len(error.param) < 100


NOT_TEXT = {"a number": 5, "a list": ["a"], "nothing": None, "an object": {"a": "b"}, "truth": True}


@pytest.mark.parametrize("value", NOT_TEXT.values(), ids=NOT_TEXT.keys())
def test_a_field_that_is_no_text_is_refused(value):
    error = refusal(values={"tags": value})
    assert error.param == "metadata.fareway_tags"
    assert "must be a string" in error.message


def test_a_header_outside_ascii_is_refused():
    for raw in ("größe".encode("latin-1"), "größe".encode(), b"\xff"):
        with pytest.raises(InvalidRequest) as caught:
            read_controls([(b"x-fareway-tags", raw)], None)
        assert caught.value.param == "x-fareway-tags"
    with pytest.raises(InvalidRequest) as caught:
        read_controls([(b"x-fareway-t\xe4gs", b"a")], None)
    assert "x-fareway-tags" in caught.value.message


def test_a_field_outside_ascii_is_refused():
    assert refusal(values={"tags": "größe"}).param == "metadata.fareway_tags"


CONTRADICTIONS = {
    "two projects": ("project", "a", "b"),
    "two values of a cost tag": ("cost-tags", "env=a", "env=b"),
}


@pytest.mark.parametrize(
    ("name", "one", "other"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys()
)
def test_header_and_field_that_contradict_each_other_are_refused(name, one, other):
    error = refusal([(name, one)], {name.replace("-", "_"): other})
    assert error.param == f"metadata.fareway_{name.replace('-', '_')}"


def test_header_and_field_that_agree_are_taken():
    found = read(
        [("project", "a"), ("strategy", "cheapest")], {"project": "a", "strategy": "cheapest"}
    )
    assert (found.project, found.strategy) == ("a", "cheapest")


def test_only_our_keys_are_taken_out_of_metadata():
    metadata = {
        "run": msgspec.Raw(b'"7"'),
        "fareway_tags": msgspec.Raw(b'"a"'),
        "fareway_what": msgspec.Raw(b"1"),
        "Fareway_tags": msgspec.Raw(b"2"),
    }
    assert set(without_controls(metadata)) == {"run", "Fareway_tags"}


names = st.text(alphabet=string.ascii_lowercase + string.digits + "_.:-", min_size=1, max_size=64)
tag_lists = st.lists(names, max_size=8)
amounts = st.integers(0, 10**15).map(lambda pico: f"{pico}e-12")


@given(header_tags=tag_lists, field_tags=tag_lists)
def test_tags_of_header_and_field_add_up(header_tags, field_tags):
    found = read([("tags", ",".join(header_tags))], {"tags": ",".join(field_tags)})
    assert found.tags == {*header_tags, *field_tags}


@given(header_usd=amounts, field_usd=amounts)
def test_the_smaller_ceiling_counts(header_usd, field_usd):
    alone = [read([("max-usd", one)]).max_pico_usd for one in (header_usd, field_usd)]
    both = read([("max-usd", header_usd)], {"max_usd": field_usd})
    assert both.max_pico_usd == min(alone)


controls = st.fixed_dictionaries(
    {}, optional={"tags": tag_lists.map(",".join), "max_usd": amounts, "project": names}
)


@given(first=controls, second=controls)
def test_another_control_only_narrows(first, second):
    alone = read([(name.replace("_", "-"), value) for name, value in first.items()])
    pairs = [(name.replace("_", "-"), value) for name, value in first.items()]
    if "project" in first and first["project"] != second.get("project", first["project"]):
        refusal(pairs, second)
        return
    both = read(pairs, second)
    assert both.tags >= alone.tags
    assert alone.project is None or both.project == alone.project
    if alone.max_pico_usd is not None:
        assert both.max_pico_usd <= alone.max_pico_usd


@given(
    raw=st.binary(max_size=80), name=st.sampled_from(["tags", "cost-tags", "max-usd", "project"])
)
def test_no_header_value_ends_in_anything_but_a_refusal(raw, name):
    try:
        found = read_controls([(f"x-fareway-{name}".encode(), raw)], None)
    except InvalidRequest:
        return
    assert isinstance(found, Controls)
    assert raw.isascii()
