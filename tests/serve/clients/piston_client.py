"""A client for Piston, unmodified, against a server of ours. Run by scripts/test-clients, with its URL."""

import asyncio
import sys
from importlib.metadata import version

import piston_rspy


async def main(url: str) -> None:
    client = piston_rspy.Client.with_url(url)
    runtimes = await client.fetch_runtimes()
    python = next(runtime for runtime in runtimes if runtime.language == "python")
    assert "py" in python.aliases and python.version, python

    async def run(code: str, **more: object) -> piston_rspy.ExecResponse:
        file = piston_rspy.File(name="main.py", content=code)
        return await client.execute(piston_rspy.Executor(language="py", version="*", files=[file], **more))

    answer = await run("import sys; print(sys.argv[1:], input())", stdin="typed", args=["a", "b c"])
    assert (answer.language, answer.version) == ("python", python.version), answer
    assert answer.run.stdout == "['a', 'b c'] typed\n" and answer.run.code == 0 and not answer.run.stderr, answer.run
    failed = await run("raise SystemExit(3)")
    assert failed.run.code == 3 and not failed.is_err(), failed
    late = await run("import time; print(1, flush=True); time.sleep(60)", run_timeout=1000)
    assert late.run.signal == "SIGKILL" and late.run.stdout == "1\n", late.run
    no_language = piston_rspy.Executor(language="no such", version="*", files=[piston_rspy.File(content="1")])
    wrong = await client.execute(no_language)
    assert wrong.is_err() and "no such" in str(wrong.run), wrong
    print(f"piston-rspy {version('piston-rspy')}: ok")


asyncio.run(main(f"{sys.argv[1]}/api/v2"))
