"""The contexts of E2B's code interpreter: sessions with a directory, and variables for single cells."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from warmcell.core.errors import MemoryExceeded, SessionEnded, SessionNotFound
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.interfaces.serve.e2b.box import HOME, ROOT_HOME, Box
from warmcell.interfaces.serve.e2b.guest_files import FileError
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.saved_sessions import LiveSession, reason_of_loss, restore_sessions, sessions_of
from warmcell.sandbox.session import AsyncSession
from warmcell.sessions.cell_results import CellResult

MAX_CONTEXTS = 32
#: Our language by the client's name for it.
LANGUAGES = {
    "python": "python",
    "python3": "python",
    "javascript": "javascript",
    "js": "javascript",
    "typescript": "typescript",
    "ts": "typescript",
    "deno": "typescript",
    "bash": "command",
}
#: E2B runs TypeScript in Deno, we run it in Node. These are Deno's names that E2B's server uses. Only contexts called
#: "deno" have them: programs take `Deno` as the sign that they run in Deno.
DENO = """globalThis.Deno = {env: {
    get: (name) => process.env[name], has: (name) => name in process.env, toObject: () => ({...process.env}),
    set: (name, value) => { process.env[name] = value }, delete: (name) => { delete process.env[name] },
}, cwd: () => process.cwd(), chdir: (path) => process.chdir(path)}; undefined"""
#: Contexts that exist from the start.
DEFAULTS = ("python", "javascript")
_OWN_CELL_SECONDS = 60


class Context:
    """A session, started when it is first needed. Runs one cell at a time.

    Counts the client's cells only: the session also counts those that prepare it.
    """

    def __init__(self, box: Box, language: str, cwd: str) -> None:
        self.id, self.language, self.cwd = secrets.token_hex(16), language, HOME if cwd == ROOT_HOME else cwd
        self._box, self._count, self._is_at_home = box, 0, f"{self.cwd}/".startswith(f"{HOME}/")
        #: None until it was started.
        self.session: AsyncSession | None = None
        self._starting, self._turn = asyncio.Lock(), asyncio.Lock()
        self._is_closed = False
        #: Its interpreter has ended and was not replaced yet: the call that was to do so may have been cancelled.
        self._has_ended = False

    def plain(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def describe(self) -> dict[str, Any]:
        """The fields that the next server restores."""
        return {**self.plain(), "count": self._count}

    async def start(self) -> AsyncSession:
        """Start the session, or return the one that was started. Raises `SessionNotFound` after `close`."""
        async with self._starting:
            if self._is_closed:
                raise SessionNotFound("the context was removed")
            if self.session is None:
                await self._make_directory()
                async with self._slot():
                    session = await self._box.entry.sandbox.session(
                        LANGUAGES[self.language], cwd=self.cwd if self._is_at_home else HOME
                    )
                async with on_error(session.close):
                    await self._prepare(session)
                self.session = session
            return self.session

    async def restart(self) -> None:
        if self.session is not None:
            async with self._slot():
                self._has_ended = True
                await self.session.restart()
            await self._prepare(self.session)
        self._count, self._has_ended = 0, False

    async def close(self) -> None:
        """Close the session. Waits for one that is being started."""
        self._is_closed = True
        async with self._starting:
            if self.session is not None:
                await self.session.close()

    async def run(self, code: str, env: dict[str, str], **listeners: Any) -> CellResult:
        session = await self.start()
        if not code.strip():
            return CellResult(execution_count=self._count)
        async with self._turn:
            if self._has_ended:
                await self.restart()
            self._count += 1
            try:
                async with self._slot():
                    result = await self._run_with(session, code, env, listeners)
            except (SessionEnded, MemoryExceeded):
                self._has_ended = True
                await self.restart()
                raise
        return replace(result, execution_count=self._count)

    def _slot(self) -> AbstractAsyncContextManager[object]:
        return self._box.service.run_slot(self._box.entry.tenant)

    async def _run_with(
        self, session: AsyncSession, code: str, env: dict[str, str], listeners: dict[str, Any]
    ) -> CellResult:
        seconds = self._box.service.settings.max_timeout
        if not env:
            return await session.run(code, timeout=seconds, **listeners)
        own = LANGUAGES[self.language]
        # Not interrupted: variables that were kept in part cannot be restored.
        setting = asyncio.ensure_future(session.run(_set_variables(own, env), timeout=_OWN_CELL_SECONDS))
        try:
            await asyncio.shield(setting)
            return await session.run(code, timeout=seconds, **listeners)
        finally:
            with suppress(SessionEnded):  # its variables ended with it
                await asyncio.shield(session.run(_restore_variables(own, env), timeout=_OWN_CELL_SECONDS))

    async def _make_directory(self) -> None:
        """Make a missing directory, as E2B does."""
        if self.cwd == HOME:
            return
        try:
            await self._box.files.ask("mkdir", path=self.cwd)
        except FileError as error:
            if error.errno != "EEXIST":
                raise HttpError(400, f"cwd '{self.cwd[:200]}': {error.message}") from None

    async def _prepare(self, session: AsyncSession) -> None:
        """Enter the directory in the guest: the session starts in the home, and only the guest can leave it."""
        if self.language == "deno":
            await session.run(DENO, timeout=_OWN_CELL_SECONDS)
        if not self._is_at_home:
            await session.run(_change_directory(LANGUAGES[self.language], self.cwd), timeout=_OWN_CELL_SECONDS)


class Contexts:
    def __init__(self, box: Box) -> None:
        self._box = box
        self._all: dict[str, Context] = {}
        self._defaults: dict[str, str] = {}
        for language in DEFAULTS:
            self._default(language)

    def list_live(self) -> list[LiveSession]:
        return [
            (context.id, context.session, {**context.describe(), "is_default": context.id in self._defaults.values()})
            for context in self._all.values()
            if context.session is not None
        ]

    def adopt(self, session: AsyncSession, own: dict[str, Any]) -> None:
        """Add a context of the previous server."""
        language = str(own["language"])
        made = Context(self._box, language, str(own["cwd"]))
        made.id, made._count, made.session = str(own["id"]), int(own["count"]), session
        if own["is_default"]:
            self._all.pop(self._default(language).id, None)
            self._defaults[_own_name(language)] = made.id
        self._all[made.id] = made

    async def create(self, language: str | None, cwd: str | None) -> Context:
        made = self._add(language or "python", cwd or HOME)
        with on_error(lambda: self._all.pop(made.id, None)):
            await made.start()
        return made

    def choose(self, identity: str | None, language: str | None) -> Context:
        if identity is not None and language is not None:
            raise HttpError(400, "only one of context_id or language can be provided")
        return self._default(language or "python") if identity is None else self.find(identity)

    def find(self, identity: str) -> Context:
        found = self._all.get(identity)
        if found is None:
            reason = reason_of_loss(self._box.entry, identity)
            raise HttpError(404, f"Context {identity[:80]} not found{reason}")
        return found

    def all(self) -> list[Context]:
        return list(self._all.values())

    async def remove(self, context: Context) -> None:
        self._all.pop(context.id, None)
        await context.close()

    def _default(self, language: str) -> Context:
        own = _own_name(language)
        found = self._all.get(self._defaults.get(own, ""))
        if found is None:
            found = self._add(language, HOME)
            self._defaults[own] = found.id
        return found

    def _add(self, language: str, cwd: str) -> Context:
        if language.lower() not in LANGUAGES:
            raise HttpError(400, f"unsupported language {language[:40]}: use one of {', '.join(LANGUAGES)}")
        if len(self._all) >= MAX_CONTEXTS:
            raise HttpError(429, f"the sandbox already has {MAX_CONTEXTS} contexts; remove one")
        made = Context(self._box, language.lower(), cwd)
        self._all[made.id] = made
        return made


def _own_name(language: str) -> str:
    return "deno" if language.lower() == "deno" else LANGUAGES.get(language.lower(), language)


async def contexts_of(box: Box) -> Contexts:
    """The contexts of a sandbox, with those of the previous server."""

    def make() -> Contexts:
        made = Contexts(box)
        if (saved := sessions_of(box.entry)) is not None:
            saved.list_live, saved.adopt = made.list_live, made.adopt
        return made

    contexts = box.entry.state.get(Contexts, make)
    await restore_sessions(box.entry)
    return contexts


def _change_directory(language: str, path: str) -> str:
    if language == "python":
        return f"__import__('os').chdir({path!r})"
    return f"cd -- {_quote(path)}" if language == "command" else f"process.chdir({json.dumps(path)})"


def _set_variables(language: str, env: dict[str, str]) -> str:
    plain = json.dumps(env)
    if language == "python":
        keep = "__import__('builtins').__dict__.__setitem__('_warmcell_env', dict(__import__('os').environ))"
        return f"{keep}\n__import__('os').environ.update(__import__('json').loads({plain!r}))"
    if language == "command":
        return "\n".join(
            f"[ -z ${{{name}+x}} ] || _warmcell_{name}=${name}\nexport {name}={_quote(value)}"
            for name, value in env.items()
        )
    return f"globalThis._warmcell_env = {{...process.env}}; Object.assign(process.env, {plain}); undefined"


def _restore_variables(language: str, env: dict[str, str]) -> str:
    if language == "python":
        return (
            f"for _warmcell_name in {list(env)!r}:\n"
            "    __import__('os').environ.pop(_warmcell_name, None)\n"
            "    if _warmcell_name in _warmcell_env: "
            "__import__('os').environ[_warmcell_name] = _warmcell_env[_warmcell_name]\n"
            "del _warmcell_name"
        )
    if language == "command":
        return "\n".join(
            f"if [ -z ${{_warmcell_{name}+x}} ]; then unset {name}; "
            f"else export {name}=$_warmcell_{name}; unset _warmcell_{name}; fi"
            for name in env
        )
    return (
        f"for (const name of {json.dumps(list(env))}) {{ delete process.env[name]; "
        "if (name in _warmcell_env) process.env[name] = _warmcell_env[name]; } undefined"
    )


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
