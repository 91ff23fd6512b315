"""Harbor's E2B environment, unmodified, against a server of ours. Run by scripts/test-clients.

It asks for a template of its own name, and builds that from a Dockerfile where there is none. We build none, and say so;
a snapshot of that name is what it then begins with. Whole trials need directories at `/`, which no guest can make.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from e2b import AsyncSandbox
from e2b.exceptions import BuildException
from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths


def environment(place: Path) -> E2BEnvironment:
    (place / "environment").mkdir(exist_ok=True)
    (place / "environment/Dockerfile").write_text("FROM python:3.13\nWORKDIR /home/user\n")
    return E2BEnvironment(
        environment_dir=place / "environment",
        environment_name="task",
        session_id="task__1__env",
        trial_paths=TrialPaths(place / "trial"),
        task_env_config=EnvironmentConfig(env={"A": "b"}),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
    )


async def is_refused(place: Path) -> str:
    """The name that it asks for."""
    asking = environment(place)
    try:
        await asking.start(force_build=False)
        raise AssertionError("it is reported as a failure")
    except BuildException as error:
        assert f"not '{asking._template_name}'" in str(error), error
    return asking._template_name


async def snapshot(name: str) -> None:
    async with await AsyncSandbox.create(timeout=60) as made:
        await made.files.write("given.txt", "from the snapshot")
        await made.create_snapshot(name=name)


async def trial(place: Path) -> None:
    started = environment(place)
    await started.start(force_build=False)
    try:
        found = await started.exec("cat given.txt; echo $A $C; echo err >&2; exit 3", env={"C": "d"})
        assert (found.return_code, found.stdout, found.stderr) == (3, "from the snapshotb d\n", "err\n"), found
        assert (await started.exec("pwd", cwd="/tmp", timeout_sec=60)).stdout == "/tmp\n"
        (place / "up/inner").mkdir(parents=True)
        (place / "up/inner/data.bin").write_bytes(b"\x00\xff")
        await started.upload_dir(place / "up", "/home/user/up")
        await started.upload_file(place / "up/inner/data.bin", "/home/user/one.bin")
        assert (await started.exec("cat up/inner/data.bin one.bin | wc -c")).stdout.strip() == "4"
        assert await started.is_dir("/home/user/up") and await started.is_file("/home/user/one.bin")
        await started.download_dir("/home/user/up", place / "down")
        assert (place / "down/inner/data.bin").read_bytes() == b"\x00\xff"
        await started.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
    finally:
        await started.stop(delete=True)


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        await snapshot(await is_refused(Path(place)))
        await trial(Path(place))
    print(f"harbor {version('harbor')}: ok", flush=True)


asyncio.run(main())
os._exit(0)  # the SDK's own threads may abort an interpreter that is taken apart
