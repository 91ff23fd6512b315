"""Frames between supervisor and cage. Control and status: one JSON object per packet. Job: length, JSON, then bytes.

Nothing here is ever unpickled, and what a guest could have written is never read as anything but its output.
"""

from __future__ import annotations

import errno
import struct

from .environment import CAGED_ENV
from .light import read_json, read_json_at, socket, write_json
from .linux.owned import close_all
from .records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

MAX_PACKET = 512 * 1024
#: For what a cell says of itself, which is short: a buffer that costs no mapping of its own.
SHORT_PACKET = 96 * 1024
_MAX_DESCRIPTORS = 128
#: As plain numbers: in a zygote, arithmetic with `socket`'s own touches a dozen pages, to be copied for every guest.
_SOCKET, _RIGHTS, _CLOEXEC = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS), int(socket.MSG_CMSG_CLOEXEC)
_CONTROL_CUT, _PAYLOAD_CUT = int(socket.MSG_CTRUNC), int(socket.MSG_TRUNC)
_CUT = _CONTROL_CUT | _PAYLOAD_CUT
_ROOM = socket.CMSG_SPACE(_MAX_DESCRIPTORS * struct.calcsize("i"))


def send_packet(
    channel: socket.socket, message: Dict[str, Any], descriptors: Sequence[int] = (), flags: int = 0
) -> None:
    """What a user has in flight is compared with how many descriptors the sender may open."""
    payload = write_json(message).encode()
    rights = rights_to(descriptors) if descriptors else []
    try:
        channel.sendmsg([payload], rights, flags)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        _with_most_descriptors(lambda: channel.sendmsg([payload], rights, flags))


