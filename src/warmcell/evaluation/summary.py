"""Summary: verdict counts and pass@k. Pure module."""

from __future__ import annotations

from collections.abc import Mapping

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass

DEFAULT_KS = (1, 5, 10, 100)


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of an evaluation.

    `counts`: samples by status. `pass_at`: for each k of 1, 5, 10 and 100 for which every task has enough samples.
    `tally` has the number of tasks for each pair (samples with a verdict, accepted ones). What was not judged
    (`host_error`, `checker_error`) is in `counts` and in no score; the next start judges it again.
    """

    counts: Mapping[str, int]
    pass_at: Mapping[int, float]
    tally: Mapping[tuple[int, int], int]
    tasks: int
    samples: int
    #: Tasks without a sample, and samples whose task was not in the file; neither is scored.
    tasks_without_samples: int
    samples_without_task: int
    #: Samples judged by this call, the others were in the file; and how long it took.
    judged_now: int
    seconds: float

    @property
    def not_judged(self) -> int:
        """Samples that must be judged again."""
        return sum(self.counts.get(status, 0) for status in ("host_error", "checker_error"))

    def pass_at_k(self, k: int) -> float:
        """The mean over tasks of the unbiased estimate. Raises `InvalidRequest` if a task has fewer than k samples."""
        return pass_at_k(self.tally, k)


def pass_at_k(tally: Mapping[tuple[int, int], int], k: int) -> float:
    """pass@k over tasks given as (samples, accepted): how many tasks there are of each pair."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidRequest("must be a whole number of at least 1", field="k")
    fewest = min((samples for samples, _ in tally), default=0)
    if fewest < k:
        raise InvalidRequest(f"a task has {fewest} samples, fewer than {k}", field="k", hint=f"at most {fewest}")
    total = sum(tally.values())
    return sum(count * estimate(samples, accepted, k) for (samples, accepted), count in tally.items()) / total


def estimate(samples: int, accepted: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): how likely k of the n samples, drawn at random, contain an accepted one."""
    if samples - accepted < k:
        return 1.0
    failed = 1.0
    for drawn in range(samples - accepted + 1, samples + 1):
        failed *= 1.0 - k / drawn
    return 1.0 - failed


def estimate_all(tally: Mapping[tuple[int, int], int]) -> dict[int, float]:
    """pass@k for each of `DEFAULT_KS` for which every task has enough samples."""
    fewest = min((samples for samples, _ in tally), default=0)
    return {k: pass_at_k(tally, k) for k in DEFAULT_KS if k <= fewest}
