"""The form of keys: what is made is read back, and what is mistyped is refused unread."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.keys import (
    fixed_key_id,
    hash_key,
    looks_like_key,
    make_key,
    parse_key_id,
)

FORM = re.compile(r"fw_(live|test)_[a-z2-7]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")


@given(seed=st.integers(), environment=st.sampled_from(["live", "test"]))
def test_a_new_key_has_the_form_and_gives_its_id_back(seed, environment):
    key = make_key(environment, random.Random(seed).randbytes)
    assert FORM.fullmatch(key.text)
    assert parse_key_id(key.text.encode()) == key.key_id


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"], ids=["lowest", "highest"])
def test_the_extremes_of_randomness_fit_the_form(byte):
    key = make_key("test", lambda count: byte * count)
    assert FORM.fullmatch(key.text)
    assert parse_key_id(key.text.encode()) == key.key_id


def test_the_form_never_changes():
    key = make_key("live", random.Random(7).randbytes)
    assert key.text == ("fw_live_hc2omuxejwt7_D3OgHZnP1jxwVFktBf1VpgnbvI07UD2UeJHApw2nl5E_2hp7kJ")


@given(place=st.integers(0, 200), replacement=st.integers(0, 255), seed=st.integers(0, 2**32))
def test_one_wrong_character_is_always_noticed(place, replacement, seed):
    token = bytearray(make_key("live", random.Random(seed).randbytes).text.encode())
    place %= len(token)
    if token[place] == replacement:
        return
    token[place] = replacement
    key_id = parse_key_id(bytes(token))
    assert key_id is None


@given(place=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_two_swapped_characters_are_always_noticed(place, seed):
    token = bytearray(make_key("live", random.Random(seed).randbytes).text.encode())
    place %= len(token) - 1
    left, right = token[place], token[place + 1]
    token[place], token[place + 1] = right, left
    assert (parse_key_id(bytes(token)) is None) is (left != right)


@given(token=st.binary(max_size=100))
def test_no_bytes_crash_the_parser(token):
    assert parse_key_id(token) is None
    looks_like_key(token)


def test_a_line_end_is_no_part_of_a_key():
    key = make_key("live", random.Random(1).randbytes).text.encode()
    assert parse_key_id(key + b"\n") is None


def test_the_text_of_a_new_key_is_not_in_its_representation():
    key = make_key("live", random.Random(1).randbytes)
    assert repr(key) == f"NewKey(key_id='{key.key_id}')"


def test_a_digest_depends_on_the_pepper_and_on_every_character():
    digests = {hash_key(b"a", b"x"), hash_key(b"b", b"x"), hash_key(b"a", b"y")}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {32}


def test_the_id_of_a_fixed_key_is_of_its_team_and_name_together():
    assert fixed_key_id("a", "b") == fixed_key_id("a", "b")
    assert fixed_key_id("ab", "c") != fixed_key_id("a", "bc")
    assert re.fullmatch(r"[a-z2-7]{12}", fixed_key_id("Équipe-β", "中文"))
