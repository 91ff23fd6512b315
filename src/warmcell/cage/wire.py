"""Messages between supervisor, manager, zygote and guest.

Control and status channels carry one JSON object per packet. A job is a length, JSON and then bytes. Nothing is ever
unpickled, and data that a guest could have written is only treated as its output.
"""

from __future__ import annotations

import errno
import os
import struct

from .environment import CAGED_ENV
from .fast_imports import read_json, read_json_at, socket, write_json
from .linux.descriptors import blocking, close_all
from .records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

MAX_PACKET = 512 * 1024
#: The limit for messages about a cell: such a small buffer needs no mapping of its own.
SHORT_PACKET = 96 * 1024
_MAX_DESCRIPTORS = 250  # the kernel accepts 253; a cell in an image has one for each layer
#: Integers: in a zygote, arithmetic with enums of `socket` touches a dozen pages, which are copied for every guest.
_SOCKET, _RIGHTS, _CLOEXEC = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS), int(socket.MSG_CMSG_CLOEXEC)
_CONTROL_CUT, _PAYLOAD_CUT = int(socket.MSG_CTRUNC), int(socket.MSG_TRUNC)
_CUT = _CONTROL_CUT | _PAYLOAD_CUT
_ROOM = socket.CMSG_SPACE(_MAX_DESCRIPTORS * struct.calcsize("i"))


def send_packet(
    channel: socket.socket, message: Dict[str, Any], descriptors: Sequence[int] = (), flags: int = 0
) -> None:
    """Send a message. If a user has too many descriptors in flight, retry with a raised RLIMIT_NOFILE, their limit."""
    payload = write_json(message).encode()
    rights = descriptor_rights(descriptors) if descriptors else []
    try:
        channel.sendmsg([payload], rights, flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        _with_most_descriptors(lambda: channel.sendmsg([payload], rights, flags))


def packet_socket(descriptor: int) -> socket.socket:
    """A packet socket from its descriptor. Giving the type saves Python from querying it."""
    return blocking(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor))


