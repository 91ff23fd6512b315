"""Pulls from registries (OCI distribution, version 2) over the safe HTTP client.

The caller chooses the registry, which may be on this machine or in a private network. Redirects and token
servers that the registry names must be at a public address or at the registry's own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlencode, urljoin, urlsplit

from warmcell.core.errors import FetchFailed, ImageInvalid, ImageNotFound, InvalidRequest
from warmcell.core.types import MIB
from warmcell.images.blobs import BlobStore, decode_json
from warmcell.images.limits import MAX_INDEX_DEPTH, MAX_JSON_BYTES, Budget
from warmcell.images.manifests import (
    INDEXES,
    MANIFESTS,
    Descriptor,
    choose,
    own_architecture,
    parse_index,
    parse_manifest,
    require_object,
)
from warmcell.images.progress import OnProgress, report_chunks
from warmcell.images.references import DOCKER_HUB, Reference
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.net.fetch.messages import FetchRequest, FetchResponse
from warmcell.net.fetch.safe_client import REDIRECTS, SafeClient
from warmcell.net.rules.fetch_policy import FetchPolicy

#: Layers are fetched in slices, so that memory and the time of one request are bounded.
SLICE = 16 * MIB
#: A registry that ignores `Range` sends a whole layer at once.
_MOST_AT_ONCE = 512 * MIB
#: A shorter slice, except the last, is refused: a registry could send one byte at a time.
_SHORTEST_SLICE = 64 * 1024
_REQUEST_SECONDS = 120.0
#: How often the caller is asked, during a request, whether it still wants the answer.
_LOOK_SECONDS = 0.2
_TRIES = 4
_MOST_REDIRECTS = 5
#: Anchored at the start of a word: otherwise matching a word of 64 KiB would take quadratic time.
_PARAMETER = re.compile(r'(?<!\w)(\w+)="([^"]*)"')
#: Second-level labels that organisations share below a country: `a.co.uk` and `b.co.uk` are different domains.
_SHARED_LABELS = frozenset("ac co com edu go gob gouv gov mil ne net or org".split())
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")


class Registry:
    """One registry, for one repository. Blocking."""

    def __init__(
        self,
        host: str,
        repository: str,
        credentials: tuple[str, str] | None,
        *,
        plain_http: bool,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """`check` raises to end a request that is in progress; it must not block."""
        where = "registry-1.docker.io" if host == DOCKER_HUB else host
        if plain_http and not _LOOPBACK.fullmatch(re.sub(r":\d+$", "", where)):
            hint = "only a registry on this machine is reached without TLS"
            raise InvalidRequest(f"plain_http cannot be used with {host}", field="plain_http", hint=hint)
        self._origin = f"{'http' if plain_http else 'https'}://{where}"
        self._repository, self._credentials, self._check = repository, credentials, check
        self._authorization: str | None = None
        own = (where if ":" in where.rpartition("]")[2] else f"{where}:443",)
        #: By the size of responses (only layers are large), and by whether the address is the registry's own.
        self._clients = {
            most: {True: _make_client(own, True, most), False: _make_client(("*",), False, most)}
            for most in (MAX_JSON_BYTES, _MOST_AT_ONCE)
        }

    def read_manifest(self, reference: str) -> tuple[bytes, str]:
        """A manifest or index by tag or digest, and its media type."""
        answer = self._get(f"manifests/{reference}", {"Accept": ", ".join((*MANIFESTS, *INDEXES))})
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        expected = reference if reference.startswith("sha256:") else answer.headers.get("docker-content-digest", digest)
        if digest != expected:
            raise ImageInvalid(f"the registry sent a manifest with the digest {digest} for {expected}")
        return answer.body, answer.headers.get("content-type", "").partition(";")[0].strip()

    def read_blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """The bytes of a blob. The caller checks size and digest."""
        at = 0
        most = MAX_JSON_BYTES if descriptor.size <= MAX_JSON_BYTES else _MOST_AT_ONCE
        while at < descriptor.size:
            last = min(at + SLICE, descriptor.size) - 1
            answer = self._get(f"blobs/{descriptor.digest}", {"Range": f"bytes={at}-{last}"}, most)
            if answer.status == 200 and at > 0:
                reason = f"the registry ignores ranges, and {descriptor.digest} is longer than it sent at first"
                raise ImageInvalid(reason)
            if len(answer.body) < min(last + 1 - at, _SHORTEST_SLICE):
                raise ImageInvalid(f"the registry sent {len(answer.body)} bytes of {descriptor.digest}, too few")
            at += len(answer.body)
            yield answer.body

    def _get(self, path: str, headers: dict[str, str], most: int = MAX_JSON_BYTES) -> FetchResponse:
        """`most`: bytes of the response that are kept in memory."""
        url = f"{self._origin}/v2/{self._repository}/{path}"
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(0.25 * 2**attempt)
            try:
                answer = self._get_once(url, headers, most)
            except FetchFailed as error:
                if not error.retryable or attempt == _TRIES - 1:
                    raise
                continue
            if answer.ok:
                return answer
            if answer.status not in (429, 500, 502, 503, 504):
                break
        raise self._refusal(answer, path)

    def _refusal(self, answer: FetchResponse, path: str) -> Exception:
        where = f"{urlsplit(self._origin).netloc}/{self._repository}"
        if answer.status == 404:
            return ImageNotFound(f"{where} ({path})", place="the registry", hint="check the name and the tag")
        if answer.status in (401, 403):
            hint = "give a username and a password, or check the name: registries hide what does not exist"
            return FetchFailed(f"access to {where} denied (HTTP {answer.status})", reason="refused", hint=hint)
        return FetchFailed(f"the registry answered HTTP {answer.status} for {where}/{path}", reason="failed")

    def _get_once(self, url: str, headers: dict[str, str], most: int) -> FetchResponse:
        answer = self._follow(url, headers | self._own_headers(), most)
        if answer.status == 401 and self._log_in(answer.headers.get("www-authenticate", "")):
            answer = self._follow(url, headers | self._own_headers(), most)
        return answer

    def _own_headers(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization else {}

    def _follow(self, url: str, headers: dict[str, str], most: int) -> FetchResponse:
        """Follow redirects; another host gets no credentials."""
        headers = {"Accept-Encoding": "identity", **headers}
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._fetch(url, headers, most)
            location = answer.headers.get("location", "")
            if answer.status not in REDIRECTS or not location:
                return answer
            following = _join_url(url, location)
            if urlsplit(following).scheme != urlsplit(url).scheme and not following.startswith("https:"):
                raise FetchFailed("the registry redirects from https to http", reason="refused")
            if not self._is_own(following):
                headers = {name: value for name, value in headers.items() if name != "Authorization"}
            url = following
        raise FetchFailed(f"more than {_MOST_REDIRECTS} redirects", reason="refused")

    def _is_own(self, url: str) -> bool:
        return "{0.scheme}://{0.netloc}".format(urlsplit(url)) == self._origin

    def _fetch(self, url: str, headers: dict[str, str], most: int = MAX_JSON_BYTES) -> FetchResponse:
        client = self._clients[most][self._is_own(url)]
        return portal.call(self._fetch_watched, client, FetchRequest(url, headers=headers, follow_redirects=False))

    async def _fetch_watched(self, client: SafeClient, request: FetchRequest) -> FetchResponse:
        """Stops when the last caller has left: a registry may take its time, and many requests."""
        fetching = asyncio.ensure_future(client.fetch(request))
        try:
            while not fetching.done():
                self._check()
                await asyncio.wait([fetching], timeout=_LOOK_SECONDS)
            return fetching.result()
        finally:
            await cancel_and_wait(fetching)

    def _log_in(self, challenge: str) -> bool:
        """Authenticate as the challenge asks. False if there are no other credentials to try."""
        kind, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        if kind.lower() == "basic" and self._credentials and self._authorization is None:
            self._authorization = _basic(self._credentials)
            return True
        if kind.lower() != "bearer" or "realm" not in parameters:
            return False
        self._authorization = f"Bearer {self._get_token(parameters)}"
        return True

    def _get_token(self, parameters: dict[str, str]) -> str:
        query = {"scope": f"repository:{self._repository}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        realm = parameters["realm"]
        url = _join_url(self._origin, f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}")
        if not self._is_own(url) and not url.startswith("https:"):
            raise FetchFailed("the registry's token server does not use https", reason="refused")
        headers = {}
        if self._credentials:
            if _domain(url) != _domain(self._origin):
                message = f"password not sent: the token server {urlsplit(url).hostname} is in another domain"
                raise FetchFailed(message, reason="refused")
            headers["Authorization"] = _basic(self._credentials)
        answer = self._fetch(url, headers)
        if not answer.ok:
            message = f"the token server answered HTTP {answer.status}"
            raise FetchFailed(message, reason="refused", hint="check username and password")
        document = require_object(decode_json(answer.body, "the token"), "the token")
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise FetchFailed("the token server did not send a valid token", reason="failed")
        return token


def pull_blobs(
    registry: Registry, reference: Reference, blobs: BlobStore, budget: Budget, on_progress: OnProgress | None
) -> str:
    """Fetch all blobs of an image into the store; returns the digest of its manifest."""
    data, media_type = registry.read_manifest(reference.digest or reference.tag)
    for _ in range(MAX_INDEX_DEPTH):
        document = decode_json(data, "the manifest")
        kind = document.get("mediaType", media_type) if isinstance(document, dict) else media_type
        if kind in MANIFESTS:
            digest, _ = blobs.put([data])
            manifest = parse_manifest(document)
            for descriptor in (manifest.config, *manifest.layers):
                budget.count_bytes(descriptor.size)
                if not blobs.has(descriptor.digest):
                    what, size = descriptor.digest, descriptor.size
                    chunks = report_chunks(registry.read_blob(descriptor), on_progress, "pull", what, size)
                    blobs.put(chunks, what, size)
            return digest
        if kind not in INDEXES:
            raise ImageInvalid(f"the registry sent {str(kind)[:100]!r}, which is not an image")
        chosen = choose(parse_index(document), own_architecture())
        data, media_type = registry.read_manifest(chosen.digest)
    raise ImageInvalid(f"the image's indexes are nested more than {MAX_INDEX_DEPTH} deep")


def _make_client(domains: tuple[str, ...], is_private: bool, most: int) -> SafeClient:
    policy = FetchPolicy(domains, deny_private_ips=not is_private, allowed_methods=("GET",), max_body_bytes=most)
    return SafeClient(replace(policy, request_timeout=_REQUEST_SECONDS))


def _join_url(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError as error:
        raise FetchFailed(f"the registry sent a malformed URL: {error}", reason="invalid") from None


def _basic(credentials: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(credentials).encode()).decode()


def _domain(url: str) -> str:
    """The registrable domain: the last two or three labels of a name, or a whole IP address."""
    host = urlsplit(url).hostname or ""
    if host.replace(".", "").isdigit() or ":" in host:
        return host
    labels = host.split(".")
    is_shared = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SHARED_LABELS
    return ".".join(labels[-3 if is_shared else -2 :])
