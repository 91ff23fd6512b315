"""Every parser of what a guest wrote: bytes like real ones and unlike, and never an error that is not its own.

Growth: eight times the input may cost little more than eight times the processor time; the square would be 64 times.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.net.hellos import real_hello, records
from tests.net.incoming_bodies import open_exchange

from warmcell.backends.wasm.channel import FrameDecoder
from warmcell.cage import plan as plans
from warmcell.cage.cell_shape import read_note
from warmcell.cage.wire import PacketTruncated
from warmcell.core.errors import EnforcerFailed, SandboxError, SnapshotNotFound
from warmcell.guest.wasm.protocol import ProtocolViolation, encode_frame
from warmcell.images import registry
from warmcell.images.blobs import decode_json
from warmcell.images.build.dockerfile import Instruction
from warmcell.images.build.instructions import _nanoseconds
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.manifests import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    choose,
    diff_ids,
    parse_index,
    parse_manifest,
    require_object,
)
from warmcell.images.model import parse_config
from warmcell.images.unpack import Unpacker, WhiteoutsUnsupported
from warmcell.net.proxy.client_hello import HelloReader, NotTlsError
from warmcell.net.proxy.egress_proxy import SocksError, SocksHandshake
from warmcell.net.proxy.forward_request import HeadError, parse_head
from warmcell.runner.cell import Cell, CellLost
from warmcell.workspace.patch.apply import parse_patch
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotStore
from warmcell.workspace.transfer import read_archive

#: How many times more than CI has the patience for; such a run takes a new road every time.
TIMES = int(os.environ.get("WARMCELL_FUZZ_TIMES", "1"))


class _Stream:
    """A client that says this, byte by byte in pieces of three, and goes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        piece, self._data = self._data[:3], self._data[3:]
        return piece

    async def write(self, data: bytes) -> None:
        pass

    def unread(self, data: bytes) -> None:
        self._data = data + self._data


def _socks(data: bytes) -> None:
    asyncio.run(SocksHandshake(_Stream(data)).read_request())  # type: ignore[arg-type]


def _hello(data: bytes) -> None:
    reader = HelloReader()
    for at in range(0, len(data), 7):
        if reader.feed(data[at : at + 7]) is not None:
            return


def _frames(data: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(data)
    while decoder.next_frame() is not None:
        pass


def _plan(data: bytes) -> None:
    plans.decode(json.loads(data.decode("utf-8", "replace")))


def _note(data: bytes) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "note")
        path.write_bytes(data)
        assert len(read_note(str(path))) <= 8


