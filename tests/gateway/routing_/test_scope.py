"""Key scopes: literal globs, and every hop from the name asked for to a deployment is authorised."""

from __future__ import annotations

import difflib
import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.resolve import (
    NameKind,
    Resolved,
    UnknownModel,
    is_authorised,
    resolve,
    usable_names,
)
from gateway.routing.scope import KeyScope, matches_glob
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.price_book import Unpriced

GLOBS = {
    "the name itself": ("gpt-4.1", "gpt-4.1", True),
    "another case": ("gpt-4.1", "GPT-4.1", False),
    "a letter that looks the same": ("frontier", "front\u0456er", False),
    "everything": ("*", "groq/llama-3.1-8b", True),
    "everything covers the empty name": ("*", "", True),
    "a prefix": ("gpt-4.1*", "gpt-4.1-mini", True),
    "a prefix alone": ("gpt-4.1*", "gpt-4.1", True),
    "a point is a point (GW-106)": ("gpt-4.1*", "gpt-4x1-secret", False),
    "a line break matches nothing (GW-106)": ("gpt-4.1*", "gpt-4.1\nfrontier", False),
    "a null character matches nothing": ("*", "gpt\0", False),
    "a suffix": ("*-mini", "gpt-mini", True),
    "a suffix is matched whole": ("*-mini", "gpt-mini-2", False),
    "a prefix is matched whole": ("gpt-*", "my-gpt-4", False),
    "middle pieces in order": ("a*b*c*d", "a1b2c3d", True),
    "middle pieces out of order": ("a*b*c*d", "a1c2b3d", False),
    "pieces may not overlap": ("ab*ba", "aba", False),
    "pieces may not overlap in the middle": ("a*bb*b", "abb", False),
    "a question mark is a question mark": ("gpt-?", "gpt-4", False),
    "brackets are brackets": ("gpt-[45]", "gpt-4", False),
    "a slash is a character like others": ("groq*8b", "groq/llama-8b", True),
    "a regular expression is only text (GW-106)": ("(a+)+*", "a" * 50, False),
    "an empty pattern": ("", "a", False),
}


@pytest.mark.parametrize(("pattern", "name", "matches"), GLOBS.values(), ids=GLOBS.keys())
def test_a_glob_matches_literally_and_whole(pattern: str, name: str, matches: bool) -> None:
    assert matches_glob(pattern, name) is matches


