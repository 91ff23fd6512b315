"""Digests without OpenSSL are the same digests."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from warmcell.toolbox.small_digests import is_same_text, keyed_sha256, sha256


@pytest.mark.parametrize("key", [b"", b"k", bytes(range(32)), b"x" * 64, b"y" * 65, b"z" * 200])
@pytest.mark.parametrize("message", [b"", b"message", bytes(range(256)) * 5])
def test_a_keyed_digest_is_an_hmac(key: bytes, message: bytes) -> None:
    assert keyed_sha256(key, message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_a_digest_is_the_same_as_from_openssl() -> None:
    assert sha256(b"content").hexdigest() == hashlib.sha256(b"content").hexdigest()


def test_texts_are_compared_as_hmac_compares_them() -> None:
    assert is_same_text("abc", "abc") and not is_same_text("abc", "abd") and not is_same_text("abc", "ab")
