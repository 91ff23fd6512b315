"""SWE-bench's own harness (`swebench eval`) against the Docker socket, with an instance and an image made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.helpers import has_user_namespaces, require
from tests.image_roots import make_root

from warmcell.images import ImageStore

pytest.importorskip("swebench")
from tests.docker_api.conftest import DockerServer, has_docker_command

pytestmark = pytest.mark.skipif(not has_docker_command(), reason="swebench removes containers by the docker command")

#: Of one instance's tests, which take a tenth of a second.
TIMEOUT = 10
BASE_PROGRAMS = "bash sh cat env git head kill ls mkdir rm sleep tail".split()
DOCKERFILE = """\
FROM tools:1
WORKDIR /testbed
COPY repository /testbed
RUN git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -q -m base
"""
SOURCE = "add() {\n    echo $(($1 - $2))\n}\ndouble() {\n    echo $((2 * $1))\n}\n"
TESTS = """\
. ./calc.sh
check() { [ "$2" = "$3" ] && echo "PASSED test_calc.sh::test_$1" || echo "FAILED test_calc.sh::test_$1"; }
check add "$(add 1 2)" 3
check double "$(double 2)" 4
"""
PATCH = """\
--- a/calc.sh
+++ b/calc.sh
@@ -1,4 +1,4 @@
 add() {
-    echo $(($1 - $2))
+    echo $(($1 + $2))
 }
 double() {
"""
EVALUATE = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
: '>>>>> Start Test Output'
bash test_calc.sh
: '>>>>> End Test Output'
git checkout -q test_calc.sh
"""


@pytest.fixture(scope="module")
def server() -> Iterator[DockerServer]:
    require(has_user_namespaces(), "this host has no user namespaces")
    with TemporaryDirectory(prefix="wd-") as directory:
        started = DockerServer(Path(directory), "--docker-ignore-capabilities", "--docker-join-output")
        try:
            build_image(Path(directory))
            yield started
        finally:
            assert started.stop() == (0, "")


def build_image(directory: Path) -> None:
    root = make_root(directory / "tools", *BASE_PROGRAMS)
    store = ImageStore(directory / "cache/warmcell/images")
    store.import_(root, "tools:1")
    repository = directory / "context/repository"
    repository.mkdir(parents=True)
    (repository / "calc.sh").write_text(SOURCE)
    (repository / "test_calc.sh").write_text(TESTS)
    (directory / "context/Dockerfile").write_text(DOCKERFILE)
    store.build(directory / "context", name="sweb/calc-1:latest")


def instance(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "calc__calc-1",
        "repo": "calc/calc",
        "version": "1.0",
        "image": "sweb/calc-1:latest",
        "patch": PATCH,
        "eval_script": EVALUATE,
        "FAIL_TO_PASS": ["test_calc.sh::test_add"],
        "PASS_TO_PASS": ["test_calc.sh::test_double"],
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        **changes,
    }


def evaluate(server: DockerServer, place: Path, patches: dict[str, str], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary that `swebench eval` writes."""
    predictions = [
        {"instance_id": name, "model_patch": patch, "model_name_or_path": "m"} for name, patch in patches.items()
    ]
    (place / "predictions.json").write_text(json.dumps(predictions))
    (place / "tasks.json").write_text(json.dumps(tasks))
    program = os.path.join(os.path.dirname(sys.executable), "swebench")
    command = [program, "eval", "tasks.json", "-p", "predictions.json", "-j", "2", "--timeout", str(TIMEOUT)]
    environment = {**server.environment, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hf")}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = place.glob("*.run.json")
    logs = "".join(one.read_text() for one in place.glob("logs/**/run_instance.log"))
    return {**json.loads(summary.read_text()), "said": done.stdout + done.stderr + logs}


def test_evaluation(server: DockerServer, tmp_path: Path) -> None:
    """The reference patch resolves the instance, and one that repairs nothing does not. A patch that does not apply and
    tests that do not end are errors. No container is left.
    """
    patches = {
        "gold": PATCH,
        "useless": PATCH.replace("$1 + $2", "$1 * $2"),
        "broken": PATCH.replace("$1 - $2", "no such line"),
        "endless": PATCH,
    }
    endless = EVALUATE.replace("bash test_calc.sh", "exec sleep 100000")
    tasks = [instance(instance_id=name) for name in patches if name != "endless"]
    report = evaluate(server, tmp_path, patches, [*tasks, instance(instance_id="endless", eval_script=endless)])
    assert report["resolved_ids"] == ["gold"], report["said"]
    assert report["unresolved_ids"] == ["useless"], report["said"]
    assert report["error_ids"] == ["broken", "endless"], report["said"]
    assert "Patch Apply Failed" in report["said"] and f"timed out after {TIMEOUT} seconds" in report["said"]
    assert server.client.containers.list(all=True) == []
