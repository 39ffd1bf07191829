"""What the guard of a process lets pass: listed places, and where listed names have just led."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.egress import guard as guard_module
from gateway.egress.errors import EgressImportRefused, EgressRefused
from gateway.egress.guard import Guard
from gateway.egress.lists import EgressList, also, follow, narrow, own, refused
from gateway.egress.places import Place, Places, covers, normal_name, place_of_url, plain_address
from providers.addresses import Reach, why_refused

TCP = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
PUBLIC, PRIVATE, METADATA = "93.184.216.34", "10.0.0.5", "169.254.169.254"
LISTED = [
    Place("api.example.com", 443, Reach.PUBLIC),
    Place("gpu.internal", 8000, Reach.PRIVATE),
    Place("*.example.net", 443),
    Place("10.0.0.9", 5432),
]


def made(listed=LISTED, **options) -> Guard:
    return Guard(listed, **options)


def infos(*addresses: str, port: int = 443):
    return [
        ((socket.AF_INET6 if ":" in one else socket.AF_INET), *TCP[1:], (one, port))
        for one in addresses
    ]


def connects(guard: Guard, address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        guard.check_address(family, (address, port))
    except EgressRefused:
        return False
    return True


LOOK_UPS = {
    "a listed name": ("api.example.com", 443, True),
    "in capitals and with a dot": ("API.Example.com.", 443, True),
    "as bytes": (b"api.example.com", 443, True),
    "with its port as text": ("api.example.com", "443", True),
    "with its service's name": ("api.example.com", "https", True),
    "without a port": ("api.example.com", None, True),
    "another port": ("api.example.com", 80, False),
    "a name below a listed one": ("x.api.example.com", 443, False),
    "a name that ends like a listed one": ("evilapi.example.com", 443, False),
    "a name below a domain": ("a.b.example.net", 443, True),
    "the domain itself": ("example.net", 443, False),
    "a name that only ends like the domain": ("evilexample.net", 443, False),
    "a number that resolvers take for an address": ("2130706433", 443, False),
    "a short form of an address": ("127.1", 443, False),
    "an address, of which nobody is asked": ("8.8.8.8", 53, True),
    "nothing": (None, 443, True),
    "this machine's own name, to listen": (socket.gethostname(), 80, True),
    "localhost, to listen": ("localhost", 80, True),
}


@pytest.mark.parametrize(("host", "port", "passes"), LOOK_UPS.values(), ids=LOOK_UPS.keys())
def test_looking_up(host, port, passes):
    guard = made()
    if passes:
        guard.check_name(host, port)
    else:
        with pytest.raises(EgressRefused):
            guard.check_name(host, port)
    assert guard.refused == (not passes)


def test_a_listed_address_is_connected_to_at_its_port_only():
    guard = made()
    assert connects(guard, "10.0.0.9", 5432)
    assert not connects(guard, "10.0.0.9", 5433)
    assert not connects(guard, "10.0.0.8", 5432)


def test_an_address_is_connected_to_after_a_listed_name_led_there():
    guard = made()
    assert not connects(guard, PUBLIC, 443)
    assert guard.learn("api.example.com", 443, infos(PUBLIC)) == infos(PUBLIC)
    assert connects(guard, PUBLIC, 443)
    assert not connects(guard, PUBLIC, 80)


def test_a_name_that_leads_elsewhere_by_the_second_look_up_leads_nowhere():
    """GW-113: a public answer first, this machine's own address then."""
    guard = made()
    guard.learn("api.example.com", 443, infos(PUBLIC))
    with pytest.raises(EgressRefused, match=r"leads to 127\.0\.0\.1, which is not on the internet"):
        guard.learn("api.example.com", 443, infos("127.0.0.1"))
    assert not connects(guard, "127.0.0.1", 443)
    assert connects(guard, PUBLIC, 443)


def test_of_a_name_s_addresses_those_that_it_may_have_are_kept():
    guard = made()
    assert guard.learn("api.example.com", 443, infos(PRIVATE, PUBLIC)) == infos(PUBLIC)
    assert not connects(guard, PRIVATE, 443)


def test_a_name_of_one_s_own_leads_into_private_networks_only():
    guard = made()
    guard.learn("gpu.internal", 8000, infos(PRIVATE, port=8000))
    assert connects(guard, PRIVATE, 8000)
    with pytest.raises(EgressRefused):
        guard.learn("gpu.internal", 8000, infos(PUBLIC, port=8000))