def packets_at(descriptor: int) -> socket.socket:
    """The end of a channel of packets that it is. Without saying so, Python asks the kernel."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)


def rights_to(descriptors: Sequence[int]) -> List[Tuple[int, int, bytes]]:
    """As `sendmsg` takes them. Not by `array`, which loads `collections`."""
    return [(_SOCKET, _RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]


def _with_most_descriptors(send: Callable[[], int]) -> None:
    """For a moment as many as this process may allow itself: somebody else of this user has a great many in flight."""
    import resource  # seldom needed, and not for free

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        send()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class PacketCut(OSError):
    """A packet, or part of it, is of no use and gone: most often too many descriptors are open here."""


def receive_packet(
    channel: socket.socket, most: int = MAX_PACKET, inbox: Optional[mmap.mmap] = None
) -> Tuple[Dict[str, Any], List[int]]:
    """One message and the descriptors that came with it. An empty message is the end of the conversation."""
    payload, descriptors = receive_bytes(channel, most, inbox)
    try:
        message = read_json(payload) if payload else {}
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        return message, descriptors
    close_all(descriptors)
    raise PacketCut(errno.EBADMSG, "a packet was no message")


def new_inbox() -> mmap.mmap:
    """For who has no other thread and hears often: a new buffer for the longest of packets is a mapping, each time.

    Pages that nothing came into are none: a zygote's forks have no more to copy.
    """
    import mmap  # no command needs it

    return mmap.mmap(-1, MAX_PACKET, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def receive_bytes(
    channel: socket.socket, most: int = MAX_PACKET, inbox: Optional[mmap.mmap] = None
) -> Tuple[bytes, List[int]]:
    """The same, as it came. Into `inbox`, where there is one."""
    if inbox is None:
        payload, rights, flags, _ = channel.recvmsg(most, _ROOM, _CLOEXEC)
    else:
        size, rights, flags, _ = channel.recvmsg_into([inbox], _ROOM, _CLOEXEC)
        payload = bytes(memoryview(inbox)[:size])
    descriptors: List[int] = []
    for level, kind, data in rights:
        if level == _SOCKET and kind == _RIGHTS:
            descriptors += struct.unpack_from(f"{len(data) // 4}i", data)
    # The kernel hands over as many as there is room for and drops the others; which is which nobody can tell.
    if flags & _CONTROL_CUT:
        close_all(descriptors)
        raise PacketCut(errno.EMFILE, "there was no room for the descriptors of a packet")
    if flags & _PAYLOAD_CUT:
        close_all(descriptors)
        raise PacketCut(errno.EMSGSIZE, f"a packet had more than {most} bytes")
    if not payload:
        close_all(descriptors)
        return b"", []
    return payload, descriptors


def receive_order(channel: socket.socket, inbox: Tuple[mmap.mmap]) -> Tuple[bytes, bytes]:
    """For a zygote, which touches as little as it can: a message, and the numbers of its descriptors, as they came."""
    size, rights, flags, _ = channel.recvmsg_into(inbox, _ROOM, _CLOEXEC)
    if flags & _CUT:
        raise PacketCut(errno.EMFILE, "a packet was cut")
    return inbox[0][:size], rights[0][2] if rights else b""


class Job(NamedTuple):
    """What a waiting cell is given: how to start, with which environment, and the files it starts from."""

    #: "python": run `main` in the warm interpreter; "exec": become `argv`; "prelude": become `argv`, which reads
    #: another job from descriptor 3.
    mode: str
    argv: Tuple[str, ...]
    env: Mapping[str, str]
    code_dir: str
    #: By name in the code directory, or by absolute path.
    files: Mapping[str, bytes]
    main: str = ""
    #: Where the program begins; "" is where the cage put it.
    cwd: str = ""
    #: Somebody reads the output while it comes: Python then writes line by line.
    is_heard: bool = False


#: From the manager to its zygote: the number of a recipe; whether the job will be a program, whether it comes later,
#: and whether it may come as a list of calls.
FORK_ORDER = struct.Struct("=H???")
#: The answer: the pid, or the errno as the kernel returns it; and whether the job must come as a list of calls.
FORK_ANSWER = struct.Struct("=q?")

_MOST_AT_ONCE = 1 << 20


#: The headers of most jobs, by what they say, up to the size of their only file: nothing of it is a caller's.
_usual_headers: Dict[Tuple[str, str, str, bool], bytes] = {}


def encode_job(job: Job) -> bytes:
    content = job.files.get(job.main)
    if content is None or len(job.files) > 1 or job.env is not CAGED_ENV or job.argv or job.cwd:
        header = _header(job)
        return b"".join([len(header).to_bytes(4, "big"), header, *job.files.values()])
    key = (job.mode, job.code_dir, job.main, job.is_heard)
    beginning = _usual_headers.get(key) or _usual_headers.setdefault(key, _header(job).rpartition(b",")[0])
    header = b"%b,%d]]}" % (beginning, len(content))
    return b"%b%b%b" % (len(header).to_bytes(4, "big"), header, content)


def _header(job: Job) -> bytes:
    fields: Dict[str, Any] = {
        "mode": job.mode,
        "argv": job.argv,
        "env": job.env,
        "code_dir": job.code_dir,
        "main": job.main,
        "cwd": job.cwd,
    }
    if job.is_heard:  # most are not, and say nothing of it
        fields["is_heard"] = True
    fields["files"] = [[name, len(content)] for name, content in job.files.items()]
    return write_json(fields).encode()


def receive_job(read: Callable[[int], bytes]) -> Job:
    """Reads until a whole job arrived; raises EOFError when the supervisor let go of the cell instead.

    No more than that, since another job may follow. And in few words: each takes the guest's process a copied page.
    """
    size = int.from_bytes(_read_exactly(read, 4), "big")
    header, _ = read_json_at(_read_exactly(read, size).decode(), 0)
    files = {name: _read_exactly(read, length) for name, length in header["files"]}
    program = (header["mode"], tuple(header["argv"]), header["env"], header["code_dir"], files)
    return Job(*program, header["main"], header["cwd"], "is_heard" in header)


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """Nearly always all of it is there."""
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
