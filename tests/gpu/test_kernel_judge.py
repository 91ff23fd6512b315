"""examples/kernels: honest kernels are accepted, and attempts to cheat are noticed. In C, on the processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from examples.kernels.kernel_judge import Cpu, judge_kernel

pytestmark = [pytest.mark.needs("user namespaces"), pytest.mark.needs("gcc")]

SIGNATURE = "void kernel(const float *a, const float *b, float *out, int n)"
ADD = "for (int i = 0; i < n; i++) out[i] = a[i] + b[i];"
REFERENCE = f"{SIGNATURE} {{ {ADD} }}"

#: A thread that is not waited for is what a side stream without synchronisation is on a device.
SIDE_THREAD = f"""
#include <pthread.h>
#include <unistd.h>
static const float *x, *y; static float *z; static int m;
static void *later(void *unused) {{
    const float *a = x, *b = y; float *out = z; int n = m; usleep(2000000); {ADD} return unused; }}
{SIGNATURE} {{ pthread_t thread; x = a; y = b; z = out; m = n; pthread_create(&thread, 0, later, 0); }}
"""
CACHE = f"""
#include <string.h>
static float known[1 << 20]; static int has_known;
{SIGNATURE} {{
    if (!has_known) {{ {ADD} memcpy(known, out, n * sizeof(float)); has_known = 1; }}
    memcpy(out, known, n * sizeof(float)); }}
"""
#: It takes what it finds in any file that could be the other's output.
SPY = f"""
#include <stdio.h>
{SIGNATURE} {{
    const char *names[] = {{"outputs", "expected", "../outputs", "/tmp/outputs", "/out/outputs", "/work/outputs"}};
    for (int at = 0; at < 6; at++) {{
        FILE *file = fopen(names[at], "rb");
        if (file) {{ if (fread(out, sizeof(float), n, file)) {{}} fclose(file); }} }} }}
"""
CHEATS = {
    "early return": f"{SIGNATURE} {{ n /= 2; {ADD} }}",
    "returns at once": f"{SIGNATURE} {{ }}",
    "cached outputs": CACHE,
    "side thread": SIDE_THREAD,
    "spy": SPY,
    "first round only": f"static int calls; {SIGNATURE} {{ if (calls++ == 0) {ADD} }}",
}
CRASHES = {
    "exits": f"#include <stdlib.h>\n{SIGNATURE} {{ exit(0); }}",
    "aborts": f"#include <stdlib.h>\n{SIGNATURE} {{ abort(); }}",
    "does not compile": f"{SIGNATURE} {{ nonsense }}",
}
#: Half a second of work, and clocks that do not move.
PATCHED_CLOCKS = f"""
#include <time.h>
#include <sys/resource.h>
#include <sys/times.h>
int clock_gettime(clockid_t id, struct timespec *now) {{ now->tv_sec = now->tv_nsec = 0; return 0; }}
clock_t clock(void) {{ return 0; }}
clock_t times(struct tms *all) {{ (void)all; return 0; }}
{SIGNATURE} {{
    {ADD}
    for (volatile long spin = 0; spin < 30000000; spin++) {{ }} }}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Cpu]:
    made = Cpu(timeout=60)
    yield made
    made.close()


def test_an_honest_kernel_is_accepted(device: Cpu) -> None:
    other = f"{SIGNATURE} {{ while (n--) out[n] = b[n] + a[n]; }}"
    assert judge_kernel(REFERENCE, other, device).status == "accepted"


def test_a_wrong_kernel(device: Cpu) -> None:
    verdict = judge_kernel(REFERENCE, REFERENCE.replace("a[i] + b[i]", "a[i] - b[i]"), device)
    assert (verdict.status, verdict.detail) == ("wrong_answer", "round 0, element 0")


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_a_wrong_answer(device: Cpu, cheat: str) -> None:
    assert judge_kernel(REFERENCE, CHEATS[cheat], device).status == "wrong_answer"


@pytest.mark.parametrize("crash", CRASHES)
def test_a_kernel_without_outputs(device: Cpu, crash: str) -> None:
    assert judge_kernel(REFERENCE, CRASHES[crash], device).status == "runtime_error"


def test_the_clock_is_out_of_reach(device: Cpu) -> None:
    """The same work with and without patched clocks takes the same time, as counted from outside."""
    verdict = judge_kernel(REFERENCE, PATCHED_CLOCKS, device)
    assert verdict.status == "accepted"
    assert verdict.seconds > 10 * verdict.reference_seconds
