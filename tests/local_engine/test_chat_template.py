"""Chat templates render as they would elsewhere, and can neither escape nor exhaust the process."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from local_engine.chat_template import MAX_SOURCE_CHARS, ChatTemplate
from local_engine.errors import EngineError, TemplateError
from tests.support.tiny_models import CHATML

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>&</b> 'there'"},
]


def compile_template(source: str, **options: object) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", **options)


def test_chatml_renders_messages_and_opens_the_answer() -> None:
    assert compile_template(CHATML).render(MESSAGES) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi <b>&</b> 'there'<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_answer_is_not_opened_when_not_asked() -> None:
    text = compile_template(CHATML).render(MESSAGES, add_generation_prompt=False)
    assert text.endswith("<|im_end|>\n")


RENDERED = {
    "begin and end texts": ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
    "block lines leave no trace": ("a\n  {% if true %}\n b\n  {% endif %}\nc", "a\n b\nc"),
    "json is plain, not escaped for html": (
        "{{ {'a': '<é>', 'b': [1, none, true]} | tojson }}",
        '{"a": "<é>", "b": [1, null, true]}',
    ),
    "json with indentation": ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
    "a namespace keeps values across a loop": (
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
            "{{ ns.n }}"
        ),
        "2",
    ),
    "loop variables": (
        "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
        "0TrueFalse 1FalseTrue ",
    ),
    "the length of a loop": ("{% for m in messages %}{{ loop.length }}{% endfor %}", "22"),
    "break and continue": (
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
            "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ),
        "02",
    ),
    "slices": ("{% for m in messages[1:] %}{{ m.role }}{% endfor %}{{ 'abc'[::-1] }}", "usercba"),
    "text methods": (
        "{{ ' a-b '.strip().split('-') | join('+') }}{{ 'x'.replace('x', 'y').upper() }}",
        "a+bY",
    ),
    "joining with a method": ("{{ ', '.join(['a', 'b']) }}", "a, b"),
    "concatenation with a tilde": ("{{ 'a' ~ 1 ~ none }}", "a1None"),
    "repetition": ("{{ '-' * 3 }}{{ 2 * 3 }}", "---6"),
    "a macro": ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) ~ f(2) }}", "[1][2]"),
    "attributes and items alike": (
        "{{ messages[0].role }}{{ messages[0]['role'] }}",
        "systemsystem",
    ),
    "a missing name is false": ("{% if tools %}x{% else %}none{% endif %}", "none"),
    "filters over messages": (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | list }}",
        "['user']",
    ),
    "a captured block": ("{% set x %}a{{ 1 }}{% endset %}{{ x | trim }}", "a1"),
    "indentation": ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
    "dictionaries": (
        "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}{{ {'b': 2} | items | list }}",
        "a=1[('b', 2)]",
    ),
}


@pytest.mark.parametrize(("source", "expected"), RENDERED.values(), ids=RENDERED.keys())
def test_what_templates_use_works(source: str, expected: str) -> None:
    assert compile_template(source).render(MESSAGES) == expected


def test_the_date_is_the_callers() -> None:
    template = compile_template(
        "{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 30, tzinfo=UTC)
    )
    assert template.render([]) == "30 Nov 2026"


def test_further_names_reach_the_template() -> None:
    assert compile_template("{{ tools | length }}").render([], tools=[1, 2]) == "2"


def test_the_template_may_refuse_the_messages_in_its_own_words() -> None:
    template = compile_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="refused: roles must alternate"):
        template.render(MESSAGES)


ESCAPES = {
    "the class of text": "{{ ''.__class__ }}",
    "the class of text by item": "{{ ''['__class__'] }}",
    "all classes": "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "globals of a function": "{{ raise_exception.__globals__['os'].system('id') }}",
    "globals of range": "{{ range.__globals__ }}",
    "globals of the namespace class": "{{ namespace.__init__.__globals__ }}",
    "the namespace's own dictionary": "{{ namespace(a=1).__dict__ }}",
    "a stock global: lipsum": "{{ lipsum.__globals__ }}",
    "a stock global: cycler": "{{ cycler.__init__.__globals__ }}",
    "a stock global: joiner": "{{ joiner.__init__.__globals__ }}",
    "a stock global: lipsum called": "{{ lipsum(n=5) }}",
    "the template itself": "{{ self.__init__.__globals__ }}",
    "the template's context": "{{ self._TemplateReference__context }}",
    "the loop's inside": "{% for m in messages %}{{ loop._iterator }}{% endfor %}",
    "a macro's function": "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "the attr filter": "{{ messages | attr('__class__') }}",
    "the attr filter inside map": "{{ messages | map('attr', '__class__') | list }}",
    "map by attribute": "{{ messages | map(attribute='__class__') | list }}",
    "map by dotted attribute": "{{ messages | map(attribute='role.__class__') | list }}",
    "sort by attribute": "{{ messages | sort(attribute='__class__') }}",
    "join by attribute": "{{ messages | join(attribute='__class__') }}",
    "a format string": "{{ '{0.__class__}'.format(messages) }}",
    "a format map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "a percent format": "{{ '%s' % messages }}",
    "the format filter": "{{ '%s' | format(messages) }}",
    "a generator's frame": "{{ (messages | map('upper')).gi_frame }}",
    "encoding to bytes": "{{ 'a'.encode() }}",
    "an include": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a from-import": "{% from 'os' import system %}",
    "an extends": "{% extends 'base' %}",
    "a block": "{% block a %}{% endblock %}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update({'role': 'system'}) }}",
    "removing from a message": "{{ messages[0].pop('role') }}",
    "an undefined function": "{{ open('/etc/passwd') }}",
    "an unclosed block": "{% if x %}",
    "division by zero": "{{ 1 / 0 }}",
}  # fmt: skip


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES.keys())
def test_an_escape_is_refused(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template(source).render(MESSAGES)
    assert isinstance(caught.value, EngineError)
    assert str(caught.value).startswith("the chat template")


def doubled(statement: str, *, start: str, times: int = 100, end: str = "") -> str:
    setup = "{% set ns = namespace(x=" + start + ") %}"
    loop = "{% for i in range(" + str(times) + ") %}{% set ns.x = " + statement + " %}{% endfor %}"
    return setup + loop + end


EXHAUSTION = {
    "a huge range": "{% for i in range(1000000000) %}{% endfor %}",
    "a huge power": "{{ 2 ** 1000000000 }}",
    "a huge repetition": "{{ 'a' * 1000000000 }}",
    "a huge repetition, turned": "{{ 1000000000 * 'a' }}",
    "a huge list": "{{ [0] * 1000000000 }}",
    "doubling by plus": doubled("ns.x + ns.x", start="'a'"),
    "doubling by tilde": doubled("ns.x ~ ns.x", start="'a'"),
    "doubling a list": doubled("ns.x + ns.x", start="[1]"),
    "squaring by the replace method": doubled("ns.x.replace('a', ns.x)", start="'aa'"),
    "squaring by the replace filter": doubled("ns.x | replace('a', ns.x)", start="'aa'"),
    "squaring by join": doubled("ns.x.join([ns.x, ns.x, ns.x])", start="'aa'"),
    "squaring a number": doubled("ns.x * ns.x", start="7"),
    "deep nesting": doubled("[ns.x]", start="1", times=9_000, end="{{ ns.x }}"),
    "nested lists printed": doubled("[ns.x, ns.x]", start="'a'", times=50, end="{{ ns.x }}"),
    "nested lists as json": doubled("[ns.x, ns.x]", start="'a'", times=50, end="{{ ns.x|tojson }}"),
    "nested lists as text": doubled("[ns.x, ns.x]", start="'a'", times=50, end="{{ ns.x|string }}"),
    "nested lists joined": doubled("[ns.x, ns.x]", start="'a'", times=50, end="{{ ns.x|join }}"),
    "many slices of a long text": doubled("ns.x + [messages[0].long[1:]]", start="[]", times=9_999),
    "a capture larger than what is printed": (
        "{% set x %}{% for i in range(9999) %}{{ messages[0].long }}{% endfor %}{% endset %}"
    ),
    "printing without end": "{% for i in range(9999) %}{{ messages[0].long }}{% endfor %}",
    "centring": "{{ 'x' | center(1000000000) }}",
    "centring by method": "{{ 'x'.center(1000000000) }}",
    "padding": "{{ 'x'.ljust(1000000000) }}",
    "zero filling": "{{ 'x'.zfill(1000000000) }}",
    "a wide number": "{{ '%1000000000d' % 1 }}",
    "a wide indentation": "{{ 'x' | indent(1000000000, true) }}",
    "wide json": "{{ [1] | tojson(indent=1000000000) }}",
    "a long date format": "{{ strftime_now('%c' * 100) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "deep parentheses": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "deep blocks": "{% if 1 %}" * 2_000 + "{% endif %}" * 2_000,
    "many nested loops": "{% for i in range(2) %}" * 40 + "{% endfor %}" * 40,
    "a long source": "a" * (MAX_SOURCE_CHARS + 1),
}


@pytest.mark.parametrize("source", EXHAUSTION.values(), ids=EXHAUSTION.keys())
def test_exhaustion_is_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(source, deadline_s=0.2).render([{"role": "user", "long": "x" * 50_000}])


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that moves on by `step_s` whenever it is read."""
    ticks = itertools.count()
    return lambda: next(ticks) * step_s


SLOW = {
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loops over lists": "{% set l = [0] * 999 %}{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}",
    "branching recursion": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
}


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW.keys())
def test_the_deadline_ends_what_makes_nothing(source: str) -> None:
    template = compile_template(source, deadline_s=1.0, clock=ticking(0.001))
    with pytest.raises(TemplateError, match="too long"):
        template.render(MESSAGES)


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = compile_template("{{ messages[0].content }}", max_output_chars=100)
    for _ in range(50):
        assert template.render([{"content": "x" * 100}]) == "x" * 100
    with pytest.raises(TemplateError, match="more than 100 characters"):
        template.render([{"content": "x" * 101}])


def test_nothing_runs_before_the_first_rendering() -> None:
    compile_template("{{ raise_exception('too early') }}{{ 'a' * 1000000000 }}")


def test_messages_stay_out_of_long_errors() -> None:
    template = compile_template("{{ raise_exception(messages[0].content) }}")
    with pytest.raises(TemplateError) as caught:
        template.render([{"content": "x" * 10_000}])
    assert len(str(caught.value)) < 600
