"""google-adk's E2BEnvironment, unmodified, against a server of ours. Run by scripts/test-clients."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version

from google.adk.integrations.e2b import E2BEnvironment


async def main() -> None:
    environment = E2BEnvironment(timeout=300)
    await environment.initialize()
    try:
        found = await environment.execute("echo out; echo err >&2; pwd; exit 3")
        assert (found.exit_code, found.stderr) == (3, "err\n"), found
        assert found.stdout.startswith("out\n/"), found
        await environment.write_file("dir/data.bin", b"\x00\xff")
        assert await environment.read_file("dir/data.bin") == b"\x00\xff"
        assert (await environment.execute("wc -c < dir/data.bin")).stdout.strip() == "2"
        assert (await environment.execute("sleep 60", timeout=1)).timed_out
        try:
            await environment.read_file("none")
            raise AssertionError("it is reported as a failure")
        except FileNotFoundError:
            pass
    finally:
        await environment.close()
    print(f"google-adk {version('google-adk')}: ok", flush=True)


asyncio.run(main())
os._exit(0)  # the SDK's own threads may abort an interpreter that is taken apart
