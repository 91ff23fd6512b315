"""Harbor: its command solves a task made here in our environment and in its own E2B environment; the contract of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import has_user_namespaces, require
from tests.image_roots import add_python, make_root
from tests.seats.model_server import model_server

from warmcell import SandboxPolicyBuilder
from warmcell.images import ImageStore

if find_spec("harbor") is None:  # not installed by scripts/test-seats
    pytest.skip("harbor is not installed", allow_module_level=True)

#: Their first import compiles hundreds of modules, and a starved host takes minutes for it.
pytestmark = pytest.mark.timeout(1800)
KIND = "warmcell.interfaces.seats.harbor:WarmcellEnvironment"
PROGRAMS = "bash sh cat chmod cp dirname env find grep id ln ls mkdir rm sleep tar tmux touch true useradd".split()
LOCALE = Path("/usr/lib/locale/C.utf8")
TASK = """
[verifier]
timeout_sec = 600.0
[agent]
timeout_sec = 600.0
network_mode = "allowlist"
allowed_hosts = ["example.com"]
[environment]
build_timeout_sec = 600.0
network_mode = "no-network"
"""
FILES = {
    "task.toml": TASK,
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
    root = make_root(made / "root", *PROGRAMS)
    if LOCALE.exists():  # tmux needs a UTF-8 locale, which the C library of some systems does not contain
        shutil.copytree(LOCALE, root / LOCALE.relative_to("/"))
    add_python(root)  # for E2B's file API
    ImageStore(made / "store").import_(root, "tools:1")
    for name, text in FILES.items():
        (made / "hello" / name).parent.mkdir(parents=True, exist_ok=True)
        (made / "hello" / name).write_text(text)
    return made


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_the_command_runs_a_task(place: Path, tmp_path: Path, agent: str, reward: float) -> None:
    assert run_harbor(place, tmp_path, "-a", agent, "--env", KIND, "--ek", f"store={place / 'store'}") == reward


def test_the_e2b_environment_runs_a_task(place: Path, tmp_path: Path) -> None:
    """It builds a template from the Dockerfile, and changes the network between the phases of the trial."""
    from tests.serve.conftest import Server

    (tmp_path / "policy.json").write_text(
        SandboxPolicyBuilder().allow_process_spawn().allow_domain("example.com").build().to_json()
    )
    server = Server("--images", str(place / "store"), "--policy", str(tmp_path / "policy.json"))
    try:
        settings = {"E2B_API_KEY": "any", "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
        assert run_harbor(place, tmp_path, "-a", "oracle", "--env", "e2b", **settings) == 1.0
    finally:
        server.stop()


def test_terminus_solves_a_task_with_a_scripted_model(place: Path, tmp_path: Path) -> None:
    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Types the solution, waits until the screen shows that it ran, and says twice that the task is complete."""
        is_done = "greeted 42" in str(messages[-1]["content"]) or "sure you want" in str(messages[-1]["content"])
        typed = "" if len(messages) > 1 else "echo hello > greeting; echo greeted $((6 * 7))\n"
        step = {"keystrokes": typed, "duration": 0.1}
        answer = {"analysis": "", "plan": "", "commands": [] if is_done else [step], "task_complete": is_done}
        return {"content": json.dumps(answer)}

    with model_server(reply) as url:
        model = ["-m", "openai/scripted", "--ak", f"api_base={url}", "--ak", "record_terminal_session=false"]
        kind = ["--env", KIND, "--ek", f"store={place / 'store'}"]
        assert run_harbor(place, tmp_path, "-a", "terminus-2", *model, *kind, OPENAI_API_KEY="none") == 1.0


def run_harbor(place: Path, jobs: Path, *options: str, **settings: str) -> float:
    """The reward of the task."""
    program = os.path.join(os.path.dirname(sys.executable), "harbor")
    command = [program, "run", "-p", str(place / "hello"), "-o", str(jobs), *options, "--yes"]
    env = {**os.environ, "HOME": str(jobs), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **settings}
    done = subprocess.run(command, cwd=jobs, env=env, capture_output=True, text=True, check=False)
    results = [json.loads(one.read_text()) for one in jobs.glob("*/*/result.json")]
    assert [bool(result["verifier_result"]) for result in results] == [True], done.stdout + done.stderr + str(results)
    return float(results[0]["verifier_result"]["rewards"]["reward"])


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
    for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
        late = await environment.exec("echo so far; sleep 100000", timeout_sec=seconds)
        if late.stdout:
            break
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
