"""What the fuzzer tries: a policy and a program, as plain data, so that a case can be printed and tried again."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import strategies as st

#: A case is {"rules": [[path, mode, place or None], ...], "acts": [[name, argument, ...], ...]}. Paths of the host are
#: below a tree that is made for each case and written "~/..."; others are the guest's.
Case = dict[str, Any]

DIRECTORIES = ["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "a/b/a", "a/a/a/a"]
LINKS = {"l": "a/b", "a/l": "../b", "b/l": "a"}
FILES = [f"{directory}/f" for directory in DIRECTORIES]
_PLACES = ["/data", "/data/x", "/data/a", "/work/x", "/srv", "/var/tmp/x"]
_TAKEN = ["/code", "/tmp/x", "/proc/x", "/dev/shm", "/usr/x", "/"]
_NEW = ["n", "a/n", "a/a/n", "b/n", "a/b/n", "a/a/../n", "a/a/b/n"]

_OUTSIDE = ["~", "~/../outside/secret", "~/a/../../outside/secret", "/work/n", "/tmp/n", "/code/n"]
_ON_ONE = "read,write,append,make,remove,list,open up,close up,pipe,run cat,fork and write,connect".split(",")
_ON_TWO = ["rename", "rename", "rename", "exchange", "hard link", "link"]
_ON_NONE = ["dial", "daemon", "kill all", "hold memory", "shared memory", "abstract socket", "chdir up"]

RuleText = tuple[str, str, str | None]


def _nest_rules(chance: Random) -> list[RuleText]:
    """A rule and others inside it: what policies get wrong most."""
    outer = chance.choice(["a", "a/a", "b", "a/b"])
    place = chance.choice([None, None, "/data"])
    inner = [name for name in [*DIRECTORIES, *FILES] if name.startswith(outer + "/")]
    rules: list[RuleText] = [(outer, chance.choice(["rw", "rw", "r"]), place)]
    for name in chance.sample(inner, chance.randint(1, 2)):
        rules.append((name, chance.choice(["r", "rw"]), place and place + name[len(outer) :]))
    return rules


def _scatter_rules(chance: Random) -> list[RuleText]:
    names, places = [*DIRECTORIES, *FILES, *LINKS], [None] * 8 + _PLACES + _TAKEN
    count = chance.randint(0, 4)
    return [(chance.choice(names), chance.choice(["r", "rw"]), chance.choice(places)) for _ in range(count)]


def _around(rules: list[RuleText]) -> list[str]:
    """The paths that a policy is about, those on the way there, and new ones beside them."""
    shown = ["~/" + name if place is None else place for name, _, place in rules]
    on_the_way = {path.rsplit("/", depth)[0] for path in shown for depth in range(3)} - {"", "~"}
    return sorted(on_the_way | {path.rsplit("/", 1)[0] + "/n" for path in on_the_way} | {"/tmp/n"})


def _act(chance: Random, near: list[str]) -> list[str]:
    far = ["~/" + chance.choice([*DIRECTORIES, *FILES, *LINKS, *_NEW]), chance.choice(_OUTSIDE)]
    far.append(chance.choice(_PLACES) + "/" + chance.choice([*FILES, *_NEW]))
    one, other = (chance.choice(near if chance.random() < 0.7 else far) for _ in range(2))
    kind = chance.random()
    if kind < 0.4:
        return [chance.choice(_ON_TWO), one, other]
    return [chance.choice(_ON_ONE), one] if kind < 0.8 else [chance.choice(_ON_NONE)]


def _case(chance: Random) -> Case:
    rules = _nest_rules(chance) if chance.random() < 0.7 else _scatter_rules(chance)
    near = _around(rules)
    return {"rules": [list(rule) for rule in rules], "acts": [_act(chance, near) for _ in range(chance.randint(4, 16))]}


#: Built by true chance from a seed of hypothesis's: its own way of varying one case keeps too close to it.
cases = st.randoms(use_true_random=True).map(_case)


def smaller(case: Case) -> Iterator[Case]:
    """The case without one of its rules or acts."""
    for part in ("acts", "rules"):
        for index in range(len(case[part])):
            yield {**case, part: case[part][:index] + case[part][index + 1 :]}


#: Carries out the acts, one after another, whatever each comes to. Harmless anywhere but in the tree of the case.
GUEST = """
import ctypes, json, os, signal, socket, stat, subprocess, sys, time
acts, port = json.loads({acts!r}), {port}
libc = ctypes.CDLL(None, use_errno=True)
kept = []
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("planted")
def remove(path):
    os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
def fork_and(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        client.connect(os.path.join(path, "socket") if os.path.isdir(path) else path)
        client.send(b"reached")
def dial():
    with socket.socket() as client:
        client.settimeout(0.5)
        client.connect(("127.0.0.1", port))
def daemon():
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
def kill_all():
    for pid in range(1, 50):
        if pid != os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
def exchange(one, other):
    if libc.syscall(316, -100, os.fsencode(one), -100, os.fsencode(other), 2):
        raise OSError(ctypes.get_errno(), "exchange")
def abstract():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0warmcell-siege-%d" % port)
DOES = {{
    "read": lambda path: print(open(path, errors="replace").read(65536)),
    "write": write, "append": lambda path: write(path, "a"), "make": os.mkdir, "remove": remove,
    "list": lambda path: print(os.listdir(path)), "open up": lambda path: os.chmod(path, 0o777),
    "close up": lambda path: os.chmod(path, 0), "pipe": os.mkfifo,
    "run cat": lambda path: print(subprocess.run(["cat", path], capture_output=True, text=True, timeout=5).stdout),
    "fork and write": lambda path: fork_and(lambda: write(path)), "connect": connect,
    "rename": os.rename, "exchange": exchange, "hard link": os.link, "link": os.symlink,
    "dial": dial, "daemon": daemon, "kill all": kill_all, "hold memory": lambda: kept.append(bytearray(8 << 20)),
    "shared memory": lambda: write("/dev/shm/n"), "abstract socket": abstract, "chdir up": lambda: os.chdir(".."),
}}
signal.signal(signal.SIGALRM, signal.SIG_IGN)
for name, *arguments in acts:
    try:
        DOES[name](*arguments)
    except BaseException as error:
        print(name, type(error).__name__)
"""
