"""Carries out a `ProgramSpec` the plain way, without any backend: files into a directory, build, run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from warmcell.languages.program_spec import ProgramSpec, place


def run_program(
    program: ProgramSpec, directory: Path, *, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    code, out, work = (directory / name for name in ("code", "out", "work"))
    for place_ in (code, out, work):
        place_.mkdir(exist_ok=True)
    for name, content in program.files.items():
        (code / name).write_bytes(content)
    environment = {**program.env, **(env or {})}
    if program.build:
        build = [place(item, str(code), str(out)) for item in program.build.argv]
        built = _run(build, work, "", {"PATH": "/usr/bin:/bin", **environment})
        if built.returncode != 0:
            return built
    return _run(program.argv_in(str(code), str(out)), work, stdin, environment)


def _run(argv: list[str], work: Path, stdin: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=work, input=stdin, env=env, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
    )
