"""Combinations of configuration, request and fault, drawn by hypothesis, and how one is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st

from tests.gateway.gateway_harness import NOWHERE
from tests.privacy.attack_range import NAMES, Got, Range
from tests.privacy.recorders import COURSES, Course
from tests.privacy.worlds import FUTURE, PAST, Claim, Tag, World

SECRET = "the-merger-is-on-friday"
"""In every request; tags are what makes it private."""

ATTRIBUTES = ("no_train", "zero_retention", "dpa", "region:eu", "self_hosted")
TAGS = ("internal", "private", "gdpr", "card")

Layers = Literal["both", "evaluator", "permits"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        team: Whose key.
        model: The name as it is written.
        path: With its query.
        by_header: Header `x-fareway-tags`, None for none.
        by_field: `metadata.fareway_tags`, None for none.
        unit: Whether it names its team's project.
        more: Further members of the body.
        headers: Further headers.
    """

    team: str
    model: str
    path: str
    by_header: str | None
    by_field: str | None
    unit: bool
    more: Mapping[str, object]
    headers: Sequence[tuple[str, str]]

    @property
    def added(self) -> frozenset[str]:
        """Tags that it brings."""
        texts = (self.by_header or "", self.by_field or "")
        return frozenset(one.strip() for text in texts for one in text.split(",") if one.strip())

    @property
    def is_served(self) -> bool:
        """Whether its path is one that answers."""
        path = self.path.partition("?")[0].rstrip("/")
        prefix = path.removesuffix("/v1/chat/completions")
        return path != prefix and prefix in ("", "/openai", "/inference")

    def body(self) -> dict[str, object]:
        """The body."""
        made: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": SECRET}],
            "input": SECRET,
            "prompt": SECRET,
            **self.more,
        }
        if "/chat/completions" in self.path:
            del made["input"], made["prompt"]
        if self.by_field is not None:
            made["metadata"] = {"fareway_tags": self.by_field}
        return made


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration, what ails its upstreams, and requests.

    Attributes:
        world: The configuration.
        courses: How each upstream answers.
        layers: Which of evaluator and permits are as they should be.
        asks: Requests, one after the other.
        newer: A configuration that replaces the first one before the last request; None for none.
        faults: Providers that are known to be away before anybody asks.
        cooling: Providers that asked for a pause.
    """

    world: World
    courses: Mapping[str, Course]
    layers: Layers
    asks: tuple[Ask, ...]
    newer: World | None
    faults: frozenset[str]
    cooling: frozenset[str]


def _subsets(values: Sequence[str], *, most: int | None = None):
    return st.lists(st.sampled_from(values), unique=True, max_size=most).map(tuple)


claims = st.builds(
    Claim,
    attribute=st.sampled_from(ATTRIBUTES),
    expires=st.sampled_from([None, None, None, FUTURE, PAST]),
)


def rules(place: int):
    """Rules of a tag; it implies none after it, since no circle may be configured."""
    return st.builds(
        Tag,
        require=_subsets(ATTRIBUTES, most=2),
        implies=_subsets(TAGS[:place], most=2) if place else st.just(()),
        deny=st.sampled_from([False] * 9 + [True]),
    )


trusts = st.tuples(
    st.just((Claim(attribute="self_hosted"), Claim(attribute="region:eu"))),
    *(
        st.lists(claims, max_size=4, unique_by=lambda one: one.attribute).map(tuple)
        for _ in NAMES[1:]
    ),
).map(lambda made: dict(zip(NAMES, made, strict=True)))
floors = st.fixed_dictionaries(
    dict.fromkeys(["apps", "others"], st.just(()) | _subsets(TAGS, most=1))
)
worlds = st.builds(
    World,
    tags=st.fixed_dictionaries(
        {
            "internal": rules(0),
            "private": rules(1) | st.just(Tag(require=("self_hosted",))),
            "gdpr": rules(2),
            "card": rules(3) | st.just(Tag(implies=("private",))),
        }
    ),
    floor=_subsets(TAGS, most=1),
    teams=st.fixed_dictionaries(
        {"apps": _subsets(TAGS, most=2) | st.just(("private",)), "others": _subsets(TAGS, most=1)}
    ),
    projects=floors,
    keys=floors,
    bound=st.frozensets(st.sampled_from(["apps", "others"])),
    trust=trusts,
    model=st.permutations(NAMES).flatmap(
        lambda order: st.integers(1, len(NAMES)).map(lambda count: tuple(order[:count]))
    ),
    urls=st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from([NOWHERE, "http://nowhere.internal:80/v1"]),
        max_size=2,
    ),
)

KNOWN_MODELS = ("chat", "small", "all", *(f"{name}/m" for name in NAMES))
MODELS = st.sampled_from(KNOWN_MODELS) | st.sampled_from(
    ["Chat", "chat ", "ｃｈａｔ", "P1/m", "p1/M", "p1/m ", "p1//m", "/p1/m", "p1/m/", "p1\u200b/m", "сhat",
     "p1/../p2/m", "p1%2Fm", "openai/gpt-5", "http://127.0.0.1:9/m", "chat\u0000", ""]
)  # fmt: skip
CHAT_PATHS = st.sampled_from(
    ["/v1/chat/completions"] * 6
    + ["/openai/v1/chat/completions", "/inference/v1/chat/completions", "/v1/chat/completions/"]
).flatmap(
    lambda path: st.sampled_from(
        ["", "", "", "?model=p1/m", "?model=p2%2Fm&tags=", "?x-fareway-tags=", "?api_base=http://x"]
    ).map(lambda query: path + query)
)
OTHER_PATHS = st.sampled_from(
    ["/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/audio/transcriptions",
     "/v1/images/generations", "/v1/batches", "/v1/files", "/v1/messages/count_tokens",
     "/v1/moderations", "/v1//chat/completions", "/v1/chat/completions/x", "/chat/completions",
     "/v1/engines/p1/completions", "/openai/deployments/p1/chat/completions"]
)  # fmt: skip
TAG_TEXTS = st.none() | st.lists(st.sampled_from(TAGS), min_size=1, max_size=3).map(", ".join) | (
    st.sampled_from(["Private", "-private", "!private", "private;", "publik", "privat", "", "*", ","])
)  # fmt: skip
MORE = st.sampled_from(
    [
        {}, {}, {}, {"stream": True}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 5}, {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": SECRET},
            {"type": "image_url", "image_url": {"url": "http://nowhere.invalid/x.png"}}]}]},
        {"api_base": "http://nowhere.invalid/v1"}, {"base_url": "http://nowhere.invalid/v1"},
        {"extra_body": {"api_base": "http://nowhere.invalid/v1"}}, {"fallbacks": ["p1/m", "p2/m"]},
        {"models": ["p1/m"]}, {"route": "fallback"}, {"provider": {"order": ["p1"]}},
        {"extra_headers": {"host": "nowhere.invalid"}}, {"user": "p1/m"}, {"safety_identifier": "x"},
    ]
)  # fmt: skip
HEADERS = st.sampled_from(
    [
        (), (), (), (), (("x-fareway-tags", ""),), (("x-forwarded-host", "nowhere.invalid"),),
        (("x-fareway-cost-tags", "feature=x"),), (("x-model", "p1/m"),), (("x-api-base", "http://x"),),
        (("host", "nowhere.invalid"),), (("x-fareway-strategy", "cheapest"),),
        (("x-fareway-max-usd", "0.5"),), (("x-fareway-project", "none"),), (("x-fareway-tag", "private"),),
        (("openai-organization", "p1"),), (("helicone-target-url", "http://nowhere.invalid"),),
        (("x-fareway-provider", "p1"),), (("idempotency-key", "k"),),
    ]
)  # fmt: skip
asks = st.builds(
    Ask,
    team=st.sampled_from(["apps", "apps", "others"]),
    model=st.sampled_from(KNOWN_MODELS) | st.sampled_from(["chat", "all"]) | MODELS,
    path=CHAT_PATHS | CHAT_PATHS | CHAT_PATHS | OTHER_PATHS,
    by_header=st.none() | TAG_TEXTS,
    by_field=st.none() | st.none() | TAG_TEXTS,
    unit=st.booleans(),
    more=MORE,
    headers=HEADERS,
)
courses = st.fixed_dictionaries(
    {name: st.just("well") | st.just("well") | st.sampled_from(COURSES) for name in NAMES}
)


@st.composite
def cases(draw) -> Case:
    """One combination."""
    world = draw(worlds)
    newer = None
    if draw(st.sampled_from([False, False, True])):
        other = draw(worlds)
        part = draw(st.sampled_from(["tags", "floor", "teams", "trust", "projects", "keys"]))
        newer = replace(world, **{part: getattr(other, part)})
    return Case(
        world=world,
        courses=draw(courses),
        layers=draw(st.sampled_from(["both", "both", "evaluator", "permits"])),
        asks=tuple(draw(st.lists(asks, min_size=2, max_size=5))),
        newer=newer,
        faults=draw(st.frozensets(st.sampled_from(NAMES), max_size=2)),
        cooling=draw(st.frozensets(st.sampled_from(NAMES), max_size=2)),
    )


def is_answered_well(case: Case, ask: Ask, reachable: frozenset[str]) -> bool:
    """Whether a request must be answered: all that could serve it may and can."""
    if not ask.is_served or ask.more or ask.headers:
        return False
    listed = {"chat": case.world.model, "small": case.world.model, "all": NAMES}.get(
        ask.model, tuple(name for name in NAMES if ask.model == f"{name}/m")
    )
    able = [name for name in listed if name in reachable]
    return bool(able) and all(
        case.courses.get(name, "well") == "well"
        and name not in case.world.urls
        and name not in case.faults
        for name in able
    )


async def try_case(
    range_: Range, case: Case, more: Callable[[Range], None] = lambda _: None
) -> list[str]:
    """Try a combination and say what is wrong; `more` is done before its requests."""
    await range_.load(case.world)
    for name, course in case.courses.items():
        range_.recorders[name].course = course
    health = range_.service.admission.health
    for name in case.faults:
        health.set_fault(f"{name}/m", "it is away")
    for name in case.cooling:
        health.note_lack(f"{name}/m", asked_s=30.0, is_quota=False)
    if case.layers == "evaluator":
        range_.disarm()
    elif case.layers == "permits":
        range_.mislead()
    more(range_)
    faults: list[str] = []
    for place, ask in enumerate(case.asks):
        is_last = place == len(case.asks) - 1
        reachable = case.world.may_reach(ask.team, ask.added, unit=ask.unit)
        if is_last and case.newer is not None and case.layers != "evaluator":
            range_.narrow(case.newer)
            reachable &= case.newer.may_reach(ask.team, ask.added, unit=ask.unit)
        faults += await _try(range_, case, ask, reachable)
    return faults


async def _try(range_: Range, case: Case, ask: Ask, reachable: frozenset[str]) -> list[str]:
    range_.forget()
    before = range_.refusals()
    headers = [*ask.headers]
    if ask.unit:
        headers.append(("x-fareway-project", "unit"))
    if ask.by_header is not None:
        headers.append(("x-fareway-tags", ask.by_header))
    got = await range_.ask(ask.body(), team=ask.team, path=ask.path, headers=headers)
    await range_.settle()
    shown = f"{ask} got {got.status} {got.code}, may reach {sorted(reachable)}"
    faults = [
        f"{name} was reached: {shown}" for name in sorted(range_.touched() - reachable)
    ]  # fmt: skip
    if not ask.is_served and range_.touched():
        faults.append(f"{sorted(range_.touched())} reached by a path that is not built: {shown}")
    faults += _wrong_answer(range_, got, reachable, shown)
    if case.layers == "both" and range_.refusals() != before:
        faults.append(f"a permit refused what the evaluator allowed: {shown}")
    if (
        case.layers != "permits"
        and case.newer is None
        and is_answered_well(case, ask, reachable)
        and got.status != 200
    ):
        faults.append(f"nobody answered: {shown}: {got.body[:300]!r}")
    return faults


def _wrong_answer(range_: Range, got: Got, reachable: frozenset[str], shown: str) -> list[str]:
    faults: list[str] = []
    if got.status == 0 or got.status == 500:
        faults.append(f"no answer: {shown}: {got.body[:300]!r}")
    for name in range_.recorders:
        if f"{name} says hello".encode() in got.body and name not in reachable:
            faults.append(f"{name}'s answer came back: {shown}")
    served = got.headers.get("x-fareway-deployment", "none").partition("/")[0]
    if got.status == 200 and served not in reachable:
        faults.append(f"served by {served}: {shown}")
    return faults
