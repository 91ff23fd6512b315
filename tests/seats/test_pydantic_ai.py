"""PydanticAI's own suite for workspaces, and an agent with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

pytest.importorskip("pydantic_ai.workspaces")

from pydantic_ai.workspaces import WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from warmcell.interfaces.seats.pydantic_ai import WarmcellWorkspace


class TestTheirSuite(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def backend(self) -> AsyncIterator[WarmcellWorkspace]:
        made = WarmcellWorkspace()
        yield made
        await made.destroy()

    @pytest.fixture
    def fresh_backend(self) -> Callable[[], WarmcellWorkspace]:
        return WarmcellWorkspace

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WarmcellWorkspace]:
        return WarmcellWorkspace

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WarmcellWorkspace], Awaitable[None]]:
        return WarmcellWorkspace.destroy
