"""Which languages have sessions, and how the worker of one is started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.sandbox.local.guests import language_for

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage
    from warmcell.languages.config import ProcessConfig
    from warmcell.sessions.exchange import Worker

#: Finds the sandbox's live cage and returns the blocking call that starts the worker in it.
Starter = Callable[[], Awaitable[Callable[..., "Worker"]]]


def session_language(backend: str, language: str) -> str:
    """The language's own name. `InvalidRequest` if it has no sessions."""
    from warmcell.backends.process.session_worker import LANGUAGES

    name = str(language_for(backend, language))
    if name not in LANGUAGES:
        raise InvalidRequest(f"{name} has no sessions", field="language", hint=f"one of {', '.join(LANGUAGES)}")
    return name


def session_languages(guest: object) -> tuple[str, ...]:
    """The languages in which this guest has sessions, if the host has them.

    Without TypeScript, which callers ask for by name: the Node that runs it may be at a path that the cage hides.
    """
    if not getattr(guest, "has_live_cage", False):
        return ()
    if getattr(guest, "has_image", False):
        return tuple(guest.image_session_languages)  # type: ignore[attr-defined]
    from warmcell.backends.process.session_worker import LANGUAGES

    return tuple(name for name in LANGUAGES if name != "typescript")


def make_starter(
    live_cage: Callable[[], Awaitable[LiveCage]],
    language: str,
    config: ProcessConfig | None,
    cwd: str,
    env: Mapping[str, str],
    *,
    is_forkable: bool,
    python: str | None = None,
) -> Starter:
    async def starter() -> Callable[..., Worker]:
        from warmcell.backends.process.session_worker import start
        from warmcell.languages.config import ProcessConfig

        begin = partial(start, is_forkable=is_forkable, python=python)
        return partial(begin, await live_cage(), language, config or ProcessConfig(), cwd, env)

    return starter
