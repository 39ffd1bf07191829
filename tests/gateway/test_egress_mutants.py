"""Each check of the two layers is taken out in turn, and something that is asked of them fails."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from gateway.clock import to_microseconds
from gateway.egress.places import Place
from gateway.privacy.model import PolicySource, TagRule, TeamFloor, TrustClaim, TrustedDeployment
from providers.addresses import Reach

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TCP = (2, 1, 6, "")


def mutant(name: str, old: str, new: str) -> ModuleType:
    """A module of ours with a part of its text replaced, under a name of its own."""
    real = importlib.import_module(name)
    text = Path(str(real.__file__)).read_text()
    assert old in text, f"{name} has changed: {old!r} is not in it any more"
    made = ModuleType(f"{name}_mutant")
    made.__file__ = real.__file__
    sys.modules[made.__name__] = made  # dataclasses look their module up
    try:
        exec(compile(text.replace(old, new), str(real.__file__), "exec"), made.__dict__)
    finally:
        del sys.modules[made.__name__]
    return made


def _raises(act: Callable[[], object]) -> bool:
    try:
        act()
    except Exception:  # of whichever module the mutant has
        return True
    return False


def address_faults(module: ModuleType) -> list[str]:
    """What is wrong with a module's judgement of addresses."""
    reach = module.Reach
    refused = [
        "169.254.169.254", "169.254.0.9", "fe80::1", "fd00:ec2::254", "100.100.100.200",
        "168.63.129.16", "0.0.0.0", "0.0.0.5", "::", "224.0.0.1", "ff02::1", "255.255.255.255",
        "240.0.0.1", "fec0::1", "::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00:0", "2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::1",
        "2001:db8::5efe:a9fe:a9fe", "::ffff:0:a9fe:a9fe", "example.com",
    ]  # fmt: skip
    faults = [one for one in refused if module.why_refused(one) is None]
    for one, expected in {
        "93.184.216.34": {reach.ANY, reach.PUBLIC},
        "10.0.0.5": {reach.ANY, reach.PRIVATE},
        "127.0.0.1": {reach.ANY, reach.PRIVATE},
        "100.64.0.9": {reach.ANY, reach.PRIVATE},
        "64:ff9b::a00:5": {reach.ANY, reach.PRIVATE},
        "::ffff:10.0.0.5": {reach.ANY, reach.PRIVATE},
        "2002:a00:5::1": {reach.ANY, reach.PRIVATE},
    }.items():
        if {each for each in reach if module.why_refused(one, each) is None} != expected:
            faults.append(one)
    return faults


def guard_faults(module: ModuleType) -> list[str]:
    """What is wrong with a module's guard."""
    listed = [
        Place("api.example.com", 443, Reach.PUBLIC), Place("*.example.net", 443),
        Place("10.0.0.9", 5432), Place("169.254.169.254", 80),
    ]  # fmt: skip
    now = [0.0]

    def made(**options: object) -> object:
        return module.Guard(listed, monotonic_s=lambda: now[0], **options)

    def infos(address: str) -> list[object]:
        return [(*TCP, (address, 443))]

    def connects(guard: object, address: str, port: int) -> bool:
        return not _raises(lambda: guard.check_address(2, (address, port)))

    learnt, elsewhere, late, shorter, observed = made(), made(), made(), made(), made()
    for one in (learnt, late, shorter):
        one.learn("api.example.com", 443, infos("93.184.216.34"))
    shorter.allow([])
    observed.allow([], is_enforced=False)
    narrowed = made()
    narrowed.narrow([])
    spawning = made(may_spawn=False)
    is_learnt = connects(learnt, "93.184.216.34", 443)
    is_learnt_elsewhere = connects(learnt, "93.184.216.34", 80)
    is_kept = connects(shorter, "93.184.216.34", 443)
    now[0] = module.LEARNT_S
    asked = {
        "an unlisted name": _raises(lambda: made().check_name("evil.example.org", 443)),
        "another port of a listed name": _raises(lambda: made().check_name("api.example.com", 80)),
        "a number as a name": _raises(lambda: made().check_name("2130706433", 443)),
        "a listed name": not _raises(lambda: made().check_name("API.example.com.", "443")),
        "a listed address": connects(made(), "10.0.0.9", 5432),
        "another port of a listed address": not connects(made(), "10.0.0.9", 5433),
        "an unlisted address": not connects(made(), "93.184.216.34", 443),
        "an address that was learnt": is_learnt,
        "another port of what was learnt": not is_learnt_elsewhere,
        "what was learnt long ago": not connects(late, "93.184.216.34", 443),
        "what was learnt under a longer list": not is_kept,
        "metadata, though listed": not connects(made(), "169.254.169.254", 80),
        "metadata, though observed": not connects(observed, "169.254.169.254", 80),
        "observed": connects(observed, "93.184.216.34", 443),
        "a name that leads inside": _raises(
            lambda: elsewhere.learn("api.example.com", 443, infos("10.0.0.5"))
        ),
        "where that name led": not connects(elsewhere, "10.0.0.5", 443),
        "a narrowed list": not connects(narrowed, "10.0.0.9", 5432),
        "a name at a socket": _raises(lambda: made().check_address(2, ("api.example.com", 443))),
        "another family": _raises(lambda: made().check_address(16, (0, 0))),
        "a Unix socket": not _raises(lambda: made().check_address(1, "/run/x")),
        "a child process": _raises(lambda: spawning.check_spawn(("ls",))),
        "a native library": _raises(lambda: made().handlers["import"](("hf_xet",))),
        "datagrams to anybody": _raises(lambda: made().refuse_datagrams()),
        "every event": set(made().handlers)
        >= {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
            "socket.gethostbyname", "subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn",
            "os.system"},
    }  # fmt: skip
    return [name for name, is_right in asked.items() if not is_right]


