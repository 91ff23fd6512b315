"""COPY and ADD: chooses the files, computes their digest for the cache, and writes them as a layer."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

from warmcell.core.compressed_members import TooManyMembers, expand
from warmcell.core.decompressors import LZMAError, load_decompressor
from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass
from warmcell.images.blobs import read_chunks
from warmcell.images.build.globs import IgnoreRules, Wildcard, has_wildcard
from warmcell.images.build.steps import Copy
from warmcell.images.build.trees import Node, Tree
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.image_files import find_user
from warmcell.images.layer_tar import Attributes, LayerWriter
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.tar_reader import TarEntry, read_entries, read_header, split_path

T = TypeVar("T")
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class _Item:
    """One entry of the layer: a file, directory or link of the source, or inline content."""

    path: str
    attributes: Attributes
    node: Node | None = None
    content: bytes = b""
    is_archive: bool = False


class Copier:
    """One COPY or ADD. `source` has the files, `target` is the image so far; neither is changed."""

    def __init__(
        self, step: Copy, source: Tree, target: Tree, workdir: str, ignored: IgnoreRules, limits: ImageLimits
    ) -> None:
        self._step, self._source, self._target, self._ignored = step, source, target, ignored
        self._excluded = IgnoreRules(step.exclude)
        self._limits = limits
        self._owner = _find_owner(target, step.chown)
        self._destination = posixpath.join(workdir, step.destination)
        self._items = list(_count_items(self._plan(), Budget(limits)))

    def digest(self) -> str:
        """A hash of names, types, modes, owners and content, but not times: a fresh clone hits the cache."""
        found, budget = hashlib.sha256(), Budget(self._limits)
        found.update(repr(self._owner_of_new()).encode())  # of parents, also where an archive is the only item
        for item in self._items:
            attributes = item.attributes
            head = [item.path, attributes.mode, attributes.uid, attributes.gid, self._content_digest(item, budget)]
            found.update(repr(head).encode())
        return found.hexdigest()

    def has_changed(self, digest: str) -> bool:
        """Whether the files are no longer those of the digest: a context may change while it is copied."""
        try:
            return self.digest() != digest
        except (ImageInvalid, OSError):  # removed, or no file any more
            return True

    def _content_digest(self, item: _Item, budget: Budget) -> str:
        node = item.node
        if node is None:
            return hashlib.sha256(item.content).hexdigest()
        if node.is_directory:
            return "directory"
        if node.is_link:
            return f"link {os.readlink(node.places[0])}"
        with open(self._source.open(node), "rb") as stream:
            budget.count_bytes(os.fstat(stream.fileno()).st_size)
            found = hashlib.sha256()
            for chunk in read_chunks(stream):
                found.update(chunk)
        return f"{'archive' if item.is_archive else 'file'} {found.hexdigest()}"

    def write(self, writer: LayerWriter) -> None:
        made: set[str] = set()
        for item in self._items:
            self._write_parents(item.path, writer, made)
            if item.is_archive:
                self._write_directory(item.path, item.attributes, writer, made)
                assert item.node is not None
                with open(self._source.open(item.node), "rb") as stream:
                    unpack_archive(stream, item.path, writer, Budget(self._limits))
            elif item.node is not None and item.node.is_directory:
                self._write_directory(item.path, item.attributes, writer, made)
            else:
                self._write_file(item, writer)

    def _write_parents(self, path: str, writer: LayerWriter, made: set[str]) -> None:
        """Add the parents of a path. Existing directories keep the mode and owner that the image has."""
        parts = path.split("/")[:-1]
        for length in range(1, len(parts) + 1):
            self._write_directory("/".join(parts[:length]), Attributes(0o755, *self._owner_of_new()), writer, made)

    def _write_directory(self, path: str, attributes: Attributes, writer: LayerWriter, made: set[str]) -> None:
        if path in made or not path:
            return
        made.add(path)
        known = self._target.find(path)
        writer.add_directory(path, self._target.attributes(known) if known and known.is_directory else attributes)

    def _write_file(self, item: _Item, writer: LayerWriter) -> None:
        node = item.node
        if node is None:
            writer.add_file(item.path, item.attributes, len(item.content), io.BytesIO(item.content).read)
        elif node.is_link:
            writer.add_symlink(item.path, os.readlink(node.places[0]), item.attributes)
        else:
            writer.add_linked_file(item.path, item.attributes, node.state, lambda: self._source.open(node))

    # ---- which files, and where ----

    def _plan(self) -> Iterator[_Item]:
        step = self._step
        named = (node for text in step.sources for node in self._find_sources(text))
        nodes = list(_count_items(named, Budget(self._limits)))
        is_directory = self._is_directory(len(nodes) + len(step.inline))
        place = self._resolve(self._destination)
        for name, content in step.inline.items():
            mode = 0o644 if step.chmod is None else step.chmod
            path = self._check_place(_join(place, name) if is_directory else place, is_directory=False)
            yield _Item(path, Attributes(mode, *self._owner_of_new()), None, content)
        for name, node in nodes:
            if node.is_directory:
                self._check_place(place, is_directory=True)
                yield _Item(place, Attributes(step.chmod or 0o755, *self._owner_of_new()), node)
                yield from self._plan_directory(node, place, 0)
            elif step.unpacks and self._is_archive(node):
                yield _Item(self._check_place(place, is_directory=True), Attributes(0o755), node, is_archive=True)
            else:
                yield self._item(node, _join(place, name) if is_directory else place)

    def _plan_directory(self, directory: Node, place: str, depth: int) -> Iterator[_Item]:
        if depth > _DEEPEST:
            raise ImageInvalid(f"{directory.path[:200]!r} is more than {_DEEPEST} directories deep")
        may_have_exceptions = self._ignored.has_exceptions or self._excluded.has_exceptions
        for node in self._source.children(directory):
            is_ignored = self._ignored.ignores(node.path) or self._excluded.ignores(node.path)
            if is_ignored and not (node.is_directory and may_have_exceptions):
                continue
            path = _join(place, posixpath.basename(node.path))
            if node.is_directory:
                inside = self._resolve(path)
                if not is_ignored:
                    yield self._item(node, inside)
                yield from self._plan_directory(node, inside, depth + 1)
            elif node.is_file or node.is_link:  # devices, sockets and FIFOs are left out
                yield self._item(node, path)

    def _item(self, node: Node, path: str) -> _Item:
        self._check_place(path, is_directory=node.is_directory)
        known = self._source.attributes(node)
        mode = known.mode if self._step.chmod is None or node.is_link else self._step.chmod
        uid, gid = (known.uid, known.gid) if self._owner is None else self._owner
        return _Item(path, Attributes(mode, uid, gid, known.mtime), node)

    def _check_place(self, path: str, *, is_directory: bool) -> str:
        """Refuse to replace a directory of the image by a file, or a file by a directory."""
        found = self._target.find(path)
        if found is not None and found.is_directory != is_directory:
            raise ImageInvalid(f"/{path} of the image is {'not ' if is_directory else ''}a directory")
        return path

    def _owner_of_new(self) -> tuple[int, int]:
        return self._owner or (0, 0)

    def _resolve(self, path: str) -> str:
        """A path with the image's links resolved, as its programs would see it."""
        return self._target.files.locate(path)[0].strip("/")

    def _is_directory(self, count: int) -> bool:
        """Whether the destination is a directory to copy into."""
        found = self._target.find(self._destination)
        is_named = self._step.destination.endswith(("/", "/.")) or self._step.destination in (".", "..")
        return is_named or count > 1 or bool(found and found.is_directory)

    def _find_sources(self, text: str) -> list[tuple[str, Node]]:
        """Names and nodes. A link that is named is followed; one inside a directory is copied as a link."""
        path = posixpath.normpath(text).lstrip("/")
        if path == ".." or path.startswith("../"):
            raise ImageInvalid(f"{text!r} is outside the context")
        if has_wildcard(path):
            found = self._expand(path.split("/"))
        else:
            node = self._source.find(path)
            # The rules apply to the named path, not to the target of its links.
            is_there = node is not None and not self._ignored.ignores("" if path == "." else path)
            found = [(posixpath.basename(path), node)] if node is not None and is_there else []
        for _, node in found:
            if not (node.is_directory or node.is_file):
                raise ImageInvalid(f"{text!r} is not a file or a directory")
        if not found:
            raise ImageInvalid(f"{text!r} not found, or ignored by .dockerignore")
        return found

    def _expand(self, parts: list[str]) -> list[tuple[str, Node]]:
        root, budget = self._source.find("/"), Budget(self._limits)
        found = [] if root is None else [("", root)]
        for part in parts:
            children = (child for _, node in found if node.is_directory for child in self._source.children(node))
            counted, wildcard = _count_items(children, budget), Wildcard(part)
            named = [child.path for child in counted if wildcard.matches(posixpath.basename(child.path))]
            found = [(path, node) for path in named if (node := self._source.find(path)) is not None]
        return [(posixpath.basename(path), node) for path, node in found if not self._ignored.ignores(path)]

    def _is_archive(self, node: Node) -> bool:
        with open(self._source.open(node), "rb") as stream:
            return is_archive(stream)


