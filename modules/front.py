"""Compiles the program in front of the `warmcell` command, where there is a compiler. `bin/front.c` says what for."""

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
    """The program, made in that directory; None: this platform has no use for it, or nothing to make it with."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if sys.platform != "linux" or compiler is None or platform.machine() not in ("x86_64", "aarch64"):
        return None
    (directory / "front.h").write_text(_header())
    made = directory / "warmcell"
    # Static: a wheel may be installed where another C library is, or none that is new enough.
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", f"-I{directory}"]
    ended = subprocess.run([*command, "-o", str(made), str(SOURCE)], capture_output=True, text=True, check=False)
    if ended.returncode:
        (directory / "complaints").write_text(ended.stderr)
        return None
    return made


def _header() -> str:
    """What the Python that starts managers otherwise would give them."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        from warmcell.cage.light import write_json
        from warmcell.pool.spawn import BOOT, ENVIRONMENT, HANDED_OVER
        from warmcell.pool.start import first_order
    finally:
        sys.path.remove(str(ROOT / "src"))
    order = write_json({**first_order("namespaces"), "worker": _WORKER, "packages": _PACKAGES, "once": True})
    begins, _, rest = order.partition(_WORKER)
    goes_on, _, ends = rest.partition(_PACKAGES)
    names = {"BOOT": BOOT, "HANDED_OVER": HANDED_OVER}
    names |= {"ORDER_BEGINS": begins, "ORDER_GOES_ON": goes_on, "ORDER_ENDS": ends}
    lines = [f"#define {name} {_literal(text)}" for name, text in names.items()]
    variables = ", ".join(_literal(f"{name}={value}") for name, value in ENVIRONMENT.items())
    return "\n".join([*lines, f"#define ENVIRONMENT {variables}", ""])


def _literal(text: str) -> str:
    """As C writes it; all that is not plain, by its number."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{plain}"'
