"""Runs the programs of image builds: in a cage whose root is the layers so far, and which keeps what is written."""

from __future__ import annotations

from warmcell.backends.process.image import ENV_OF_ROOT
from warmcell.backends.process.launch import Launch
from warmcell.backends.process.launcher import Launcher
from warmcell.core.types import ExecResult
from warmcell.enforcers.pin_paths import pin
from warmcell.images.build.steps import SEARCH_PATH, OnOutput, StepRun
from warmcell.images.image_files import ImageFiles, find_user
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.resolve import ImageRoot, effective_limits
from warmcell.runner.not_started import NotStarted, command_refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.runner.listening import Stream


def run_step(step: StepRun) -> ExecResult:
    """Runs one program in the calling thread. Its user is root unless the step names another."""
    config = ProcessConfig(pool_size=0)
    launcher = Launcher(config, "auto", step.policy, None, image=_image_root(step))
    runs = Runs("process", 1, config.queue_timeout)
    try:
        return runs.run_blocking(lambda run: launcher.run(_make_launch(step, run)))
    except NotStarted as failure:
        raise command_refusal(step.argv[0], failure) from None
    finally:
        runs.close()
        launcher.close()


def _image_root(step: StepRun) -> ImageRoot:
    user = find_user(ImageFiles(step.layers), step.user or "root")
    return ImageRoot(
        layers=tuple(pin(path, "/") for path in step.layers),
        uid=user.uid,
        gid=user.gid,
        home=user.home or "/",
        env={"PATH": SEARCH_PATH, "HOME": user.home or "/", **(ENV_OF_ROOT if user.uid == 0 else {}), **step.env},
        work_dir=step.cwd,
        upper=pin(step.upper, "/", writable=True),
    )


def _make_launch(step: StepRun, run: Run) -> Launch:
    if step.on_start is not None:
        step.on_start(run.cancel)
    main = step.argv[0] if step.argv[0] in step.files else ""
    return Launch(
        program=ProgramSpec(step.argv, step.files, main, cwd=step.cwd),
        env={},
        stdin=b"",
        timeout=step.timeout,
        limits=effective_limits(step.policy),
        run=run,
        listener=None if step.on_output is None else _Deliver(step.on_output),
    )


class _Deliver:
    """A listener that never holds the guest back."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output

    def deliver(self, stream: Stream, data: bytes) -> None:
        self._on_output(stream, data)

    def wait_target(self) -> None:
        return None

    def catch_up(self) -> None:
        pass
