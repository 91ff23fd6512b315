"""Opening a session: which languages have one, how its worker is started, and the two ways to wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage
    from warmcell.languages.config import ProcessConfig
    from warmcell.sandbox.session import AsyncSession
    from warmcell.sessions.exchange import Worker

#: Finds the sandbox's live cage and says how to start the worker in it, which blocks.
Starter = Callable[[], Awaitable[Callable[..., "Worker"]]]


class Opening:
    """What `AsyncSandbox.session` returns: `await` it, or enter it with `async with`."""

    def __init__(self, opened: Callable[[], Awaitable[AsyncSession]]) -> None:
        self._opened = opened
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSession]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._opened()
        return self._session

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()


def session_language(backend: str, language: str) -> str:
    """Its own name, where this sandbox has sessions in it."""
    from warmcell.backends.process.session_worker import LANGUAGES
    from warmcell.sandbox.backend_adapters import language_for

    name = str(language_for(backend, language))
    if name not in LANGUAGES:
        raise InvalidRequest(
            f"there are no sessions in {name}", field="language", hint=f"one of {', '.join(LANGUAGES)}"
        )
    return name


def session_languages(guest: object) -> tuple[str, ...]:
    """Those in which such a guest has sessions, where the host has the languages.

    Not TypeScript, which has to be asked for: the Node that can run it may lie where a cage has something else.
    """
    if not getattr(guest, "has_live_cage", False):
        return ()
    from warmcell.backends.process.session_worker import LANGUAGES

    return tuple(name for name in LANGUAGES if name != "typescript")


def session_starter(
    live_cage: Callable[[], Awaitable[LiveCage]],
    language: str,
    config: ProcessConfig | None,
    cwd: str,
    env: Mapping[str, str],
    *,
    is_forkable: bool,
) -> Starter:
    async def starter() -> Callable[..., Worker]:
        from warmcell.backends.process.session_worker import start
        from warmcell.languages.config import ProcessConfig

        return partial(start, await live_cage(), language, config or ProcessConfig(), cwd, env, is_forkable=is_forkable)

    return starter
