"""Little programs in every language, which the contract and escape suites run: a new language joins them by its row here."""

from __future__ import annotations

from dataclasses import dataclass

from tests.helpers import require

from warmcell.languages.config import ProcessConfig
from warmcell.languages.registry import why_missing


@dataclass(frozen=True)
class Programs:
    #: Prints "hello " and its first line of input, and ends with `status`.
    greets: str
    #: Is none, about which compiler or interpreter says the `complaint`.
    mistake: str
    complaint: str
    #: Prints the file that its first argument names.
    reads: str
    #: Does what its first argument says: `spin` and `grow` without end, `flood` (3 MB on stdout), `crash`.
    obeys: str
    status: int = 3


#: SQL has no arguments and no status, and takes from its input what others get by argument.
PROGRAMS = {
    "python": Programs(
        greets="print('hello', input()); raise SystemExit(3)",
        mistake="print(",
        complaint="SyntaxError",
        reads="import sys; print(open(sys.argv[1]).read())",
        obeys="""
import sys
word, held = sys.argv[1], []
while word == "spin": pass
while word == "grow": held.append(bytearray(1 << 20))
if word == "flood": print("x" * 3000000)
if word == "crash": raise KeyError(word)
""",
    ),
    "javascript": Programs(
        greets="""
process.stdout.write('hello ' + require('fs').readFileSync(0, 'utf8'));
process.exitCode = 3;
""",
        mistake="let = ;",
        complaint="SyntaxError",
        reads="console.log(require('fs').readFileSync(process.argv[2], 'utf8'))",
        obeys="""
const word = process.argv[2], held = [];
while (word === "spin") {}
while (word === "grow") held.push(Buffer.alloc(1 << 20, 1));
if (word === "flood") process.stdout.write("x".repeat(3000000));
if (word === "crash") throw new Error(word);
""",
    ),
    "typescript": Programs(
        greets="""
const text: string = require('fs').readFileSync(0, 'utf8');
process.stdout.write('hello ' + text);
process.exitCode = 3;
""",
        mistake="let x: = 1;",
        complaint="SyntaxError",
        reads="const path: string = process.argv[2]; console.log(require('fs').readFileSync(path, 'utf8'))",
        obeys="""
const word: string = process.argv[2], held: Buffer[] = [];
while (word === "spin") {}
while (word === "grow") held.push(Buffer.alloc(1 << 20, 1));
if (word === "flood") process.stdout.write("x".repeat(3000000));
if (word === "crash") throw new Error(word);
""",
    ),
    "rust": Programs(
        greets="""
fn main() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    print!("hello {line}");
    std::process::exit(3)
}
""",
        mistake="fn main() { x }",
        complaint="cannot find value",
        reads="""
fn main() { print!("{}", std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap()) }
""",
        obeys="""
fn main() {
    let word = std::env::args().nth(1).unwrap();
    let mut held: Vec<Vec<u8>> = Vec::new();
    while word == "spin" {}
    while word == "grow" { held.push(vec![1u8; 1 << 20]); }
    if word == "flood" { print!("{}", "x".repeat(3000000)); }
    if word == "crash" { panic!("{word}"); }
}
""",
    ),
    "command": Programs(
        greets="read -r line; echo hello $line; exit 3",
        mistake="if",
        complaint="syntax error",
        reads='cat "$1"',
        obeys="""
case $1 in
spin) while :; do :; done ;;
grow) held=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#held} ;;
flood) head -c 3000000 /dev/zero | tr '\\0' x ;;
crash) kill -SEGV $$ ;;
esac
""",
    ),
    "c": Programs(
        greets="""
#include <stdio.h>
int main(void) { char b[99]; fgets(b, 99, stdin); printf("hello %s", b); return 3; }
""",
        mistake="int main(void) { return x; }",
        complaint="main.c:1:",
        reads="""
#include <stdio.h>
int main(int n, char **v) {
    FILE *f = fopen(v[1], "r");
    for (int c; f && (c = getc(f)) != EOF;) putchar(c);
}
""",
        obeys="""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **v) {
    for (volatile long i = 0; !strcmp(v[1], "spin"); i++) {}
    while (!strcmp(v[1], "grow")) memset(malloc(1 << 20), v[1][0], 1 << 20);
    if (!strcmp(v[1], "flood")) for (int i = 0; i < 3000000; i++) putchar('x');
    if (!strcmp(v[1], "crash")) abort();
}
""",
    ),
    "cpp": Programs(
        greets="""
#include <iostream>
#include <string>
int main() { std::string s; std::getline(std::cin, s); std::cout << "hello " << s << std::endl; return 3; }
""",
        mistake="int main() { return x; }",
        complaint="main.cpp:1:",
        reads="""
#include <fstream>
#include <iostream>
int main(int, char **v) { std::cout << std::ifstream(v[1]).rdbuf(); }
""",
        obeys="""
#include <iostream>
#include <string>
#include <vector>
int main(int, char **v) {
    std::string word = v[1];
    std::vector<std::string> held;
    for (volatile long i = 0; word == "spin"; i++) {}
    while (word == "grow") held.push_back(std::string(1 << 20, 'x'));
    if (word == "flood") std::cout << std::string(3000000, 'x');
    if (word == "crash") throw word;
}
""",
    ),
    "go": Programs(
        greets="""
package main
import ("bufio"; "fmt"; "os")
func main() { s := bufio.NewScanner(os.Stdin); s.Scan(); fmt.Println("hello", s.Text()); os.Exit(3) }
""",
        mistake="package main\nfunc main() { x }",
        complaint="undefined: x",
        reads="""
package main
import ("fmt"; "os")
func main() { b, e := os.ReadFile(os.Args[1]); if e != nil { os.Exit(1) }; fmt.Print(string(b)) }
""",
        obeys="""
package main
import ("fmt"; "os"; "strings")
func main() {
    word, held := os.Args[1], [][]byte{}
    for word == "spin" {}
    for word == "grow" { b := make([]byte, 1 << 20); for i := range b { b[i] = 1 }; held = append(held, b) }
    if word == "flood" { fmt.Print(strings.Repeat("x", 3000000)) }
    if word == "crash" { panic(word) }
}
""",
    ),
    "java": Programs(
        greets="""
public class Anything {
    public static void main(String[] a) {
        System.out.println("hello " + new java.util.Scanner(System.in).nextLine());
        System.exit(3);
    }
}
""",
        mistake='class A { public static void main(String[] a) { int x = "s"; } }',
        complaint="Main.java:1: error",
        reads="""
import java.nio.file.*;
class A {
    public static void main(String[] a) throws Exception { System.out.print(Files.readString(Path.of(a[0]))); }
}
""",
        obeys="""
import java.util.*;
class Anything {
    public static void main(String[] a) {
        List<byte[]> held = new ArrayList<>();
        while (a[0].equals("spin")) {}
        while (a[0].equals("grow")) held.add(new byte[1 << 20]);
        if (a[0].equals("flood")) System.out.print("x".repeat(3000000));
        if (a[0].equals("crash")) throw new IllegalStateException();
    }
}
""",
    ),
    "ruby": Programs(
        greets='puts "hello #{gets}"; exit 3',
        mistake="puts 1 +",
        complaint="syntax error",
        reads="puts File.read(ARGV[0])",
        obeys="""
word, held = ARGV[0], []
while word == "spin"; end
held << "x" * (1 << 20) while word == "grow"
print "x" * 3000000 if word == "flood"
raise word if word == "crash"
""",
    ),
    "php": Programs(
        greets='<?php echo "hello ".fgets(STDIN); exit(3);',
        mistake="<?php echo 1 +;",
        complaint="Parse error",
        reads="<?php echo file_get_contents($argv[1]);",
        obeys="""<?php
$word = $argv[1]; $held = [];
while ($word == "spin") {}
while ($word == "grow") $held[] = str_repeat(chr(count($held) % 256), 1 << 20);
if ($word == "flood") echo str_repeat("x", 3000000);
if ($word == "crash") throw new Exception($word);
""",
    ),
    "perl": Programs(
        greets='my $l = <STDIN>; print "hello $l"; exit 3;',
        mistake="print 1 +;",
        complaint="syntax error",
        reads="open(my $f, '<', $ARGV[0]) or exit 1; print <$f>;",
        obeys="""
my ($word, @held) = @ARGV;
while ($word eq "spin") {}
push @held, "x" x (1 << 20) while $word eq "grow";
print "x" x 3000000 if $word eq "flood";
die $word if $word eq "crash";
""",
    ),
    "lua": Programs(
        greets='print("hello " .. io.read()); os.exit(3)',
        mistake="print(1 +",
        complaint="unexpected symbol",
        reads="print(assert(io.open(arg[1])):read('a'))",
        obeys="""
local word, held = arg[1], {}
while word == "spin" do end
while word == "grow" do held[#held + 1] = string.rep(string.char(#held % 256), 1 << 20) end
if word == "flood" then io.write(string.rep("x", 3000000)) end
if word == "crash" then error(word) end
""",
    ),
    "r": Programs(
        greets='cat("hello ", readLines(file("stdin"), 1), "\\n", sep=""); quit(status=3)',
        mistake="print(1 +",
        complaint="unexpected end",
        reads="cat(readLines(commandArgs(TRUE)[1]))",
        obeys="""
word <- commandArgs(TRUE)[1]; held <- list()
while (word == "spin") {}
while (word == "grow") held[[length(held) + 1]] <- rep(1.5, 131072)
if (word == "flood") cat(strrep("x", 3000000))
if (word == "crash") stop(word)
""",
    ),
    "sql": Programs(
        greets="select 'hello ' || trim(cast(readfile('/dev/stdin') as text), char(10));",
        mistake="selec 1;",
        complaint="syntax error",
        reads="select readfile(cast(readfile('/dev/stdin') as text));",
        obeys="""
create table argument as select trim(cast(readfile('/dev/stdin') as text)) as word;
with recursive n(i) as (select 1 from argument where word = 'spin' union all select i + 1 from n) select i from n where i < 0;
create table held as with recursive n(i) as (select 1 from argument where word = 'grow' union all select i + 1 from n)
    select randomblob(1 << 20) from n;
select hex(zeroblob(1500000)) from argument where word = 'flood';
select abs(-9223372036854775808) from argument where word = 'crash';
""",
        status=0,
    ),
}


def runnable(language: str) -> Programs:
    """The programs of a language that this host has; skips or, where everything must work, fails without it."""
    missing = why_missing(language, ProcessConfig())
    require(missing is None, f"{language}: {missing}")
    return PROGRAMS[language]
