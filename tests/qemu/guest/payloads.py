"""What the caged guest is given to run. Finite, and harmless even where nothing holds it."""

from __future__ import annotations

_HOLD = """
import time
time.sleep(30)
print('survived')
"""

#: The kernel alone would end some of the children and leave the rest.
_MANY_CHILDREN = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(12 << 20)
        time.sleep(60)
        os._exit(0)
"""

#: Each takes about 96 MB in all, in its own way, and keeps it.
MEMORY_BOMBS = {
    "one process": "x = [bytearray(8 << 20) for _ in range(12)]" + _HOLD,
    "many children": _MANY_CHILDREN + _HOLD,
    "tmpfs": "file = open('/tmp/fill', 'wb')\nfor _ in range(96): file.write(bytes(1 << 20))" + _HOLD,
    "memfd": "import os\nfd = os.memfd_create('x')\nfor _ in range(96): os.write(fd, bytes(1 << 20))" + _HOLD,
    "shared mmap": "import mmap\nm = mmap.mmap(-1, 96 << 20)\nfor at in range(0, 96 << 20, 4096): m[at] = 1" + _HOLD,
}

FORKS = """
import os, time
made = 0
try:
    for made in range(100):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
except OSError as error:
    print(error.errno)
print('made', made)
"""

BURN = """
import time
until = time.monotonic() + {seconds}
while time.monotonic() < until:
    pass
"""

TREE = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(1)
        os._exit(0)
print('started', flush=True)
time.sleep(600)
"""

#: Prints one line per attempt: its name, then "went through" or what stopped it.
ATTACKS = """
import ctypes, errno, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)

def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")

def attempt(name, action):
    try:
        action()
        print(name, "went through", flush=True)
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, error.errno), flush=True)

def connect_abstract():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0{abstract}")

attempt("read host file", lambda: open("/canary/secret").read())
attempt("read host file through root", lambda: open("/proc/1/root/canary/secret").read())
attempt("write system", lambda: open("/usr/bin/planted", "w"))
attempt("truncate system", lambda: os.truncate("/usr/bin/busybox", 0))
attempt("truncate host file", lambda: os.truncate("{owned}", 0))
attempt("truncate while opening", lambda: os.open("{owned}", os.O_RDONLY | os.O_TRUNC))
attempt("truncate what may be read", lambda: os.open("{readable}", os.O_RDONLY | os.O_TRUNC))
attempt("change mode of host file", lambda: os.chmod("{owned}", 0o600))
attempt("change times of host file", lambda: os.utime("{owned}", (1, 1)))
attempt("rename host file", lambda: os.rename("{owned}", "{owned}.moved"))
attempt("mount", lambda: must(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)))
attempt("unshare", lambda: must(libc.unshare(0x10000000)))
attempt("ptrace", lambda: must(libc.ptrace(16, 1, 0, 0)))
attempt("connect to the host", lambda: socket.create_connection(("127.0.0.1", {port}), 5))
attempt("connect to an abstract socket", connect_abstract)
attempt("kill outside", lambda: os.kill({pid}, 0))
attempt("mount cgroup", lambda: must(libc.mount(b"x", b"/tmp", b"cgroup2", 0, None)))
attempt("make device", lambda: os.mknod("/tmp/device", 0o020666, os.makedev(1, 8)))
attempt("read kernel log", lambda: must(libc.klogctl(3, ctypes.create_string_buffer(8), 8)))
"""

SPAWN = """
import subprocess
try:
    subprocess.run(["/bin/sh", "-c", "true"])
except OSError as error:
    print("refused", error.errno)
"""

UNSHARE = """
import ctypes
print(ctypes.CDLL(None).unshare(0x10000000))
"""
