"""verifiers: its E2B runtime, unmodified, against our server: a task is validated by its command, without a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.helpers import has_user_namespaces, require
from tests.image_roots import add_python, make_root

from warmcell.images import ImageStore

if find_spec("verifiers") is None:  # not installed by scripts/test-seats
    pytest.skip("verifiers is not installed", allow_module_level=True)

#: Their first import compiles hundreds of modules, and a starved host takes minutes for it.
pytestmark = pytest.mark.timeout(1800)
PROGRAMS = "bash sh cat chmod grep id kill mkdir nohup rm sleep useradd".split()
TASKS = '''
import verifiers.v1 as vf

__all__ = ["Greetings"]


class Greeting(vf.Task):
    """The reward is 1 if the file says hello."""

    async def setup(self, trace, runtime):
        await runtime.write("wanted", b"hello\\xff\\n")
        await runtime.run_background(["sleep", "100000"], {}, "/tmp/log")

    async def validate(self, runtime):
        done = await runtime.run_program(["sh", "-c", "echo $WORD; cat wanted > greeting; mkdir /made >&2; exit 3"], {"WORD": "hi"})
        assert (done.exit_code, done.stdout, done.stderr) == (3, "hi\\n", ""), done
        process = await runtime.open_process(["cat"], {})
        await process.write(b"\\0\\xff\\n")
        assert await anext(process.stdout) == b"\\0\\xff\\n"
        await process.kill()
        await process.wait()
        return await runtime.read("greeting") == b"hello\\xff\\n"

    @vf.reward(weight=1.0)
    async def greeted(self, trace, runtime):
        return float((await runtime.run(["cat", "greeting"], {})).exit_code == 0)


class Greetings(vf.Taskset[Greeting, vf.TasksetConfig]):
    def load(self):
        return [Greeting(vf.TaskData(idx=0, prompt="Write hello into greeting.", image="tools:1"))]
'''


def test_its_command_validates_a_task(tmp_path: Path) -> None:
    from tests.serve.conftest import Server

    require(has_user_namespaces(), "this host has no user namespaces")
    root = make_root(tmp_path / "root", *PROGRAMS)
    add_python(root)
    ImageStore(tmp_path / "store").import_(root, "tools:1")
    shutil.rmtree(root)
    (tmp_path / "greetings.py").write_text(TASKS)
    program = os.path.join(os.path.dirname(sys.executable), "vf-validate")
    command = [program, "greetings", "--runtime.type", "e2b", "-o", "out", "--run.dir", "one", "--no-rich"]
    server = Server("--images", str(tmp_path / "store"))
    try:
        urls = {"E2B_API_KEY": "any", "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
        env = {**os.environ, **urls, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert not server.client.get("/v2/sandboxes", headers={"x-api-key": "any"}).json()
    finally:
        server.stop()
    found = tmp_path / "out/one/results.jsonl"
    rows = [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []
    assert [row["reason"] for row in rows] == ["valid"], f"{done.stdout}{done.stderr}{rows}"
