"""Which file of a build's context may be its Dockerfile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.interfaces.docker.build_routes import check_dockerfile
from warmcell.interfaces.docker.messages import DockerError
from warmcell.workspace import openat2


def test_few_links_are_followed_and_none_leads_out(tmp_path: Path) -> None:
    """A chain of a thousand links was a RecursionError: status 500, after it had been followed in the event loop."""
    require(openat2.is_available(), "this kernel has no openat2")
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "outside").write_text("FROM scratch\n")
    (context / "Dockerfile").write_text("FROM scratch\n")
    for number in range(2000):
        (context / f"link{number}").symlink_to(f"link{number + 1}")
    (context / "link2000").symlink_to("Dockerfile")
    (context / "here").symlink_to(".")
    (context / "out").symlink_to("../outside")
    (context / "absolute").symlink_to(tmp_path / "outside")
    for name in ("Dockerfile", "./Dockerfile", "link1990", "here/link1990"):
        check_dockerfile(str(context), name)
    for name in ("link0", "none", "Dockerfile/x", "here", "x" * 300):
        with pytest.raises(DockerError, match="Cannot locate"):
            check_dockerfile(str(context), name)
    for name in ("out", "absolute", "../outside", "here/../Dockerfile", str(tmp_path / "outside")):
        with pytest.raises(DockerError, match="not in the build context"):
            check_dockerfile(str(context), name)
