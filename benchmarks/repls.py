"""Stateful interpreters behind one interface: ours, a bare `python3 -i` over pipes, and ipykernel."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Protocol

from warmcell import Sandbox

_MARK = "--end-of-cell--"


class Repl(Protocol):
    """Ready after construction: it has run one cell."""

    def run(self, code: str) -> str:
        """Run a cell; return its output and its value as text."""
        ...

    def close(self) -> None: ...


class OurSession:
    def __init__(self, sandbox: Sandbox) -> None:
        self._session = sandbox.session("python")
        self.run("0")

    def run(self, code: str) -> str:
        cell = self._session.run(code)
        assert cell.error is None, cell.error
        return cell.stdout + (cell.value or "")

    def close(self) -> None:
        self._session.close()


class BareRepl:
    """One write per cell and one marker after its output: the minimum for driving it over pipes."""

    def __init__(self) -> None:
        argv = [sys.executable, "-i", "-q", "-u", "-c", "import sys; sys.ps1 = sys.ps2 = ''"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self.run("0")

    def run(self, code: str) -> str:
        os.write(self._in, f"{code}\nprint({_MARK!r})\n".encode())
        told = b""
        while not told.endswith(f"{_MARK}\n".encode()):
            told += os.read(self._out, 1 << 16)
        return told.decode().removesuffix(f"{_MARK}\n")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class JupyterKernel:
    """ipykernel with its own client; ImportError if it is not installed."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(60, "python3", stderr=subprocess.DEVNULL)
        self.run("0")

    def run(self, code: str) -> str:
        told: list[str] = []

        def hear(message: dict[str, dict[str, object]]) -> None:
            content = message["content"]
            data = content.get("data")
            told.append(str(content.get("text") or (data.get("text/plain", "") if isinstance(data, dict) else "")))

        self._client.execute_interactive(code, timeout=60, output_hook=hear, allow_stdin=False)
        return "".join(told)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
