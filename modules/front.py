"""Compiles the small program that starts the `warmcell` command, if there is a C compiler. See `bin/front.c`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "bin/front.c"
_WORKER, _PACKAGES = "WORKER", "PACKAGES"


def compile_front(directory: Path) -> Path | None:
    """Compiles it into that directory. None if the platform is not supported or the compiler is missing or fails."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if sys.platform != "linux" or compiler is None or platform.machine() not in ("x86_64", "aarch64"):
        return None
    (directory / "front.h").write_text(_header())
    made = directory / "warmcell"
    # Static: the target system may have another or an older C library.
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", f"-I{directory}"]
    ended = subprocess.run([*command, "-o", str(made), str(SOURCE)], capture_output=True, text=True, check=False)
    if ended.returncode:
        (directory / "errors").write_text(ended.stderr)
        return None
    return made


def _header() -> str:
    """The constants that Python passes when it starts a manager itself."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        from warmcell.cage.fast_imports import write_json
        from warmcell.pool.manager_process import first_order
        from warmcell.pool.prestarted_manager import BOOT, ENVIRONMENT, HANDED_OVER
    finally:
        sys.path.remove(str(ROOT / "src"))
    order = write_json({**first_order("namespaces"), "worker": _WORKER, "packages": _PACKAGES, "once": True})
    start, _, rest = order.partition(_WORKER)
    middle, _, end = rest.partition(_PACKAGES)
    names = {"BOOT": BOOT, "HANDED_OVER": HANDED_OVER}
    names |= {"ORDER_BEGINS": start, "ORDER_GOES_ON": middle, "ORDER_ENDS": end}
    lines = [f"#define {name} {_literal(text)}" for name, text in names.items()]
    variables = ", ".join(_literal(f"{name}={value}") for name, value in ENVIRONMENT.items())
    return "\n".join([*lines, f"#define ENVIRONMENT {variables}", ""])


def _literal(text: str) -> str:
    """A C string literal; bytes that are not plain ASCII become octal escapes."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{plain}"'
