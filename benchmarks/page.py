"""The page: its size, its time to paint, and the memory of page and server while it watches a load live.

    python benchmarks/page.py                          100 runs a second for five minutes
    python benchmarks/page.py --rate 20 --seconds 15   the short form

Needs Debian's chromium and the extra `test`. Prints a table, and what a run cost the server and the browser in
processor time, which says what bounds the rate on this machine. Exits with 1 if a target was missed: fewer than
95 % of the requested runs per second, a failed run, or growing memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Page, async_playwright

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "src/warmcell/interfaces/serve/page"
BODY = {"language": "python", "code": "print(6 * 7)", "timeout": 30}
#: Between the first third of the time and its end; caches and heaps breathe by that much.
MOST_GROWTH_MB = {"server": 24.0, "page": 12.0}
#: Of the rate that was asked for.
LEAST_SHARE = 0.95
#: Runs that wait for their end at a time.
CONNECTIONS = 64


def sizes() -> dict[str, float]:
    """Transfer sizes in kB; fonts are already compressed."""
    packed = {path.name: len(gzip.compress(path.read_bytes(), 9)) / 1000 for path in BUILT.iterdir()}
    html = (BUILT / "index.html").read_text()
    first = [name for name in packed if name in html or name == "index.html"]
    fonts = [name for name in packed if name.endswith(".woff2")]
    return {
        "first load without fonts": sum(packed[name] for name in first),
        "fonts": sum(packed[name] for name in fonts),
        "everything": sum(packed.values()),
    }


async def wait_for_paint(page: Page, url: str) -> dict[str, float]:
    await page.goto(url)
    await page.get_by_role("button", name="Run").wait_for()
    await page.wait_for_timeout(500)
    found: dict[str, float] = await page.evaluate("""() => Object.fromEntries(
        performance.getEntriesByType('paint').map(one => [one.name, one.startTime]))""")
    return found


class Sender:
    """One persistent connection. A client library would use more processor time than the server."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._body = json.dumps(BODY).encode()
        head = f"POST /v1/run HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(self._body)}\r\n\r\n".encode() + self._body

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))

    async def run(self) -> bool:
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        answer = json.loads(await self._reader.readexactly(length))
        return b" 200 " in head.split(b"\r\n")[0] and answer["stdout"] == "42\n"

    def close(self) -> None:
        self._writer.close()


async def load(url: str, rate: float, seconds: float, counts: dict[str, int]) -> None:
    """Start a fixed number of runs per second, with at most as many at a time as there are connections."""
    turns: asyncio.Queue[bool] = asyncio.Queue(CONNECTIONS)

    async def send() -> None:
        sender = Sender(url)
        await sender.open()
        while await turns.get():
            counts["ok" if await sender.run() else "bad"] += 1
        sender.close()

    senders = [asyncio.ensure_future(send()) for _ in range(CONNECTIONS)]
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await turns.put(True)
    for _ in senders:
        await turns.put(False)
    await asyncio.gather(*senders)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its descendants, including reaped ones."""
    found, below = 0.0, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        below.setdefault(int(fields[1]), []).append((int(path.parent.name), sum(map(int, fields[11:15]))))
        if path.parent.name == str(pid):
            found += sum(map(int, fields[11:15]))
    waiting = [pid]
    while waiting:
        for child, ticks in below.get(waiting.pop(), ()):
            found += ticks
            waiting.append(child)
    return found / os.sysconf("SC_CLK_TCK")


async def memory_use(pid: int, session: CDPSession) -> dict[str, float]:
    """Megabytes after garbage collection, and DOM nodes."""
    await session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"server": resident / 1e6, "page": metrics["JSHeapUsedSize"] / 1e6, "nodes": metrics["Nodes"]}


async def watch_load(url: str, pid: int, browser: int, page: Page, asked: float, seconds: float) -> bool:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{url}/#/activity")
    await page.locator(".tile").first.wait_for()
    counts, before = (
        {"ok": 0, "bad": 0},
        {"server": cpu_seconds(pid), "browser": cpu_seconds(browser), "load": time.process_time()},
    )
    sending = asyncio.ensure_future(load(url, asked, seconds, counts))
    began, samples = time.monotonic(), []
    print(f"{'s':>5} {'runs':>7} {'server MB':>10} {'page MB':>9} {'nodes':>7}")
    while not sending.done():
        await asyncio.wait([sending], timeout=seconds / 12)
        samples.append(await memory_use(pid, session))
        last = samples[-1]
        at = time.monotonic() - began
        print(f"{at:5.0f} {counts['ok']:7} {last['server']:10.1f} {last['page']:9.2f} {last['nodes']:7.0f}", flush=True)
    await sending
    took = time.monotonic() - began
    after = {"server": cpu_seconds(pid), "browser": cpu_seconds(browser), "load": time.process_time()}
    costs = {name: 1000 * (after[name] - before[name]) / max(1, counts["ok"]) for name in after}
    settled = samples[len(samples) // 3]
    growth = {name: samples[-1][name] - settled[name] for name in MOST_GROWTH_MB}
    shown = await page.locator(".tile .figure").first.inner_text()
    rate = counts["ok"] / took
    print(f"{rate:.0f} runs a second of {asked:g}, {counts['bad']} failed; the page says {shown}")
    print("processor time of a run: " + ", ".join(f"{name} {cost:.2f} ms" for name, cost in costs.items()))
    print(", ".join(f"{name} {grown:+.1f} MB since the first third" for name, grown in growth.items()))
    misses = [name for name, most in MOST_GROWTH_MB.items() if growth[name] >= most]
    misses += ["rate"] if rate < LEAST_SHARE * asked else []
    misses += ["failed runs"] if counts["bad"] else []
    print(f"missed: {', '.join(misses)}" if misses else "met")
    return not misses


async def measure(arguments: Any) -> bool:
    for name, size in sizes().items():
        print(f"{name:26} {size:6.0f} kB")
    command = [sys.executable, "-m", "warmcell", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        async with async_playwright() as playwright:
            rootly = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=rootly)
            page = await browser.new_page()
            for name, at in (await wait_for_paint(page, url)).items():
                print(f"{name:26} {at:6.0f} ms")
            running = _browser_pid()
            is_steady = await watch_load(url, server.pid, running, page, arguments.rate, arguments.seconds)
            await browser.close()
        return is_steady
    finally:
        server.terminate()
        server.wait(60)


def _browser_pid() -> int:
    """The browser that Playwright's driver started."""
    own = str(os.getpid())
    children = [
        path for path in Path("/proc").glob("[0-9]*/stat") if path.read_text().rpartition(")")[2].split()[1] == own
    ]
    return next(int(path.parent.name) for path in children if b"warmcell" not in path.with_name("cmdline").read_bytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=300)
    sys.exit(0 if asyncio.run(measure(parser.parse_args())) else 1)
