"""SandboxFusion's own client against a server of ours: `python fusion_client.py URL`. Run by scripts/test-clients."""

from __future__ import annotations

import asyncio
import sys

from sandbox_fusion import RunCodeRequest, RunStatus, SummaryMapping, run_code, run_code_async, run_concurrent
from sandbox_fusion import summary_run_code_result as summary


def main(url: str) -> None:
    mapping = SummaryMapping(
        Success="ok", CompileFailed="compile", CompileTimeout="compile time", RunFailed="run", RunTimeout="time"
    )

    def ran(code: str, language: str = "python", **more: object) -> str:
        request = RunCodeRequest(code=code, language=language, **more)
        found = run_code(request, endpoint=url, max_attempts=1, client_timeout=60)
        return str(summary(found, mapping))

    assert ran("print(1)") == "ok"
    assert ran("1/0") == "run"
    assert ran("while True: pass", run_timeout=1) == "time"
    assert ran("int main() { return 0; }", "cpp", compile_timeout=60) == "ok"
    assert ran("int main() { return x; }", "cpp", compile_timeout=60) == "compile"
    assert ran("echo $((6*7))", "bash") == "ok"
    assert ran("console.log(1)", "nodejs") == "ok"

    request = RunCodeRequest(code="print(input())", language="python", stdin="hi", files={"a": "AA=="})
    found = asyncio.run(run_code_async(request, endpoint=url, max_attempts=1))
    assert (found.status, found.run_result.stdout) == (RunStatus.Success, "hi\n")

    requests = [RunCodeRequest(code=f"print({number})", language="python", run_timeout=60) for number in range(100)]
    arguments = [[request, url] for request in requests]
    answers = run_concurrent(run_code, args=arguments, concurrency=32)
    assert [answer.run_result.stdout for answer in answers] == [f"{number}\n" for number in range(100)]
    print("sandbox_fusion: ok")


main(sys.argv[1])
