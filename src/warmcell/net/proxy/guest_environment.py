"""Environment variables that make ordinary programs use the egress proxy and trust the sandbox's own CA."""

from __future__ import annotations

LOOPBACK = "localhost,127.0.0.1,::1"


def proxy_environment(
    port: int, *, host: str = "127.0.0.1", no_proxy: str = LOOPBACK, all_proxy_scheme: str = "http"
) -> dict[str, str]:
    """What a guest's environment needs for curl, pip, npm, git, requests, node and most else.

    Loopback inside the cage is the guest's own and needs no proxy. `ALL_PROXY` speaks HTTP CONNECT unless asked for
    `socks5h`: httpx, and with it most AI client libraries, refuses to start when it sees a SOCKS URL without an
    extra package. SOCKS5 is served on the same port either way.
    """
    url = f"http://{host}:{port}"
    all_url = f"{all_proxy_scheme}://{host}:{port}"
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
        # Nobody is there to answer, so asking for a password would only be a way to hang.
        "GIT_TERMINAL_PROMPT": "0",
    }


def authority_environment(bundle_path: str, certificate_path: str) -> dict[str, str]:
    """Trust in the sandbox's CA: `bundle_path` holds the system's roots and the CA, `certificate_path` the CA alone."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO")
    return {**dict.fromkeys(names, bundle_path), "NODE_EXTRA_CA_CERTS": certificate_path}
