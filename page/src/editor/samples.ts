// A first program in each language, so that nobody begins with an empty page.

const SAMPLES: Record<string, string> = {
  python: `# Pictures and tables that a program writes are shown with its output.
import csv, math

xs = [x / 10 for x in range(160)]
points = [(x, math.sin(x) * math.exp(-x / 6)) for x in xs]

with open("decay.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["x", "y"])
    table.writerows((x, round(y, 4)) for x, y in points[::40])

line = " ".join(f"{20 + x * 35:.1f},{95 - y * 90:.1f}" for x, y in points)
with open("decay.svg", "w") as file:
    file.write(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 160">
      <path d="M20,95H580" stroke="#9995"/>
      <polyline points="{line}" fill="none" stroke="#e8590c" stroke-width="3"/>
    </svg>""")

print("highest:", max(points, key=lambda point: point[1]))
`,
  javascript: `const words = "the cage is warm and the guest is gone".split(" ");
const counts = Object.groupBy ? Object.groupBy(words, (word) => word.length) : {};
for (const [length, found] of Object.entries(counts)) console.log(length, found.join(", "));
`,
  typescript: `type Point = { x: number; y: number };
const distance = (a: Point, b: Point): number => Math.hypot(a.x - b.x, a.y - b.y);
console.log(distance({ x: 0, y: 0 }, { x: 3, y: 4 }));
`,
  rust: `fn main() {
    let primes: Vec<u32> = (2..50).filter(|n| (2..*n).all(|d| n % d != 0)).collect();
    println!("{primes:?}");
}
`,
  command: `for i in 1 2 3; do
  printf '\\033[3%dmstep %d\\033[0m\\n' "$i" "$i"
  sleep 0.3
done
uname -sr; id -un
`,
  c: `#include <stdio.h>

int main(void) {
    for (int i = 1; i <= 5; i++) printf("%2d squared is %2d\\n", i, i * i);
}
`,
  cpp: `#include <iostream>
#include <numeric>
#include <vector>

int main() {
    std::vector<int> values(10);
    std::iota(values.begin(), values.end(), 1);
    std::cout << std::accumulate(values.begin(), values.end(), 0) << '\\n';
}
`,
  go: `package main

import "fmt"

func main() {
	a, b := 0, 1
	for range 10 {
		fmt.Print(a, " ")
		a, b = b, a+b
	}
	fmt.Println()
}
`,
  java: `public class Main {
    public static void main(String[] arguments) {
        System.out.println("Hello from Java " + System.getProperty("java.version"));
    }
}
`,
  ruby: `puts (1..5).map { |n| "#{n} squared is #{n * n}" }\n`,
  php: `<?php\necho implode(", ", array_map(fn($n) => $n ** 2, range(1, 5))), "\\n";\n`,
  perl: `my %seen;\n$seen{length $_}++ for qw(the cage is warm);\nprint "$_: $seen{$_}\\n" for sort keys %seen;\n`,
  lua: `for i = 1, 5 do print(i, i * i) end\n`,
  r: `summary(c(2, 3, 5, 7, 11, 13))\n`,
  sql: `create table planets (name text, moons integer);
insert into planets values ('Earth', 1), ('Mars', 2), ('Jupiter', 95);
select name, moons from planets order by moons desc;
`,
  wasm: `(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 8) "hello from WebAssembly\\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 8))
    (i32.store (i32.const 4) (i32.const 23))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 40)))))
`,
};

export const sampleOf = (language: string): string => SAMPLES[language] ?? "";