def permit_faults(module: ModuleType) -> list[str]:
    """What is wrong with a module's permits."""
    expires = TrustClaim(attribute="self_hosted", expires_at=NOW + timedelta(days=1))
    teams = {
        "t": TeamFloor(tags=frozenset({"private"})),
        "open": TeamFloor(projects={"p": frozenset({"card"}), "q": frozenset()}),
    }
    source = PolicySource(
        tags={
            "private": TagRule(require=frozenset({"self_hosted"})),
            "card": TagRule(implies=frozenset({"private"})),
        },
        deployments=(
            TrustedDeployment(name="vendor/m"),
            TrustedDeployment(name="ours/m", claims=(expires,)),
        ),
        teams=teams,
    )
    places = {"vendor/m": "https://v:443", "ours/m": "http://o:80"}
    first_us = to_microseconds(NOW)

    def issued(
        team: str = "",
        *tags: str,
        closed: tuple[str, ...] = (),
        days: int = 0,
        project: str = "",
        tools: frozenset[str] = frozenset(),
    ) -> set[str]:
        made = module.Permits(source, origins=places)
        # The day before first: what is remembered must not outlive its claims.
        for day in range(days + 1):
            at = to_microseconds(NOW + timedelta(days=day))
            found = set(made.issue(team, frozenset(tags), closed, at, project, tools).origins)
        return found

    def narrowed(newer: PolicySource = source, origins: Mapping[str, str] = places) -> set[str]:
        made = module.Permits(source, origins=places)
        made.issue("open", frozenset(), (), first_us)
        made.narrow(newer, origins=origins)
        return set(made.issue("open", frozenset(), (), first_us).origins)

    raised = {**teams, "open": TeamFloor(tags=frozenset({"private"}))}
    frozen = module.operator_permit("request", places)
    moved = module.operator_permit("request", {**places, "vendor/m": "https://other:443"})
    asked = {
        "no tags": issued() == set(places),
        "a tag": issued("", "private") == {"ours/m"},
        "an implied tag": issued("", "card") == {"ours/m"},
        "a tag of the evaluator": issued(closed=("private",)) == {"ours/m"},
        "a team's floor": issued("t") == {"ours/m"},
        "a project's floor": issued("open", project="p") == {"ours/m"},
        "a project without a floor": issued("open", project="q") == set(places),
        "a project that nobody knows": issued("open", project="gone") == set(),
        "a team that nobody knows": issued("gone") == set(),
        "a tag that nobody knows": issued("", "unknown") == set(),
        "a tool that nobody vouches for": issued("", "private", tools=frozenset({"web"})) == set(),
        "a claim that has expired": issued("", "private", days=1) == set(),
        "a newer policy": narrowed(replace(source, floor=frozenset({"private"}))) == {"ours/m"},
        "a newer place": narrowed(origins={"ours/m": places["ours/m"]}) == {"ours/m"},
        "a newer floor": narrowed(replace(source, teams=raised)) == {"ours/m"},
        "a team that is gone": narrowed(replace(source, teams={})) == set(),
        "a place that moved": set(module.both(frozen, moved).origins) == {"ours/m"},
    }
    return [name for name, is_right in asked.items() if not is_right]


