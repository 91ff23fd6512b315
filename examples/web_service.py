"""A web service that runs users' code: one endpoint, strict limits, and a full house is a 503 with Retry-After.

    pip install 'warmcell[serve]'
    python examples/web_service.py --port 8080
    curl --json '{"language": "python", "code": "print(6*7)"}' http://127.0.0.1:8080/run

`--demo` starts it on a free port, sends three requests and stops. Without an application of your own, `warmcell serve`
has all of this and more; this file shows how to put a backend into an application that you have already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from warmcell import BackendBusy, ExecRequest, ExecutionTimeout, InvalidRequest, Limits, MemoryExceeded, ProcessBackend

LANGUAGES = ("python", "javascript", "command")
TIMEOUT, MEMORY_MB = 2, 256
LIMITS = Limits(processes=32, disk_mb=64, output_bytes=64 * 1024)
DEMO = (
    {"language": "python", "code": "print(6*7)"},
    {"language": "python", "code": "import socket; socket.create_connection(('192.0.2.1', 80), 2)"},
    {"language": "python", "code": "while True: pass"},
)


async def run(request: Request) -> JSONResponse:
    try:
        asked = await request.json()
        language, code = asked["language"], asked["code"]
        if language not in LANGUAGES:
            raise ValueError
        wanted = ExecRequest(language, code, TIMEOUT, memory_limit_mb=MEMORY_MB, limits=LIMITS)
    except (ValueError, KeyError, TypeError, InvalidRequest):
        return JSONResponse({"error": f"send a language of {', '.join(LANGUAGES)} and code"}, status_code=400)
    try:
        result = await request.app.state.backend.execute(wanted)
    except (ExecutionTimeout, MemoryExceeded) as error:
        printed = error.result.stdout if error.result else ""
        return JSONResponse({"status": error.code, "stdout": printed, "stderr": error.message})
    except BackendBusy as error:
        return JSONResponse({"error": error.message}, status_code=503, headers={"Retry-After": "1"})
    answer = {"status": "success", "stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code}
    return JSONResponse(answer | {"denied": [denial.what for denial in result.denials]})


@asynccontextmanager
async def keep_backend(app: Starlette) -> AsyncIterator[None]:
    """One backend for all requests: its cells are warm, and it ends with the application."""
    async with ProcessBackend() as backend:
        app.state.backend = backend
        yield


app = Starlette(routes=[Route("/run", run, methods=["POST"])], lifespan=keep_backend)


def post(url: str, body: dict[str, str]) -> str:
    request = HttpRequest(f"{url}/run", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as response:
        return str(json.load(response))


async def demo() -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    for body in DEMO:
        print(await asyncio.to_thread(post, f"http://127.0.0.1:{port}", body))
    server.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs users' code.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--demo", action="store_true")
    chosen = parser.parse_args()
    if chosen.demo:
        asyncio.run(demo())
    else:
        uvicorn.run(app, port=chosen.port)
