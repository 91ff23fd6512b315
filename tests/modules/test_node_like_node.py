"""node.wasm against the real node: the same program, the same standard output and exit status."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness import Guest, need

# name -> arguments; files and stdin by the same name below
EVALUATED = {
    "print_sum": "1+1",
    "print_array": "[1,2,3].map(x=>x*2)",
    "print_string": "'a' + \"b\"",
    "hashes": '["md5","sha1","sha224","sha256","sha384","sha512"].map(a=>require("crypto").createHash(a).update("x".repeat(200)).digest("base64"))',
    "hash_empty": 'require("crypto").createHash("sha512").update("").digest("hex")',
    "hash_block_edges": '[55,56,63,64,111,112,127,128].map(n=>["md5","sha256","sha512"].map(a=>crypto.createHash(a).update("y".repeat(n)).digest("hex").slice(0,8)))',
    "hmac": 'crypto.createHmac("sha256","k").update("d").digest("hex")+crypto.pbkdf2Sync("p","s",10,40,"sha512").toString("hex")',
    "buffers": 'Buffer.from("héllo €").toString("base64")+Buffer.from("aGk","base64")+Buffer.from("ff00","hex").readUInt16BE(0)+atob("aGk=")+btoa("hi")',
    "buffer_methods": '[Buffer.concat([Buffer.from("a"),Buffer.from("b")]), Buffer.from([1,2,3]).slice(1), Buffer.alloc(3,"ab"), Buffer.byteLength("€"), Buffer.from("abc").indexOf("c"), JSON.stringify(Buffer.from("hi"))]',
    "globals_exist": "typeof process.hrtime.bigint()+typeof performance.now()+typeof fetch+typeof AbortController+process.platform",
    "paths": 'var s=require("path");[s.parse("/a/b.txt"),s.relative("/a/b/c","/a/d"),s.extname(".x"),s.basename("a/b.js",".js"),s.normalize("a//b/../c/"),s.dirname("/a"),s.join("/a","../..","b"),s.isAbsolute("x"),s.resolve("/a","b","../c")]',
    "modern_syntax": '[[1,2,3].at(-1), "a".replaceAll("a","b"), [..."añ"].length, 2**53, 0.1+0.2, 1e21, null ?? 5, ({a:1})?.b?.c, 10n**20n, [1,[2,[3]]].flat(Infinity), Object.fromEntries([["a",1]])]',
}

SCRIPTS = {
    "inspect_kinds": 'console.log(Object.create(null), Object.create({}), new (class A{}), new (class extends Map{}), [Symbol("x")], {[Symbol("a")]:1}, function(){}, ()=>{}, class Q extends Map{}, async function z(){},  [1,,3,,,], [undefined,null], -0, [1.5,"x\\ny"], new Proxy({a:1},{}), Math, JSON, new Date(0), Buffer.from("abc"), new Uint8Array(3), new Number(3), new String("abc"), {get a(){return 1}, set b(x){}}, Object.assign(()=>{}, {x:1}), [[[[1]]]], {a:{b:{c:{d:1}}}}, (function(){return arguments})(1,2), "x", ["x"])',
    "inspect_more": 'const p=Promise.resolve(5);console.log(p,Promise.reject(3).catch(()=>{}),new Promise(()=>{}),[true,null],new WeakMap(),Symbol.iterator,10n,[10n],new Map(),new Set([[1,2]]),[["a",1]],{a:[]},{a:{}},{"a-b":1,3:4},[function foo(){}],{f(){},g:class{}},new ArrayBuffer(4),new DataView(new ArrayBuffer(2)),[new Date(NaN)],/x/g,Object(1n),Object(Symbol("q")))',
    "inspect_layout": 'const a={x:1};a.self=a;console.log(a,new Map([["k",{v:[1,2,3]}],["z",new Set([1,"two"])]]),Array.from({length:120},(_, i)=>i),["apple","banana","cherry","dates","elderberry","fig","grape","honeydew"]);console.log([1.123,22.5,333,4,5,6,7,8,9]);console.log({a:"x".repeat(100),b:[{c:1,d:{e:{f:1}}}]}, new Error("x").message);console.log({users:[{id:1,name:"Ann",tags:["a","b"]},{id:2,name:"Bob",tags:[]}],total:2,meta:{page:1,next:null,when:new Date(1e12)}})',
    "inspect_nested_long": 'console.log(Array.from({length:12},(_,i)=>({id:i,label:"item "+i,children:[i,[i]]})), Array.from({length:8},(_,i)=>"word".repeat(i+1)))',
    "inspect_strings": 'console.log(["it\'s", \'say "x"\', "both \' and \\"", "tab\\t", "\\u0001", "é€😀", `multi\nline`], "it\'s"); console.log({s:"x".repeat(60)+"\\n"+"y".repeat(60)})',
    "inspect_errors": 'class Foo extends Error{};class BarError extends Error{};for(const e of [new Foo("x"),new BarError("y"),new TypeError("z")])console.log(require("util").inspect(e).split("\\n")[0]);const e=new Error("m");e.stack="Error: m";e.code="E1";console.log(e,[e],{e})',
    "format_directives": 'console.log("%s is %d years %i %f %j %o %O %%",  "Bob", 42.5, 42.9, "3.5", {a:1}, [1], {b:2}, "extra");console.log("%s %s", 1); console.log("100%", 5); console.log("%c styled", "color:red");console.log("%s", {a:{b:1}}, [1,[2,[3]]], null, undefined, Symbol("a"), 12n)',
    "tables": 'console.table([{a:1,b:"x"},{a:2,c:true}]);console.table([[1,2],[3,4]]);console.table(["x","y"]);console.table(new Map([["k",1]]));console.table({r:{c:1}});console.table(5);console.table([{a:1,b:2}],["b"])',
    "console_groups": 'console.group("G");console.log("a\\nb");console.groupEnd();console.count();console.count("x");console.count();console.dir({a:{b:{c:{d:1}}}},{depth:0});console.assert(1==2,"no");console.error("err")',
    "event_loop_order": 'setImmediate(()=>console.log("i"));process.nextTick(()=>console.log("n"));Promise.resolve().then(()=>console.log("p"));queueMicrotask(()=>console.log("m"));console.log("s");(async()=>{await null;console.log("a")})();setTimeout(()=>console.log("t"),500)',
    "ticks_between_timers": 'setTimeout(()=>{console.log(1);process.nextTick(()=>console.log("t"));Promise.resolve().then(()=>console.log("p"))},1);setTimeout(()=>console.log(2),1)',
    "interval": 'const i=setInterval(()=>{console.log("tick");if(++n==3)clearInterval(i)},1);let n=0',
    "exit_code_set": "process.exitCode=3",
    "exit_called": "process.exit(4);console.log('never')",
    "exit_in_promise": "Promise.resolve().then(()=>process.exit(5))",
    "thrown": 'throw new Error("x")',
    "thrown_string": 'throw "str"',
    "thrown_later": 'setTimeout(()=>{throw new TypeError("late")},1);setTimeout(()=>console.log("never"),20)',
    "rejected": 'Promise.reject(new Error("boo"))',
    "rejected_value": "Promise.reject(5)",
    "rejected_handled_late": 'const p=Promise.reject(1);p.catch(()=>console.log("ok"))',
    "exit_events": 'process.on("exit",c=>console.log("bye",c));process.on("uncaughtException",e=>console.log("caught",e.message));setTimeout(()=>console.log("later"),1);throw new Error("x")',
    "unhandled_event": 'process.on("unhandledRejection",e=>console.log("rej",e));Promise.reject(7)',
    "syntax_error": '"x y',
    "fs_walk": 'const fs=require("fs");fs.mkdirSync("a/b/c",{recursive:true});fs.writeFileSync("a/x.txt","hi");fs.appendFileSync("a/x.txt","!");console.log(fs.readFileSync("a/x.txt","utf8"),fs.readdirSync("a"),fs.readdirSync("a",{withFileTypes:true}).map(d=>[d.name,d.isDirectory()]),fs.statSync("a/x.txt").size,fs.existsSync("zz"));fs.renameSync("a/x.txt","a/y.txt");fs.copyFileSync("a/y.txt","a/z.txt");fs.symlinkSync("z.txt","a/l");console.log(fs.readlinkSync("a/l"),fs.lstatSync("a/l").isSymbolicLink(),fs.readFileSync("a/l")+"");fs.unlinkSync("a/l");fs.rmSync("a",{recursive:true});console.log(fs.readdirSync("."))',
    "fs_errors": 'const fs=require("fs");for(const f of [()=>fs.readFileSync("nope"),()=>fs.mkdirSync("q/w"),()=>fs.readdirSync("nope"),()=>fs.rmdirSync("nope"),()=>fs.unlinkSync("nope"),()=>fs.renameSync("nope","x"),()=>fs.statSync("nope"),()=>fs.readFileSync("."),()=>fs.readFileSync(undefined),()=>fs.copyFileSync("no","x")])try{f()}catch(e){console.log(e.name,e.code,e.message,e.errno,e.syscall,e.path)}',
    "fs_async": 'const fs=require("fs");fs.promises.readFile("nope").catch(e=>console.log(e.message));fs.promises.writeFile("w","1").then(()=>fs.readFile("w","utf8",(e,d)=>console.log(e,d)))',
    "fs_descriptors": 'const fs=require("fs");const d=fs.openSync("f","w+");fs.writeSync(d,"hello");const b=Buffer.alloc(3);console.log(fs.readSync(d,b,0,3,1),b+"");fs.ftruncateSync(d,2);fs.closeSync(d);console.log(fs.readFileSync("f","latin1"),fs.readdirSync("/").length>0)',
    "fs_streams": 'const fs=require("fs");const w=fs.createWriteStream("s");w.write("one\\n");w.end("two\\n",()=>{fs.createReadStream("s",{encoding:"utf8"}).on("data",c=>console.log(c)).on("end",()=>console.log("end"))})',
    "stdin_data": 'process.stdin.on("data",d=>console.log(String(d).length)).on("end",()=>console.log("end"))',
    "stdin_lines": '(async()=>{for await(const l of require("readline").createInterface({input:process.stdin}))console.log("L",l)})()',
    "stdin_iterate": '(async()=>{let s="";for await(const c of process.stdin)s+=c;console.log(s.length)})()',
    "stdin_readable": 'let s="";process.stdin.setEncoding("utf8");process.stdin.on("readable",()=>{let c;while((c=process.stdin.read())!==null)s+=c});process.stdin.on("end",()=>console.log(s))',
    "stdin_sync": 'console.log(require("fs").readFileSync(0,"utf8").split("\\n"))',
    "clone_and_text": 'console.log(structuredClone({a:new Date(0),m:new Map([[1,{x:1}]]),s:new Set([1]),b:new Uint8Array(2)}), new TextDecoder().decode(new TextEncoder().encode("é")));try{structuredClone(()=>1)}catch(e){console.log(e.name,e.code)}',
    "asserts": 'const a=require("assert");try{a.strictEqual(1,2)}catch(e){console.log(e.message,e.code)};try{a.deepStrictEqual({a:1,b:[1,2]},{a:1,b:[1,3]})}catch(e){console.log(e.message)};a.throws(()=>{throw new TypeError("x")},TypeError);try{a(0)}catch(e){console.log(e.name)};try{a.equal(1,2,"msg")}catch(e){console.log(e.message)};a.deepEqual(new Map([[{a:1},1]]),new Map([[{a:1},1]]));a.rejects(Promise.reject(new Error("q")),/q/).then(()=>console.log("ok"))',
    "emitters": 'const E=require("events");class A extends E{};const a=new A();a.on("x",(...v)=>console.log(v));a.once("x",()=>console.log("once"));a.emit("x",1,2);a.emit("x",3);console.log(a.listenerCount("x"),a.eventNames());try{a.emit("error",new Error("e"))}catch(e){console.log(e.message)}',
    "utilities": 'const u=require("util");console.log(u.inspect({a:{b:{c:{d:1}}}},{depth:0}),u.inspect({a:{b:{c:{d:1}}}},false,null),u.format("%s",{a:{b:{c:1}}}),u.isDeepStrictEqual({a:[1]},{a:[1]}),u.types.isDate(new Date()),u.inspect("a\'b"),u.inspect(new Map([[{a:1},"b"]]),{compact:false}));u.promisify(setTimeout)(1).then(()=>console.log("done"))',
    "urls": 'let u=new URL("https://u:p@Example.com:8080/a/../b c?x=1&y=2#h");u.searchParams.append("z","ü ");console.log(u.href,u);console.log(new URL("../x?y","http://a.b/c/d/e"), [...new URLSearchParams("a=1&b=%20")]);for(const t of ["http://0x7f.1/","http://a.b:80/","HTTP://EX.com","file:///a/b","mailto:x@y","nope","http://a b/"])try{console.log(new URL(t).href)}catch(e){console.log(e.name,e.code,e.message)}',
    "error_class": 'class MyErr extends Error{constructor(m){super(m);this.name="MyErr";this.extra=1}};try{throw new MyErr("q")}catch(e){console.log(e.stack.split("\\n")[0],String(e),e instanceof MyErr,Object.keys(e))}',
    "deep_recursion": "function f(n){return n?f(n-1)+1:0};console.log(f(1500));try{(function g(){g()})()}catch(e){console.log(e instanceof RangeError,e.message)}",
    "top_level_in_eval": "var x=1;let y=2;console.log(x+y, typeof require, typeof module, __filename)",
    "circular_json": "const a={};a.a=a;try{JSON.stringify(a)}catch(e){console.log(e.name)}",
    "dates_utc": 'console.log(new Date(Date.UTC(2024,1,29)).toISOString(),new Date("2024-02-29T12:00:00Z").getTime(),JSON.stringify(new Date(0)))',
}

STDIN = {name: "hello\nworld" for name in SCRIPTS if name.startswith("stdin")}

FILES = {
    "commonjs": (
        ["f.js", "a", "b"],
        {
            "f.js": 'const x=require("./lib/x");console.log(x.y,process.argv.slice(2),__filename.endsWith("f.js"),require.main===module,require("./d.json"),require("pkg"),require("./dir"))',
            "lib/x.js": 'exports.y=require("../z")+1',
            "z.js": "module.exports=41",
            "d.json": '{"a":[1]}',
            "node_modules/pkg/package.json": '{"main":"m.js"}',
            "node_modules/pkg/m.js": 'module.exports="pkg"',
            "dir/index.js": 'module.exports="index"',
        },
    ),
    "cycle": (["a.js"], {"a.js": 'exports.x=1;const b=require("./b");console.log(b.y);exports.z=2', "b.js": 'const a=require("./a");exports.y=a.x+1'}),
    "modules": (
        ["m.mjs"],
        {
            "m.mjs": 'import fs,{readFileSync} from "node:fs";import {y} from "./y.mjs";import z from "./c.cjs";import d from "./y.mjs";console.log(readFileSync===fs.readFileSync,y,z,d,import.meta.url.slice(0,5));const q=await import("./y.mjs");console.log(q);export {}',
            "y.mjs": 'export const y=5;export default "d"',
            "c.cjs": "module.exports={a:1}",
        },
    ),
    "type_module": (["m.js"], {"package.json": '{"type":"module"}', "m.js": 'import {a} from "./a.js";console.log(a,typeof require)', "a.js": "export const a=[1]"}),
    "hashbang": (["h.js"], {"h.js": "#!/usr/bin/env node\nconsole.log(__dirname.length>0)"}),
    "dynamic_import": (["d.js"], {"d.js": 'import("./e.mjs").then(m=>console.log(m.default))', "e.mjs": "export default 9"}),
    "missing": (["nope.js"], {}),
    "missing_require": (["r.js"], {"r.js": 'try{require("./no")}catch(e){console.log(e.code,e.message.split("\\n")[0])}'}),
    "missing_import": (["r.mjs"], {"r.mjs": 'import("./no.mjs").catch(e=>console.log(e.code))'}),
    "bad_json": (["r.js"], {"r.js": 'try{require("./b.json")}catch(e){console.log(e.name)}', "b.json": "{"}),
    "module_eval": (["--input-type=module", "-e", 'import os from "os";import {join} from "path";console.log(typeof os.EOL,join("a","..","b"));await 1;console.log(2)'], {}),
    "eval_arguments": (["-e", "console.log(process.argv.slice(1))", "a", "b"], {}),
    "script_on_stdin": (["-"], {}),
    "bad_option": (["--definitely-not"], {}),
}  # fmt: skip


def compare(node: Guest, arguments: list[str], folder: Path, stdin: str = "") -> None:
    real_folder, our_folder = folder / "real", folder / "ours"
    real = subprocess.run(
        [need("node"), *arguments],
        cwd=real_folder,
        input=stdin,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/"},
    )
    ours = node.run(*arguments, stdin=stdin, work=our_folder)
    assert ours.stdout == real.stdout, ours.stderr
    assert ours.code == real.returncode, ours.stderr
    assert bool(ours.stderr) == bool(real.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("real", "ours"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("name", EVALUATED)
def test_print(node: Guest, folder: Path, name: str) -> None:
    compare(node, ["-p", EVALUATED[name]], folder)


@pytest.mark.parametrize("name", SCRIPTS)
def test_eval(node: Guest, folder: Path, name: str) -> None:
    compare(node, ["-e", SCRIPTS[name]], folder, STDIN.get(name, ""))


@pytest.mark.parametrize("name", FILES)
def test_files(node: Guest, folder: Path, name: str) -> None:
    arguments, files = FILES[name]
    for side in ("real", "ours"):
        for path, text in files.items():
            target = folder / side / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    compare(node, arguments, folder, "console.log(require('fs').existsSync('/'))" if name == "script_on_stdin" else "")
