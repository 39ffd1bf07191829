"""Whatever is done to the example, loading it ends in settings or in a `ConfigError`."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.errors import ConfigError
from gateway.settings.loader import load_text
from gateway.settings.unbuilt import unbuilt
from tests.gateway.settings_text import EXAMPLE

HERE = Path("/nowhere")
EXAMPLE_TEXT = EXAMPLE.read_text()
EXAMPLE_LINES = EXAMPLE_TEXT.splitlines(keepends=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["local/x", "groq", "private", "vllm", "0.05", "2027-06-30", "GROQ_API_KEY"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def load_or_refuse(content):
    """Load what may be anything; a refusal has a message and real lines."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    problems = ()
    try:
        unbuilt(load_text(text, environ={}, base_dir=HERE))
    except ConfigError as error:
        problems = error.problems
        refused = True
    else:
        refused = False
    assert bool(problems) is refused
    lines = text.count("\n") + text.count("\r") + 2
    assert all(problem.message for problem in problems)
    assert all(problem.line is None or 1 <= problem.line <= lines for problem in problems)


@given(data=st.data())
def test_no_edit_of_the_text_makes_the_loader_crash(data):
    start = data.draw(st.integers(0, len(EXAMPLE_TEXT)))
    length = data.draw(st.integers(0, 200))
    inserted = data.draw(
        st.text(alphabet=st.sampled_from("{}[]:,-&*!|>'\"#%@ \n\tax0é"), max_size=20)
    )
    load_or_refuse(EXAMPLE_TEXT[:start] + inserted + EXAMPLE_TEXT[start + length :])


@given(order=st.lists(st.integers(0, len(EXAMPLE_LINES) - 1), max_size=len(EXAMPLE_LINES)))
def test_no_shuffle_of_the_lines_makes_the_loader_crash(order):
    load_or_refuse("".join(EXAMPLE_LINES[index] for index in order))


@pytest.mark.ci
@given(data=st.data())
@pytest.mark.slow
def test_no_value_in_any_place_makes_the_loader_crash(data):
    document = yaml.safe_load(EXAMPLE_TEXT)
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    load_or_refuse(yaml.safe_dump(document, allow_unicode=True))


@given(content=st.binary(max_size=200))
def test_no_bytes_make_the_loader_crash(content):
    load_or_refuse(content)
