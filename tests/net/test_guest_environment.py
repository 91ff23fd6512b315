"""The environment that points programs at the proxy."""

from __future__ import annotations

from warmcell.net.proxy.egress_proxy import authority_environment, proxy_environment


def test_every_spelling_is_there() -> None:
    env = proxy_environment(3128)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        assert env[name] == env[name.upper()] == "http://127.0.0.1:3128"
    assert env["no_proxy"] == env["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert env["NODE_USE_ENV_PROXY"] == "1" and env["npm_config_https_proxy"] == "http://127.0.0.1:3128"


def test_socks_and_no_exceptions_can_be_asked_for() -> None:
    env = proxy_environment(1, no_proxy="", all_proxy_scheme="socks5h")
    assert env["ALL_PROXY"] == "socks5h://127.0.0.1:1" and env["NO_PROXY"] == ""
    assert env["HTTPS_PROXY"] == "http://127.0.0.1:1"


def test_trust() -> None:
    env = authority_environment("/bundle", "/ca")
    assert env["SSL_CERT_FILE"] == env["GIT_SSL_CAINFO"] == "/bundle" and env["NODE_EXTRA_CA_CERTS"] == "/ca"
