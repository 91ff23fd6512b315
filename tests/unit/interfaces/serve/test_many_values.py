"""Bodies with millions of values are refused before they are parsed; long texts are not."""

from __future__ import annotations

import json

import pytest

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.e2b.connect import MAX_MESSAGES, RpcError, envelope, parse_envelopes, parse_message
from warmcell.interfaces.serve.e2b.creation import Create, Network
from warmcell.interfaces.serve.fusion import RunCode
from warmcell.interfaces.serve.requests import MAX_VALUES, has_many_values, parse_model
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.v1.models import RunBody
from warmcell.interfaces.serve.websockets import parse_command

MANY = 2 * MAX_VALUES
NUMBERS = "[" + "1," * MANY + "1]"
NAMES = "{" + ",".join(f'"{number}":1' for number in range(MANY)) + "}"


@pytest.mark.attack("S3-15")
@pytest.mark.parametrize(
    "text",
    [
        NUMBERS,
        "[" * MANY,
        "[" + '"",' * MANY + '""]',
        "[" + r'"\"",' * MANY + '""]',
        "[" + r'"\\",' * MANY + '""]',
        NAMES,
        r'["\\\"", ' + NUMBERS + "]",
        '["\u0122", ' + NUMBERS + "]",
    ],
    ids=["numbers", "depth", "strings", "quotes", "backslashes", "names", "both", "letter"],
)
def test_many_values_are_found(text: str) -> None:
    assert has_many_values(text.encode())
    assert has_many_values(text.encode("utf-16")), "a quote may be half of another character there"


@pytest.mark.parametrize(
    "code",
    [",[{" * MANY, r"\\" * MANY + ',"' * 1000, "\\" + "," * MANY, '"' * MAX_VALUES],
    ids=["separators", "backslashes", "backslash", "quotes"],
)
def test_a_long_text_is_one_value(code: str) -> None:
    body = json.dumps({"language": "python", "code": code + "x", "timeout": 1}).encode()
    assert parse_model(body, RunBody).code == code + "x"


@pytest.mark.attack("S3-15")
@pytest.mark.parametrize(
    "field",
    [f'"fetch_files": {NUMBERS}', f'"files": {NAMES}', f'"unknown": {NUMBERS}', NAMES[1:-1]],
    ids=["list", "names", "unknown", "many unknown"],
)
def test_errors_of_many_values_are_not_collected(field: str) -> None:
    """A body of 16 MiB made eight million of them, in 7 GB and 100 seconds."""
    for kind in (RunCode, RunBody):
        with pytest.raises(HttpError) as refused:
            parse_model(f'{{"language": "python", "code": "1", "timeout": 1, {field}}}'.encode(), kind)
        assert refused.value.status == 413


@pytest.mark.attack("S3-15")
def test_other_messages_are_bounded_too() -> None:
    with pytest.raises(RpcError, match="values"):
        parse_message(f'{{"a": {NUMBERS}}}'.encode())
    with pytest.raises(HttpError):
        parse_command(f'{{"type": "kill", "a": {NUMBERS}}}', {})


@pytest.mark.attack("S3-18")
def test_the_values_of_a_stream_are_added_up() -> None:
    """A body of 16 MiB with 300 messages, each below the limit, became 450 MB and stayed as long as its response."""
    message = {"data": {"input": {"stdin": "AAAA" * 1000}}}
    assert parse_envelopes(envelope(message) * MAX_MESSAGES) == [message] * MAX_MESSAGES
    large = {"data": {"input": [[]] * (MAX_VALUES // 8)}}
    assert parse_envelopes(envelope(large)) == [large]
    with pytest.raises(RpcError, match="values"):
        parse_envelopes(envelope(large) * 20)


@pytest.mark.attack("S3-15")
@pytest.mark.parametrize("name", ["allowOut", "denyOut"])
def test_the_hosts_of_a_network_are_bounded(name: str) -> None:
    network = {name: ["a.example"] * 1001}
    with pytest.raises(InvalidRequest, match=name):
        parse_model(json.dumps(network).encode(), Network)
    with pytest.raises(InvalidRequest, match=name):
        parse_model(json.dumps({"network": network}).encode(), Create)
    network[name].pop()
    assert parse_model(json.dumps({"network": network}).encode(), Create).network is not None
