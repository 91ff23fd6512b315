"""A repository in an image, patches, and tests that must pass after them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.image_roots import make_root

from warmcell import evaluate
from warmcell.images import ImageStore

pytestmark = pytest.mark.needs("user namespaces")

PATCH = "--- a/code.txt\n+++ b/code.txt\n@@ -1 +1 @@\n-{}\n+{}\n"
TESTS = 'echo "PASSED t::old"; grep -q fixed code.txt && echo "PASSED t::new" || echo "FAILED t::new - assert"\n'


def test_a_patch_is_applied_and_the_tests_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = make_root(tmp_path / "root", "sh", "cat", "grep", "patch")
    (root / "testbed").mkdir()
    (root / "testbed/code.txt").write_text("broken\n")
    ImageStore().import_(root, "bare:1")
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM bare:1\nWORKDIR /testbed\n")  # as SWE-bench's images have it
    ImageStore().build(context, name="repository:1")
    task = {
        "instance_id": "a__b-1",
        "image": "repository:1",
        "test_cmd": "sh run-tests.sh",
        "test_patch": f"--- /dev/null\n+++ b/run-tests.sh\n@@ -0,0 +1 @@\n+{TESTS}",
        "FAIL_TO_PASS": '["t::new"]',
        "PASS_TO_PASS": '["t::old"]',
    }
    patches = [PATCH.format("broken", "fixed"), PATCH.format("broken", "worse"), PATCH.format("nothing", "fixed"), None]
    samples = [{"instance_id": "a__b-1", "model_patch": patch} for patch in patches]
    out = tmp_path / "verdicts.jsonl"
    evaluate([task], samples, out=out, concurrency=1)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] for row in rows] == ["accepted", "wrong_answer", "runtime_error", "wrong_answer"], rows
    assert "does not apply" in rows[2]["output"]


def test_a_sample_may_change_the_files_of_the_tests_and_they_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = make_root(tmp_path / "root", *"sh cat cp dirname grep mkdir patch rm".split())
    (root / "testbed").mkdir()
    (root / "testbed/code.txt").write_text("broken\n")
    (root / "testbed/run-tests.sh").write_text("exit 1\n")
    ImageStore().import_(root, "repository:1")
    task = {
        "instance_id": "a__b-1",
        "image": "repository:1",
        "test_cmd": "sh run-tests.sh && cat new.txt",
        "test_patch": f"--- a/run-tests.sh\n+++ b/run-tests.sh\n@@ -1 +1 @@\n-exit 1\n+{TESTS}"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+PASSED t::newest\n",
        "FAIL_TO_PASS": '["t::new", "t::newest"]',
        "PASS_TO_PASS": '["t::old"]',
    }
    own_tests = (
        "--- a/run-tests.sh\n+++ b/run-tests.sh\n@@ -1 +1 @@\n-exit 1\n+echo PASSED t::new; echo PASSED t::old\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+mine\n"
    )
    removed = "--- a/run-tests.sh\n+++ /dev/null\n@@ -1 +0,0 @@\n-exit 1\n"
    patches = [PATCH.format("broken", "fixed") + own_tests, own_tests, PATCH.format("broken", "fixed") + removed]
    samples = [{"instance_id": "a__b-1", "model_patch": patch} for patch in patches]
    out = tmp_path / "verdicts.jsonl"
    evaluate([task], samples, out=out, concurrency=1)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] for row in rows] == ["accepted", "wrong_answer", "accepted"], rows
