"""LangChain's own suite for sandboxes, through langchain-e2b, against a server of ours. Run by scripts/test-clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestThroughE2B(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        with Sandbox.create(timeout=1800) as sandbox:
            yield E2BSandbox(sandbox=sandbox)