def _http(data: bytes) -> None:
    """As a server's answer, in so many reads."""
    incoming, step = open_exchange(), max(7, len(data) // 50)
    for at in range(0, len(data), step):
        incoming.feed(data[at : at + step])
        while (event := incoming.next_event()) is not h11.NEED_DATA:
            if event is h11.PAUSED or isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return


def _answer(count: int = 3) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Long: a%sb\r\n\r\n" % (b" " * 90)
    return head + b"5;e=f\r\nhello\r\n" * count + b"0\r\nT: v\r\n\r\n"


def _packet(data: bytes) -> None:
    """What the supervisor receives from a cage."""
    cell = Cell("native")
    try:
        os.write(cell._theirs[1], data or b" ")
        cell.receive_message()
    finally:
        cell.close()


def _report(count: int = 3) -> bytes:
    denials = [["path", f"/etc/{number}"] for number in range(count)]
    report = {"exit": 9, "verdict": "memory", "cpu": 0.5, "peak": 1 << 20, "limits": ["disk"], "denials": denials}
    return json.dumps(report).encode()


def _snapshot(data: bytes) -> None:
    """Each line is something that a guest left: a directory, a link, a pipe or a file, by its first letter."""
    with TemporaryDirectory() as directory, closing(SnapshotStore()) as store:
        for line in data.split(b"\n"):
            _leave(os.fsencode(directory), line)
        with closing(Root(directory)) as root:
            before = sorted(os.walk(directory))
            snapshot = store.take(root)
            store.restore(snapshot, root)
            if not snapshot.skipped:
                assert sorted(os.walk(directory)) == before


def _leave(directory: bytes, line: bytes) -> None:
    parts = [part for part in line[1:].replace(b"\0", b"").split(b"/") if part not in (b"", b".", b"..")]
    path = os.path.join(directory, *parts)
    with suppress(OSError):  # there already, or too long a name
        os.makedirs(os.path.dirname(path) if parts else path, exist_ok=True)
        if line.startswith(b"d"):
            os.mkdir(path)
        elif line.startswith(b"l"):
            os.symlink(b"../../../etc", path)
        elif line.startswith(b"p"):
            os.mkfifo(path)
        elif parts:
            Path(os.fsdecode(path)).write_bytes(line)


def _tree(count: int = 3) -> bytes:
    return b"\n".join(b"fd%d/f\nd\xff%d\nll%d" % (number, number, number) for number in range(count))


def _tar(count: int = 3) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(count):
            member = tarfile.TarInfo(f"d/{number}-é")
            member.size, member.pax_headers = 3, {"comment": "x" * 40}
            archive.addfile(member, io.BytesIO(b"abc"))
    return made.getvalue()


def _layer(data: bytes) -> None:
    """A layer of an image, with headers that add up: the checksum must not hide what comes after it."""
    data = b"".join(_add_up(data[at : at + 512]) for at in range(0, len(data), 512))
    with TemporaryDirectory() as directory:
        tree, beside = Path(directory, "tree"), Path(directory, "beside")
        tree.mkdir()
        budget = Budget(ImageLimits(unpacked_bytes=1 << 24, entries=10_000))
        try:
            Unpacker(str(tree), budget).unpack(LayerReader(decompress(io.BytesIO(data)), budget, len(data)))
        finally:
            assert os.listdir(directory) == ["tree"] and not beside.exists()


def _add_up(block: bytes) -> bytes:
    if block[257:262] != b"ustar":
        return block
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def _layer_sample(count: int = 3) -> bytes:
    """Files, links of both kinds, whiteouts and a device, with names in both extensions."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for number in range(count):
            kinds = {
                "f": tarfile.REGTYPE,
                "s": tarfile.SYMTYPE,
                "h": tarfile.LNKTYPE,
                ".wh.x": tarfile.REGTYPE,
                "c": tarfile.CHRTYPE,
            }
            for name, kind in kinds.items():
                member = tarfile.TarInfo(f"d{number}/{name}")
                member.type, member.linkname = kind, f"d{number}/f" if kind == tarfile.LNKTYPE else "../../beside"
                archive.addfile(member)
            archive.addfile(tarfile.TarInfo("n" * 60 + f"/{number}" * 30))
    return made.getvalue() + _tar(count)


def _image_documents(data: bytes) -> None:
    document = decode_json(data, "a document")
    manifest = parse_manifest(document)
    parse_config(require_object(document.get("config"), "config"))
    diff_ids(document, len(manifest.layers))
    choose(parse_index(document), "amd64")


def _duration(data: bytes) -> None:
    with suppress(SandboxError):
        _nanoseconds(data.decode("latin-1"), Instruction("HEALTHCHECK", "", 1, ""))


def _image_sample(count: int = 3) -> bytes:
    digest = "sha256:" + "0" * 64
    config = {"mediaType": OCI_CONFIG, "digest": digest, "size": 2, "Env": ["A=b"], "Cmd": ["sh"], "Labels": {"a": "b"}}
    layers = [{"mediaType": OCI_LAYER, "digest": digest, "size": 3}] * count
    one = {"mediaType": OCI_MANIFEST, "digest": digest, "size": 3, "platform": {"os": "linux", "architecture": "amd64"}}
    rootfs = {"type": "layers", "diff_ids": [digest] * count}
    return json.dumps(
        {"schemaVersion": 2, "config": config, "layers": layers, "manifests": [one], "rootfs": rootfs}
    ).encode()


def _zip(count: int = 3) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            archive.writestr(f"d/{number}", b"abc" * 9)
    return made.getvalue()


def _patch(count: int = 2) -> bytes:
    one = "diff --git a/f{0} b/f{0}\n--- a/f{0}\n+++ b/f{0}\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    return "".join(one.format(number) for number in range(count)).encode()


def _head(count: int = 3) -> bytes:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"v " * 20) for number in range(count))
    return b"GET http://host/path HTTP/1.1\r\nHost: host\r\n" + fields + b"\r\n"


def _frame(count: int = 2) -> bytes:
    return encode_frame({"event": "result", "values": [1, 2, {"a": None}]}, b"blob" * 5) * count


@dataclass(frozen=True)
class Parser:
    """`own`: the errors that it may raise. `sample`: what it is for, in any size."""

    parse: Callable[[bytes], object]
    own: tuple[type[BaseException], ...]
    sample: Callable[[int], bytes]
    #: How many pieces are much: as many as its own bounds let pass.
    much: int = 0
    examples: int = 150


PARSERS = {
    "request head": Parser(parse_head, (HeadError,), _head, 240),
    "client hello": Parser(_hello, (NotTlsError,), lambda count: records(real_hello("host.example")[5:], count), 0),
    "incoming http": Parser(_http, (h11.RemoteProtocolError,), _answer, 4000),
    "packets of the cage": Parser(_packet, (CellLost, SandboxError, PacketTruncated), _report, 2400),
    "snapshot": Parser(_snapshot, (SandboxError,), _tree, 96, examples=40),
    "socks": Parser(_socks, (SocksError,), lambda count: b"\x05\x01\x00\x05\x01\x00\x03\x04host\x01\xbb", 0),
    "worker frames": Parser(_frames, (ProtocolViolation,), _frame, 8000),
    "tar": Parser(read_archive, (SandboxError,), _tar, 2400),
    "tar.gz": Parser(read_archive, (SandboxError,), lambda count: gzip.compress(_tar(count)), 2400),
    "image layer": Parser(_layer, (SandboxError, WhiteoutsUnsupported), _layer_sample, 120, examples=100),
    "image documents": Parser(_image_documents, (SandboxError,), _image_sample, 120),
    "challenge of a registry": Parser(
        lambda data: registry._PARAMETER.findall(data.decode("latin-1")),
        (),
        lambda count: b"Bearer " + b"a" * count,
        4000,
    ),
    "duration in a Dockerfile": Parser(_duration, (), lambda count: b"1h" + b"0" * count, 4000),
    "zip": Parser(read_archive, (SandboxError,), _zip, 2400),
    "patch": Parser(lambda data: parse_patch(data.decode("utf-8", "replace")), (SandboxError,), _patch, 8000),
    "plan": Parser(
        _plan, (plans.PlanError, ValueError, RecursionError), lambda count: plans.encode(plans.LaunchPlan()).encode()
    ),
    "note of refused paths": Parser(_note, (), lambda count: b"/etc/shadow\0/root\xff\0" * count),
}


@st.composite
def _like(draw: st.DrawFn, sample: bytes) -> bytes:
    """A real one with pieces changed, left out, repeated and put in."""
    data = sample
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        piece = draw(
            st.one_of(
                st.binary(max_size=12),
                st.just(data[at:end] * 3),
                st.sampled_from([b"\0", b"\xff" * 4, b"\r\n", b"9" * 30, b"[" * 400]),
            )
        )
        data = data[:at] + piece + data[end:]
    return data


@pytest.mark.parametrize("name", PARSERS)
def test_whatever_comes_is_read_or_refused_by_name(name: str) -> None:
    parser = PARSERS[name]
    sample = parser.sample(3)
    parser.parse(sample)

    @settings(max_examples=parser.examples * TIMES, derandomize=TIMES == 1, database=None, deadline=None)
    @given(st.one_of(_like(sample), _like(sample), st.binary(max_size=300)))
    def attempt(data: bytes) -> None:
        try:
            parser.parse(data)
        except parser.own:
            return

    attempt()


@pytest.mark.attack("S2-35")
@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.much])
def test_the_cost_grows_with_the_input_and_not_with_its_square(name: str) -> None:
    parser = PARSERS[name]
    measured = []
    for _ in range(3):  # what costs its square costs it each time; a busy disk does not
        few, many = (_seconds(parser, parser.sample(count)) for count in (parser.much // 8, parser.much))
        measured.append(f"{few:.4f} s -> {many:.4f} s")
        if many < 0.02 or many < 24 * few:
            return
    pytest.fail(", ".join(measured))


def _seconds(parser: Parser, data: bytes) -> float:
    """The best of a few, in processor time: what else the machine does counts as little as possible."""
    taken = []
    for _ in range(4):
        began = time.thread_time()
        parser.parse(data)
        taken.append(time.thread_time() - began)
    return min(taken)


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("0123456789abcdef/.", min_size=30, max_size=34)))
def test_no_text_names_a_snapshot_that_was_not_taken(name: str) -> None:
    with closing(SnapshotStore()) as store, pytest.raises(SnapshotNotFound):
        store._parts(name)


@pytest.mark.parametrize(
    "message",
    [
        {"pid": 5},
        {"pid": "x"},
        {"failed": ["step"]},
        {"failed": ["step", 10**40, "what"]},
        {"failed": ["step", "what", 1]},
        {"exit": "0"},
        {"exit": 0, "denials": [["path"]]},
        {"exit": 0, "cpu": None},
    ],
)
def test_what_a_cage_never_says_is_our_failure(message: dict[str, object]) -> None:
    with pytest.raises(EnforcerFailed, match="unexpected message") as caught:
        _packet(json.dumps(message).encode())
    assert caught.value.fault == "host"
