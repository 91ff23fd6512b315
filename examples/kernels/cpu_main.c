/* Around a kernel in C: reads both vectors of every round from "inputs", poisons the outputs, calls the kernel, and writes
   "outputs". Arguments: elements, rounds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long n = atol(argv[1]), rounds = atol(argv[2]), total = n * rounds;
    float *inputs = malloc(2 * total * sizeof(float)), *outputs = malloc(total * sizeof(float));
    FILE *file = fopen("inputs", "rb");
    if (!inputs || !outputs || !file || fread(inputs, sizeof(float), 2 * total, file) != (size_t)(2 * total)) return 3;
    fclose(file);
    for (long at = 0; at < total; at++) outputs[at] = NAN;
    for (long round = 0; round < rounds; round++) {
        float *a = inputs + 2 * round * n;
        kernel(a, a + n, outputs + round * n, (int)n);
    }
    file = fopen("outputs", "wb");
    if (!file || fwrite(outputs, sizeof(float), total, file) != (size_t)total || fclose(file)) return 4;
    return 0;
}
