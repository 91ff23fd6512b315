"""The yardstick that sandbox providers publish, computesdk/benchmarks, with its E2B provider against `warmcell serve`.

    npm install --prefix DIRECTORY computesdk @computesdk/e2b
    python benchmarks/computesdk.py [--tools DIRECTORY] [--count 100] [--results DIRECTORY]

Run it as an ordinary user. "Time to interactive" is the time from the request for a sandbox to the end of its first
command: one after another, one every 200 ms, and all at once. It writes computesdk.md and computesdk.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEY = f"e2b_{'0' * 40}"
NOTE = """
Milliseconds from the request for a sandbox to the end of its first command, by the E2B provider of ComputeSDK, as
computesdk/benchmarks measures it. Client and server share one machine: published figures of hosted services cross a
network, these do not.
"""


@contextmanager
def start_server() -> Iterator[str]:
    """Without tokens: the provider accepts only keys that begin as E2B's do."""
    command = [sys.executable, "-m", "warmcell", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def measure(tools: Path, count: int) -> dict[str, Any]:
    with start_server() as url:
        own = {"E2B_API_KEY": KEY, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
        command = ["node", str(HERE / "computesdk_driver.mjs"), str(tools / "node_modules"), str(count)]
        done = subprocess.run(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with status {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def lines(report: dict[str, Any], about: dict[str, str]) -> Iterator[str]:
    yield "# ComputeSDK's benchmark"
    yield ""
    yield "| | p50 | p95 | p99 | min | max | succeeded |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, part in report.items():
        times = sorted(part["times"])
        whole = len(times) + len(part["failures"])
        if len(times) < 2:
            yield f"| {name} | | | | | | {len(times)} of {whole}: {part['failures'][0]} |"
            continue
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        figures = (cuts[49], cuts[94], cuts[98], times[0], times[-1])
        yield f"| {name} | {' | '.join(f'{value:.1f}' for value in figures)} | {len(times)} of {whole} |"
    yield NOTE
    yield ", ".join(f"{name} {value}" for name, value in about.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=Path("build/peers"), help="where npm installed the client")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    tools = options.tools.resolve()
    package = json.loads((tools / "node_modules/@computesdk/e2b/package.json").read_text())
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "processors": str(os.cpu_count()),
        "kernel": platform.release().partition("-")[0],
        "load": f"{os.getloadavg()[0]:.1f}",
        "@computesdk/e2b": package["version"],
    }
    report = measure(tools, options.count)
    text = "\n".join(lines(report, about))
    print(text)
    options.results.mkdir(exist_ok=True)
    (options.results / "computesdk.md").write_text(text + "\n")
    (options.results / "computesdk.json").write_text(json.dumps({"host": about, **report}, indent=1) + "\n")
    return int(any(part["failures"] for part in report.values()))


if __name__ == "__main__":
    sys.exit(main())
