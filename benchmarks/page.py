"""The page: how large it is, how soon it is there, and what it and the server hold while a load is watched live.

    python benchmarks/page.py                          100 runs a second for five minutes
    python benchmarks/page.py --rate 20 --seconds 15   the short form

Needs Debian's chromium and the extra `test`. Prints a table and leaves with 1 where something has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import CDPSession, Page, async_playwright

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "src/warmcell/interfaces/serve/page"
BODY = {"language": "python", "code": "print(6 * 7)", "timeout": 30}
#: Between the first third of the time and its end; caches and heaps breathe by that much.
MOST_GROWTH_MB = {"server": 24.0, "page": 12.0}


def sizes() -> dict[str, float]:
    """In kB as they are sent; fonts are packed already."""
    packed = {path.name: len(gzip.compress(path.read_bytes(), 9)) / 1000 for path in BUILT.iterdir()}
    html = (BUILT / "index.html").read_text()
    first = [name for name in packed if name in html or name == "index.html"]
    fonts = [name for name in packed if name.endswith(".woff2")]
    return {
        "first load without fonts": sum(packed[name] for name in first),
        "fonts": sum(packed[name] for name in fonts),
        "everything": sum(packed.values()),
    }


async def painted(page: Page, url: str) -> dict[str, float]:
    await page.goto(url)
    await page.get_by_role("button", name="Run").wait_for()
    await page.wait_for_timeout(500)
    found: dict[str, float] = await page.evaluate("""() => Object.fromEntries(
        performance.getEntriesByType('paint').map(one => [one.name, one.startTime]))""")
    return found


async def load(url: str, rate: float, seconds: float, counts: dict[str, int]) -> None:
    """So many a second whether or not they end; but never more than two hundred at a time."""
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=200)) as client:
        waiting: set[asyncio.Task[None]] = set()

        async def one() -> None:
            answer = await client.post("/v1/run", json=BODY)
            counts["ok" if answer.status_code == 200 and answer.json()["stdout"] == "42\n" else "bad"] += 1

        began = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            while len(waiting) >= 200:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.ensure_future(one())
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        if waiting:
            await asyncio.wait(waiting)


async def held(pid: int, session: CDPSession) -> dict[str, float]:
    """Megabytes after rubbish was collected, and nodes of the document."""
    await session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"server": resident / 1e6, "page": metrics["JSHeapUsedSize"] / 1e6, "nodes": metrics["Nodes"]}


async def watched(url: str, pid: int, page: Page, asked: float, seconds: float) -> bool:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{url}/#/activity")
    await page.locator(".tile").first.wait_for()
    counts = {"ok": 0, "bad": 0}
    sending = asyncio.ensure_future(load(url, asked, seconds, counts))
    began, samples = time.monotonic(), []
    print(f"{'s':>5} {'runs':>7} {'server MB':>10} {'page MB':>9} {'nodes':>7}")
    while not sending.done():
        await asyncio.wait([sending], timeout=seconds / 12)
        samples.append(await held(pid, session))
        last = samples[-1]
        at = time.monotonic() - began
        print(f"{at:5.0f} {counts['ok']:7} {last['server']:10.1f} {last['page']:9.2f} {last['nodes']:7.0f}", flush=True)
    await sending
    settled = samples[len(samples) // 3]
    growth = {name: samples[-1][name] - settled[name] for name in MOST_GROWTH_MB}
    shown = await page.locator(".tile .figure").first.inner_text()
    print(
        f"{counts['ok'] / (time.monotonic() - began):.0f} runs a second, {counts['bad']} failed; the page says {shown}"
    )
    print(", ".join(f"{name} {grown:+.1f} MB since the first third" for name, grown in growth.items()))
    return counts["bad"] == 0 and all(growth[name] < most for name, most in MOST_GROWTH_MB.items())


async def measured(arguments: Any) -> bool:
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
            for name, at in (await painted(page, url)).items():
                print(f"{name:26} {at:6.0f} ms")
            is_steady = await watched(url, server.pid, page, arguments.rate, arguments.seconds)
            await browser.close()
        return is_steady
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=300)
    sys.exit(0 if asyncio.run(measured(parser.parse_args())) else 1)
