"""slime: the calls that its `E2BSandbox` and its coding agent make, with E2B's unmodified SDK, against our server.

slime is not on PyPI. The commands below are those of its `agent/sandbox.py`.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from tests.helpers import PATIENCE, has_user_namespaces, require
from tests.image_roots import add_python, make_root

from warmcell.images import ImageStore

if find_spec("e2b") is None:  # not installed by scripts/test-seats
    pytest.skip("e2b is not installed", allow_module_level=True)

#: Their first import compiles hundreds of modules, and a starved host takes minutes for it.
pytestmark = pytest.mark.timeout(1800)
PROGRAMS = "bash sh cat chmod chown git id mkdir rm setsid sleep tail useradd".split()
#: slime adds the user and gives it the files unless the image has it.
ADD_AGENT = (
    "id agent >/dev/null 2>&1 || useradd -m -s /bin/bash agent && chown -R agent:agent /home/agent /testbed"
    " && git config --system --add safe.directory '*' && id agent"
)
START = (
    "chmod +x /tmp/.run.sh; mkdir /tmp/.run.spawned 2>/dev/null || exit 0;"
    " setsid bash /tmp/.run.sh < /dev/null > /tmp/.run.out 2>&1 &"
)
LAUNCHER = (
    "#!/bin/bash\ncd /testbed\nexport HOME=/home/agent\nid -un; pwd; echo $WORD; cat data\necho $? > /tmp/.run.done\n"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with an image that belongs to root, and one that ends with `USER agent`."""
    from tests.serve.conftest import Server

    require(has_user_namespaces(), "this host has no user namespaces")
    place = tmp_path_factory.mktemp("slime")
    root = make_root(place / "root", *PROGRAMS)
    add_python(root)  # for E2B's file API
    (root / "testbed").mkdir()
    (root / "etc/login.defs").write_text("USERGROUPS_ENAB yes\n")  # as in Debian: `useradd` adds a group too
    store = ImageStore(place / "store")
    store.import_(root, "task:1")
    (place / "Dockerfile").write_text("FROM task:1\nRUN useradd -m -s /bin/bash agent\nUSER agent\n")
    store.build(place, name="task-with-agent:1")
    server = Server("--images", str(place / "store"))
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
async def create(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    from e2b import AsyncSandbox

    for name, value in (("E2B_API_KEY", "any"), ("E2B_API_URL", url), ("E2B_SANDBOX_URL", url)):
        monkeypatch.setenv(name, value)
    made: list[Any] = []

    async def create(image: str) -> Any:
        made.append(await AsyncSandbox.create(timeout=3600, metadata={"warmcell.image": image, "size": "md"}))
        return made[-1]

    yield create
    for sandbox in made:
        await sandbox.kill()


async def run(sandbox: Any, command: str, user: str = "root", **envs: str) -> tuple[int, str]:
    from e2b import CommandExitException

    def ignore(_: str) -> None:
        pass

    try:
        done = await sandbox.commands.run(
            command, user=user, envs=envs or None, timeout=PATIENCE, on_stdout=ignore, on_stderr=ignore
        )
    except CommandExitException as failed:
        return failed.exit_code, failed.stdout + failed.stderr
    return done.exit_code, done.stdout


async def write(sandbox: Any, path: str, content: bytes, user: str) -> None:
    await sandbox.files.write(
        path, io.BytesIO(content), user=user, gzip=False, use_octet_stream=True, request_timeout=PATIENCE
    )


async def test_a_sandbox_of_root(create: Any) -> None:
    from e2b import AsyncSandbox, AuthenticationException

    sandbox = await create("task:1")
    assert await run(sandbox, "id -u; echo $WORD; exit 3", WORD="hi") == (3, "0\nhi\n")
    await write(sandbox, "/testbed/data", b"\0\xff", "root")
    await sandbox.files.write("/testbed/text", "given\n", user="root")
    assert await sandbox.files.read("/testbed/text", user="root") == "given\n"
    assert bytes(await sandbox.files.read("/testbed/data", user="root", format="bytes")) == b"\0\xff"
    status, told = await run(sandbox, ADD_AGENT)
    assert status == 0, told
    # Running it as root instead would lift what its user may not do.
    with pytest.raises(AuthenticationException, match="unknown user 'agent': a sandbox has one user"):
        await run(sandbox, "true", "agent")
    assert await sandbox.kill()
    assert not await AsyncSandbox.kill(sandbox.sandbox_id)


async def test_its_agent_in_an_image_with_that_user(create: Any) -> None:
    """`root` is the same user there, as in every sandbox of E2B's clients."""
    sandbox = await create("task-with-agent:1")
    status, told = await run(sandbox, ADD_AGENT)
    assert status == 0 and "(agent)" in told, told
    await write(sandbox, "/testbed/data", b"from the host\n", "root")
    await sandbox.files.write("/tmp/.run.sh", LAUNCHER, user="agent")
    assert await run(sandbox, "rm -rf /tmp/.run.spawned; rm -f /tmp/.run.out /tmp/.run.done", "agent") == (0, "")
    for _ in range(2):  # slime repeats it if the answer is lost
        assert await run(sandbox, START, "agent", WORD="hi") == (0, "")
    async with asyncio.timeout(PATIENCE):
        while (await run(sandbox, "test -f /tmp/.run.done && cat /tmp/.run.done", "agent")) != (0, "0\n"):
            await asyncio.sleep(0.1)
    assert await sandbox.files.read("/tmp/.run.out", user="agent") == "agent\n/testbed\nhi\nfrom the host\n"
