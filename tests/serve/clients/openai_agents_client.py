"""openai-agents' E2BSandboxClient, unmodified, against a server of ours. Run by scripts/test-clients."""

from __future__ import annotations

import asyncio
import io
import os
from importlib.metadata import version
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions


async def main() -> None:
    client = E2BSandboxClient()
    for kind in ("e2b", "e2b_code_interpreter"):
        session = await client.create(options=E2BSandboxClientOptions(sandbox_type=kind, timeout=300))
        try:
            await session.start()
            found = await session.exec("echo out; echo err >&2; exit 3", shell=True)
            assert (found.exit_code, found.stdout, found.stderr) == (3, b"out\n", b"err\n"), found
            await session.write(Path("data.bin"), io.BytesIO(b"\x00\xff"))
            assert (await session.read(Path("data.bin"))).read() == b"\x00\xff"
            assert await session.running()
            kept = (await session.persist_workspace()).read()
            await session.exec("rm -f data.bin", shell=True)
            await session.hydrate_workspace(io.BytesIO(kept))
            assert (await session.read(Path("data.bin"))).read() == b"\x00\xff"
        finally:
            await client.delete(session)
    print(f"openai-agents {version('openai-agents')}: ok", flush=True)


asyncio.run(main())
os._exit(0)  # the SDK's own threads may abort an interpreter that is taken apart
