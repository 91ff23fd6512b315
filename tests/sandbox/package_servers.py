"""A package index and an npm registry on loopback, and packages made by hand."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote


def wheel(name: str, version: str, code: str, needs: str = "", extra: bytes = b"", command: str = "") -> bytes:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code.encode(),
        f"{name}.bin": extra,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if command:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{command} = {name}:main\n".encode()
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for path, data in files.items()
    }
    record = "".join(f"{path},sha256={digests[path].decode()},{len(data)}\n" for path, data in files.items())
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, data in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(path, data)
    return made.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """A simple index, as PEP 503 has it. `asked` are the paths that were fetched; answers wait for the `gate`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), IndexPage)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class IndexPage(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.gate.wait(60)
        name = self.path.strip("/").split("/")[-1]
        body, kind = self.server.files.get(name), "application/octet-stream"
        if body is None:
            kind = "text/html"
            found = {file: data for file, data in self.server.files.items() if file.startswith(f"{name}-")}
            links = (
                f'<a href="/files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
                for file, data in found.items()
            )
            body = ("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>").encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "max-age=3600" if self.path.startswith("/files/") else "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


#: A header of a tar file and the data behind it.
TarEntry = tuple[tarfile.TarInfo, bytes]


def sdist(name: str, setup: str) -> bytes:
    """A source archive, for whose metadata pip runs `setup.py`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{name}-1.0/setup.py")
        entry.size = len(setup)
        archive.addfile(entry, io.BytesIO(setup.encode()))
    return made.getvalue()


def tarball(manifest: dict[str, Any], code: str, extra: bytes = b"", entries: Sequence[TarEntry] = ()) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in (("package.json", json.dumps(manifest).encode()), ("index.js", code.encode()), ("x", extra)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry, data in entries:
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(made.getvalue(), mtime=0)


class Registry(http.server.ThreadingHTTPServer):
    """As npm asks it: a document for each name, and tarballs. `asked` are the paths that were fetched."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RegistryPage)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.documents: dict[str, dict[str, Any]] = {}
        self.tarballs: dict[str, bytes] = {}
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def publish(self, name: str, code: str, needs: dict[str, str] | None = None, **more: Any) -> None:
        extra, entries = more.pop("extra", b""), more.pop("entries", ())
        manifest = {"name": name, "version": "1.0.0", "main": "index.js", "dependencies": needs or {}, **more}
        data = tarball(manifest, code, extra, entries)
        path = f"/files/{name.replace('/', '-')}-1.0.0.tgz"
        self.tarballs[path] = data
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        has_scripts = {"hasInstallScript": True} if "scripts" in more else {}
        version = {**manifest, **has_scripts, "dist": {"tarball": self.url[:-1] + path, "integrity": integrity}}
        self.documents[name] = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


class RegistryPage(http.server.BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.server.asked.append(path)
        body = self.server.tarballs.get(path)
        if body is None and (document := self.server.documents.get(path[1:])) is not None:
            body = json.dumps(document).encode()
        self.send_response(404 if body is None else 200)
        self.send_header(
            "Content-Type", "application/octet-stream" if path in self.server.tarballs else "application/json"
        )
        self.send_header("Content-Length", str(len(body or b"{}")))
        self.end_headers()
        self.wfile.write(body or b"{}")

    def log_message(self, *_: object) -> None:
        pass
