"""E2B's code interpreter SDK, asynchronous and unmodified: what its own tests ask of cells in Python, bash, JavaScript and
TypeScript, in our words since no package carries them. Run by scripts/test-e2b.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from e2b import InvalidArgumentException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox

PATIENCE = 60
#: Of each language: something that says its directory, sleeps, fails, keeps and gives back a variable.
LANGUAGES = {
    "python": ("import os; print(os.getcwd())", "import time; time.sleep(60)", "1 / 0", "kept = 7", "print(kept)"),
    "bash": ("pwd", "sleep 60", "nothing-of-this-name", "kept=7", "echo $kept"),
    "javascript": (
        "console.log(process.cwd())",
        "await new Promise(r => setTimeout(r, 60000))",
        "nothing.here",
        "let kept = 7",
        "console.log(kept)",
    ),
    "typescript": (
        "console.log(process.cwd())",
        "await new Promise<void>(r => setTimeout(r, 60000))",
        "nothing.here",
        "let kept: number = 7",
        "console.log(kept)",
    ),
}
in_every_language = pytest.mark.parametrize("language", LANGUAGES)


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(timeout=300, envs={"FOO": "bar", "SBX": "value"})
    yield made
    await made.kill()


@pytest.fixture
def run(sandbox: AsyncSandbox) -> Any:
    async def ran(code: str, **more: Any) -> Any:
        try:
            return await sandbox.run_code(code, **more)
        except SandboxException as error:
            if more.get("language") == "typescript" and "TypeScript needs" in str(error):
                pytest.skip("needs a Node.js 22.18 or newer that guests can see")
            raise

    return ran


@in_every_language
async def test_cells_remember_and_say_what_they_say(run: Any, language: str) -> None:
    _, _, _, keep, give = LANGUAGES[language]
    assert (await run(keep, language=language)).error is None
    heard: list[str] = []
    said = await run(give, language=language, on_stdout=lambda message: heard.append(message.line))
    assert said.logs.stdout == heard == ["7\n"] and said.logs.stderr == []


@in_every_language
async def test_a_directory_is_the_contexts_own(sandbox: AsyncSandbox, run: Any, language: str) -> None:
    where = LANGUAGES[language][0]
    assert (await run(where, language=language)).logs.stdout == ["/home/user\n"]
    context = await sandbox.create_code_context(cwd="/tmp", language=language)
    assert (context.cwd, context.language) == ("/tmp", language)
    assert (await run(where, context=context)).logs.stdout == ["/tmp\n"]


@in_every_language
async def test_a_cell_past_its_time_leaves_the_next_one_alone(run: Any, language: str) -> None:
    _, sleep, _, keep, give = LANGUAGES[language]
    await run(keep, language=language)
    with pytest.raises(TimeoutException):
        await run(sleep, language=language, timeout=2)
    began = time.monotonic()
    after = await run(give, language=language, timeout=PATIENCE)
    assert time.monotonic() - began < 60 and (after.error is not None or after.logs.stdout in (["7\n"], ["\n"]))


@in_every_language
async def test_a_mistake_is_the_cells_and_not_the_sandboxs(run: Any, language: str) -> None:
    wrong, give = LANGUAGES[language][2], LANGUAGES[language][4]
    errors: list[Any] = []
    failed = await run(wrong, language=language, on_error=errors.append)
    expected = {"python": "ZeroDivisionError", "bash": "not found"}.get(language, "ReferenceError")
    assert expected in failed.error.name + "".join(failed.logs.stderr)
    assert [error.name for error in errors] == [failed.error.name]
    assert (await run(give.replace("kept", "'fine'"), language=language)).logs.stdout == ["fine\n"]


async def test_variables_of_a_cell_are_undone_and_those_that_it_sets_stay(run: Any) -> None:
    await run("import os; os.environ['FOO'] = 'set'; os.environ['RUNTIME'] = 'kept'")
    assert (await run("os.getenv('FOO')", envs={"FOO": "baz"})).text == "baz"
    found = await run("[os.getenv(name) for name in ('RUNTIME', 'SBX')]")
    assert found.text == "['kept', 'value']"
    assert (await run("os.getenv('FOO')")).text in ("set", "bar")


async def test_contexts_by_their_ids(sandbox: AsyncSandbox, run: Any) -> None:
    context = await sandbox.create_code_context()
    assert (await sandbox.list_code_contexts())[-1].id == context.id
    await run("x = 1", context=context)
    assert (await run("x", context=context)).text == "1"
    assert (await run("x")).error.name == "NameError"
    await sandbox.restart_code_context(context.id)
    assert (await run("x", context=context)).error.name == "NameError"
    assert (await run("1", context=context)).execution_count == 2
    await sandbox.remove_code_context(context.id)
    with pytest.raises(SandboxException):
        await run("x", context=context)
    with pytest.raises(SandboxException):
        await sandbox.remove_code_context(context.id)


async def test_a_context_and_a_language_are_one_too_many(sandbox: AsyncSandbox) -> None:
    context = await sandbox.create_code_context()
    with pytest.raises((InvalidArgumentException, SandboxException)):
        await sandbox.run_code("1", context=context, language="python")
    with pytest.raises(SandboxException):
        await sandbox.run_code("1", language="klingon")


async def test_output_comes_while_the_cell_runs(sandbox: AsyncSandbox, run: Any) -> None:
    heard: list[str] = []
    answers: list[asyncio.Future[Any]] = []

    def answer(message: Any) -> None:
        heard.append(message.line)
        answers.append(asyncio.ensure_future(sandbox.files.write("/tmp/received", "")))

    code = "import os, time\nprint('begun', flush=True)\nfor _ in range(300):\n"
    code += "    if os.path.exists('/tmp/received'): break\n    time.sleep(0.1)\nprint(os.path.exists('/tmp/received'))"
    done = await run(code, on_stdout=answer)
    await asyncio.gather(*answers)
    assert heard == done.logs.stdout == ["begun\n", "True\n"]


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("html", "'<b>h</b>'", "html"),
        ("markdown", "'# m'", "markdown"),
        ("svg", "'<svg/>'", "svg"),
        ("latex", "'$x$'", "latex"),
        ("javascript", "'alert(1)'", "javascript"),
        ("json", "{'a': [1]}", "json"),
        ("png", "b'png'", "png"),
        ("jpeg", "b'jpeg'", "jpeg"),
        ("pdf", "b'pdf'", "pdf"),
    ],
)
async def test_what_a_thing_shows_itself_as(run: Any, kind: str, body: str, field: str) -> None:
    results: list[Any] = []
    code = f"class Shown:\n    def _repr_{kind}_(self): return {body}\n    def __repr__(self): return 'plain'\nShown()"
    done = await run(code, on_result=results.append)
    assert len(results) == len(done.results) == 1 and done.results[0].is_main_result
    assert getattr(done.results[0], field) and set(done.results[0].formats()) == {"text", field}
    assert done.text == "plain"


async def test_displays_come_before_the_result(run: Any) -> None:
    code = "from IPython.display import display, HTML\ndisplay(HTML('<i>1</i>'))\ndisplay('two')\n3"
    done = await run(code)
    assert [result.is_main_result for result in done.results] == [False, False, True]
    assert done.results[0].html == "<i>1</i>" and done.text == "3"


async def test_counts_go_up_by_one_also_after_mistakes(run: Any) -> None:
    counts = [(await run(code)).execution_count for code in ("1", "1 / 0", "print(1)", "x = 1")]
    assert counts == [*range(counts[0], counts[0] + 4)]


async def test_another_client_finds_what_this_one_left(sandbox: AsyncSandbox, run: Any) -> None:
    await run("left = 'here'")
    other = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert (await other.run_code("left")).text == "here"


async def test_cells_of_two_contexts_run_at_once(sandbox: AsyncSandbox) -> None:
    contexts = [await sandbox.create_code_context() for _ in range(2)]
    met = "import os, time\nopen('/tmp/{0}', 'w').close()\nfor _ in range(300):\n"
    met += "    if os.path.exists('/tmp/{1}'): break\n    time.sleep(0.1)\nos.path.exists('/tmp/{1}')"
    both = await asyncio.gather(
        sandbox.run_code(met.format("a", "b"), context=contexts[0]),
        sandbox.run_code(met.format("b", "a"), context=contexts[1]),
    )
    assert [done.text for done in both] == ["True", "True"]


async def test_much_output_is_all_there(run: Any) -> None:
    done = await run("for number in range(20_000): print(number)")
    assert "".join(done.logs.stdout) == "".join(f"{number}\n" for number in range(20_000))


async def test_input_is_at_its_end_and_leaving_is_the_cells_error(run: Any) -> None:
    assert (await run("input()")).error.name in ("EOFError", "StdinNotImplementedError")
    assert (await run("raise SystemExit(3)")).error.name == "SystemExit"
    assert (await run("1 + 1")).text == "2"
