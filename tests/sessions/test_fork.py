"""Forks of a session: what a branch has, what it shares with nobody, what is refused, and what a guest could try."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from warmcell import AsyncSandbox, AsyncSession, CellResult, Limits, MountPoint, Sandbox, Session, errors
from warmcell.sessions.image import SessionImage

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

KINDS = """
import collections, dataclasses, enum, functools, math as m, threading, typing

class Base:
    made = 0
    def __init__(self, n): self.n = n
    def double(self): return self.n * 2
class Derived(Base):
    __slots__ = ("extra",)
    def __init__(self, n):
        super().__init__(n)
        self.extra = 1
    @property
    def both(self): return self.double() + self.extra
    @classmethod
    def of(cls, n): return cls(n)
    @staticmethod
    def plain(): return "plain"
@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    ALSO_RED = 1
    def shout(self): return self.name + "!"
Pair = collections.namedtuple("Pair", "left right")
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, inside: T): self.inside = inside
def counter():
    count = 0
    def up():
        nonlocal count
        count += 1
        return count
    def down():
        nonlocal count
        count -= 1
        return count
    return up, down
def outer():
    def fact(n): return 1 if n < 2 else n * fact(n - 1)
    return fact
@functools.lru_cache(maxsize=7)
def cached(n): return n + 1
up, down = counter(); up(); up()
fact = outer()
add = lambda a, b=5, *, c=m.floor(1.5): a + b + c
derived, point, red, pair, box = Derived(4), Point(1), Colour.RED, Pair(1, 2), Box("in")
lock = threading.Lock()
shared = []; same = [shared, shared]
loop = []; loop.append(loop)
cached(1)
"""
LOOK = """(
    derived.both, Derived.of(2).double(), Derived.plain(), isinstance(derived, Base), point == Point(1, []),
    [f.name for f in dataclasses.fields(Point)], point < Point(2), red is Colour.RED, Colour.ALSO_RED is red, red.shout(),
    pair.right, pair == Pair(1, 2), box.inside, Box[int] is not None, up(), down(), fact(5), add(1), cached(2),
    cached.cache_info().maxsize, lock.acquire(False), same[0] is same[1] is shared, loop[0] is loop, m.pi > 3,
)"""
#: What, how a cell makes it, how it is undone, and what is said about it.
REFUSED = (
    ("thread", "import threading\ne = threading.Event(); t = threading.Thread(target=e.wait, name='busy')\nt.start()",
     "e.set(); t.join(); del e, t", "threads: busy"),
    ("process", "import subprocess\nt = subprocess.Popen(['sleep', '60'])", "t.kill(); t.wait(); del t", "processes that"),
    ("socket", "import socket\nt = socket.socketpair()", "[n.close() for n in t]; del t", "not a regular file"),
    ("pipe", "import os\nt = os.pipe()", "[os.close(n) for n in t]; del t", "not a regular file"),
    ("generator", "t = (n for n in [1])", "del t", "the variable 't' cannot be copied"),
    ("deleted file", "import os\nt = open('gone', 'w'); os.unlink('gone')", "t.close(); del t", "deleted or replaced"),
    ("task", "import asyncio\nasync def nap():\n  global t\n  t = asyncio.ensure_future(asyncio.sleep(600))\nawait nap()",
     "t.cancel()\nawait asyncio.gather(t, return_exceptions=True)\ndel t", "asyncio tasks"),
)  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(forkable=True, timeout=120) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session("python") as session:
        yield session


def value(session: Session, code: str) -> str:
    result = session.run(code)
    assert result.error is None, result.error
    assert result.value is not None
    return result.value


def do(session: Session, code: str) -> CellResult:
    result = session.run(code)
    assert result.error is None, result.error
    return result


def test_a_branch_has_everything_and_shares_nothing(session: Session) -> None:
    do(
        session,
        "import os, random\nx = [1]\nos.makedirs('deep', exist_ok=True); open('f', 'w').write('old')\n"
        "open('/tmp/t', 'w').write('old'); os.symlink('/tmp/t', '/tmp/link'); os.chmod('/tmp/t', 0o600)\n"
        "os.environ['WORD'] = 'kept'; h = open('f', 'r+'); h.read(1); n = os.open('f', os.O_RDONLY); os.lseek(n, 2, 0)\n"
        "with open('f') as closed: pass\nos.chdir('deep')",
    )
    branch = session.fork()
    with branch.sandbox:
        assert branch.id != session.id and branch.sandbox.id != session.sandbox.id
        assert branch.sandbox.diff() == []
        look = "x, h.read(), os.read(n, 9), h.fileno(), os.getcwd(), os.environ['WORD'], open('/tmp/link').read(), closed.closed"
        expected = "([1], 'ld', b'd', {}, '/work/deep', 'kept', 'old', True)"
        number = value(session, "h.fileno()")
        assert value(branch, look) == expected.format(number)
        do(
            branch,
            "x.append(2); h.write('+'); h.flush(); open('../f', 'a').write('!'); open('/tmp/t', 'w').write('new')",
        )
        do(branch, "os.chdir('/'); os.environ['WORD'] = 'changed'; open('/work/new', 'w').close()")
        assert value(session, look) == expected.format(number)
        assert value(session, "os.path.exists('/work/new')") == "False"
        assert branch.sandbox.read_text("f") == "old+!" and session.sandbox.read_text("f") == "old"
    do(session, "h.close(); os.close(n); os.remove('/tmp/link')")


def test_what_cells_define_goes_along(session: Session) -> None:
    do(session, KINDS)
    branch = session.fork()
    with branch.sandbox:
        assert value(branch, LOOK) == value(session, LOOK)
        assert do(branch, "1 / 0 if False else None").error is None
        failed = branch.run("fact(None)")
        assert failed.error is not None and "return 1 if n < 2" in failed.error.traceback
        assert failed.execution_count == do(session, "0").execution_count + 1


def test_large_buffers_go_along(session: Session) -> None:
    """They are read in another way than small ones."""
    do(session, "large = bytes(range(256)) * 40_000\nother = bytearray(large) + b'end'")
    branch = session.fork()
    with branch.sandbox:
        assert value(branch, "large == bytes(range(256)) * 40_000, other == large + b'end', type(other)") == (
            "(True, True, <class 'bytearray'>)"
        )


def test_own_modules_keep_what_they_hold(session: Session) -> None:
    do(
        session,
        "open('mine.py', 'w').write('seen = []\\ndef see(n): seen.append(n); return seen')\nimport mine; mine.see(1)",
    )
    branch = session.fork()
    with branch.sandbox:
        assert value(branch, "mine.see(2)") == "[1, 2]"
    assert value(session, "mine.seen") == "[1]"


def test_random_numbers(session: Session) -> None:
    do(session, "import random, ssl, uuid\nrandom.seed(1); ssl.RAND_bytes(8)")
    branches = [session.fork(), session.fork(), session.fork(reseed=False)]
    draws = [value(one, "random.random(), ssl.RAND_bytes(16).hex(), uuid.uuid4(), uuid.uuid1()") for one in branches]
    again = [value(one, "random.seed(1); random.random()") for one in branches]
    for one in branches:
        one.sandbox.destroy()
    parts = [draw.split(", ") for draw in draws]
    assert all(len({part[place] for part in parts[:2]}) == 2 for place in range(4))
    assert parts[2][0].lstrip("(") == again[0] and parts[0][0].lstrip("(") != again[0]


def test_what_cannot_be_had_twice_is_refused_by_name(session: Session) -> None:
    do(session, "x = 1")
    for what, make, undo, said in REFUSED:
        do(session, make)
        with pytest.raises(errors.InvalidRequest, match="cannot be forked") as refused:
            session.fork()
        assert said in str(refused.value), what
        do(session, undo)
    branch = session.fork()
    with branch.sandbox:
        assert value(branch, "x") == "1"


def test_ten_branches_of_one_session_and_a_branch_of_a_branch() -> None:
    with Sandbox(forkable=True, timeout=120) as sandbox:
        session = sandbox.session("python")
        do(session, "tried = []")
        branches = [session.fork() for _ in range(10)]
        for number, branch in enumerate(branches):
            do(branch, f"tried.append({number})")
        deeper = branches[3].fork()
        do(deeper, "tried.append('deeper')")
        assert value(session, "tried") == "[]"
        for branch in branches[5:]:
            branch.sandbox.destroy()
    with pytest.raises(errors.SandboxDestroyed):
        session.run("1")
    assert [value(branch, "tried") for branch in branches[:5]] == [f"[{number}]" for number in range(5)]
    branches[3].sandbox.destroy()
    assert value(deeper, "tried") == "[3, 'deeper']"
    for branch in (deeper, *branches[:5]):
        branch.sandbox.destroy()


def test_who_did_not_ask_for_it_is_told_how(sandbox: Sandbox, tmp_path: Path) -> None:
    with Sandbox() as plain, pytest.raises(errors.InvalidRequest, match="forkable=True"):
        plain.session("python").fork()
    with pytest.raises(errors.InvalidRequest, match="in command cannot be forked"):
        sandbox.session("command").fork()
    with pytest.raises(errors.InvalidRequest, match="work_path"):
        Sandbox(tmp_path, forkable=True, work_path="host")
    with pytest.raises(errors.InvalidRequest, match="reseed"):
        sandbox.session("python").fork(reseed="yes")  # type: ignore[arg-type]


def test_private_files_and_what_is_mounted_among_them(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("the caller's")
    tmp_path.chmod(0o755)
    mount = MountPoint(tmp_path, "/tmp/inner/data", writable=False)
    with Sandbox(forkable=True, timeout=120, mounts=[mount], limits=Limits(memory_mb=128)) as sandbox:
        session = sandbox.session("python")
        do(
            session,
            "import os\nopen('/tmp/inner/own', 'w').write('mine')\nos.mkdir('/tmp/d'); open('/tmp/d/f', 'w').close()\nos.chmod('/tmp/d', 0o500); os.mkfifo('/tmp/fifo')",
        )
        branch = session.fork()
        with branch.sandbox:
            assert value(branch, "open('/tmp/inner/own').read(), open('/tmp/inner/data/given').read()") == (
                "('mine', \"the caller's\")"
            )
            assert value(
                branch, "os.listdir('/tmp/d'), oct(os.stat('/tmp/d').st_mode), os.path.exists('/tmp/fifo')"
            ) == ("(['f'], '0o40500', False)")
        do(session, "open('/tmp/holes', 'w').truncate(200 << 20)")
        with pytest.raises(errors.InvalidRequest, match="take more than 128 MB"):
            session.fork()


def test_async() -> None:
    async def fork() -> str | None:
        async with AsyncSandbox(forkable=True, timeout=120) as sandbox:
            session = await sandbox.session("python")
            await session.run("x = 41")
            branch = await session.fork()
        async with branch.sandbox:
            return (await branch.run("x + 1")).value

    assert asyncio.run(fork()) == "42"


async def cancel_at_several_moments(session: AsyncSession) -> None:
    for moment in (0.0, 0.03, 0.12):
        forking = asyncio.ensure_future(session.fork())
        await asyncio.sleep(moment)
        forking.cancel()
        with suppress(asyncio.CancelledError):
            await (await forking).sandbox.destroy()


async def descriptors_fall_to(most: int) -> bool:
    """Soon: what is kept ready may be in the making."""
    for _ in range(100):
        if len(os.listdir("/proc/self/fd")) <= most:
            return True
        await asyncio.sleep(0.05)
    return False


def test_a_cancelled_fork_leaves_nothing() -> None:
    """Descriptors that are left become more each time; those of what is kept ready do so once, if at all."""

    async def cancel() -> tuple[bool, str | None]:
        async with AsyncSandbox(forkable=True, timeout=120) as sandbox:
            session = await sandbox.session("python")
            await session.run("data = bytes(20 << 20)")
            for _ in range(3):
                most = len(os.listdir("/proc/self/fd"))
                await cancel_at_several_moments(session)
                if is_clean := await descriptors_fall_to(most):
                    break
            return is_clean, (await session.run("len(data)")).value

    assert asyncio.run(cancel()) == (True, str(20 << 20))


# ---- a guest that prepares itself ----


def test_what_unpickling_runs_runs_in_the_branch(session: Session, tmp_path: Path) -> None:
    """The classic gadget: the host must not be the one who loads it."""
    canary = tmp_path / "canary"
    tmp_path.chmod(0o777)
    payload = f"""
