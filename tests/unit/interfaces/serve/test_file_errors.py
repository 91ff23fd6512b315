"""How the failures of a sandbox's file service reach E2B's clients."""

from __future__ import annotations

import pytest

from warmcell.interfaces.serve.e2b.envd import envd_refusal
from warmcell.interfaces.serve.e2b.guest_files import FileError


@pytest.mark.parametrize(
    ("errno", "status"),
    [("ENOENT", 404), ("EACCES", 403), ("ENOSPC", 507), ("EINVAL", 400), ("ESTALE", 503), ("EBUSY", 503)],
)
def test_a_transfer_that_the_service_lost_can_be_tried_again(errno: str, status: int) -> None:
    assert envd_refusal(FileError(errno, "what happened")).status_code == status