def _count_items(items: Iterable[T], budget: Budget) -> Iterator[T]:
    """The same items, counted before they are kept: with links to directories, few entries become any number."""
    for item in items:
        budget.count_entry()
        yield item


def _find_owner(target: Tree, chown: str) -> tuple[int, int] | None:
    """The group of a number alone is the same number; that of a name is the user's in the image."""
    if not chown:
        return None
    user = find_user(target.files, chown)
    has_number_only = ":" not in chown and chown.isdigit()
    return user.uid, user.uid if has_number_only else user.gid


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


_XZ_MAGIC, _BZIP2_MAGIC = b"\xfd7zXZ\0", b"BZh"
_MOST_XZ_MEMORY = 256 << 20


def is_archive(stream: IO[bytes]) -> bool:
    """Whether it begins with a tar header, compressed or not. Rewinds the stream."""
    try:
        return read_header(LayerReader(_decompress(stream), Budget(ImageLimits()), 0)) is not None
    except (ImageInvalid, OSError, EOFError):
        return False
    finally:
        stream.seek(0)


def unpack_archive(stream: IO[bytes], directory: str, writer: LayerWriter, budget: Budget) -> None:
    """Add every entry below the directory. Names cannot lead out of it; links refer to the image."""
    reader = LayerReader(_decompress(stream), budget, os.fstat(stream.fileno()).st_size)
    for entry in read_entries(reader):
        if entry.path:
            _add_entry(entry, directory, writer, reader)