import os
os.environ["RAN"] = str(os.getuid())
try: open({str(canary)!r}, "w")
except OSError as error: os.environ["RAN"] += " " + type(error).__name__
"""
    do(session, f"class Gadget:\n  def __reduce__(self): return exec, ({payload!r},)\ngadget = Gadget()")
    branch = session.fork()
    with branch.sandbox:
        assert value(branch, "import os; os.environ['RAN']") == "'1000 FileNotFoundError'"
    assert value(session, "import os; os.environ.get('RAN', 'nothing')") == "'nothing'"
    assert not canary.exists()


def test_an_image_without_end_is_refused_within_bounds() -> None:
    with Sandbox(forkable=True, timeout=120, limits=Limits(memory_mb=64)) as sandbox:
        session = sandbox.session("python")
        do(
            session,
            "import os\nclass Endless:\n  def __reduce__(self):\n    while True: os.write(4, b'x' * 65536)\ne = Endless()",
        )
        with pytest.raises(errors.InvalidRequest, match="more than 64 MB"):
            session.fork()
        do(session, "del e; x = 1")
        branch = session.fork()
        with branch.sandbox:
            assert value(branch, "x") == "1"


def test_one_that_never_comes_to_an_end_is_interrupted() -> None:
    with Sandbox(forkable=True, timeout=2) as sandbox:
        session = sandbox.session("python")
        session.run("class Slow:\n  def __reduce__(self):\n    while True: pass\ns = Slow()", timeout=60)
        with pytest.raises(errors.ExecutionTimeout):
            session.fork()
        assert session.run("del s; 5", timeout=60).value == "5"


@pytest.mark.parametrize(
    "trick",
    [
        "import os; os.write(4, b'garbage before anything')",
        "import os; os.close(4)",
        "import os\nclass Forger:\n  def __reduce__(self):\n    os.write(4, b'\\x80\\x05garbage'); return str, ()\nf = Forger()",
        "import os, json, struct\nclass Forger:\n  def __reduce__(self):\n"
        "    done = json.dumps({'event': 'done', 'cell': 2, 'error': None}).encode()\n"
        "    os.write(3, struct.pack('>I', len(done)) + done); return str, ()\nf = Forger()",
    ],
    ids=["leftovers", "closed", "garbage", "forged end"],
)
def test_a_worker_that_lies_harms_only_its_own_branch(sandbox: Sandbox, session: Session, trick: str) -> None:
    """Either there is a branch that works, or a typed error; the sandbox goes on in any case."""
    do(session, trick)
    try:
        branch = session.fork()
    except errors.SandboxError as error:
        assert error.fault in ("caller", "guest")
    else:
        with branch.sandbox:
            assert value(branch, "1 + 1") == "2"
    with sandbox.session("python") as other:
        assert value(other, "6 * 7") == "42"


def test_an_image_can_be_read_and_not_written(session: Session) -> None:
    """It is the host's memory: a branch that could keep it open and change it would have some of its own there."""
    do(
        session,
        "import os\nclass Keeper:\n  def __reduce__(self):\n    return eval, ('__import__(\"os\").dup(200)',)\nk = Keeper()",
    )
    branch = session.fork()
    with branch.sandbox:
        assert "OSError" in str(branch.run("os.write(k, b'x')").error)
        for how in ("os.O_RDWR", "os.O_WRONLY"):
            opened = branch.run(f"os.write(os.open(f'/proc/self/fd/{{k}}', {how}), b'x')")
            assert opened.error is not None and opened.error.name in ("PermissionError", "OSError")


def test_an_image_that_the_host_has_no_descriptor_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(errors.BackendBusy, match="could not copy the session"):
        SessionImage(1 << 20)