def test_a_metadata_service_is_refused_whatever_is_listed_or_observed():
    guard = made([Place(METADATA, 80), Place("api.example.com", 80)])
    guard.allow(guard.places.listed, is_enforced=False)
    assert not connects(guard, METADATA, 80)
    assert not connects(guard, f"::ffff:{METADATA}", 80)
    with pytest.raises(EgressRefused, match="metadata"):
        guard.learn("api.example.com", 80, infos(METADATA, port=80))


def test_of_two_entries_for_a_name_the_stricter_one_counts():
    listed = [Place("api.example.com", 443, Reach.PUBLIC), Place("*.example.com", 443)]
    for order in (listed, listed[::-1]):
        assert Places.of(order).ports_of("api.example.com") == {443: Reach.PUBLIC}


def test_what_a_name_led_to_counts_for_a_while():
    now = [0.0]
    guard = made(monotonic_s=lambda: now[0])
    guard.learn("api.example.com", 443, infos(PUBLIC))
    now[0] = guard_module.LEARNT_S - 1
    assert connects(guard, PUBLIC, 443)
    now[0] = guard_module.LEARNT_S
    assert not connects(guard, PUBLIC, 443)


def test_what_is_learnt_has_a_bound(monkeypatch):
    monkeypatch.setattr(guard_module, "LEARNT_MAX", 2)
    monkeypatch.setattr(guard_module, "NAMES_MAX", 2)
    guard = made()
    for last in (1, 2, 3):
        guard.learn("api.example.com", 443, infos(f"93.184.216.{last}"))
        guard.learn(f"host{last}.example.net", 443, infos("93.184.216.3"))
    assert not connects(guard, "93.184.216.1", 443)
    assert connects(guard, "93.184.216.3", 443)
    assert len(guard._learnt) == 2
    assert len(guard._learnt["93.184.216.3"]) == 2


def test_a_shorter_list_holds_at_once_also_for_what_was_learnt():
    guard = made()
    guard.learn("api.example.com", 443, infos(PUBLIC))
    guard.narrow([*LISTED[1:], Place("other.example.com", 443)])
    assert not connects(guard, PUBLIC, 443)
    with pytest.raises(EgressRefused):
        guard.check_name("other.example.com", 443)
    guard.allow([])
    assert not connects(guard, "10.0.0.9", 5432)


def test_narrowing_never_stops_enforcing():
    guard = made()
    guard.allow(LISTED, is_enforced=False)
    guard.narrow(LISTED, is_enforced=False)
    assert not guard.is_enforced
    guard.narrow(LISTED)
    guard.narrow(LISTED, is_enforced=False)
    assert guard.is_enforced


def test_a_list_that_is_only_observed_lets_pass_and_counts(caplog):
    guard = made()
    guard.allow([], is_enforced=False)
    with caplog.at_level(logging.WARNING):
        assert connects(guard, PUBLIC, 443)
    assert guard.refused == 1
    assert "would be refused" in caplog.text


SOCKETS = {
    "a Unix socket": (socket.AF_UNIX, "/run/x", True),
    "a socket that is connected already": (socket.AF_INET, None, True),
    "a name instead of an address": (socket.AF_INET, ("api.example.com", 443), False),
    "no address at all": (socket.AF_INET, b"raw", False),
    "another family": (socket.AF_NETLINK, (0, 0), False),
    "IPv6 with its scope": (socket.AF_INET6, ("fe80::1%eth0", 443, 0, 2), False),
}


@pytest.mark.parametrize(("family", "address", "passes"), SOCKETS.values(), ids=SOCKETS.keys())
def test_connecting(family, address, passes):
    guard = made()
    if passes:
        guard.check_address(family, address)
    else:
        with pytest.raises(EgressRefused):
            guard.check_address(family, address)


def test_a_refusal_says_where_who_and_which_line_to_add(caplog):
    guard = made()
    with caplog.at_level(logging.WARNING), pytest.raises(EgressRefused) as caught:
        guard.check_name("plugins.example.com", 8443)
    for text in (str(caught.value), caplog.text):
        assert "plugins.example.com:8443" in text
        assert "egress: {allow: ['plugins.example.com:8443']}" in text
        assert "test_egress_guard" in text
    assert isinstance(caught.value, OSError), "libraries expect a network's error"


