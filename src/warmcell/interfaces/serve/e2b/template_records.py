"""The templates of all tenants, as files in the server's image store, so that every worker sees them.

    templates/key                     signs the URLs of uploads
    templates/TENANT/ID.json          one template: its name, builds and tags
    templates/TENANT/BUILD.log        the log of one build, a JSON object per line
    templates/TENANT/BUILD.lock       locked while a server carries the build out
    templates/TENANT/BUILD.home/      what /home/user of the image contains
    templates/TENANT/files/HASH       uploaded archives

Blocking: call it in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import ClientDisconnect

from warmcell.core.light import closing_fd
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError
from warmcell.workspace.remove import remove_directory

_log = logging.getLogger("warmcell.serve")
DEFAULT_TAG = "default"
WAITING, BUILDING, READY, ERROR = "waiting", "building", "ready", "error"
#: A requested build that is not started, or whose server ended during it, is forgotten after so long.
REQUEST_SECONDS = 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(?:/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ID = re.compile(r"[0-9a-z]{20}")
#: Paths of archives, and how long one may take to arrive.
UPLOADS = "/templates/uploads/"
UPLOAD_SECONDS = 900.0
_URL_SECONDS = 3600
_HASH = re.compile(r"[0-9A-Za-z]{16,128}")
_KEY_BYTES = 32
#: Archives that are kept for one tenant, as many as a build may have steps: they may be empty.
MAX_ARCHIVES = 1000


@dataclass(slots=True)
class Build:
    """One build. `tags` are those that it gets when it is ready, `digest` is that of its image."""

    id: str
    created: float
    updated: float
    status: str = WAITING
    tags: list[str] = field(default_factory=list)
    message: str = ""
    step: str = ""
    digest: str = ""
    start_command: str = ""
    ready_command: str = ""


@dataclass(slots=True)
class Template:
    """A template. `tags` maps a tag to the id of its build and the time when it was assigned."""

    id: str
    name: str
    created: float
    builds: dict[str, Build] = field(default_factory=dict)
    tags: dict[str, tuple[str, float]] = field(default_factory=dict)

    def drop_unnamed(self, keep: str = "") -> None:
        """Drop ended builds without a tag. `keep`: the last one, whose client still asks for its status."""
        named = {build for build, _ in self.tags.values()} | {keep}
        for build in [build for build in self.builds.values() if build.status in (READY, ERROR)]:
            if build.id not in named:
                del self.builds[build.id]

    def build_of(self, tag: str) -> Build | None:
        found = self.tags.get(tag)
        return None if found is None else self.builds.get(found[0])


def parse_name(text: str) -> tuple[str, str | None]:
    """Split into name and tag. Raises `HttpError` 400."""
    name, colon, tag = text.partition(":")
    if len(text) > 256 or not _NAME.fullmatch(name) or len(name) > 128:
        raise HttpError(400, f"'{text[:80]}' is not a template name: use letters, digits, '-', '_' and '.'")
    return name, check_tag(tag) if colon else None


def check_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise HttpError(400, f"'{tag[:80]}' is not a tag: use letters, digits, '-', '_' and '.'")
    return tag


class TemplateRecords:
    """The templates of one tenant. Every change is made under a lock that all workers share."""

    def __init__(self, place: str, tenant: str) -> None:
        self.path = os.path.join(place, "templates", quote(tenant, safe=""))

    def request_build(self, name: str, tags: Sequence[str], most: int) -> tuple[Template, Build]:
        """Add a build to the template with this name, creating the template if necessary."""
        now = time.time()
        with self._lock():
            templates = self._all()
            for changed in [template for template in templates if self._forget_abandoned(template, now)]:
                self._write(changed)
            if sum(len(template.builds) for template in templates) >= most:
                raise HttpError(429, f"this token already has {most} builds of templates; remove a template or a tag")
            template = next((item for item in templates if item.name == name), None)
            if template is None:
                identity = "".join(secrets.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(20))
                template = Template(identity, name, now)
            build = Build(str(uuid.uuid4()), now, now, tags=list(tags))
            template.builds[build.id] = build
            self._write(template)
        return template, build

    def all(self) -> list[Template]:
        with self._lock():
            return self._all()

    def find(self, name: str) -> Template | None:
        """Find a template by id, or by name with or without a tag."""
        plain = name.partition(":")[0]
        return next((template for template in self.all() if plain in (template.id, template.name)), None)

    def get(self, name: str) -> Template:
        found = self.find(name)
        if found is None:
            raise HttpError(404, f"template '{name[:80]}' not found")
        return found

    def get_build(self, template: str, build: str) -> tuple[Template, Build]:
        """Find a build. It is marked as failed if the server that carried it out has ended."""
        found = self.get(template)
        if build in found.builds and found.builds[build].status == BUILDING and not self._is_carried_out(build):
            found = self.end_build(found.id, build, message="the server ended during the build")
        if build not in found.builds:
            raise HttpError(404, f"build '{build[:80]}' not found")
        return found, found.builds[build]

    def has_build(self, build: str) -> bool:
        """Whether a template has it; its files are removed only after that."""
        return any(build in template.builds for template in self.all())

    @contextmanager
    def change(self, identity: str) -> Iterator[Template]:
        """Yield the template for the block to change, and write it afterwards. Raises 404 if it was removed."""
        with self._lock():
            template = self._read(identity)
            if template is None:
                raise HttpError(404, "the template was removed")
            yield template
            self._write(template)

    def end_build(self, identity: str, build: str, *, digest: str = "", message: str = "", step: str = "") -> Template:
        """Mark a build as ready, if it has a digest, or as failed. Tags then name it; builds without a tag are dropped.

        Does nothing if the build has ended already.
        """
        with self.change(identity) as template:
            ended = template.builds.get(build)
            if ended is None or ended.status != BUILDING:
                return template
            ended.status, ended.digest, ended.message, ended.step = READY if digest else ERROR, digest, message, step
            ended.updated = time.time()
            if digest:
                template.tags.update({tag: (build, ended.updated) for tag in ended.tags})
            template.drop_unnamed(keep=build)
        return template

    def remove(self, identity: str) -> None:
        with self._lock(), suppress(FileNotFoundError):
            os.unlink(self._file(identity))

    def remove_leftovers(self) -> list[str]:
        """Remove files of builds that no template has any more; returns the ids of those builds.

        None are removed while a record is damaged: it may have named them.
        """
        with self._lock():
            templates, names = self._all(), [name for name in os.listdir(self.path) if name.count(".") == 1]
            if len(templates) < sum(name.endswith(".json") for name in names):
                return []
            known = {build for template in templates for build in template.builds}
            stale = [name for name in names if not name.endswith(".json") and name.partition(".")[0] not in known]
            for name in stale:
                path = os.path.join(self.path, name)
                remove_directory(path) if name.endswith(".home") else os.unlink(path)
        return sorted({name.partition(".")[0] for name in stale})

    # ---- files of a build ----

    def place_of(self, build: str, kind: str) -> str:
        """`kind`: "log", "lock" or "home"."""
        return os.path.join(self.path, f"{build}.{kind}")

    def append_log(self, build: str, entries: Sequence[dict[str, Any]]) -> None:
        with open(self.place_of(build, "log"), "a", encoding="ascii") as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries))

    def read_log(self, build: str, offset: int, most: int) -> list[dict[str, Any]]:
        try:
            with open(self.place_of(build, "log"), encoding="ascii") as file:
                lines = list(islice(file, offset, offset + most))
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @contextmanager
    def carry_out(self, build: str) -> Iterator[None]:
        """Lock the build while this server works on it. Raises `HttpError` 409 if it is locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with closing_fd(os.open(self.place_of(build, "lock"), flags, 0o600)) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HttpError(409, "the build was started before") from None
            yield

    def _is_carried_out(self, build: str) -> bool:
        try:
            descriptor = os.open(self.place_of(build, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        with closing_fd(descriptor):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _forget_abandoned(self, template: Template, now: float) -> bool:
        """Whether there were builds that their client never started, or that ended with their server."""
        old = [build for build in template.builds.values() if build.updated < now - REQUEST_SECONDS]
        gone = [build for build in old if build.status == WAITING]
        gone += [build for build in old if build.status == BUILDING and not self._is_carried_out(build.id)]
        for build in gone:
            del template.builds[build.id]
        return bool(gone)

    # ---- the files of templates ----

    @contextmanager
    def _lock(self) -> Iterator[None]:
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        with closing_fd(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _all(self) -> list[Template]:
        names = sorted(name for name in os.listdir(self.path) if name.endswith(".json"))
        found = (self._read(name.removesuffix(".json")) for name in names)
        return [template for template in found if template is not None]

    def _file(self, identity: str) -> str:
        return os.path.join(self.path, f"{identity}.json")

    def _read(self, identity: str) -> Template | None:
        if not _ID.fullmatch(identity):
            return None
        try:
            with open(self._file(identity), encoding="ascii") as file:
                plain = json.load(file)
            builds = {name: Build(**fields) for name, fields in plain.pop("builds").items()}
            tags = {tag: (build, created) for tag, (build, created) in plain.pop("tags").items()}
            return Template(**plain, builds=builds, tags=tags)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # the tenant's other templates work
            _log.error("the template %s is damaged, remove it or restore a backup: %s", self._file(identity), error)
            return None

    def _write(self, template: Template) -> None:
        draft = self._file(template.id) + ".new"
        with open(draft, "w", encoding="ascii") as file:
            json.dump(dataclasses.asdict(template), file)
            file.flush()
            os.fsync(file.fileno())  # else a power loss may leave an empty record
        os.rename(draft, self._file(template.id))


def check_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise HttpError(400, "the hash of the files must be 16 to 128 letters and digits")
    return text


class Uploads:
    """Archives for COPY steps of all tenants, and signed URLs for their upload. `place` is the image store's."""

    def __init__(self, place: str) -> None:
        self._place = os.path.join(place, "templates")
        #: By tenant: the archives that arrive now, by path, and how much of each is there.
        self._arriving: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def path_of(self, tenant: str, digest: str) -> str:
        return os.path.join(self._place, quote(tenant, safe=""), "files", check_hash(digest))

    def sign(self, tenant: str, digest: str, most: int) -> str:
        """Path and query of a URL that accepts one archive of at most `most` bytes for an hour."""
        expires = str(int(time.time()) + _URL_SECONDS)
        fields = {"expires": expires, "most": str(most)}
        signature = self._signature(tenant, digest, *fields.values())
        query = urlencode(fields | {"signature": signature})
        return f"{UPLOADS}{quote(tenant, safe='')}/{digest}?{query}"

    def check(self, tenant: str, digest: str, expires: str, most: str, signature: str) -> int:
        """Check the signature; return how many bytes the archive may have. Raises `HttpError` 403."""
        expected = self._signature(tenant, check_hash(digest), expires, most)
        if not hmac.compare_digest(signature.encode(), expected.encode()) or int(expires) < time.time():
            raise HttpError(403, "the upload URL is invalid or has expired")
        return int(most)

    def _signature(self, *fields: str) -> str:
        return hmac.new(self._key(), "\n".join(fields).encode(), hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        path = os.path.join(self._place, "key")
        os.makedirs(self._place, mode=0o700, exist_ok=True)
        if not os.path.exists(path):
            draft = f"{path}.{secrets.token_hex(8)}"
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):  # another worker was first
                os.link(draft, path)
            os.unlink(draft)
        with open(path, "rb") as file:
            return file.read()

    async def receive(self, tenant: str, digest: str, most: int, body: AsyncIterator[bytes]) -> None:
        """Store the archive when all of it has arrived. Old archives are removed to make room.

        Those of one tenant that arrive at the same time may have `most` bytes together.
        """
        path = self.path_of(tenant, digest)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        draft, arriving = f"{path}.{secrets.token_hex(8)}.part", self._arriving[tenant]
        arriving[draft] = 0
        try:
            with open(draft, "xb") as file:
                async with asyncio.timeout(UPLOAD_SECONDS):
                    async for piece in body:
                        arriving[draft] += len(piece)
                        if arriving[draft] > most:
                            message = f"the archive is larger than {most} bytes"
                            raise HttpError(413, message, headers={"Connection": "close"})
                        if sum(arriving.values()) > most:
                            message = f"the archives that arrive for this token have more than {most} bytes together"
                            raise HttpError(429, message, headers={"Connection": "close"})
                        file.write(piece)
            os.rename(draft, path)
        except ClientDisconnect:
            raise ClientDisconnected from None
        except TimeoutError:
            raise HttpError(408, f"the archive did not arrive within {UPLOAD_SECONDS:g} s") from None
        finally:
            del arriving[draft]
            with suppress(FileNotFoundError):
                os.unlink(draft)
        _make_room(os.path.dirname(path), most, arriving)


def _make_room(directory: str, most: int, arriving: Collection[str]) -> None:
    """Remove the oldest archives until there are at most `MAX_ARCHIVES` with `most` bytes together.

    Those that arrive stay.
    """
    present = [entry for entry in os.scandir(directory) if entry.path not in arriving]
    entries = sorted(present, key=lambda entry: entry.stat().st_mtime, reverse=True)
    total = 0
    for number, entry in enumerate(entries, 1):
        total += entry.stat().st_size
        if total > most or number > MAX_ARCHIVES:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
