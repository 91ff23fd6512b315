"""Secrets are read when they are used, and nothing that comes back shows them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import FetchFailed, InvalidRequest, PolicyViolation
from warmcell.net.credentials import Redactor, SecretRef, StreamRedactor
from warmcell.net.rules.fetch_policy import FetchPolicy

VALUE = "s3cr3t/t0ken+value"


def test_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANARY_TOKEN", VALUE)
    Path(tmp_path, "token").write_text(VALUE + "\n")
    for reference in (SecretRef.env("CANARY_TOKEN"), SecretRef.file(tmp_path / "token"), SecretRef(lambda: VALUE)):
        assert reference.reveal() == (VALUE, VALUE)
        assert VALUE not in repr(reference)
    assert SecretRef.env("CANARY_TOKEN", format="Bearer {}").reveal() == (VALUE, f"Bearer {VALUE}")
    monkeypatch.setenv("CANARY_TOKEN", "another one")
    assert SecretRef.env("CANARY_TOKEN").reveal()[0] == "another one"


def test_basic_authentication() -> None:
    reference = SecretRef.basic("git", SecretRef(lambda: VALUE))
    secret, header = reference.reveal()
    assert (secret, header) == (VALUE, "Basic " + base64.b64encode(f"git:{VALUE}".encode()).decode())
    echoed = Redactor([secret]).text(f"you sent {header}")
    assert "[redacted]" in echoed and header not in echoed
    assert VALUE not in repr(reference)
    for username in ("a:b", "ünknown", "line\nbreak"):
        with pytest.raises(InvalidRequest):
            SecretRef.basic(username, SecretRef(lambda: VALUE))


@pytest.mark.parametrize("value", ["", "abc", "with\r\nline: break", "tab\there", "ünicode-secret"])
def test_values_that_cannot_go_into_a_header_are_refused_without_showing_them(value: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        SecretRef(lambda: value).reveal()
    assert not value or value not in str(caught.value)


def test_a_source_that_fails_says_so_without_its_words() -> None:
    def read() -> str:
        raise OSError(VALUE)

    for reference in (SecretRef(read), SecretRef.env("NO_SUCH_VARIABLE_HERE"), SecretRef.file("/no/such/file")):
        with pytest.raises(FetchFailed) as caught:
            reference.reveal()
        assert VALUE not in str(caught.value)


def test_a_bare_value_is_refused_and_not_quoted() -> None:
    with pytest.raises(PolicyViolation) as caught:
        FetchPolicy(inject={"a.test": {"Authorization": VALUE}})  # type: ignore[dict-item]
    assert VALUE not in str(caught.value)
    with pytest.raises(InvalidRequest):
        SecretRef(lambda: VALUE, format="no place for it")


def test_a_policy_shows_no_secret() -> None:
    policy = FetchPolicy(inject={"a.test": {"Authorization": SecretRef(lambda: VALUE)}})
    assert VALUE not in repr(policy)


def test_echoes_in_other_spellings_are_found() -> None:
    redactor = Redactor([VALUE])
    echoes = [VALUE, "s3cr3t%2Ft0ken%2Bvalue", base64.b64encode(VALUE.encode()).decode()]
    for echo in echoes:
        assert redactor.text(f"before {echo} after").startswith("before [redacted]")
        assert echo not in redactor.text(f"x{echo}x")


@pytest.mark.parametrize(
    ("secret", "echo"),
    [
        ("ab/cd+ef=", r"ab\/cd+ef="),
        ("ab/cd+ef=", "ab%2fcd%2bef%3d"),
        ("ab/cd+ef=", r"ab/cd\u002Bef="),
        ("ab/cd+ef=", r"ab/cd+ef\u003d"),
        ("ab<cd&ef", r"ab\u003ccd\u0026ef"),
        ("ab<cd&ef", "ab&lt;cd&amp;ef"),
        ("ab'cd&ef", "ab&#39;cd&amp;ef"),
    ],
)
def test_an_echo_as_common_libraries_escape_it_is_found(secret: str, echo: str) -> None:
    assert Redactor([secret]).text(f"({echo})") == "([redacted])"


def test_a_secret_inside_another_leaves_nothing_behind() -> None:
    assert Redactor(["abcd", "abcdefgh"]).text("abcdefgh") == "[redacted]"


@given(
    before=st.binary(max_size=50),
    after=st.binary(max_size=50),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=30),
)
def test_a_stream_hides_it_however_it_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    whole = before + VALUE.encode() + after
    stream, out, at = StreamRedactor(Redactor([VALUE])), b"", 0
    for cut in cuts:
        out += stream.feed(whole[at : at + cut])
        at += cut
    out += stream.feed(whole[at:]) + stream.finish()
    assert VALUE.encode() not in out
    assert out == whole.replace(VALUE.encode(), b"[redacted]")


@pytest.mark.parametrize("step", range(1, 14))
def test_a_stream_shows_nothing_of_a_secret_that_begins_with_another(step: int) -> None:
    short, long = "key-1234", "key-1234-and-more"
    whole = f"{long} {short} {long}".encode()
    stream = StreamRedactor(Redactor([short, long]))
    out = b"".join(stream.feed(whole[at : at + step]) for at in range(0, len(whole), step)) + stream.finish()
    assert out == b"[redacted] [redacted] [redacted]"


def test_a_stream_holds_back_only_what_may_be_the_start_of_a_secret() -> None:
    stream = StreamRedactor(Redactor([VALUE]))
    assert stream.feed(b"data: one\n\n") == b"data: one\n\n"
    assert stream.feed(b"data: " + VALUE.encode() + b"\n\n") == b"data: [redacted]\n\n"
    for length in (1, 5, 15):
        assert stream.feed(b"data: " + VALUE[:length].encode()) == b"data: "
        assert stream.feed(b"~\n\n") == VALUE[:length].encode() + b"~\n\n"
    assert stream.finish() == b""


def test_without_secrets_a_stream_is_left_alone() -> None:
    stream = StreamRedactor(Redactor())
    assert stream.feed(b"abc") + stream.finish() == b"abc"