def _add_entry(entry: TarEntry, directory: str, writer: LayerWriter, reader: LayerReader) -> None:
    path = _join_entry(directory, entry.path)
    attributes = Attributes(entry.mode, entry.uid, entry.gid, entry.mtime)
    match entry.kind:
        case "directory":
            writer.add_directory(path, attributes)
        case "file":
            writer.add_file(path, attributes, entry.size, reader.read_exactly)
        case "symlink":
            writer.add_symlink(path, os.fsdecode(entry.link), attributes)
        case "hardlink":
            writer.add_hardlink(path, _join_entry(directory, split_path(entry.link)), attributes)
        case _:  # devices and FIFOs are left out
            return


def _join_entry(directory: str, path: tuple[bytes, ...]) -> str:
    return "/".join([*([directory] if directory else []), os.fsdecode(b"/".join(path))])


def _decompress(stream: IO[bytes]) -> Iterator[bytes]:
    magic = stream.read(len(_XZ_MAGIC))
    stream.seek(0)
    if magic == _XZ_MAGIC:
        return _expand(stream, lambda: load_decompressor("lzma").LZMADecompressor(memlimit=_MOST_XZ_MEMORY), _XZ_MAGIC)
    if magic.startswith(_BZIP2_MAGIC):
        return _expand(stream, lambda: load_decompressor("bz2").BZ2Decompressor(), _BZIP2_MAGIC)
    return decompress(stream)


def _expand(stream: IO[bytes], make: Callable[[], Any], magic: bytes) -> Iterator[bytes]:
    try:
        yield from expand(read_chunks(stream), make, magic, is_strict=False)
    except EOFError:
        raise ImageInvalid("the archive is truncated") from None
    except (LZMAError, OSError, TooManyMembers) as error:
        raise ImageInvalid(f"the archive is damaged: {error}") from None
