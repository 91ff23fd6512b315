"""Every language meets its limits: time, memory, output, a crash. All of them at once, as a judge would run them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.helpers import require

from warmcell import ExecRequest, ExecutionTimeout, MemoryExceeded, Outcome, ProcessBackend, ProcessConfig
from warmcell.backends.many import run_many
from warmcell.languages.registry import why_missing
from warmcell.languages.table import ROWS

pytestmark = pytest.mark.needs("user namespaces")
CONFIG = ProcessConfig(pool_size=0, pool_min=0)

#: Each does what its first argument says: spin, grow, flood (3 MB), or end with status 7.
OBEDIENT = {
    "python": """
import sys
word, held = sys.argv[1], []
while word == "spin": pass
while word == "grow": held.append(bytearray(1 << 20))
if word == "flood": print("x" * 3000000)
sys.exit(7 if word == "fail" else 0)
""",
    "javascript": """
const word = process.argv[2], held = [];
while (word === "spin") {}
while (word === "grow") held.push(Buffer.alloc(1 << 20, 1));
if (word === "flood") process.stdout.write("x".repeat(3000000));
process.exitCode = word === "fail" ? 7 : 0;
""",
    "typescript": """
const word: string = process.argv[2], held: Buffer[] = [];
while (word === "spin") {}
while (word === "grow") held.push(Buffer.alloc(1 << 20, 1));
if (word === "flood") process.stdout.write("x".repeat(3000000));
process.exitCode = word === "fail" ? 7 : 0;
""",
    "rust": """
fn main() {
    let word = std::env::args().nth(1).unwrap();
    let mut held: Vec<Vec<u8>> = Vec::new();
    while word == "spin" {}
    while word == "grow" { held.push(vec![1u8; 1 << 20]); }
    if word == "flood" { print!("{}", "x".repeat(3000000)); }
    std::process::exit(if word == "fail" { 7 } else { 0 })
}
""",
    "command": """
case $1 in
spin) while :; do :; done ;;
grow) held=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#held} ;;
flood) head -c 3000000 /dev/zero | tr '\\0' x ;;
fail) exit 7 ;;
esac
""",
    "c": """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **v) {
    for (volatile long i = 0; !strcmp(v[1], "spin"); i++) {}
    while (!strcmp(v[1], "grow")) { volatile char *p = malloc(1 << 20); for (int i = 0; i < 1 << 20; i += 4096) p[i] = 1; }
    if (!strcmp(v[1], "flood")) for (int i = 0; i < 3000000; i++) putchar('x');
    return strcmp(v[1], "fail") ? 0 : 7;
}
""",
    "cpp": """
#include <iostream>
#include <string>
#include <vector>
int main(int, char **v) {
    std::string word = v[1];
    std::vector<std::string> held;
    for (volatile long i = 0; word == "spin"; i++) {}
    while (word == "grow") held.push_back(std::string(1 << 20, 'x'));
    if (word == "flood") std::cout << std::string(3000000, 'x');
    return word == "fail" ? 7 : 0;
}
""",
    "go": """
package main
import ("fmt"; "os"; "strings")
func main() {
    word, held := os.Args[1], [][]byte{}
    for word == "spin" {}
    for word == "grow" { b := make([]byte, 1 << 20); for i := range b { b[i] = 1 }; held = append(held, b) }
    if word == "flood" { fmt.Print(strings.Repeat("x", 3000000)) }
    if word == "fail" { os.Exit(7) }
}
""",
    "java": """
import java.util.*;
class Anything {
    public static void main(String[] a) {
        List<byte[]> held = new ArrayList<>();
        while (a[0].equals("spin")) {}
        while (a[0].equals("grow")) held.add(new byte[1 << 20]);
        if (a[0].equals("flood")) System.out.print("x".repeat(3000000));
        System.exit(a[0].equals("fail") ? 7 : 0);
    }
}
""",
    "ruby": """
word, held = ARGV[0], []
while word == "spin"; end
held << "x" * (1 << 20) while word == "grow"
print "x" * 3000000 if word == "flood"
exit(word == "fail" ? 7 : 0)
""",
    "php": """<?php
$word = $argv[1]; $held = [];
while ($word == "spin") {}
while ($word == "grow") $held[] = str_repeat(chr(count($held) % 256), 1 << 20);
if ($word == "flood") echo str_repeat("x", 3000000);
exit($word == "fail" ? 7 : 0);
""",
    "perl": """
my ($word, @held) = @ARGV;
while ($word eq "spin") {}
push @held, "x" x (1 << 20) while $word eq "grow";
print "x" x 3000000 if $word eq "flood";
exit($word eq "fail" ? 7 : 0);
""",
    "lua": """
local word, held = arg[1], {}
while word == "spin" do end
while word == "grow" do held[#held + 1] = string.rep(string.char(#held % 256), 1 << 20) end
if word == "flood" then io.write(string.rep("x", 3000000)) end
os.exit(word == "fail" and 7 or 0)
""",
    "r": """
word <- commandArgs(TRUE)[1]; held <- list()
while (word == "spin") {}
while (word == "grow") held[[length(held) + 1]] <- rep(1.5, 131072)
if (word == "flood") cat(strrep("x", 3000000))
quit(status = if (word == "fail") 7 else 0)
""",
}


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[tuple[str, str], Outcome]]:
    """Every language and word: what came of it."""
    names = [name for name in OBEDIENT if why_missing(name, CONFIG) is None]
    with ProcessBackend(CONFIG) as backend:
        yield asyncio.run(_all_outcomes(backend, names))


async def _all_outcomes(backend: ProcessBackend, names: list[str]) -> dict[tuple[str, str], Outcome]:
    requests = [ExecRequest(name, OBEDIENT[name], 60, memory_limit_mb=128) for name in names]
    programs = dict(zip(names, await asyncio.gather(*map(backend.build, requests)), strict=True))
    asked = [(name, word) for name in names for word in ("fail", "flood", "grow", "spin")]

    async def execute(request: ExecRequest) -> object:
        timeout = 0.4 if request.args == ("spin",) else 60.0
        return await programs[str(request.language)].run("", request.args, timeout)

    runs = [ExecRequest(name, "x", 60, args=[word]) for name, word in asked]
    return {asked[outcome.index]: outcome async for outcome in run_many(execute, runs)}  # type: ignore[arg-type]


def test_every_language_with_arguments_is_here() -> None:
    assert sorted([*OBEDIENT, "sql"]) == sorted(row.name for row in ROWS if row.backend == "process")


@pytest.mark.parametrize("language", list(OBEDIENT))
def test_it_meets_its_limits(outcomes: dict[tuple[str, str], Outcome], language: str) -> None:
    require((language, "fail") in outcomes, f"{language} is not installed")
    failed, flooded, grown, spun = (outcomes[language, word] for word in ("fail", "flood", "grow", "spin"))
    assert failed.result is not None and failed.result.exit_code == 7, failed
    assert flooded.result is not None and flooded.result.ok and flooded.result.stdout_truncated
    assert len(flooded.result.stdout_bytes) == 1 << 20
    # Some have a limit of their own that they meet first, and say so.
    assert isinstance(grown.error, MemoryExceeded) or (grown.result is not None and not grown.result.ok), grown
    assert isinstance(spun.error, ExecutionTimeout) and spun.error.fault == "guest"
