/* The `warmcell` command of a wheel that was built with a C compiler.
 *
 * A command and its manager are two interpreters that take the same time to load. This program starts the manager's,
 * sends it its first order, and then execs the command's: `warmcell-python` beside it, so that both load at the same time.
 * It makes no decisions. Where something is not as expected, the script starts the manager itself, as it does without this.
 *
 * The manager gets the same as from src/warmcell/pool/prestarted_manager.py, from which modules/front.py writes front.h:
 * BOOT, its program; ENVIRONMENT, its variables; ORDER_BEGINS, ORDER_GOES_ON and ORDER_ENDS, around the path of the
 * worker and, for WebAssembly, that of the packages that contain its runtime.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <unistd.h>

#include "front.h"

enum { LOWEST_OWN = 10, PATH_ROOM = PATH_MAX };

/* The paths of the script, of the interpreter that its first line names, and of the package that it will import. */
static char script[PATH_ROOM], interpreter[PATH_ROOM], package[PATH_ROOM];
static char real_interpreter[PATH_ROOM];

static bool has_room(int length) { return length > 0 && length < PATH_ROOM; }

/* Reads the first line, as the installer wrote it: "#!" and the path of an interpreter, without arguments. */
static bool read_interpreter(void)
{
    FILE *file = fopen(script, "re");
    char line[PATH_ROOM];
    bool is_read = file != NULL && fgets(line, sizeof line, file) != NULL;
    if (file != NULL)
        fclose(file);
    size_t length = is_read ? strlen(line) : 0;
    if (length < 4 || strncmp(line, "#!/", 3) != 0 || line[length - 1] != '\n' || strpbrk(line, " \t\r") != NULL)
        return false;
    line[length - 1] = '\0';
    strcpy(interpreter, line + 2);
    return realpath(interpreter, real_interpreter) != NULL;
}

/* Below the parent of the directory of commands, where pip installs for an interpreter called, say, "python3.11". */
static bool find_package(const char *prefix)
{
    static const char *const places[] = {"lib/%s/site-packages", "lib64/%s/site-packages", "lib/%s/dist-packages"};
    static const char inside[] = "/cage/manager/start.py";
    const char *name = strrchr(real_interpreter, '/') + 1;
    if (strncmp(name, "python3.", 8) != 0)
        return false;
    for (size_t each = 0; each < sizeof places / sizeof *places; each++) {
        char place[PATH_ROOM];
        if (!has_room(snprintf(place, PATH_ROOM, places[each], name)))
            continue;
        int length = snprintf(package, PATH_ROOM, "%s/%s/warmcell%s", prefix, place, inside);
        if (has_room(length) && access(package, R_OK) == 0) {
            package[length - (int)strlen(inside)] = '\0';
            return true;
        }
    }
    return false;
}

/* Moves a pair of descriptors above the numbers that the child's get. */
static bool raise_both(int pair[2])
{
    for (int end = 0; end < 2; end++) {
        int raised = fcntl(pair[end], F_DUPFD_CLOEXEC, LOWEST_OWN);
        close(pair[end]);
        pair[end] = raised;
    }
    return pair[0] >= 0 && pair[1] >= 0;
}

static bool make_pipe(int pair[2]) { return pipe2(pair, O_CLOEXEC) == 0 && raise_both(pair); }

static bool make_channel(int pair[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0 && raise_both(pair);
}

/* In a session of its own, with these descriptors as 0, 1, 2 and 3, and without our environment. */
static pid_t spawn_manager(const int descriptors[4])
{
    char cage[PATH_ROOM];
    if (!has_room(snprintf(cage, PATH_ROOM, "%s/cage", package)))
        return -1;
    char *words[] = {real_interpreter, "-I", "-S", "-c", (char *)BOOT, cage, NULL};
    static char *const environment[] = {ENVIRONMENT, NULL};

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, plain;
    sigemptyset(&none);
    sigemptyset(&plain);
    sigaddset(&plain, SIGPIPE);
    sigaddset(&plain, SIGXFSZ);
    sigaddset(&plain, SIGCHLD);
    pid_t pid = -1;
    if (posix_spawn_file_actions_init(&actions) != 0 || posix_spawnattr_init(&attributes) != 0)
        return -1;
    for (int number = 0; number < 4; number++)
        if (posix_spawn_file_actions_adddup2(&actions, descriptors[number], number) != 0)
            return -1;
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &plain);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (posix_spawn(&pid, real_interpreter, &actions, &attributes, words, environment) != 0)
        return -1;
    return pid;
}

