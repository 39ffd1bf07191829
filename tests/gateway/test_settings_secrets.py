"""Secrets: where they are read, what is refused, and what follows from the master key."""

import multiprocessing
import os
import random
import stat
from pathlib import Path

import pytest

from gateway.auth.keys import make_key, parse_key_id
from gateway.settings.credentials import SecretReference
from gateway.settings.declared_keys import fixed_key_records, load_admin_key
from gateway.settings.errors import ConfigError, SecretError
from gateway.settings.loader import load_text
from gateway.settings.secrets import (
    Label,
    MasterKeys,
    hkdf_sha256,
    load_master_keys,
    read_or_create_file,
    read_secret_file,
    resolve,
    resolve_optional,
)

RFC_5869 = {
    "case 1": (
        (bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    "case 2": (
        (bytes(range(80)), bytes(range(0x60, 0xB0)), bytes(range(0xB0, 0x100)), 82),
        (
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e59"
            "0e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
        ),
    ),
    "case 3": (
        (bytes([0x0B] * 22), b"", b"", 42),
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
}


@pytest.mark.parametrize(("given", "output"), RFC_5869.values(), ids=RFC_5869.keys())
def test_hkdf_matches_the_rfc(given, output):
    key, salt, info, length = given
    assert hkdf_sha256(key, salt=salt, info=info, length=length).hex() == output


def test_each_purpose_has_a_key_of_its_own():
    keys = MasterKeys((b"k" * 32,))
    assert len({keys.derive(label) for label in Label}) == len(Label)


def test_labels_never_change():
    assert {label.name: label.value for label in Label} == {
        "KEY_PEPPER": "fareway/key-pepper/1",
        "NAMESPACE": "fareway/namespace/1",
        "DIGEST": "fareway/digest/1",
        "RECEIPT": "fareway/receipt/1",
        "SESSION": "fareway/session/1",
        "WEBHOOK": "fareway/webhook/1",
        "PSEUDONYM": "fareway/pseudonym/1",
        "CERTIFICATE": "fareway/policy-certificate/1",
    }


def test_master_keys_do_not_show_themselves():
    assert "kkk" not in repr(MasterKeys((b"k" * 32,)))


@pytest.fixture
def config(tmp_path):
    return configured(tmp_path, "")


def configured(tmp_path, text):
    environ = {"FAREWAY_STATE_DIR": str(tmp_path / "state")}
    return load_text(text, environ=environ, base_dir=tmp_path)


def private_file(path, content, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_secret_comes_from_a_variable_without_its_line_end(config):
    reference = SecretReference(env="KEY")
    assert resolve(reference, environ={"KEY": "value\n"}, config=config) == "value"


def test_a_secret_comes_from_a_file_beside_the_configuration(config, tmp_path):
    private_file(tmp_path / "key", b"value\n")
    assert resolve(SecretReference(file="key"), environ={}, config=config) == "value"


def test_an_unset_variable_is_named(config):
    with pytest.raises(SecretError, match="environment variable KEY is not set"):
        resolve(SecretReference(env="KEY"), environ={"KEY": " "}, config=config)


def test_only_an_unset_variable_is_optional(config):
    assert resolve_optional(SecretReference(env="KEY"), environ={}, config=config) is None
    with pytest.raises(SecretError, match="cannot be read"):
        resolve_optional(SecretReference(file="key"), environ={}, config=config)


def test_a_secret_store_is_refused_by_name(config):
    with pytest.raises(SecretError, match="not built yet: vault:a#b"):
        resolve(SecretReference(ref="vault:a#b"), environ={}, config=config)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_file_for_owner_and_group_is_read(tmp_path, mode):
    assert read_secret_file(private_file(tmp_path / "key", b"value", mode)) == "value"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o601, 0o602])
def test_a_file_open_to_others_is_refused(tmp_path, mode):
    with pytest.raises(SecretError, match="open to others"):
        read_secret_file(private_file(tmp_path / "key", b"value", mode))


BAD_FILES = {
    "an empty file": (b" \n", "is empty"),
    "a file that is no text": (b"\xff", "is not UTF-8"),
    "a file too large": (b"x" * 65_537, "is larger than 64 KiB"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_holds_no_secret_is_refused(tmp_path, content, message):
    with pytest.raises(SecretError, match=message):
        read_secret_file(private_file(tmp_path / "key", content))


def test_a_device_is_no_secret_file():
    with pytest.raises(SecretError, match="not a regular file"):
        read_secret_file(Path(os.devnull))


def test_a_master_key_is_made_once_and_kept_private(config, tmp_path):
    first = load_master_keys(config, environ={}, random_bytes=random.Random(1).randbytes)
    again = load_master_keys(config, environ={}, random_bytes=random.Random(2).randbytes)
    assert first.derive(Label.KEY_PEPPER) == again.derive(Label.KEY_PEPPER)
    path = tmp_path / "state" / "master.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["master.key"]


def test_a_master_key_from_the_environment_leaves_no_file(config, tmp_path):
    environ = {"FAREWAY_MASTER_KEY": "m" * 32}
    keys = load_master_keys(config, environ=environ, random_bytes=random.Random(1).randbytes)
    assert keys.derive(Label.NAMESPACE) == MasterKeys((b"m" * 32,)).derive(Label.NAMESPACE)
    assert not (tmp_path / "state").exists()


def test_a_short_master_key_is_refused(config):
    environ = {"FAREWAY_MASTER_KEY": "m" * 31}
    with pytest.raises(SecretError, match="at least 32 characters"):
        load_master_keys(config, environ=environ, random_bytes=random.Random(1).randbytes)


def test_several_machines_without_a_master_key_are_refused(tmp_path):
    config = configured(tmp_path, "storage: {redis: 'redis://h:6379/0'}")
    with pytest.raises(SecretError, match="same master key: set FAREWAY_MASTER_KEY"):
        load_master_keys(config, environ={}, random_bytes=random.Random(1).randbytes)


def test_previous_master_keys_come_after_the_current_one(tmp_path):
    config = configured(tmp_path, "secrets: {previous: [{env: OLD}]}")
    environ = {"FAREWAY_MASTER_KEY": "n" * 32, "OLD": "o" * 32}
    keys = load_master_keys(config, environ=environ, random_bytes=random.Random(1).randbytes)
    new, old = keys.derive_all(Label.KEY_PEPPER)
    assert new == MasterKeys((b"n" * 32,)).derive(Label.KEY_PEPPER)
    assert old == MasterKeys((b"o" * 32,)).derive(Label.KEY_PEPPER)


def make_in_process(path, barrier, results):
    barrier.wait()
    results.put(read_or_create_file(path, lambda: f"made by {os.getpid()}"))


def test_processes_that_start_together_read_the_same_secret(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    path = tmp_path / "state" / "secret"
    workers = [
        context.Process(target=make_in_process, args=(path, barrier, results)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()
    assert len({text for text, _ in found}) == 1
    assert sum(is_new for _, is_new in found) == 1


def test_a_state_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(SecretError, match="cannot be"):
        read_or_create_file(tmp_path / "state" / "secret", lambda: "x")


PEPPER = b"p" * 32
FIXED = "teams: {t: {keys: [{name: k, value_env: K}, {name: l, value_env: L}]}}"


def test_fixed_keys_are_hashed_and_forgotten(tmp_path):
    environ = {"K": "k" * 20, "L": "l" * 20}
    records = fixed_key_records(configured(tmp_path, FIXED), environ=environ, pepper=PEPPER)
    assert [(record.team, record.name) for record in records] == [("t", "k"), ("t", "l")]
    assert "kkkk" not in repr(records)


def test_every_fault_of_fixed_keys_is_reported_with_its_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        fixed_key_records(configured(tmp_path, FIXED), environ={"L": "short"}, pepper=PEPPER)
    assert str(caught.value).splitlines() == [
        "fareway.yaml:1: teams.t.keys[0]: environment variable K is not set",
        (
            "fareway.yaml:1: teams.t.keys[1]: the fixed key `l` of team `t` must have 20 to 512 "
            "characters"
        ),
    ]


def test_one_value_for_two_fixed_keys_is_refused(tmp_path):
    environ = {"K": "k" * 20, "L": "k" * 20}
    with pytest.raises(ConfigError, match="is the same key as `k` of team `t`"):
        fixed_key_records(configured(tmp_path, FIXED), environ=environ, pepper=PEPPER)


def admin(config, environ, seed=1):
    return load_admin_key(
        config, environ=environ, pepper=PEPPER, random_bytes=random.Random(seed).randbytes
    )


def test_an_administrators_key_is_made_once_and_kept_only_as_a_digest(config, tmp_path):
    first, again = admin(config, {}, seed=1), admin(config, {}, seed=2)
    assert parse_key_id(first.text_once.encode()) is not None
    assert again.text_once is None
    assert again.digest == first.digest
    kept = (tmp_path / "state" / "admin-key.hmac").read_text()
    assert first.text_once not in kept
    assert first.text_once not in repr(first)


def test_an_administrators_key_that_is_given_is_not_shown(config):
    given = make_key("live", random.Random(3).randbytes).text
    assert admin(config, {"FAREWAY_ADMIN_KEY": given}).text_once is None


def test_a_short_administrators_key_is_refused(config):
    with pytest.raises(SecretError, match="the administrator's key must have 20"):
        admin(config, {"FAREWAY_ADMIN_KEY": "short"})


def test_a_damaged_digest_file_says_how_to_mend_it(config, tmp_path):
    (tmp_path / "state").mkdir()
    private_file(tmp_path / "state" / "admin-key.hmac", b"not hex")
    with pytest.raises(SecretError, match="is damaged; remove it"):
        admin(config, {})
