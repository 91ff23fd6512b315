"""`--gpu` on the command line, and preloads that have touched a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from warmcell import ExecRequest, ProcessBackend, ProcessConfig
from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.parser import parse


@pytest.mark.parametrize(
    ("words", "gpus"),
    [("", None), ("--gpu", "all"), ("--gpu=0,1", (0, 1)), ("--gpu=all", "all"), ("--gpu=1,1", (1,))],
)
def test_devices(words: str, gpus: object) -> None:
    """The word after `--gpu` is the program, not its value."""
    arguments = parse(["run", *words.split(), "python", "-c", "1"])
    assert arguments.target == "python"
    policy = options.policy([], [], [], None, arguments.gpu)
    assert (None if policy is None else policy.gpus) == gpus


@pytest.mark.parametrize("value", ["x", "0,", "-1", "0;1", "999999"])
def test_what_is_not_a_device(value: str) -> None:
    with pytest.raises(UsageError, match="--gpu"):
        options.device_numbers(value)


def test_a_guests_own_argument_stays_as_it_is() -> None:
    assert parse(["run", "python", "-c", "1", "--", "--gpu"]).args == ["--gpu"]


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("is_initialized", [True, False])
def test_a_preload_that_touched_the_gpu_is_refused(tmp_path: Path, is_initialized: bool) -> None:
    """With a made-up torch: a context that exists before the fork would be broken in every guest."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")
    (packages / "torch.py").write_text(f"class cuda:\n    is_initialized = staticmethod(lambda: {is_initialized})\n")
    config = ProcessConfig(python_path=tmp_path / "env/bin/python", preload=["torch"], pool_size=0)
    request = ExecRequest("python", "import torch; print(torch.cuda.is_initialized())", 60)
    with ProcessBackend(config) as backend:
        if not is_initialized:
            assert backend.execute_blocking(request).stdout == "False\n"
            return
        with pytest.raises(BackendUnavailable, match="does not survive a fork") as raised:
            backend.execute_blocking(request)
    assert "torch.cuda was initialized" in raised.value.message
