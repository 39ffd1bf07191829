"""Who may call: keys in every header, keys of every age, and nothing learnt from a refusal."""

import ast
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import directory as directory_module
from gateway.auth.credentials import Refusal
from gateway.auth.directory import (
    AuthFailure,
    KeyDirectory,
    KeyRecord,
    KeySnapshot,
    KeySource,
    Principal,
    admin_key_digest,
    fixed_key_record,
)
from gateway.auth.keys import hash_key, make_key

PEPPER, OLD_PEPPER = b"p" * 32, b"o" * 32
FIXED = "a-key-brought-along-from-elsewhere"
ADMIN = "the-administrators-own-key"
NOW_US = 1_000_000


def new_key(seed):
    return make_key("live", random.Random(seed).randbytes)


def record(key, *, pepper=PEPPER, **changes):
    fields = {"team": "payments", "project": "fraud", "name": "bot", "source": KeySource.DATABASE}
    digest = hash_key(pepper, key.text.encode())
    return KeyRecord(key_id=key.key_id, digest=digest, **(fields | changes))


def directory(*records, peppers=(PEPPER, OLD_PEPPER)):
    snapshot = KeySnapshot(
        revision=1, records=records, admin_digest=admin_key_digest(ADMIN, pepper=PEPPER)
    )
    return KeyDirectory(snapshot, peppers=peppers, namespace_key=b"n" * 32)


def test_a_key_that_cannot_be_looked_up_now_is_not_called_unknown():
    known = new_key(1)
    snapshot = KeySnapshot(revision=1, records=(record(known),), is_complete=False)
    made = KeyDirectory(snapshot, peppers=[PEPPER], namespace_key=b"n" * 32)
    found = made.identify(new_key(2).text.encode(), now_us=0)
    assert isinstance(found, AuthFailure)
    assert found.reason is Refusal.UNCHECKED
    assert isinstance(made.identify(known.text.encode(), now_us=0), Principal)


KEY, OTHER, OLD, GONE, LATE, TEAMLESS = (new_key(seed) for seed in range(6))
DIRECTORY = directory(
    record(KEY, models=("small",)),
    record(OTHER, team="research", name="other"),
    record(OLD, pepper=OLD_PEPPER, name="old"),
    record(GONE, disabled=True),
    record(LATE, expires_at_us=NOW_US),
    record(TEAMLESS, team="", project=""),
    fixed_key_record(FIXED, pepper=PEPPER, team="payments", name="fixed", project="fraud"),
)


def authenticate(*headers):
    return DIRECTORY.authenticate(headers, now_us=NOW_US)


def bearer(token):
    return (b"authorization", b"Bearer " + token)


TOKEN = KEY.text.encode()
ACCEPTED = {
    "a bearer token": [bearer(TOKEN)],
    "a scheme in lower case": [(b"authorization", b"bearer " + TOKEN)],
    "space around a token": [(b"authorization", b" Bearer   " + TOKEN + b" ")],
    "the header of the Anthropic SDK": [(b"x-api-key", TOKEN)],
    "the header of the Azure SDK": [(b"api-key", TOKEN)],
    "the same key in three headers": [bearer(TOKEN), (b"x-api-key", TOKEN), (b"api-key", TOKEN)],
    "an empty header beside a key": [(b"x-api-key", b""), bearer(TOKEN)],
    "headers that are nobody's business": [(b"cookie", b"\xff"), bearer(TOKEN), (b"accept", b"x")],
}


