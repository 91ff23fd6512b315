"""Harbor: its command with the oracle agent on a task made here, and the environment's contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import has_user_namespaces, require
from tests.image_roots import make_root

from warmcell.images import ImageStore

if find_spec("harbor") is None:  # not installed by scripts/test-seats
    pytest.skip("harbor is not installed", allow_module_level=True)

KIND = "warmcell.interfaces.seats.harbor:WarmcellEnvironment"
PROGRAMS = "bash sh cat chmod cp dirname env find id ln ls mkdir rm sleep tar touch true".split()
FILES = {
    "task.toml": "[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 120.0\n[environment]\nbuild_timeout_sec = 120.0\n",
    "instruction.md": "Write hello into /app/greeting.\n",
    "environment/Dockerfile": "FROM tools:1\nWORKDIR /app\nRUN echo built > /app/mark\n",
    "solution/solve.sh": "#!/bin/bash\necho hello > greeting\n",
    "tests/test.sh": "#!/bin/bash\n"
    'if [ "$(cat /app/greeting)" = hello ] && [ "$(cat mark)" = built ]; then reward=1; else reward=0; fi\n'
    "echo $reward > /logs/verifier/reward.txt\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a task and an image store."""
    require(has_user_namespaces(), "this host has no user namespaces")
    made = tmp_path_factory.mktemp("harbor")
    ImageStore(made / "store").import_(make_root(made / "root", *PROGRAMS), "tools:1")
    for name, text in FILES.items():
        (made / "hello" / name).parent.mkdir(parents=True, exist_ok=True)
        (made / "hello" / name).write_text(text)
    return made


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_the_command_runs_a_task(place: Path, tmp_path: Path, agent: str, reward: float) -> None:
    program = os.path.join(os.path.dirname(sys.executable), "harbor")
    options = ["--environment-import-path", KIND, "--ek", f"store={place / 'store'}", "-o", str(tmp_path)]
    command = [program, "run", "-p", str(place / "hello"), "-a", agent, *options, "--yes"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    results = [json.loads(one.read_text()) for one in tmp_path.glob("*/*/result.json")]
    said = done.stdout + done.stderr + str(results)
    assert [result["verifier_result"]["rewards"]["reward"] for result in results] == [reward], said


@pytest.fixture
async def environment(place: Path, tmp_path: Path) -> AsyncIterator[Any]:
    made = make_environment(place / "hello/environment", place, tmp_path)
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


def make_environment(directory: Path, place: Path, trial: Path, **kwargs: Any) -> Any:
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths

    from warmcell.interfaces.seats.harbor import WarmcellEnvironment

    paths = TrialPaths(trial_dir=trial)
    paths.mkdir()
    options = {"task_env_config": EnvironmentConfig(), "store": str(place / "store"), **kwargs}
    return WarmcellEnvironment(directory, "hello", "hello__1__env", paths, **options)


async def test_commands_and_files(environment: Any, tmp_path: Path) -> None:
    result = await environment.exec("echo $WORD; id -u; exit 3", env={"WORD": "hi"}, user="root")
    assert (result.stdout, result.return_code) == ("hi\n0\n", 3)
    assert (await environment.exec("cat mark")).stdout == "built\n"
    late = await environment.exec("echo so far; sleep 100000", timeout_sec=1)
    assert (late.stdout, late.return_code) == ("so far\n", 124)
    with pytest.raises(ValueError, match="run as root"):
        await environment.exec("true", user="agent")
    (tmp_path / "up/deep").mkdir(parents=True)
    (tmp_path / "up/deep/run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "up/deep/run").chmod(0o755)
    await environment.upload_dir(tmp_path / "up", "/there")
    assert (await environment.exec("/there/deep/run")).stdout == "ran\n"
    await environment.upload_file(tmp_path / "up/deep/run", "/new/run")
    assert (await environment.exec("/new/run; ln -s /etc/passwd /there/out")).stdout == "ran\n"
    await environment.download_file("/new/run", tmp_path / "down/run")
    await environment.download_dir("/there", tmp_path / "back")
    assert (tmp_path / "down/run").read_text() == (tmp_path / "back/deep/run").read_text()
    assert not (tmp_path / "back/out").exists()


def test_what_is_refused(place: Path, tmp_path: Path) -> None:
    from harbor.models.task.config import EnvironmentConfig

    (tmp_path / "composed").mkdir()
    (tmp_path / "composed/docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(ValueError, match=r"docker-compose\.yaml is not supported"):
        make_environment(tmp_path / "composed", place, tmp_path)
    with pytest.raises(RuntimeError, match="GPU"):
        make_environment(place / "hello/environment", place, tmp_path, task_env_config=EnvironmentConfig(gpus=1))
