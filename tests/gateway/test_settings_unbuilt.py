"""What cannot be served yet is named with its line, and the list does not grow."""

import pytest

from gateway.settings.loader import load
from gateway.settings.unbuilt import BUILT_KINDS, UNBUILT, unbuilt
from tests.gateway.settings_text import EXAMPLE, load_settings

USES = {
    "provider kinds": ("providers: {g: {kind: groq}}", "providers.g.kind"),
    "content log": ("storage: {content_log: hashes}", "storage.content_log"),
    "stored objects": ("stored_objects: {enabled: true}", "stored_objects.enabled"),
    "slas": (
        (
            "providers: {g: {kind: local, models: [{id: x, source: 'hf:a/b'}]}}\n"
            "models: {m: {deployments: [g/x], routing: {sla: {tps: 1}}}}"
        ),
        "models.m.routing.sla",
    ),
    "strategies": ("routing: {strategy: fastest}", "routing.strategy"),
    "hedging": ("routing: {hedge: {enabled: true}}", "routing.hedge.enabled"),
    "sinks": (
        "privacy: {tags: {a: {}}, sinks: {response_cache: [a]}}",
        "privacy.sinks.response_cache",
    ),
    "secret stores": ("admin: {key_ref: 'vault:a#b'}", "admin.key_ref"),
}


@pytest.mark.parametrize("name", USES)
def test_what_is_not_built_is_named_with_its_key(name):
    text, key_path = USES[name]
    (problem,) = unbuilt(load_settings(text))
    assert problem.key_path == key_path
    assert problem.line == text.count("\n") + 1
    assert "not built yet" in problem.message


def test_the_list_may_only_shrink():
    assert set(UNBUILT) <= set(USES)
    assert {"local", "openai_compatible"} <= BUILT_KINDS


def test_the_defaults_of_every_section_are_built():
    text = "server: {}\nstorage: {}\nadmin: {}\nsecrets: {}\nrouting: {}\nprivacy: {}\nteams: {}"
    assert unbuilt(load_settings(text)) == ()


def test_the_example_uses_of_unbuilt_things_come_in_the_order_of_the_file():
    problems = unbuilt(load(EXAMPLE, environ={}))
    lines = [problem.line for problem in problems]
    assert lines == sorted(lines)
    assert {problem.file for problem in problems} == {str(EXAMPLE)}
