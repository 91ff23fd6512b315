/* A stand-in for libnvidia-ml.so.1 with one device, minor number 3. The file "use" beside it says how much every process
   has on it, in MB. Processes are numbered as in the caller's /proc, like the real library does. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };
struct memory { unsigned long long total, free, used; };
static int device;

static long read_use(void) {
    Dl_info info;
    char path[4096];
    long use = -1;
    dladdr((void *)read_use, &info);
    snprintf(path, sizeof path, "%s", info.dli_fname);
    strcpy(strrchr(path, '/'), "/use");
    FILE *file = fopen(path, "r");
    if (file) { if (fscanf(file, "%ld", &use) != 1) use = -1; fclose(file); }
    return use;
}

static unsigned list_pids(unsigned *pids, unsigned most) {
    unsigned count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (isdigit((unsigned char)entry->d_name[0])) { if (count < most) pids[count] = atoi(entry->d_name); count++; }
    if (proc) closedir(proc);
    return count;
}

int nvmlInit_v2(void) { return read_use() < 0 ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **found) { *found = &device; return index ? 2 : 0; }
int nvmlDeviceGetMinorNumber(void *which, unsigned *number) { *number = 3; return which != &device; }
int nvmlDeviceGetMemoryInfo(void *which, struct memory *info) { memset(info, 0, sizeof *info); return which != &device; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *which, unsigned *count, void *infos) { *count = 0; return 0; }

int nvmlDeviceGetComputeRunningProcesses_v3(void *which, unsigned *count, struct process *infos) {
    unsigned pids[4096], most = *count;
    long use = read_use();
    *count = list_pids(pids, 4096);
    if (use < 0) return 999;
    if (*count > most) return 7;
    for (unsigned at = 0; at < *count; at++)
        infos[at] = (struct process){pids[at], (unsigned long long)use << 20, -1, -1};
    return 0;
}

int nvmlDeviceGetProcessUtilization(void *which, struct sample *samples, unsigned *count, unsigned long long since) {
    unsigned pids[4096], most = *count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *count = list_pids(pids, 4096);
    if (*count > most) return 7;
    for (unsigned at = 0; at < *count; at++)
        samples[at] = (struct sample){pids[at], now.tv_sec * 1000000ull + now.tv_nsec / 1000, 50, 0, 0, 0};
    return 0;
}