/* As JSON: paths that would need escaping are refused. The packages are those that ours was installed with. */
static bool send_order(int channel, bool is_wasm)
{
    char order[3 * PATH_ROOM];
    for (const char *place = package; *place != '\0'; place++)
        if (*place < ' ' || *place > '~' || *place == '"' || *place == '\\')
            return false;
    int packages = is_wasm ? (int)(strrchr(package, '/') - package) : 0;
    int length = snprintf(order, sizeof order, "%s%s/guest/%s%s%.*s%s", ORDER_BEGINS, package,
                          is_wasm ? "wasm" : "python", ORDER_GOES_ON, packages, package, ORDER_ENDS);
    return length > 0 && (size_t)length < sizeof order && send(channel, order, (size_t)length, MSG_NOSIGNAL) == length;
}

static void keep_open(int descriptor) { fcntl(descriptor, F_SETFD, 0); }

/* True if it was started. An environment variable passes our ends of its channels to the script. */
static bool start_manager(bool is_wasm)
{
    int in[2], out[2], complaints[2], control[2];
    if (!make_pipe(in) || !make_pipe(out) || !make_pipe(complaints) || !make_channel(control))
        return false;
    const int descriptors[] = {in[0], out[1], complaints[1], control[1]};
    pid_t pid = spawn_manager(descriptors);
    for (size_t each = 0; each < sizeof descriptors / sizeof *descriptors; each++)
        close(descriptors[each]);
    if (pid < 0)
        return false;
    char handed_over[2 * PATH_ROOM + 128];
    int length = snprintf(handed_over, sizeof handed_over, "%d %d %d %d %d %d\n%s\n%s", (int)pid, control[0], complaints[0], in[1],
                          out[0], send_order(control[0], is_wasm), real_interpreter, package);
    if (length < 0 || (size_t)length >= sizeof handed_over || setenv(HANDED_OVER, handed_over, 1) != 0)
        return false;
    keep_open(control[0]);
    keep_open(complaints[0]);
    keep_open(in[1]);
    keep_open(out[0]);
    return true;
}

static bool asks_for_help(char **words)
{
    for (; *words != NULL; words++)
        if (strcmp(*words, "--help") == 0)
            return true;
    return false;
}

int main(int count, char **words)
{
    char own[PATH_ROOM];
    if (realpath((const char *)getauxval(AT_EXECFN), own) == NULL) {
        perror("warmcell: cannot find its own path");
        return 126;
    }
    *strrchr(own, '/') = '\0';
    if (!has_room(snprintf(script, PATH_ROOM, "%s/warmcell-python", own)))
        return 126;
    *strrchr(own, '/') = '\0';
    bool is_run = count > 1 && strcmp(words[1], "run") == 0, is_sh = count > 1 && strcmp(words[1], "sh") == 0;
    unsetenv(HANDED_OVER);
    /* The interpreter may need this variable to start; only the script passes it on. */
    bool is_plain = getenv("LD_LIBRARY_PATH") == NULL && !asks_for_help(words);
    if ((is_run || is_sh) && is_plain && read_interpreter() && find_package(own) && start_manager(is_sh)) {
        /* Without `site`, which most runs do not need; the script loads it for those that do. */
        char **with_options = calloc((size_t)count + 3, sizeof *with_options);
        if (with_options != NULL) {
            with_options[0] = interpreter;
            with_options[1] = "-S";
            with_options[2] = script;
            memcpy(with_options + 3, words + 1, (size_t)count * sizeof *words); /* and the NULL at the end */
            execv(interpreter, with_options);
        }
    }
    execv(script, words);
    perror(script);
    return 126;
}