@given(pattern=st.text("ab*", max_size=8), name=st.text("ab", max_size=10))
def test_globs_agree_with_the_standard_library_where_both_apply(pattern: str, name: str) -> None:
    assert matches_glob(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_a_hostile_pattern_takes_no_long_time() -> None:
    start = time.perf_counter()
    assert not matches_glob("*a" * 50 + "*b", "a" * 10_000)
    assert time.perf_counter() - start < 5


def fleet() -> FleetSnapshot:
    names = ("groq/llama", "eu-vllm/llama", "openai/frontier", "vendor/coder-bf16")
    return FleetSnapshot(
        deployments={
            name: DeploymentView(name=name, price=Unpriced(reason="test")) for name in names
        },
        models={"cheap": ("groq/llama", "eu-vllm/llama"), "frontier": ("openai/frontier",)},
        aliases={
            "fast": "frontier",
            "cheap-and-new": "frontier",
            "small": "cheap",
            "coder": "vendor/coder-bf16",
        },
    )


RESOLVED = {
    "a model": ("cheap", NameKind.MODEL, "cheap", ("groq/llama", "eu-vllm/llama")),
    "an alias of a model": ("small", NameKind.ALIAS, "cheap", ("groq/llama", "eu-vllm/llama")),
    "an alias of a deployment": ("coder", NameKind.ALIAS, None, ("vendor/coder-bf16",)),
    "a deployment": ("groq/llama", NameKind.DEPLOYMENT, None, ("groq/llama",)),
}


@pytest.mark.parametrize(
    ("name", "kind", "model", "deployments"), RESOLVED.values(), ids=RESOLVED.keys()
)
def test_a_name_stands_for(
    name: str, kind: NameKind, model: str | None, deployments: tuple[str, ...]
) -> None:
    assert resolve(fleet(), name) == Resolved(
        name=name, kind=kind, model=model, deployments=deployments
    )


@pytest.mark.parametrize(
    "name", ["Cheap", "cheap ", "cheap\n", "groq/Llama", "prov/frontier", "fr\u043entier", ""]
)
def test_names_match_exactly_or_not_at_all(name: str) -> None:
    assert isinstance(resolve(fleet(), name), UnknownModel)


def test_an_unknown_name_lists_near_ones() -> None:
    assert resolve(fleet(), "cheep") == UnknownModel(name="cheep", near=("cheap",))


def test_near_names_stay_inside_what_the_key_may_use() -> None:
    unknown = resolve(fleet(), "frontie", scope=KeyScope(models=("cheap",)))
    assert unknown == UnknownModel(name="frontie", near=())


def test_a_huge_unknown_name_takes_no_long_time() -> None:
    start = time.perf_counter()
    assert isinstance(resolve(fleet(), "x" * 10_000_000), UnknownModel)
    assert time.perf_counter() - start < 5


AUTHORISED = {
    "no restriction": (None, "fast", True),
    "nothing granted": ((), "cheap", False),
    "the model itself": (("cheap",), "cheap", True),
    "an alias of a granted model": (("cheap",), "small", True),
    "an alias of a model outside (GW-103)": (("cheap",), "fast", False),
    "a deployment of a model outside (GW-103)": (("cheap",), "openai/frontier", False),
    "a deployment of a granted model": (("cheap",), "groq/llama", True),
    "a granted alias (GW-107)": (("coder",), "coder", True),
    "what a granted alias stands for, by its own name": (("coder",), "vendor/coder-bf16", False),
    "a granted alias of a model": (("fast",), "fast", True),
    "the model of a granted alias, by its own name": (("fast",), "frontier", False),
    "an alias that a pattern merely covers": (("cheap*",), "cheap-and-new", False),
    "a model that a pattern covers": (("cheap*",), "cheap", True),
    "everything by pattern": (("*",), "cheap-and-new", True),
    "an alias of a granted deployment": (("vendor/*",), "coder", True),
    "deployments of one provider": (("groq/*",), "groq/llama", True),
    "a deployment of another provider": (("groq/*",), "eu-vllm/llama", False),
    "a model with one granted deployment": (("groq/*",), "cheap", False),
}


@pytest.mark.parametrize(
    ("patterns", "name", "is_free"), AUTHORISED.values(), ids=AUTHORISED.keys()
)
def test_a_key_may_use(patterns: tuple[str, ...] | None, name: str, is_free: bool) -> None:
    resolved = resolve(fleet(), name)
    assert isinstance(resolved, Resolved)
    assert is_authorised(fleet(), resolved, KeyScope(models=patterns)) is is_free


def test_an_alias_named_like_a_pattern_is_not_spelt_out_by_it() -> None:
    odd = FleetSnapshot(
        deployments=fleet().deployments,
        models={"frontier": ("openai/frontier",)},
        aliases={"cheap*": "frontier"},
    )
    resolved = resolve(odd, "cheap*")
    assert isinstance(resolved, Resolved)
    assert not is_authorised(odd, resolved, KeyScope(models=("cheap*",)))


def test_the_list_of_models_is_what_the_key_may_ask_for() -> None:
    assert usable_names(fleet(), KeyScope(models=("cheap",))) == (
        "cheap",
        "small",
        "eu-vllm/llama",
        "groq/llama",
    )
    assert usable_names(fleet(), KeyScope(models=("coder",))) == ("coder",)
    assert len(usable_names(fleet(), KeyScope())) == 10


@given(
    patterns=st.none()
    | st.lists(
        st.sampled_from(["cheap", "fast", "coder", "small", "groq/*", "front*", "*/llama"]),
        max_size=3,
    )
)
def test_the_list_of_models_holds_exactly_what_a_key_is_authorised_for(patterns) -> None:
    scope = KeyScope(models=None if patterns is None else tuple(patterns))
    listed = usable_names(fleet(), scope)
    for name in (*fleet().models, *fleet().aliases, *fleet().deployments):
        resolved = resolve(fleet(), name)
        assert isinstance(resolved, Resolved)
        assert (name in listed) is is_authorised(fleet(), resolved, scope)


class Counted(dict):
    """A mapping that counts how often all of it is gone through."""

    rounds = 0

    def items(self):
        self.rounds += 1
        return super().items()

    def __iter__(self):
        self.rounds += 1
        return super().__iter__()


def test_an_unknown_name_in_a_large_fleet_goes_through_its_models_few_times() -> None:
    """Once for each deployment, 1,000 models of five took 7 s of the event loop."""
    names = [f"model-{place}" for place in range(100)]
    views = {
        f"p/{name}": DeploymentView(name=f"p/{name}", price=Unpriced(reason="")) for name in names
    }
    models = Counted({name: (f"p/{name}",) for name in names})
    large = FleetSnapshot(deployments=views, models=models, is_checked=True)
    unknown = resolve(large, "model-777", scope=KeyScope(models=("model-77", "model-7")))
    assert unknown == UnknownModel(name="model-777", near=("model-77", "model-7", "p/model-77"))
    assert models.rounds <= 3


def test_an_unknown_name_in_a_large_fleet_is_compared_with_those_that_begin_alike(
    monkeypatch,
) -> None:
    compared, get_close_matches = [], difflib.get_close_matches

    def near(name, known, n):
        compared.extend(known)
        return get_close_matches(name, known, n=n)

    monkeypatch.setattr(difflib, "get_close_matches", near)
    names = [f"model-{place:03}" for place in range(1000)]
    views = {
        f"p/{name}": DeploymentView(name=f"p/{name}", price=Unpriced(reason="")) for name in names
    }
    models = {name: (f"p/{name}",) for name in names}
    large = FleetSnapshot(deployments=views, models=models, is_checked=True)
    unknown = resolve(large, "model-500-x")
    assert isinstance(unknown, UnknownModel)
    assert unknown.near[0] == "model-500"
    assert len(compared) < 150


@given(
    patterns=st.lists(
        st.sampled_from(["cheap", "fast", "coder", "groq/*", "front*", "*/llama"]), max_size=3
    )
)
def test_a_pattern_more_never_takes_a_name_away(patterns: list[str]) -> None:
    for place in range(len(patterns)):
        fewer = usable_names(fleet(), KeyScope(models=tuple(patterns[:place])))
        assert set(fewer) <= set(usable_names(fleet(), KeyScope(models=tuple(patterns))))


BAD_FLEETS = {
    "a view under another name": ({"deployments": {"a/b": DeploymentView(name="a/c", price=Unpriced(reason=""))}}, "is kept under"),
    "a model of nothing": ({"models": {"m": ()}}, "lists no deployment"),
    "a model of an unknown deployment": ({"models": {"m": ("a/x",)}}, "which is no deployment"),
    "a model that lists twice": ({"models": {"m": ("a/b", "a/b")}}, "lists a deployment twice"),
    "a model named like a deployment": ({"models": {"a/b": ("a/b",)}}, "is a model and a deployment"),
    "an alias of nothing": ({"aliases": {"x": "y"}}, "which is no model or deployment"),
    "an alias named like a model": ({"models": {"m": ("a/b",)}, "aliases": {"m": "a/b"}}, "is an alias and a model"),
    "an alias named like a deployment": ({"aliases": {"a/b": "a/b"}}, "is an alias and a model or deployment"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "problem"), BAD_FLEETS.values(), ids=BAD_FLEETS.keys())
def test_a_snapshot_refuses(changes, problem: str) -> None:
    base = {
        "deployments": {"a/b": DeploymentView(name="a/b", price=Unpriced(reason=""))},
        "models": {},
    }
    with pytest.raises(ValueError, match=problem):
        FleetSnapshot(**{**base, **changes})