def descriptor_rights(descriptors: Sequence[int]) -> List[Tuple[int, int, bytes]]:
    """Ancillary data for `sendmsg`. Without `array`, which loads `collections`."""
    return [(_SOCKET, _RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]


def _with_most_descriptors(send: Callable[[], int]) -> None:
    """Send with the soft limit raised to the hard one: other processes of this user have many in flight."""
    import resource  # rarely needed

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        send()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class PacketTruncated(OSError):
    """A packet was truncated or lost, usually because too many descriptors are open here."""


def receive_packet(
    channel: socket.socket, most: int = MAX_PACKET, inbox: Optional[mmap.mmap] = None
) -> Tuple[Dict[str, Any], List[int]]:
    """Receive a message and its descriptors. An empty message means that the channel was closed."""
    payload, descriptors = receive_bytes(channel, most, inbox)
    try:
        message = read_json(payload) if payload else {}
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        return message, descriptors
    close_all(descriptors)
    raise PacketTruncated(errno.EBADMSG, "not a JSON object")


def new_receive_buffer() -> mmap.mmap:
    """A buffer to receive into, for single-threaded processes: allocating one per packet would map memory each time.

    Untouched pages take no memory, and a zygote's forks need not copy them.
    """
    import mmap  # commands do not need it

    return mmap.mmap(-1, MAX_PACKET, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def receive_bytes(
    channel: socket.socket, most: int = MAX_PACKET, inbox: Optional[mmap.mmap] = None
) -> Tuple[bytes, List[int]]:
    """Like `receive_packet` without decoding; received into `inbox` if given."""
    if inbox is None:
        payload, rights, flags, _ = channel.recvmsg(most, _ROOM, _CLOEXEC)
    else:
        size, rights, flags, _ = channel.recvmsg_into([inbox], _ROOM, _CLOEXEC)
        payload = bytes(memoryview(inbox)[:size])
    descriptors: List[int] = []
    for level, kind, data in rights:
        if level == _SOCKET and kind == _RIGHTS:
            descriptors += struct.unpack_from(f"{len(data) // 4}i", data)
    # The kernel drops descriptors that do not fit, and does not report which.
    if flags & _CONTROL_CUT:
        close_all(descriptors)
        raise PacketTruncated(errno.EMFILE, "no room for the descriptors of a packet")
    if flags & _PAYLOAD_CUT:
        close_all(descriptors)
        raise PacketTruncated(errno.EMSGSIZE, f"a packet is longer than {most} bytes")
    if not payload:
        close_all(descriptors)
        return b"", []
    return payload, descriptors


def receive_order(channel: socket.socket, inbox: Tuple[mmap.mmap]) -> Tuple[bytes, bytes]:
    """For a zygote, which must touch little memory: receive a message and its descriptors, both as bytes."""
    size, rights, flags, _ = channel.recvmsg_into(inbox, _ROOM, _CLOEXEC)
    if flags & _CUT:
        raise PacketTruncated(errno.EMFILE, "a packet was truncated")
    return inbox[0][:size], rights[0][2] if rights else b""


class GuestJob(NamedTuple):
    """The command, environment and files that a waiting cell runs."""

    #: "python": run `main` in the warm interpreter; "exec": become `argv`; "prelude": become `argv`, which reads
    #: another job from descriptor 3.
    mode: str
    argv: Tuple[str, ...]
    env: Mapping[str, str]
    code_dir: str
    #: Content by name in the code directory, or by absolute path.
    files: Mapping[str, bytes]
    main: str = ""
    #: The working directory; "": that of the plan.
    cwd: str = ""
    #: Output is read while the program runs, so Python flushes every line.
    is_streamed: bool = False


NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def file_mode(job: GuestJob, name: str) -> int:
    """The mode of a job's file. The main file is executable if it may be the program itself."""
    return 0o755 if job.mode == "exec" and name == job.main else 0o644


#: From the manager to its zygote: the number of a recipe; whether the job may be a program, whether it will be sent
#: later, and whether it may be a call list.
FORK_ORDER = struct.Struct("=H???")
#: The answer: the pid or a negative errno; whether the job must be a call list; whether the guest has the modules of
#: live cages.
FORK_ANSWER = struct.Struct("=q??")

_MOST_AT_ONCE = 1 << 20


#: Headers of common jobs, up to the size of their only file. They contain no data of a caller.
_usual_headers: Dict[Tuple[str, str, str, bool], bytes] = {}


def encode_job(job: GuestJob) -> bytes:
    content = job.files.get(job.main)
    if content is None or len(job.files) > 1 or job.env is not CAGED_ENV or job.argv or job.cwd:
        header = _header(job)
        return b"".join([len(header).to_bytes(4, "big"), header, *job.files.values()])
    key = (job.mode, job.code_dir, job.main, job.is_streamed)
    beginning = _usual_headers.get(key) or _usual_headers.setdefault(key, _header(job).rpartition(b",")[0])
    header = b"%b,%d]]}" % (beginning, len(content))
    return b"%b%b%b" % (len(header).to_bytes(4, "big"), header, content)


def _header(job: GuestJob) -> bytes:
    fields: Dict[str, Any] = {
        "mode": job.mode,
        "argv": job.argv,
        "env": job.env,
        "code_dir": job.code_dir,
        "main": job.main,
        "cwd": job.cwd,
    }
    if job.is_streamed:  # left out otherwise, as for most jobs
        fields["is_streamed"] = True
    fields["files"] = [[name, len(content)] for name, content in job.files.items()]
    return write_json(fields).encode()


def receive_job(read: Callable[[int], bytes]) -> GuestJob:
    """Read exactly one job, since another may follow; EOFError if the supervisor closed the channel.

    Uses few operations: each costs the guest's process a copied page.
    """
    size = int.from_bytes(_read_exactly(read, 4), "big")
    header, _ = read_json_at(_read_exactly(read, size).decode(), 0)
    files = {name: _read_exactly(read, length) for name, length in header["files"]}
    program = (header["mode"], tuple(header["argv"]), header["env"], header["code_dir"], files)
    return GuestJob(*program, header["main"], header["cwd"], "is_streamed" in header)


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """Usually one read is enough."""
    whole = read(size) if 0 < size < _MOST_AT_ONCE else b""
    return whole if len(whole) == size else whole + _read_rest(read, size - len(whole))


def _read_rest(read: Callable[[int], bytes], size: int) -> bytes:
    chunks = []
    while size:
        chunk = read(min(size, _MOST_AT_ONCE))
        if not chunk:
            raise EOFError("the supervisor closed the job channel")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
