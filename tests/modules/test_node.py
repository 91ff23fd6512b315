"""node.wasm beyond compatibility with node: fetch, new state per run, limits, clear refusals."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import wasmtime
from harness import Guest


def answer(
    status: int = 200, body: bytes = b"{}", headers: dict[str, str] | None = None, url: str = "https://example.com/"
) -> str:
    return json.dumps({"status": status, "headers": headers or {}, "body": base64.b64encode(body).decode(), "url": url})


def test_version_and_help(node: Guest) -> None:
    assert node.run("--version").stdout.startswith("v")
    assert "Usage: node" in node.run("--help").stdout
    assert node.run("-p", "process.versions.quickjs").stdout.strip()


def test_fetch_sends_and_receives(node: Guest) -> None:
    seen = []

    def fetch(request: dict) -> tuple[int, str]:
        seen.append(request)
        return 0, answer(201, '{"a":"é"}'.encode(), {"Content-Type": "application/json"}, "https://example.com/end")

    code = """
    const r = await fetch('https://example.com/x?y=1', {method:'post', headers:{'X-A':'1'}, body: JSON.stringify({q:1})});
    console.log(r.status, r.ok, r.statusText, r.headers.get('content-type'), r.url, r.redirected, r instanceof Response);
    const copy = r.clone();
    console.log(await r.json(), (await copy.arrayBuffer()).byteLength, r.bodyUsed);
    await r.text().catch(e => console.log(e.name));
    """
    outcome = node.run("--input-type=module", "-e", code, fetch=fetch)
    assert (
        outcome.stdout
        == "201 true Created application/json https://example.com/end true true\n{ a: 'é' } 10 true\nTypeError\n"
    ), outcome.stderr
    [request] = seen
    assert request["method"] == "POST" and request["headers"]["x-a"] == "1" and request["follow_redirects"] is True
    assert base64.b64decode(request["body"]) == b'{"q":1}'


def test_fetch_binary_and_errors(node: Guest) -> None:
    def fetch(request: dict) -> tuple[int, str]:
        if "bad" in request["url"]:
            return 0, json.dumps({"error": {"code": "sandbox.fetch_failed", "message": "no such host"}})
        return 0, answer(404, bytes(range(256)))

    code = """
    const r = await fetch('http://a/');
    console.log(r.ok, [...new Uint8Array(await r.arrayBuffer())].every((b, i) => b === i));
    try { await fetch('http://bad/') } catch (e) { console.log(e instanceof TypeError, e.message, e.cause.code) }
    try { await fetch('not a url') } catch (e) { console.log(e.name) }
    """
    assert (
        node.run("--input-type=module", "-e", code, fetch=fetch).stdout
        == "false true\ntrue fetch failed: no such host sandbox.fetch_failed\nTypeError\n"
    )


def test_fetch_without_networking(node: Guest) -> None:
    outcome = node.run("-e", "fetch('http://example.com').catch(e => console.log(e instanceof TypeError, e.message))")
    assert outcome.stdout.startswith("true fetch failed: networking is disabled; pass fetch_policy")


def test_runs_share_nothing(node: Guest, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("here")
    first = node.run(
        "-p",
        "globalThis.x = 1; [Math.random(), crypto.randomUUID(), process.env.A, process.cwd()].join()",
        env={"A": "1"},
        work=tmp_path,
    )
    second = node.run("-p", "[Math.random(), crypto.randomUUID(), process.env.A, typeof x].join()", env={"A": "2"})
    assert first.stdout.split(",")[:2] != second.stdout.split(",")[:2]
    assert first.stdout.strip().split(",")[2:] == ["1", "/work"] and second.stdout.strip().split(",")[2:] == [
        "2",
        "undefined",
    ]
    assert node.run("-p", "require('fs').readFileSync('/work/f.txt','utf8')", work=tmp_path).stdout == "here\n"
    assert node.run("-p", "require('fs').existsSync('/work/f.txt')").stdout == "false\n"


def test_clock_is_read_per_run(node: Guest) -> None:
    assert int(node.run("-p", "Date.now()").stdout) > 1_600_000_000_000
    assert float(node.run("-p", "performance.now()").stdout) < 1000
    assert node.run("-e", "const t=Date.now();setTimeout(()=>console.log(Date.now()-t>=30),30)").stdout == "true\n"


@pytest.mark.parametrize("code", [0, 1, 42, 125, 126, 127, 130, 255])
def test_exit_codes_of_every_size(node: Guest, code: int) -> None:
    assert node.run("-e", f"process.exit({code})").code == code
    assert (
        node.run(
            "-e", f"setTimeout(()=>{{ try {{ process.exit({code}) }} catch {{ console.log('caught') }} }}, 1)"
        ).code
        == code
    )
    assert node.run("-e", f"process.exitCode={code}").code == code
    outcome = node.run(
        "-e", f"(async () => {{ await 1; process.exit({code}); }})(); setTimeout(()=>console.log('late'), 5)"
    )
    assert (outcome.code, outcome.stdout) == (code, "")


def test_uncaught_errors_look_like_nodes(node: Guest, tmp_path: Path) -> None:
    (tmp_path / "e.js").write_text("function f() {\n  throw new TypeError('boom')\n}\nf()\n")
    outcome = node.run("e.js", work=tmp_path)
    assert outcome.code == 1 and outcome.stdout == ""
    assert outcome.stderr.startswith("/work/e.js:2\n  throw new TypeError('boom')\n")
    assert "\nTypeError: boom\n    at f (/work/e.js:2:" in outcome.stderr
    assert "    at Object.<anonymous> (/work/e.js:4:" in outcome.stderr
    syntax = node.run("-e", "let x = ;")
    assert syntax.code == 1 and "SyntaxError" in syntax.stderr and "[eval]:1" in syntax.stderr


def test_refusals_are_clear(node: Guest) -> None:
    for code, words in {
        "require('child_process').execSync('ls')": "not available in this sandbox",
        "require('http')": "use fetch()",
        "require('left-pad')": "Cannot find module 'left-pad'",
    }.items():
        outcome = node.run("-e", code)
        assert outcome.code == 1 and words in outcome.stderr


def test_read_only_mount(node: Guest, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    outcome = node.run(
        "-e",
        "const fs=require('fs');console.log(fs.readFileSync('a','utf8'));try{fs.writeFileSync('b','b')}catch(e){console.log(e.code)}",
        work=tmp_path,
        writable=False,
    )
    assert outcome.stdout in ("a\nEPERM\n", "a\nEROFS\n", "a\nEACCES\n")
    assert not (tmp_path / "b").exists()


def test_no_escape_from_the_mount(node: Guest, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("secret")
    (work / "link").symlink_to("../secret")
    for name in ("../secret", "/work/../secret", "link", "/etc/passwd"):
        outcome = node.run(
            "-e",
            f"try{{console.log(require('fs').readFileSync({name!r},'utf8'))}}catch(e){{console.log(e.code)}}",
            work=work,
        )
        assert outcome.stdout.strip() in ("ENOENT", "EPERM", "EACCES")


def test_memory_limit_is_met_cleanly(node: Guest) -> None:
    with pytest.raises(wasmtime.Trap):
        node.run("-e", "const a=[];for(;;)a.push(new Uint8Array(1<<20))", memory_bytes=64 << 20)
    assert node.run("-e", "try{new ArrayBuffer(1<<30)}catch(e){console.log(e.name)}", memory_bytes=64 << 20).code == 0


def test_ten_million_steps(node: Guest) -> None:
    assert node.run("-e", "let s=0;for(let i=0;i<1e7;i++)s+=i;console.log(s)").stdout == "49999995000000\n"


@pytest.mark.parametrize(
    "code",
    [
        "function f(){f()};f()", "function m(){[1].map(m)};m()", "const o={get x(){return o.x}};o.x", "class A{constructor(){new A()}};new A", "function*g(){yield*g()};[...g()]",
        "function r(){'a'.replace(/a/,r)};r()", "const t={toString(){return ''+t}};''+t", "function b(){Reflect.apply(b,null,[])};b()", "const p=new Proxy({},{get(t,k,r){return r[k]}});p.z",
    ],
)  # fmt: skip
def test_recursion_is_a_range_error(node: Guest, code: str) -> None:
    outcome = node.run("-e", f"try{{{code}}}catch(e){{console.log(e.name)}}")
    assert outcome.stdout == "RangeError\n"


def test_more_stack_when_the_host_gives_it(node: Guest) -> None:
    count = "let d=0;function f(){d++;f()};try{f()}catch{};console.log(d, 'WARMCELL_WASM_STACK' in process.env)"
    small = node.run("-e", count, env={"WARMCELL_WASM_STACK": str(1 << 20)}).stdout.split()
    usual = node.run("-e", count).stdout.split()
    assert int(small[0]) < int(usual[0]) and small[1] == "false"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("console.log(await 1)", "1\n"),
        (
            "const os = require('os'); const { promises } = await import('fs'); console.log(typeof os.EOL, typeof promises)",
            "string object\n",
        ),
        ("for await (const x of [1, Promise.resolve(2)]) console.log(x)", "1\n2\n"),
        ("import path from 'path'; console.log(path.join('a', await 'b'))", "a/b\n"),
        ("await null; setTimeout(() => console.log('later'), 1); console.log(typeof require)", "function\nlater\n"),
        ("console.log(1); try { JSON.parse('{') } catch { console.log(await 2) }", "1\n2\n"),
    ],
)
def test_top_level_await(node: Guest, code: str, printed: str) -> None:
    assert (outcome := node.run("-e", code)).stdout == printed, outcome.stderr
    assert node.run("-", stdin=code).stdout == printed


def test_top_level_await_in_the_main_file_only(node: Guest, tmp_path: Path) -> None:
    (tmp_path / "main.js").write_text("const os = require('os'); console.log(await Promise.resolve(typeof os.EOL))")
    (tmp_path / "other.js").write_text("require('./main.js')")
    (tmp_path / "returns.js").write_text("console.log(1); return new Promise(() => {})")
    assert node.run("main.js", work=tmp_path).stdout == "string\n"
    assert "SyntaxError" in node.run("other.js", work=tmp_path).stderr
    outcome = node.run("returns.js", work=tmp_path)
    assert (outcome.code, outcome.stdout) == (0, "1\n")


def test_exit_status_of_top_level_await(node: Guest) -> None:
    assert node.run("-p", "const x = await 5; x * 2").stdout == "10\n"
    failed = node.run("-e", "await Promise.reject(new TypeError('late'))")
    assert (failed.code, "TypeError: late" in failed.stderr) == (1, True)
    assert node.run("-e", "await new Promise(() => {})").code == 13
    assert node.run("-e", "await 1; process.exitCode = 3").code == 3


@pytest.mark.parametrize("code", ["let x = ; await 1", "await 1; return 5", "console.log(1; await 2"])
def test_a_program_with_a_syntax_error_does_not_run_in_part(node: Guest, code: str) -> None:
    outcome = node.run("-e", f"console.log('begun');\n{code}")
    assert (outcome.code, outcome.stdout, "SyntaxError" in outcome.stderr) == (1, "", True)


def test_a_syntax_error_while_running_does_not_start_it_again(node: Guest) -> None:
    outcome = node.run("-e", "console.log('once'); JSON.parse('{')")
    assert (outcome.code, outcome.stdout) == (1, "once\n")


def test_the_user_is_that_of_the_process_cage(node: Guest) -> None:
    assert node.run("-p", "os.userInfo().username").stdout == "sandbox\n"
