"""evaluate over a scripted backend: what is judged, what is resumed, what is counted."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE

from warmcell import (
    BackendUnavailable,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    FakeBackend,
    InvalidRequest,
    aevaluate,
    evaluate,
)
from warmcell.evaluation.evaluate import Progress
from warmcell.evaluation.json_lines import read_records


def task(name: str, **others: Any) -> dict[str, Any]:
    return {"id": name, "cases": [{"expected": "right"}], **others}


def sample(name: str, code: str = "x") -> dict[str, Any]:
    return {"id": name, "code": code}


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: (row["task_id"], row["sample"]))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "verdicts.jsonl"


def print_code(request: ExecRequest) -> str:
    return str(request.code)


def test_verdicts_counts_and_scores(out: Path) -> None:
    samples = [sample("a", "right"), sample("a", "wrong"), sample("b", "right"), sample("lost"), sample("a", "right")]
    seen: list[Progress] = []
    summary = evaluate(
        [task("a"), task("b"), task("c")], samples, out=out, backend=FakeBackend(print_code), on_progress=seen.append
    )
    assert [(row["task_id"], row["sample"], row["status"]) for row in rows(out)] == [
        ("a", 0, "accepted"),
        ("a", 1, "wrong_answer"),
        ("a", 2, "accepted"),
        ("b", 0, "accepted"),
    ]
    assert summary.counts == {"accepted": 3, "wrong_answer": 1}
    assert summary.pass_at == {1: pytest.approx((2 / 3 + 1) / 2)}
    assert (summary.tasks, summary.tasks_without_samples, summary.samples_without_task) == (3, 1, 1)
    assert (seen[-1].done, seen[-1].total, seen[-1].counts["accepted"]) == (4, 5, 3) and seen[-1].rate > 0


def test_what_has_a_verdict_is_not_judged_again(out: Path) -> None:
    tasks, samples = [task("a"), task("b")], [sample("a", "right"), sample("b", "right")]
    evaluate(tasks[:1], samples, out=out, backend=FakeBackend(print_code))
    backend = FakeBackend(print_code)
    summary = evaluate(tasks, [*samples, sample("a", "new")], out=out, backend=backend)
    assert sorted(str(request.code) for request in backend.requests) == ["new", "right"]
    assert (summary.judged_now, summary.counts) == (2, {"accepted": 2, "wrong_answer": 1})
    assert len(rows(out)) == 3


def test_a_failure_of_ours_is_not_scored_and_is_tried_at_the_next_start(out: Path) -> None:
    failing = FakeBackend().when(ExecutionFailed("a bad moment"))
    first = evaluate([task("a")], [sample("a")], out=out, backend=failing)
    assert (first.counts, first.pass_at, first.not_judged) == ({"host_error": 1}, {}, 1)
    assert rows(out)[0]["error"] == "a bad moment"
    second = evaluate([task("a")], [sample("a")], out=out, backend=FakeBackend(["right"]))
    assert (second.counts, second.pass_at) == ({"accepted": 1}, {1: 1.0})
    assert len(rows(out)) == 1


def test_a_permanent_failure_is_raised_and_loses_nothing(out: Path) -> None:
    backend = FakeBackend(print_code).when(BackendUnavailable("no compiler"), code="bad")
    tasks, samples = [task("a"), task("b")], [sample("a", "right"), sample("b", "bad")]
    with pytest.raises(BackendUnavailable, match="no compiler"):
        evaluate(tasks, samples, out=out, backend=backend, concurrency=1)
    assert [row["task_id"] for row in rows(out)] == ["a"]
    assert evaluate(tasks, samples, out=out, backend=FakeBackend(print_code)).judged_now == 1


@pytest.mark.parametrize(
    ("tasks", "samples"),
    [([task("a")], [sample("a", "other")]), ([task("a", timeout=3)], [sample("a", "right")])],
    ids=["another sample", "another task"],
)
def test_verdicts_on_something_else_are_not_taken_over(out: Path, tasks: Any, samples: Any) -> None:
    evaluate([task("a")], [sample("a", "right")], out=out, backend=FakeBackend(print_code))
    with pytest.raises(InvalidRequest, match="another program or other tests"):
        evaluate(tasks, samples, out=out, backend=FakeBackend(print_code))


def test_a_verdict_on_a_continuation_is_not_taken_over_for_a_program(out: Path) -> None:
    tasks = [task("a", prompt="prompt")]
    evaluate(tasks, [{"id": "a", "completion": "x"}], out=out, backend=FakeBackend(print_code))
    with pytest.raises(InvalidRequest, match="another program or other tests"):
        evaluate(tasks, [sample("a")], out=out, backend=FakeBackend(print_code))


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "x" * (9 << 20)], ids=["empty", "nul", "surrogate", "too long"])
def test_a_sample_that_cannot_be_a_program_fails_and_ends_nothing(out: Path, text: str) -> None:
    summary = evaluate([task("a")], [sample("a", text), sample("a", "right")], out=out, backend=FakeBackend(print_code))
    assert summary.counts == {"accepted": 1, "build_error": 1}


@pytest.mark.parametrize(
    ("tasks", "samples", "said"),
    [
        ([task("a"), task("a")], [], r"tasks\[1\]: a second task"),
        (["a"], [], r"tasks\[0\]: must be a mapping"),
        ([task("a")], [{"id": "a"}], "no field 'completion'"),
        ([task("a")], [{"code": "x"}], "no field 'task_id'"),
        ([task("a")], [{"id": "a", "code": 1}], "code must be text"),
        ("/nonexistent", [], "no such file"),
    ],
)
def test_mistakes_of_the_caller(out: Path, tasks: Any, samples: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        evaluate(tasks, samples, out=out, backend=FakeBackend(print_code))


def test_tasks_are_read_when_there_is_a_place_for_them(out: Path) -> None:
    """However many there are: at most the ones being judged, and one more, are in memory."""
    taken = 0
    most_ahead = 0

    def tasks() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for number in range(300):
            taken += 1
            yield task(str(number))

    def watch(progress: Progress) -> None:
        nonlocal most_ahead
        most_ahead = max(most_ahead, taken - progress.done)

    samples = (sample(str(number), "right") for number in range(300))
    summary = evaluate(tasks(), samples, out=out, concurrency=4, backend=FakeBackend(print_code), on_progress=watch)
    assert summary.counts == {"accepted": 300} and most_ahead <= 5


def test_files_may_be_compressed_and_samples_in_lists(out: Path, tmp_path: Path) -> None:
    import gzip

    with gzip.open(tmp_path / "tasks.jsonl.gz", "wt") as file:
        file.write(json.dumps(task("a")) + "\n\n")
    with gzip.open(tmp_path / "samples.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "a", "code_list": ["right", "wrong"]}) + "\n")
    summary = evaluate(
        tmp_path / "tasks.jsonl.gz", tmp_path / "samples.jsonl.gz", out=out, backend=FakeBackend(print_code)
    )
    assert summary.counts == {"accepted": 1, "wrong_answer": 1}


@pytest.mark.attack("S3-12")
def test_a_damaged_compressed_file_is_refused(out: Path, tmp_path: Path) -> None:
    import gzip

    packed = bytearray(gzip.compress(json.dumps(task("a")).encode() * 1000))
    packed[40:60] = b"\xff" * 20
    (tmp_path / "tasks.jsonl.gz").write_bytes(packed)
    with pytest.raises(InvalidRequest, match=r"tasks.jsonl.gz:1: cannot be read"):
        evaluate(tmp_path / "tasks.jsonl.gz", [sample("a")], out=out, backend=FakeBackend(print_code))


def test_compressed_records_in_members_of_their_own(tmp_path: Path) -> None:
    import gzip

    lines = [json.dumps(task(f"t{number}")).encode() + b"\n" for number in range(2000)]
    (tmp_path / "tasks.jsonl.gz").write_bytes(b"".join(map(gzip.compress, lines)))
    assert len(list(read_records(tmp_path / "tasks.jsonl.gz", "tasks"))) == 2000
    (tmp_path / "tasks.jsonl.gz").write_bytes(b"")
    assert list(read_records(tmp_path / "tasks.jsonl.gz", "tasks")) == []
    (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(b"\n") * 100_000)
    with pytest.raises(InvalidRequest, match="more than 1000 small"):
        list(read_records(tmp_path / "tasks.jsonl.gz", "tasks"))


@pytest.mark.attack("S3-15")
def test_a_record_with_many_samples_is_parsed_once_for_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing it for each of its samples took quadratic time."""
    from warmcell.evaluation import samples

    path, parsed, parse = tmp_path / "samples.jsonl", list[str](), samples.parse_record
    path.write_text(json.dumps({"id": "a", "code_list": list("xyz")}) + "\n" + json.dumps(sample("a", "last")) + "\n")
    index = samples.SampleIndex(path, sqlite3.connect(":memory:"))
    monkeypatch.setattr(samples, "parse_record", lambda *given: parsed.append(given[1]) or parse(*given))
    assert [(number, found.text) for number, found in index.of_task("a")] == [*enumerate("xyz"), (3, "last")]
    assert len(parsed) == 2
    index.close()


class Nodes(FakeBackend):
    """Fifty processors elsewhere. Its runs end when twice as many are under way."""

    build = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self._running, self._is_full = 0, asyncio.Event()

    async def count_processors(self) -> int:
        return 50

    async def execute(self, request: ExecRequest, **_: Any) -> ExecResult:
        self._running += 1
        if self._running == 100:
            self._is_full.set()
        async with asyncio.timeout(PATIENCE):
            await self._is_full.wait()
        return ExecResult("right")


async def test_a_cluster_has_samples_for_all_of_its_processors(out: Path) -> None:
    summary = await aevaluate([task("a")], [sample("a", str(n)) for n in range(100)], out=out, backend=Nodes())
    assert summary.counts == {"accepted": 100}
