"""Text that payloads start with: raw system calls, and attempts that are reported one by one.

Payloads are harmless even where nothing holds them: they aim at canaries, and dangerous calls get arguments that
cannot take effect.
"""

from __future__ import annotations

import textwrap

from warmcell.cage.linux.syscalls import NUMBERS

_PRELUDE = """\
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NR = {numbers}

def syscall(name, *args):
    number = NR[name] if isinstance(name, str) else name
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def attempt(name, action, *args):
    try:
        end = "ok:" + repr(action(*args))[:300]
    except OSError as error:
        end = errno.errorcode.get(error.errno, str(error.errno))
    except Exception as error:
        end = type(error).__name__
    print(json.dumps({{"attempt": name, "end": end}}), flush=True)

"""


def guest(body: str, **values: object) -> str:
    """A Python payload: the prelude, `values` as global names, then the body."""
    names = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return _PRELUDE.format(numbers=NUMBERS) + names + textwrap.dedent(body)


def indent(text: str) -> str:
    """Indents lines of a payload for use in a body."""
    lines = text.strip("\n").splitlines()
    first = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join("    " + line[first:] for line in lines)
