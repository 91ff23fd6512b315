"""SWE-bench: a patch for a repository in an image, and tests that must pass after it."""

from __future__ import annotations

from warmcell.core.types import MIB
from warmcell.evaluation.checkers import has_passed_tests
from warmcell.evaluation.formats.fields import limits, text, texts
from warmcell.evaluation.json_lines import Record
from warmcell.evaluation.tasks import Task
from warmcell.judging.verdicts import Case

_HINT = "SWE-bench's own records have none: add the image with the repository, and the command that runs its tests"
#: The exit status of the tests does not count, their report does: tests that already failed may go on failing.
_SCRIPT = """\
patches=$PWD
cd "$(cat directory)" || exit 1
apply() {
    test ! -s "$1" || git apply --whitespace=nowarn "$1" || patch --batch --forward --fuzz=5 -p1 -i "$1"
}
apply "$patches/model.patch" || { echo "the patch does not apply" >&2; exit 1; }
apply "$patches/test.patch" || { echo "the test patch does not apply" >&2; exit 1; }
sh "$patches/tests.sh" 2>&1
exit 0
"""


def read(task_id: str, record: Record) -> Task:
    wanted = [*texts(record, "FAIL_TO_PASS"), *texts(record, "PASS_TO_PASS")]
    return Task(
        task_id,
        (Case(expected="\n".join(wanted)),),
        "command",
        before=_SCRIPT,
        files={
            "test.patch": text(record, "test_patch", default=""),
            "tests.sh": text(record, "test_cmd", "test_command", "eval_script", hint=_HINT),
            "directory": text(record, "workdir", default="/testbed"),
        },
        sample_file="model.patch",
        checker=has_passed_tests,
        image=text(record, "image", "image_name", "docker_image", hint=_HINT),
        output_bytes=64 * MIB,
        **limits(record, 1800.0, 8192),
    )
