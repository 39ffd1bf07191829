"""Certificates: only this service's own count, only for what they are about, and serve needs one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gateway.policy_certificate import FOLDER, KEPT_MAX, certified_policy, certify
from gateway.policy_proof import PolicyUnproved
from gateway.privacy.certificate import (
    BYTES_MAX,
    Certificate,
    CertificateError,
    read_certificate,
)
from gateway.settings.loader import LoadedConfig, load
from tests.privacy.planted import NOW, Gateway, proof_of
from tests.privacy.test_planted_faults import lost_denial

KEY, OTHER_KEY = bytes(32), bytes([1]) * 32

CONFIG = """
providers:
  own:
    kind: openai_compatible
    base_url: http://10.0.0.5:8000/v1
    trust: [self_hosted]
models:
  chat: {deployments: [own/llama]}
teams:
  payments: {tags: [private]}
privacy:
  tags:
    private: {require: [self_hosted]}
"""


@pytest.fixture
def certificate() -> Certificate:
    return Certificate.of(proof_of(Gateway()), at=NOW, version="1.0")


def loaded(folder: Path, text: str = CONFIG) -> LoadedConfig:
    path = folder / "fareway.yaml"
    path.write_text(text)
    return load(path, environ={"FAREWAY_STATE_DIR": str(folder / "state")})


def test_a_certificate_is_read_as_it_was_written(certificate: Certificate) -> None:
    content = certificate.signed(KEY)
    assert read_certificate(content, [OTHER_KEY, KEY]) == certificate
    assert json.loads(content)["cells"] == certificate.cells
    # Canonical: whoever writes it again gets the same bytes.
    assert certificate.signed(KEY) == content


def test_what_does_not_hold_gets_no_certificate() -> None:
    with pytest.raises(CertificateError, match="counter-example"):
        Certificate.of(proof_of(lost_denial()), at=NOW, version="1.0")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"}\n", b"", "no JSON"),
        (b'"cells"', b'"sells"', "members"),
        (b'"is_complete":true', b'"is_complete":1', "members"),
        (b'"is_complete":true', b'"is_complete":false', "signature"),
        (b'"hmac_sha256"', b'"hmac_sha512"', "members"),
        (b'"hmac_sha256":"', b'"hmac_sha256":"0', "signature"),
        (b"\n", b" " * BYTES_MAX, "at most"),
    ],
)
def test_a_changed_certificate_does_not_count(
    certificate: Certificate, old: bytes, new: bytes, message: str
) -> None:
    content = certificate.signed(KEY)
    assert old in content
    with pytest.raises(CertificateError, match=message):
        read_certificate(content.replace(old, new), [KEY])


def test_what_is_no_object_or_has_no_signature_is_no_certificate(certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="no JSON object"):
        read_certificate(b"[]", [KEY])
    members = cast("dict[str, object]", json.loads(certificate.signed(KEY)))
    for mac in (None, 7, [members["hmac_sha256"]]):
        with pytest.raises(CertificateError, match="signature"):
            read_certificate(json.dumps({**members, "hmac_sha256": mac}).encode(), [KEY])


def test_another_services_certificate_does_not_count(certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="signature"):
        read_certificate(certificate.signed(OTHER_KEY), [KEY])


def test_a_certificate_of_a_later_form_does_not_count(certificate: Certificate) -> None:
    with pytest.raises(CertificateError, match="format"):
        read_certificate(replace(certificate, format=2).signed(KEY), [KEY])


def test_a_policy_is_served_with_its_certificate_only(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    with pytest.raises(PolicyUnproved, match="nobody has proved"):
        certified_policy(config, keys=[KEY])
    issued = certify(config, key=KEY, at=NOW)
    policy, found = certified_policy(config, keys=[KEY])
    assert found == issued
    assert policy.digest == issued.policy_digest
    with pytest.raises(PolicyUnproved, match="does not count"):
        certified_policy(config, keys=[OTHER_KEY])


def test_another_floor_or_policy_needs_another_certificate(tmp_path: Path) -> None:
    certify(loaded(tmp_path), key=KEY, at=NOW)
    for changed in (
        CONFIG.replace("tags: [private]", "tags: []"),
        CONFIG.replace("{require: [self_hosted]}", "{require: [no_train]}"),
        CONFIG.replace("models:\n", "models:\n  other: {deployments: [own/llama]}\n"),
    ):
        assert changed != CONFIG
        with pytest.raises(PolicyUnproved, match="nobody has proved"):
            certified_policy(loaded(tmp_path, changed), keys=[KEY])


def test_a_certificate_under_anothers_name_does_not_count(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    certify(config, key=KEY, at=NOW)
    [path] = (config.state_dir / FOLDER).iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    other = loaded(tmp_path, CONFIG.replace("tags: [private]", "tags: []"))
    certify(other, key=KEY, at=NOW)
    [mine] = set((config.state_dir / FOLDER).iterdir()) - {path}
    mine.write_bytes(path.read_bytes())
    with pytest.raises(PolicyUnproved, match="about another"):
        certified_policy(other, keys=[KEY])


def test_old_certificates_are_forgotten(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    folder = config.state_dir / FOLDER
    folder.mkdir(parents=True)
    for number in range(KEPT_MAX + 3):
        (folder / f"{number}.json").write_text("{}")
    certify(config, key=KEY, at=NOW)
    assert len(list(folder.iterdir())) == KEPT_MAX
    certified_policy(config, keys=[KEY])


def test_a_certificate_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    config.state_dir.mkdir()
    (config.state_dir / FOLDER).write_text("in the way")
    with pytest.raises(PolicyUnproved, match="cannot be written"):
        certify(config, key=KEY, at=NOW)
    with pytest.raises(PolicyUnproved, match="cannot be read"):
        certified_policy(config, keys=[KEY])