def test_a_refusal_that_is_repeated_is_told_once_a_minute(caplog):
    now = [0.0]
    guard = made(monotonic_s=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for at in (0.0, 1.0, guard_module.LOG_EVERY_S):
            now[0] = at
            assert not connects(guard, PUBLIC, 443)
    assert len(caplog.records) == 2
    assert guard.refused == 3


def test_a_process_that_starts_no_others_is_refused_all_of_them():
    guard = made(may_spawn=False)
    for event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        with pytest.raises(EgressRefused, match="child process"):
            guard.handlers[event](("ls", [], None, None))
    with pytest.raises(EgressRefused, match="a copy of this process"):
        guard.check_spawn(())
    made().check_spawn(("ls",))


def test_a_library_that_connects_past_the_guard_is_not_imported():
    guard = made()
    guard.handlers["import"](("json", None, None, None, None))
    guard.handlers["import"](("uvloop.loop", None, None, None, None))
    guard.forbid_loop()
    for name in ("hf_xet", "pycares", "pyarrow._s3fs", "uvloop.loop"):
        with pytest.raises(EgressImportRefused):
            guard.handlers["import"]((name, None, None, None, None))


def test_without_a_guard_nothing_is_done_and_lists_can_be_joined():
    # This process has none: it runs the tests.
    for act in (follow, narrow):
        act(EgressList(places=(LISTED[0],)))
    own(["x"])
    also("x", 80)
    assert refused() == 0
    observing = EgressList(places=(LISTED[0],), is_enforced=False)
    joined = observing.joined(EgressList(places=(LISTED[0], LISTED[1])))
    assert joined == EgressList(places=(LISTED[0], LISTED[1]), is_enforced=False)


labels = st.text("abcdefghij0123456789-", min_size=1, max_size=8)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)


@given(names, names, st.integers(1, 65_535), st.integers(1, 65_535))
def test_no_name_passes_that_no_entry_covers(listed, asked, listed_port, port):
    guard = made([Place(listed, listed_port)])
    is_covered = normal_name(listed) == normal_name(asked) and listed_port == port
    is_free = plain_address(asked) is not None or asked in ("localhost", socket.gethostname())
    try:
        guard.check_name(asked, port)
    except EgressRefused:
        assert not is_covered
    else:
        assert is_covered or is_free


@given(names, names)
def test_a_star_stands_for_whole_labels(domain, name):
    is_below = name.split(".")[-len(domain.split(".")) :] == domain.split(".") and name != domain
    assert covers(f"*.{domain}", name) == is_below


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(addresses, st.sampled_from(Reach))
def test_no_address_passes_that_no_rule_allows(address, reach):
    guard = made([Place("host.example.com", 443, reach)])
    assert not connects(guard, address, 443)
    try:
        guard.learn("host.example.com", 443, infos(address))
    except EgressRefused:
        assert why_refused(address, reach) is not None
        assert not connects(guard, address, 443)
    else:
        assert why_refused(address, reach) is None
        assert connects(guard, address, 443)


def test_a_url_that_leads_to_no_network_has_no_place():
    assert place_of_url("file:///opt/wheels") is None
    assert place_of_url("http://h:99999") is None
    assert place_of_url("proxy.internal:3128") == ("proxy.internal", 3128)


HOOKED = """
import json, socket, subprocess, sys
from gateway.egress.guard import Guard
from gateway.egress.installed import begin, install, installed
guard = begin(may_spawn=False)
assert begin(may_spawn=True) is guard is installed()
told = []
def attempt(what):
    try:
        what()
    except Exception as error:
        told.append(type(error).__name__)
    else:
        told.append("passed")
attempt(lambda: install(Guard()))
attempt(lambda: socket.create_connection(("127.0.0.1", 9), 1))
attempt(lambda: socket.getaddrinfo("example.com", 80))
attempt(lambda: socket.gethostbyname("example.com"))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("8.8.8.8", 53)))
attempt(lambda: subprocess.run(["true"]))
attempt(lambda: __import__("os").fork())
attempt(lambda: __import__("os").system("true"))
attempt(lambda: __import__("hf_xet"))
attempt(lambda: __import__("uvloop"))
pair = socket.socketpair()
attempt(lambda: pair[0].send(b"x"))
print(json.dumps(told))
"""


def test_a_process_that_was_told_no_list_connects_nowhere_and_starts_nothing():
    ended = subprocess.run(
        [sys.executable, "-c", HOOKED], capture_output=True, text=True, timeout=30, check=True
    )
    refusals = ["EgressRefused"] * 7
    imports = ["EgressImportRefused"] * 2
    assert ended.stdout.strip() == str(["RuntimeError", *refusals, *imports, "passed"]).replace(
        "'", '"'
    )
