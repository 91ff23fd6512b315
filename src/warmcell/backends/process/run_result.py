"""Awaits a guest that has its job and makes the result of its run. Loaded while the cell is made."""

from __future__ import annotations

from warmcell.backends.process.cell_template import CellTemplate
from warmcell.backends.process.launch import Launch
from warmcell.core.types import MIB, ExecResult
from warmcell.languages.program_spec import CODE_DIR, OUT_DIR
from warmcell.runner.cell import Cell
from warmcell.runner.denials import DenialCollector, explain
from warmcell.runner.outcome import FilePages, KernelUsage, RunTerms, judge
from warmcell.runner.pump import Bounds, Pump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NO_KERNEL_USAGE = KernelUsage()
#: A compiled program maps little more than libc. A fork of the warm interpreter may load extension modules. Another
#: interpreter is a large file itself, and has libraries.
_NATIVE = FilePages(6 * MIB, MIB)
_WARM_PYTHON = FilePages(24 * MIB, 8 * MIB)
_INTERPRETER = FilePages(64 * MIB, 16 * MIB)
#: The libraries of a GPU's driver and toolkit.
_WITH_GPU = FilePages(4096 * MIB, 2048 * MIB)


def await_result(
    launch: Launch, template: CellTemplate, cell: Cell, denials: DenialCollector, on_slow_run: Callable[[], None]
) -> ExecResult:
    """Feeds and watches the guest, closes its cell, and judges how it ended. Raises if a limit ended it.

    Calls `on_slow_run` if the run takes longer than most.
    """
    limits = launch.limits
    timeout = launch.timeout - launch.spent
    bounds = Bounds(timeout, limits.output_bytes, limits.cpu_seconds, launch.ends_at_output_limit)
    end = Pump(cell, launch.stdin, bounds, launch.run, on_slow_run, launch.listener).run()
    cell.close()
    launch.run.check()
    pages = _file_pages(launch) if template.effective.gpu is None else _WITH_GPU
    if end.is_over_memory(limits.memory_mb * MIB, pages):
        end.verdict = end.verdict or "memory"
    kernel = cell.group_usage or _NO_KERNEL_USAGE
    visible = tuple(bind.target for bind in template.visible) if end.denials else ()
    for denial in explain(end, kernel, limits, visible):
        denials.add(denial)
    return judge(end, make_terms(launch, template), kernel, denials.all(), tuple(denials.connections()))


def _is_native(launch: Launch) -> bool:
    """Whether the guest's code was compiled to a program of its own."""
    return launch.program.argv[0].startswith((OUT_DIR, CODE_DIR))


def _file_pages(launch: Launch) -> FilePages:
    if _is_native(launch):
        return _NATIVE
    return _WARM_PYTHON if launch.program.worker == "python" else _INTERPRETER


def make_terms(launch: Launch, template: CellTemplate) -> RunTerms:
    """The facts by which the end of the run is judged."""
    return RunTerms(
        timeout=launch.timeout,
        memory_mb=launch.limits.memory_mb,
        enforced=template.effective.enforced,
        open_files=launch.limits.open_files,
        cpu_seconds=launch.limits.cpu_seconds,
        requested_at=launch.run.requested_at + launch.built_for,  # waiting for the compiler is not queueing
        phase=launch.phase,
        is_wrapped=template.wrapper is not None,
        is_guest_program=_is_native(launch),
        gpu_memory_mb=launch.limits.gpu_memory_mb,
    )