JUDGES: Mapping[str, Callable[[ModuleType], list[str]]] = {
    "providers.addresses": address_faults,
    "gateway.egress.guard": guard_faults,
    "gateway.privacy.permit": permit_faults,
}
MUTANTS = {
    "providers.addresses": [
        ("    if address in METADATA:", "    if False:"),
        ("    if address.is_link_local:", "    if False:"),
        ("    if address.is_unspecified or", "    if False and"),
        (" and address in _THIS_NETWORK)", " and False)"),
        ("    if address.is_multicast:", "    if False:"),
        ("    elif address.is_reserved:", "    elif False:"),
        ("        if address in _SITE_LOCAL:", "        if False:"),
        ("        yield address.ipv4_mapped", "        return"),
        ("    if address in _SIIT or address in _NAT64:\n        yield", "    if False:\n        yield"),
        ("    if address in _NAT64_LOCAL:", "    if False:"),
        ("    if address in _COMPATIBLE and number > 1:", "    if False:"),
        ("        yield address.sixtofour", "        return"),
        ("        yield from address.teredo", "        return"),
        (" in _ISATAP:", " in ():"),
        ("if reach is Reach.PUBLIC and not all(", "if False and not all("),
        ("if reach is Reach.PRIVATE and", "if False and"),
        ("address in _SHARED", "False"),
    ],
    "gateway.egress.guard": [
        ("        self._refuse(_shown(name, number), None)", "        return"),
        ("        if number in ports or (number is None and ports):", "        if ports:"),
        ("        self._refuse(place, None)\n", "        return\n"),
        ("        reason = why_refused(text)\n", "        reason = None\n"),
        ("        if number is None or self._may_connect", "        if True or self._may_connect"),
        ("            if now < until and", "            if"),
        ("            reach = places.ports_of(name).get(port)", "            reach = Reach.ANY"),
        ("[why_refused(address, reach) for reach in reaches or [Reach.ANY]]", "[None]"),
        ("        if found and not kept:", "        if False:"),
        ("self._places.narrowed(Places.of(places))", "self._places"),
        ("        self._places = Places.of(places)\n        self.is_enforced = is_enforced",
         "        self.is_enforced = is_enforced"),
        ("        is_refused = is_absolute or self.is_enforced", "        is_refused = self.is_enforced"),
        ("        is_refused = is_absolute or self.is_enforced", "        is_refused = is_absolute"),
        ("or not isinstance(address, tuple):\n            self._refuse",
         "or not isinstance(address, tuple):\n            return\n            self._refuse"),
        ("        if not self._may_spawn:", "        if False:"),
        ("        if name in self._native:", "        if False:"),
        ('        self._refuse("a datagram', '        print("a datagram'),
        ('"socket.sendmsg")', ")"),
        ('"os.system", "os.fork"', '"os.fork"'),
    ],
    "gateway.privacy.permit": [
        ("tags | floor, at, tools)", "tags, at, tools)"),
        ("tags | floor, at, tools)", "tags | floor, at, frozenset())"),
        ("floor.tags | more", "floor.tags"),
        ("None if more is None else", "floor.tags if more is None else"),
        ("current.origins.get(name) == place", "name in current.origins"),
        ("added.union(closed)", "added"),
        ("added.union(closed)", "frozenset(closed)"),
        ("set() if floor is None else", ""),
        ("    if not source.tags.keys() >= set(tags):\n        return set()", "    pass"),
        ("        self._known.clear()\n        bounds", "        bounds"),
        ("        if not self._since_us <= wall_us < self._until_us:", "        if not self._until_us:"),
        ("        self._readings.append(", "        print("),
        ("if origins.get(name) == place", "if True"),
        ("is_allowed(source, tags, one, at, tools)", "True"),
    ],
}  # fmt: skip
CASES = [(name, *pair) for name, pairs in MUTANTS.items() for pair in pairs]


@pytest.mark.parametrize("name", JUDGES)
def test_nothing_is_wrong_with_what_is_there(name):
    assert JUDGES[name](importlib.import_module(name)) == []


@pytest.mark.parametrize(
    ("name", "old", "new"), CASES, ids=[f"{name}-{place}" for place, (name, *_) in enumerate(CASES)]
)
def test_a_check_that_is_taken_out_is_missed(name, old, new):
    changed = mutant(name, old, new)
    try:
        faults = JUDGES[name](changed)
    except Exception as error:  # a mutant that cannot even be asked is noticed, too
        faults = [repr(error)]
    assert faults, f"nobody misses {old!r}"
