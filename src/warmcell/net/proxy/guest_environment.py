"""Environment variables that make ordinary programs use the egress proxy and trust the sandbox's own CA."""

from __future__ import annotations

LOOPBACK = "localhost,127.0.0.1,::1"


def proxy_environment(port: int, *, no_proxy: str = LOOPBACK, all_proxy_scheme: str = "http") -> dict[str, str]:
    """Proxy variables for curl, pip, npm, git, requests, node and others.

    Loopback inside the cage is the guest's own and needs no proxy. `ALL_PROXY` uses HTTP CONNECT unless `socks5h` is
    asked for: without an extra package, httpx (and most AI client libraries with it) refuses to start with a SOCKS
    URL. The proxy serves SOCKS5 on the same port either way.
    """
    url = f"http://127.0.0.1:{port}"
    all_url = f"{all_proxy_scheme}://127.0.0.1:{port}"
    plain = {"http_proxy": url, "https_proxy": url, "all_proxy": all_url, "no_proxy": no_proxy}
    upper = {name.upper(): value for name, value in plain.items()}
    return {
        **plain,
        **upper,
        "NODE_USE_ENV_PROXY": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "npm_config_noproxy": no_proxy,
        "npm_config_update_notifier": "false",
        "YARN_HTTP_PROXY": url,
        "YARN_HTTPS_PROXY": url,
        "CARGO_HTTP_PROXY": url,
        # Without a terminal a password prompt would hang.
        "GIT_TERMINAL_PROMPT": "0",
    }


def authority_environment(bundle_path: str, certificate_path: str) -> dict[str, str]:
    """Variables that add trust in the sandbox's CA. `bundle_path`: system roots and CA; `certificate_path`: CA only."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")
    return {**dict.fromkeys(names, bundle_path), "NODE_EXTRA_CA_CERTS": certificate_path}
