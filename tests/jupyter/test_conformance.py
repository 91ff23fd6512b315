"""Jupyter's own suite for kernels, and papermill, over the kernel in the cage: scripts/test-seats installs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.jupyter.conftest import Install

suite = pytest.importorskip("jupyter_kernel_test")
papermill = pytest.importorskip("papermill")
nbformat = pytest.importorskip("nbformat")


@pytest.fixture(scope="module", autouse=True)
def _installed(install: Install) -> None:
    """Before the suite starts its kernel."""


class TestCagedKernel(suite.KernelTests):  # type: ignore[misc]
    kernel_name = "warmcell"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oops', file=sys.stderr)"
    code_page_something = "zip?"
    code_generate_error = "raise ValueError"
    code_execute_result = [  # noqa: RUF012
        {"code": "6*7", "result": "42"},
    ]
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
    ]
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_inspect_sample = "zip"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x * 2\n\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_history_pattern = "6?7*"
    supported_history_operations = ("tail", "search")


del suite.KernelTests  # pytest would collect it too


def test_papermill_runs_a_notebook_with_parameters(install: Install, tmp_path: Path) -> None:
    parameters = nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(
        cells=[
            parameters,
            nbformat.v4.new_code_cell("import os; print(x, 'HOME' in os.environ and os.environ['HOME'])"),
        ]
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    names = {"kernel_name": "warmcell", "language": "python", "progress_bar": False}
    papermill.execute_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"x": 42}, **names)
    assert nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs[0]["text"] == "42 /home/sandbox\n"
