from __future__ import annotations

import pytest

from inferencemesh.auth.keys import KeyEntry, KeyRing, hash_key
from inferencemesh.auth.tenants import Tenant
from inferencemesh.core.errors import MeshError

ACME, ANONYMOUS = Tenant("acme"), Tenant("anonymous")


def ring(*, anonymous: Tenant | None = None) -> KeyRing:
    entries = [KeyEntry(hash_key(b"new"), ACME), KeyEntry(hash_key(b"old"), ACME, expires_at=100.0)]
    return KeyRing(entries, anonymous=anonymous)


def refusal(keys: KeyRing, *credentials: bytes, now: float = 0.0) -> str:
    with pytest.raises(MeshError) as caught:
        keys.identify(list(credentials), now)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.http_status == 401
    return caught.value.message


def test_without_tenants_everybody_is_anonymous_and_keys_are_ignored():
    keys = KeyRing([], anonymous=ANONYMOUS, open_to_all=True)
    for credentials in ([], [b"x"], [b"x", b"y"], [b"\xff"]):
        assert keys.identify(credentials, 0) is ANONYMOUS


def test_a_key_says_who_calls():
    assert ring().identify([b"new"], 0) is ACME
    assert ring().identify([b"new", b"new"], 0) is ACME


def test_no_key_is_anonymous_where_that_is_allowed():
    assert "a key is needed" in refusal(ring())
    assert ring(anonymous=ANONYMOUS).identify([], 0) is ANONYMOUS


@pytest.mark.parametrize("anonymous", [None, ANONYMOUS])
def test_a_wrong_key_is_refused_also_where_none_would_do(anonymous: Tenant | None):
    keys = ring(anonymous=anonymous)
    assert "not known" in refusal(keys, b"other")
    assert "not known" in refusal(keys, b"")
    assert "not known" in refusal(keys, hash_key(b"new").encode())  # the hash is no key
    assert "two different" in refusal(keys, b"new", b"old")


def test_a_key_is_refused_from_its_expiry_on():
    assert ring().identify([b"old"], 99.9) is ACME
    assert "expired" in refusal(ring(), b"old", now=100.0)


def test_a_message_never_repeats_the_key():
    assert "hunter2" not in refusal(ring(), b"hunter2")
    assert "hunter2" not in refusal(ring(), b"hunter2", b"hunter3")


def test_the_hash_is_the_sha_256_of_the_bytes():
    assert hash_key(b"1234567890") == "c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646"
