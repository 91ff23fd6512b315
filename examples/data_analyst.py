"""A data analyst: a session that keeps its variables, plots, and what-if questions in forks.

    python examples/data_analyst.py [DIRECTORY for the plots]

`ask_model` stands for a model: it returns the next cell. In real use give your model the result of each cell and run
what it answers; with `ProcessConfig(python_path=..., preload=("pandas", "matplotlib"))` the session has pandas and
matplotlib, whose figures arrive as `image/png` in the same `outputs`.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from warmcell import Sandbox

SALES = [("month", "price", "sold")] + [(month, 10 + month % 4, 500 - 30 * (month % 4)) for month in range(1, 13)]
CELLS = (
    """import csv
rows = [{name: int(text) for name, text in row.items()} for row in csv.DictReader(open('sales.csv'))]
revenue = [row['price'] * row['sold'] for row in rows]
sum(revenue)""",
    """class Bars:
    def __init__(self, values): self.values = values
    def _repr_svg_(self):
        top = max(self.values)
        bars = ''.join(f'<rect x="{20 * n}" y="{100 - 100 * v / top:.0f}" width="16" height="{100 * v / top:.0f}"/>'
                       for n, v in enumerate(self.values))
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {20 * len(self.values)} 100">{bars}</svg>'
Bars(revenue)""",
)
QUESTIONS = {
    "prices rise by 2": "sum((row['price'] + 2) * (row['sold'] - 40) for row in rows)",
    "prices fall by 1": "sum((row['price'] - 1) * (row['sold'] + 60) for row in rows)",
}


def ask_model() -> Iterator[str]:
    yield from CELLS


def table() -> str:
    text = io.StringIO()
    csv.writer(text).writerows(SALES)
    return text.getvalue()


def main(plots: Path) -> None:
    with Sandbox(forkable=True) as sandbox, sandbox.session("python") as session:
        sandbox.write_file("sales.csv", table())
        value = None
        for code in ask_model():
            cell = session.run(code)
            if cell.error is not None:
                print("the model gets this back:", cell.error.message)
            value = cell.value if value is None else value
            for number, output in enumerate(cell.outputs):
                if "image/svg+xml" in output.mime:
                    path = plots / f"plot-{cell.execution_count}-{number}.svg"
                    path.write_text(str(output.mime["image/svg+xml"]))
                    print("plot:", path.name)
        print("revenue:", value)
        for question, code in QUESTIONS.items():
            branch = session.fork()  # the variables and files as they are now; nothing that it does comes back
            with branch.sandbox:
                print(f"if {question}:", branch.run(code).value)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