@pytest.mark.parametrize("headers", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_known_key_is_accepted(headers):
    assert authenticate(*headers) == Principal(
        key_id=KEY.key_id,
        team="payments",
        project="fraud",
        key_name="bot",
        models=frozenset({"small"}),
    )


REFUSED = {
    "no header at all": ([], Refusal.MISSING),
    "an empty bearer": ([(b"authorization", b"Bearer ")], Refusal.MISSING),
    "an empty key": ([(b"x-api-key", b"  ")], Refusal.MISSING),
    "another scheme": ([(b"authorization", b"Basic dTpw")], Refusal.MALFORMED),
    "a key without a scheme": ([(b"authorization", TOKEN)], Refusal.MALFORMED),
    "a token beyond ASCII": ([bearer("é…".encode())], Refusal.MALFORMED),
    "a token beyond ASCII in latin-1": ([bearer(b"\xe9")], Refusal.MALFORMED),
    "a token with a control character": ([bearer(b"x\x00y" * 10)], Refusal.MALFORMED),
    "a token with a space": ([bearer(b"two words that are long enough")], Refusal.MALFORMED),
    "a token too long": ([bearer(b"x" * 513)], Refusal.MALFORMED),
    "a Fareway key with a typo": ([bearer(TOKEN[:-1] + b"!")], Refusal.MALFORMED),
    "a Fareway key cut short": ([bearer(TOKEN[:-1])], Refusal.MALFORMED),
    "two different keys": ([bearer(TOKEN), (b"x-api-key", FIXED.encode())], Refusal.CONFLICTING),
    "two different keys in one header": ([bearer(TOKEN), bearer(b"x" * 30)], Refusal.CONFLICTING),
    "a key that is known to nobody": ([bearer(new_key(99).text.encode())], Refusal.UNKNOWN),
    "a word that is known to nobody": ([bearer(b"x" * 40)], Refusal.UNKNOWN),
    "a short word": ([bearer(b"x")], Refusal.UNKNOWN),
    "a revoked key": ([bearer(GONE.text.encode())], Refusal.DISABLED),
    "an expired key": ([bearer(LATE.text.encode())], Refusal.EXPIRED),
}


@pytest.mark.parametrize(("headers", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_request_without_a_good_key_is_refused(headers, reason):
    failure = authenticate(*headers)
    assert isinstance(failure, AuthFailure)
    assert failure.reason is reason
    assert failure.message.isascii()


@given(values=st.lists(st.binary(max_size=60), max_size=3))
def test_no_header_crashes_the_directory(values):
    names = (b"authorization", b"x-api-key", b"api-key")
    result = authenticate(*zip(names, values, strict=False))
    assert isinstance(result, AuthFailure)


def test_the_id_of_another_key_does_not_help():
    # A well-formed key that borrows a known id, with a secret of its own.
    forged = make_key("live", lambda count: b"\x01" * count)
    text = forged.text.encode()
    victim = record(KEY)
    stolen = msgspec.structs.replace(victim, key_id=forged.key_id)
    result = directory(stolen).identify(text, now_us=NOW_US)
    assert isinstance(result, AuthFailure)
    assert result.reason is Refusal.UNKNOWN


def test_a_key_is_good_until_the_moment_it_expires():
    good = DIRECTORY.identify(LATE.text.encode(), now_us=NOW_US - 1)
    assert isinstance(good, Principal)


def test_a_key_that_was_seen_before_still_expires():
    made = directory(record(LATE, expires_at_us=NOW_US))
    token = LATE.text.encode()
    for _ in range(2):
        assert isinstance(made.identify(token, now_us=NOW_US - 1), Principal)
        assert made.identify(token, now_us=NOW_US).reason is Refusal.EXPIRED


@given(data=st.data())
def test_whoever_comes_again_is_told_the_same(data):
    made = directory(*DIRECTORY.records)
    tokens = [key.text.encode() for key in (KEY, OTHER, OLD, GONE, LATE, TEAMLESS)]
    tokens += [FIXED.encode(), ADMIN.encode(), b"fw_live_wrong", b"x" * 30]
    for token in data.draw(st.lists(st.sampled_from(tokens), max_size=20)):
        fresh = directory(*DIRECTORY.records)
        assert made.identify(token, now_us=NOW_US) == fresh.identify(token, now_us=NOW_US)


BEARERS = st.one_of(
    st.sampled_from(
        [
            value
            for headers in (*ACCEPTED.values(), *(headers for headers, _ in REFUSED.values()))
            for _, value in headers
        ]
    ),
    st.binary(max_size=30).map(lambda rest: b"Bearer " + rest),
)


@given(values=st.lists(BEARERS | st.binary(max_size=20), max_size=20))
def test_the_only_header_with_a_key_means_the_same_each_time(values):
    made = directory(*DIRECTORY.records)
    for value in values:
        alone = made.authenticate_bearer(value, now_us=NOW_US)
        assert alone == authenticate((b"authorization", value))


def test_a_header_that_was_seen_before_is_no_key_and_expires():
    made = directory(record(LATE, expires_at_us=NOW_US))
    _, value = bearer(LATE.text.encode())
    for _ in range(2):
        assert isinstance(made.authenticate_bearer(value, now_us=NOW_US - 1), Principal)
        assert made.authenticate_bearer(value, now_us=NOW_US).reason is Refusal.EXPIRED
        assert isinstance(made.identify(value, now_us=NOW_US - 1), AuthFailure)
        assert isinstance(made.authenticate([(b"x-api-key", value)], now_us=0), AuthFailure)


def test_no_more_keys_are_remembered_than_the_bound(monkeypatch):
    monkeypatch.setattr(directory_module, "SEEN_MAX", 2)
    made = directory(*DIRECTORY.records)
    for key in (KEY, OTHER, OLD, KEY):
        assert made.identify(key.text.encode(), now_us=NOW_US).key_id == key.key_id


def test_a_key_hashed_with_the_previous_pepper_stays_good():
    assert isinstance(authenticate(bearer(OLD.text.encode())), Principal)


def test_a_key_hashed_with_a_forgotten_pepper_is_unknown():
    gone = directory(record(OLD, pepper=OLD_PEPPER), peppers=(PEPPER,))
    assert isinstance(gone.identify(OLD.text.encode(), now_us=NOW_US), AuthFailure)


def test_a_fixed_key_of_any_form_is_accepted():
    principal = authenticate(bearer(FIXED.encode()))
    assert isinstance(principal, Principal)
    assert (principal.team, principal.project, principal.key_name) == ("payments", "fraud", "fixed")
    assert DIRECTORY.record(principal.key_id) is not None


def test_a_fixed_key_in_fareways_form_keeps_its_id():
    kept = fixed_key_record(KEY.text, pepper=PEPPER, team="t", name="n")
    assert kept.key_id == KEY.key_id
    found = directory(kept).identify(TOKEN, now_us=NOW_US)
    assert isinstance(found, Principal)


BAD_FIXED = {
    "19 characters": ("x" * 19, "must have 20 to 512 characters"),
    "513 characters": ("x" * 513, "must have 20 to 512 characters"),
    "a space": ("two words that are long enough", "printable ASCII"),
    "a letter beyond ASCII": ("é" * 20, "printable ASCII"),
    "a Fareway key with a typo": (KEY.text[:-1] + "-", "its checksum is wrong"),
}


@pytest.mark.parametrize(("value", "message"), BAD_FIXED.values(), ids=BAD_FIXED.keys())
def test_a_fixed_key_that_could_not_be_sent_is_refused_and_not_repeated(value, message):
    with pytest.raises(ValueError, match=message) as caught:
        fixed_key_record(value, pepper=PEPPER, team="t", name="n")
    assert value not in str(caught.value)


def test_the_administrator_is_known_apart():
    principal = authenticate(bearer(ADMIN.encode()))
    assert isinstance(principal, Principal)
    assert principal.is_admin
    assert not authenticate(bearer(TOKEN)).is_admin


def test_without_an_administrators_key_nobody_is_administrator():
    snapshot = KeySnapshot(revision=1, records=())
    empty = KeyDirectory(snapshot, peppers=(PEPPER,), namespace_key=b"n" * 32)
    assert isinstance(empty.identify(ADMIN.encode(), now_us=NOW_US), AuthFailure)


TWINS = {
    "one key twice": (record(KEY), record(KEY, name="twin")),
    "one id twice": (record(KEY), msgspec.structs.replace(record(OTHER), key_id=KEY.key_id)),
    "one value twice": (
        fixed_key_record(FIXED, pepper=PEPPER, team="t", name="a"),
        fixed_key_record(FIXED, pepper=PEPPER, team="t", name="b"),
    ),
}


@pytest.mark.parametrize("records", TWINS.values(), ids=TWINS.keys())
def test_a_key_that_could_mean_two_teams_is_refused(records):
    with pytest.raises(ValueError, match="is the same as"):
        directory(*records)


def test_a_teams_key_cannot_be_the_administrators():
    with pytest.raises(ValueError, match="is the administrator's key"):
        directory(fixed_key_record(ADMIN, pepper=PEPPER, team="t", name="n"))


def principal(team, key_id):
    return Principal(key_id=key_id, team=team, project="", key_name="", models=None)


def test_keys_of_one_team_share_a_namespace_and_teams_do_not():
    spaces = {
        name: DIRECTORY.namespace(principal(team, key_id))
        for name, team, key_id in [
            ("a1", "a", "1"),
            ("a2", "a", "2"),
            ("b1", "b", "1"),
            ("1", "", "1"),
            ("2", "", "2"),
            ("team named like a key", "1", "x"),
        ]
    }
    assert spaces["a1"] == spaces["a2"]
    assert len(set(spaces.values())) == 5
    assert {len(space) for space in spaces.values()} == {16}


def test_a_snapshot_travels_as_bytes():
    snapshot = KeySnapshot(revision=7, records=(record(KEY), record(OTHER)), admin_digest=b"d" * 32)
    encoded = msgspec.msgpack.encode(snapshot)
    assert msgspec.msgpack.decode(encoded, type=KeySnapshot) == snapshot


AUTH = Path(__file__).resolve().parents[2] / "gateway" / "auth"


def test_no_secret_is_compared_with_equals():
    """GW-111: digests and tokens of ours meet only in `hmac.compare_digest`."""
    secret_words = ("digest", "pepper", "secret", "admin")
    found = [
        f"{path.name}:{node.lineno}"
        for path in AUTH.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        and any(word in ast.unparse(node) for word in secret_words)
    ]
    assert found == []


def test_workers_need_neither_pydantic_nor_sqlalchemy_to_authenticate():
    code = (
        "import sys, gateway.auth.directory;"
        "print(sorted({'pydantic', 'sqlalchemy', 'yaml', 'typer', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
