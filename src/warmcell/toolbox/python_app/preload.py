"""What is in the interpreter when the snapshot is taken: the standard library, and the code that `-m` runs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from types import CodeType

# They need what a sandbox does not have, or print, or start something when imported.
LEFT_OUT = set(
    """
    antigravity this idlelib tkinter turtle turtledemo test lib2to3 ensurepip venv msilib curses pydoc_data
    multiprocessing concurrent.interpreters site sitecustomize usercustomize __phello__ _pyrepl pty tty nt
    winreg winsound msvcrt
    """.split()
)
SUBMODULES = """
    asyncio collections.abc concurrent.futures concurrent.futures.thread ctypes.util email
    email.mime.application email.mime.base email.mime.image email.mime.multipart email.mime.text email.message
    email.parser email.policy email.utils email.headerregistry encodings html.entities html.parser http.client
    http.cookies http.cookiejar http.server http importlib.abc importlib.machinery importlib.metadata
    importlib.resources importlib.util json.decoder json.encoder json.scanner json.tool logging.config
    logging.handlers os.path sqlite3 sqlite3.dbapi2 string.templatelib sysconfig tomllib unittest.mock
    unittest.async_case urllib.error urllib.parse urllib.request urllib.response urllib.robotparser
    wsgiref.simple_server wsgiref.util xml.dom.minidom xml.dom.pulldom xml.etree.ElementTree
    xml.etree.cElementTree xml.sax xml.sax.handler xml.sax.saxutils xml.sax.expatreader xmlrpc.client zipfile
    zoneinfo pathlib.types compression.zlib compression.gzip compression.zstd
""".split()
RUNNABLE = """
    ast base64 calendar compileall dis doctest gzip inspect json json.tool mimetypes pickletools platform pprint
    py_compile quopri random symtable sysconfig tabnanny tarfile textwrap this timeit tokenize trace unittest
    uuid zipapp zipfile zoneinfo sqlite3 string cProfile profile pstats
""".split()

runnable_code: dict[str, CodeType] = {}


def import_standard_library() -> None:
    for name in sorted(sys.stdlib_module_names | set(SUBMODULES)):
        if name.partition(".")[0] not in LEFT_OUT:
            try_import(name)
    import_codecs()
    install_quitters()
    for name in RUNNABLE:
        remember_code(name)


def try_import(name: str) -> None:
    with contextlib.suppress(Exception):  # not there on WASI: ssl, ctypes, mmap and the like
        importlib.import_module(name)


def install_quitters() -> None:
    """exit() and quit(), which `site` would give; it is left out because it looks for directories."""
    import _sitebuiltins
    import builtins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")  # type: ignore[assignment]
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")  # type: ignore[assignment]


def import_codecs() -> None:
    import encodings

    for file in sorted(os.listdir(encodings.__path__[0])):
        if file.endswith(".py"):
            try_import(f"encodings.{file[:-3]}")


def remember_code(name: str) -> None:
    for candidate in (f"{name}.__main__", name):
        try:
            spec = importlib.util.find_spec(candidate)
            code = spec.loader.get_code(candidate) if spec and spec.loader else None  # type: ignore[attr-defined]
        except Exception:
            continue
        if code is not None:
            runnable_code[name] = code
            return
