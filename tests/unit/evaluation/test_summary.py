"""pass@k against counting every draw."""

from __future__ import annotations

from itertools import combinations

import pytest

from warmcell import InvalidRequest
from warmcell.evaluation.summary import estimate, estimate_all, pass_at_k


def by_counting(samples: int, accepted: int, k: int) -> float:
    draws = list(combinations([True] * accepted + [False] * (samples - accepted), k))
    return sum(map(any, draws)) / len(draws)


@pytest.mark.parametrize("samples", range(1, 7))
def test_the_estimate_is_the_share_of_draws_with_an_accepted_sample(samples: int) -> None:
    for accepted in range(samples + 1):
        for k in range(1, samples + 1):
            assert estimate(samples, accepted, k) == pytest.approx(by_counting(samples, accepted, k))


def test_tasks_count_alike_whatever_their_number_of_samples() -> None:
    assert pass_at_k({(1, 1): 1, (4, 0): 3}, 1) == pytest.approx(0.25)
    assert estimate_all({(10, 5): 2}) == {1: pytest.approx(0.5), 5: pytest.approx(251 / 252), 10: 1.0}
    assert estimate_all({}) == {}


def test_a_large_number_of_samples_does_not_overflow() -> None:
    assert 0 < estimate(10**6, 1, 100) < 0.001


@pytest.mark.parametrize("k", [0, -1, True, 1.5, 3])
def test_a_k_without_an_answer_is_refused(k: object) -> None:
    with pytest.raises(InvalidRequest, match="k: "):
        pass_at_k({(2, 1): 1}, k)  # type: ignore[arg-type]
