/* The world outside the engine: WASI files, arguments, environment, clock, random bytes, and the host's fetch.
   Calls that can fail return -errno; ../lib turns that into Node's errors. Arguments, environment and preopens are asked of
   the host on every run, never through libc's caches, because those would be frozen into the snapshot. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wasi/api.h>
#include "glue.h"

#define NATIVE(name) static JSValue name(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)

void __wasilibc_reset_preopens(void);
void __wasilibc_populate_preopens(void);

/* libc found no preopens before the snapshot and remembers that; the run has others. */
void host_start_run(void)
{
    __wasilibc_reset_preopens();
    __wasilibc_populate_preopens();
}

_Noreturn void host_exit(int code)
{
    __wasi_proc_exit((uint32_t)code);
}

void host_random(void *buffer, size_t length)
{
    if (__wasi_random_get(buffer, length) != 0)
        __builtin_trap();
}

/* With no preopen that covers the path, libc says "not capable"; to a script the file just does not exist. */
static int node_errno(int code)
{
    return code == ENOTCAPABLE ? ENOENT : code;
}

static JSValue status(JSContext *ctx, int result)
{
    return JS_NewInt32(ctx, result < 0 ? -node_errno(errno) : result);
}

int host_pending_exit = -1;

/* proc_exit takes no status above 125; then the script is unwound by an error that it cannot catch, and run() returns
   the status. pendingExit() lets the event loop see it where a promise swallowed the error. */
NATIVE(native_exit)
{
    int32_t code = 0;
    JS_ToInt32(ctx, &code, argv[0]);
    code &= 0xff;
    if (code < 126)
        host_exit(code);
    host_pending_exit = code;
    JSValue error = JS_NewError(ctx);
    JS_SetUncatchableError(ctx, error);
    return JS_Throw(ctx, error);
}

NATIVE(native_pending_exit)
{
    return JS_NewBool(ctx, host_pending_exit >= 0);
}

/* ---- arguments and environment ---- */

static char **string_table(__wasi_errno_t (*sizes)(size_t *, size_t *), __wasi_errno_t (*get)(uint8_t **, uint8_t *), size_t *count)
{
    size_t bytes = 0;
    *count = 0;
    if (sizes(count, &bytes) != 0 || *count == 0)
        return NULL;
    char **table = malloc(*count * sizeof(char *) + bytes);
    if (!table || get((uint8_t **)table, (uint8_t *)(table + *count)) != 0) {
        *count = 0;
        return table;
    }
    return table;
}

NATIVE(native_args)
{
    size_t count;
    char **table = string_table(__wasi_args_sizes_get, __wasi_args_get, &count);
    JSValue result = JS_NewArray(ctx);
    for (size_t i = 0; i < count; i++)
        JS_SetPropertyUint32(ctx, result, i, JS_NewString(ctx, table[i]));
    free(table);
    return result;
}

/* A host that gives more stack than the default (`max_wasm_stack`) says so here; scripts do not see it. */
#define STACK_VARIABLE "WARMCELL_WASM_STACK="

size_t host_native_stack(size_t fallback)
{
    size_t count, found = fallback;
    char **table = string_table(__wasi_environ_sizes_get, __wasi_environ_get, &count);
    for (size_t i = 0; i < count; i++)
        if (!strncmp(table[i], STACK_VARIABLE, strlen(STACK_VARIABLE)))
            found = strtoul(table[i] + strlen(STACK_VARIABLE), NULL, 10);
    free(table);
    return found;
}

NATIVE(native_environ)
{
    size_t count;
    char **table = string_table(__wasi_environ_sizes_get, __wasi_environ_get, &count);
    JSValue result = JS_NewObject(ctx);
    for (size_t i = 0; i < count; i++) {
        char *equals = strchr(table[i], '=');
        if (!equals || !strncmp(table[i], STACK_VARIABLE, strlen(STACK_VARIABLE)))
            continue;
        JSAtom name = JS_NewAtomLen(ctx, table[i], equals - table[i]);
        JS_DefinePropertyValue(ctx, result, name, JS_NewString(ctx, equals + 1), JS_PROP_C_W_E);
        JS_FreeAtom(ctx, name);
    }
    free(table);
    return result;
}

NATIVE(native_preopens)
{
    JSValue result = JS_NewArray(ctx);
    uint32_t n = 0;
    for (__wasi_fd_t fd = 3;; fd++) {
        __wasi_prestat_t prestat;
        if (__wasi_fd_prestat_get(fd, &prestat) != 0)
            return result;
        size_t length = prestat.u.dir.pr_name_len;
        char *name = malloc(length + 1);
        if (name && __wasi_fd_prestat_dir_name(fd, (uint8_t *)name, length) == 0)
            JS_SetPropertyUint32(ctx, result, n++, JS_NewStringLen(ctx, name, strnlen(name, length)));
        free(name);
    }
}

/* ---- clock ---- */

NATIVE(native_hrtime)
{
    __wasi_timestamp_t now = 0;
    __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &now);
    return JS_NewBigUint64(ctx, now);
}

NATIVE(native_sleep)
{
    double milliseconds = 0;
    JS_ToFloat64(ctx, &milliseconds, argv[0]);
    if (!(milliseconds > 0))
        return JS_UNDEFINED;
    __wasi_subscription_t wish = {0};
    wish.u.tag = __WASI_EVENTTYPE_CLOCK;
    wish.u.u.clock.id = __WASI_CLOCKID_MONOTONIC;
    wish.u.u.clock.timeout = (uint64_t)(milliseconds * 1e6);
    __wasi_event_t event;
    size_t fired;
    __wasi_poll_oneoff(&wish, &event, 1, &fired);
    return JS_UNDEFINED;
}

/* ---- text and bytes ---- */

static void *resize_bytes(JSRuntime *rt, void *opaque, void *bytes, size_t size)
{
    if (size > 0)
        return realloc(bytes, size);
    free(bytes);
    return NULL;
}

static JSValue take_bytes(JSContext *ctx, uint8_t *bytes, size_t length)
{
    return JS_NewUint8Array(ctx, bytes, length, resize_bytes, NULL, false);
}

NATIVE(native_utf8_encode)
{
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!text)
        return JS_EXCEPTION;
    JSValue result = JS_NewUint8ArrayCopy(ctx, (const uint8_t *)text, length);
    JS_FreeCString(ctx, text);
    return result;
}

NATIVE(native_utf8_decode)
{
    size_t length;
    uint8_t *bytes = JS_GetUint8Array(ctx, &length, argv[0]);
    if (!bytes && length)
        return JS_EXCEPTION;
    return JS_NewStringLen(ctx, (const char *)bytes, length);
}

NATIVE(native_latin1_decode)
{
    size_t length;
    uint8_t *bytes = JS_GetUint8Array(ctx, &length, argv[0]);
    if (!bytes && length)
        return JS_EXCEPTION;
    uint16_t *wide = malloc(length * 2 + 2);
    if (!wide)
        return JS_ThrowOutOfMemory(ctx);
    for (size_t i = 0; i < length; i++)
        wide[i] = bytes[i];
    JSValue result = JS_NewStringUTF16(ctx, wide, length);
    free(wide);
    return result;
}

NATIVE(native_random_fill)
{
    size_t length;
    uint8_t *bytes = JS_GetUint8Array(ctx, &length, argv[0]);
    if (bytes)
        host_random(bytes, length);
    return JS_UNDEFINED;
}

/* ---- files ---- */

struct path { const char *text; };

static bool path_arg(JSContext *ctx, JSValueConst value, struct path *path)
{
    return (path->text = JS_ToCString(ctx, value)) != NULL;
}

#define WITH_PATH(variable, index) \
    struct path variable; \
    if (!path_arg(ctx, argv[index], &variable)) \
        return JS_EXCEPTION

/* The script's flags are Linux's numbers; WASI's differ. */
static int open_flags(int linux_flags)
{
    int access = linux_flags & 3;
    int flags = access == 0 ? O_RDONLY : access == 1 ? O_WRONLY : O_RDWR;
    if (linux_flags & 0100) flags |= O_CREAT;
    if (linux_flags & 0200) flags |= O_EXCL;
    if (linux_flags & 01000) flags |= O_TRUNC;
    if (linux_flags & 02000) flags |= O_APPEND;
    return flags;
}

NATIVE(native_open)
{
    int32_t flags = 0;
    JS_ToInt32(ctx, &flags, argv[1]);
    WITH_PATH(path, 0);
    int fd = open(path.text, open_flags(flags), 0666);
    JSValue result = status(ctx, fd);
    JS_FreeCString(ctx, path.text);
    return result;
}

NATIVE(native_close)
{
    int32_t fd = -1;
    JS_ToInt32(ctx, &fd, argv[0]);
    return status(ctx, close(fd));
}

/* read(fd, bytes, position | -1) and write(fd, bytes, position | -1) -> count or -errno */
static JSValue transfer(JSContext *ctx, JSValueConst *argv, bool is_write)
{
    int32_t fd = -1;
    int64_t position = -1;
    size_t length;
    JS_ToInt32(ctx, &fd, argv[0]);
    uint8_t *bytes = JS_GetUint8Array(ctx, &length, argv[1]);
    if (!bytes && length)
        return JS_EXCEPTION;
    JS_ToInt64(ctx, &position, argv[2]);
    ssize_t done;
    if (is_write)
        done = position < 0 ? write(fd, bytes, length) : pwrite(fd, bytes, length, position);
    else
        done = position < 0 ? read(fd, bytes, length) : pread(fd, bytes, length, position);
    return status(ctx, (int)done);
}

NATIVE(native_read) { return transfer(ctx, argv, false); }
NATIVE(native_write) { return transfer(ctx, argv, true); }

static int write_all(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);
        if (done < 0 && errno == EAGAIN)
            continue;
        if (done < 0)
            return -1;
        bytes += done;
        length -= done;
    }
    return 0;
}

NATIVE(native_write_text)
{
    int32_t fd = -1;
    size_t length;
    JS_ToInt32(ctx, &fd, argv[0]);
    const char *text = JS_ToCStringLen(ctx, &length, argv[1]);
    if (!text)
        return JS_EXCEPTION;
    JSValue result = status(ctx, write_all(fd, text, length));
    JS_FreeCString(ctx, text);
    return result;
}

/* Everything that is left to read on a descriptor; NULL and errno when it fails. */
static uint8_t *read_rest(int fd, size_t *length)
{
    struct stat info = {0};
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        return NULL;
    }
    size_t capacity = info.st_size > 0 && S_ISREG(info.st_mode) ? (size_t)info.st_size + 1 : 65536, used = 0;
    uint8_t *bytes = malloc(capacity);
    while (bytes) {
        ssize_t done = read(fd, bytes + used, capacity - used);
        if (done < 0) {
            free(bytes);
            return NULL;
        }
        used += done;
        if (done == 0)
            break;
        if (used == capacity) {
            uint8_t *larger = realloc(bytes, capacity *= 2);
            if (!larger)
                free(bytes);
            bytes = larger;
        }
    }
    *length = used;
    if (!bytes)
        errno = ENOMEM;
    return bytes;
}

/* readAll(path | fd, asText) -> Uint8Array, string, or -errno */
NATIVE(native_read_all)
{
    int32_t fd = -1;
    bool is_path = JS_IsString(argv[0]);
    if (is_path) {
        WITH_PATH(path, 0);
        fd = open(path.text, O_RDONLY);
        JS_FreeCString(ctx, path.text);
        if (fd < 0)
            return status(ctx, -1);
    } else {
        JS_ToInt32(ctx, &fd, argv[0]);
    }
    size_t length = 0;
    uint8_t *bytes = read_rest(fd, &length);
    int failure = errno;
    if (is_path)
        close(fd);
    errno = failure;
    if (!bytes)
        return status(ctx, -1);
    if (!JS_ToBool(ctx, argv[1]))
        return take_bytes(ctx, bytes, length);
    JSValue text = JS_NewStringLen(ctx, (const char *)bytes, length);
    free(bytes);
    return text;
}

static double milliseconds(struct timespec time)
{
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static JSValue stat_array(JSContext *ctx, const struct stat *info)
{
    /* WASI knows no permissions; Node's scripts expect some */
    int permissions = S_ISDIR(info->st_mode) ? 0755 : S_ISLNK(info->st_mode) ? 0777 : 0644;
    int type = S_ISDIR(info->st_mode) ? 0040000 : S_ISLNK(info->st_mode) ? 0120000 : S_ISREG(info->st_mode) ? 0100000
             : S_ISCHR(info->st_mode) ? 0020000 : S_ISSOCK(info->st_mode) ? 0140000 : 0010000;
    double fields[] = {info->st_dev, info->st_ino, type | permissions, info->st_nlink, info->st_size,
                       milliseconds(info->st_atim), milliseconds(info->st_mtim), milliseconds(info->st_ctim)};
    JSValue result = JS_NewArray(ctx);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        JS_SetPropertyUint32(ctx, result, i, JS_NewFloat64(ctx, fields[i]));
    return result;
}

/* stat(path, followLinks), fstat(fd) */
NATIVE(native_stat)
{
    struct stat info;
    WITH_PATH(path, 0);
    int result = JS_ToBool(ctx, argv[1]) ? stat(path.text, &info) : lstat(path.text, &info);
    JS_FreeCString(ctx, path.text);
    return result < 0 ? status(ctx, result) : stat_array(ctx, &info);
}

NATIVE(native_fstat)
{
    int32_t fd = -1;
    struct stat info;
    JS_ToInt32(ctx, &fd, argv[0]);
    return fstat(fd, &info) < 0 ? status(ctx, -1) : stat_array(ctx, &info);
}

/* readdir(path) -> [name, kind, name, kind, ...], kind: 1 file, 2 directory, 3 link, 0 other */
NATIVE(native_readdir)
{
    WITH_PATH(path, 0);
    DIR *directory = opendir(path.text);
    JS_FreeCString(ctx, path.text);
    if (!directory)
        return status(ctx, -1);
    JSValue result = JS_NewArray(ctx);
    uint32_t n = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        int kind = entry->d_type == DT_REG ? 1 : entry->d_type == DT_DIR ? 2 : entry->d_type == DT_LNK ? 3 : 0;
        JS_SetPropertyUint32(ctx, result, n++, JS_NewString(ctx, entry->d_name));
        JS_SetPropertyUint32(ctx, result, n++, JS_NewInt32(ctx, kind));
    }
    closedir(directory);
    return result;
}

NATIVE(native_readlink)
{
    char target[4096];
    WITH_PATH(path, 0);
    ssize_t length = readlink(path.text, target, sizeof target);
    JS_FreeCString(ctx, path.text);
    return length < 0 ? status(ctx, -1) : JS_NewStringLen(ctx, target, length);
}

static int make_directory(const char *path) { return mkdir(path, 0777); }

#define ONE_PATH(name, call) \
    NATIVE(name) { WITH_PATH(path, 0); JSValue r = status(ctx, call(path.text)); JS_FreeCString(ctx, path.text); return r; }
#define TWO_PATHS(name, call) \
    NATIVE(name) { \
        WITH_PATH(from, 0); \
        WITH_PATH(to, 1); \
        JSValue r = status(ctx, call(from.text, to.text)); \
        JS_FreeCString(ctx, from.text); \
        JS_FreeCString(ctx, to.text); \
        return r; \
    }

ONE_PATH(native_mkdir, make_directory)
ONE_PATH(native_rmdir, rmdir)
ONE_PATH(native_unlink, unlink)
TWO_PATHS(native_rename, rename)
TWO_PATHS(native_link, link)
TWO_PATHS(native_symlink, symlink)

NATIVE(native_ftruncate)
{
    int32_t fd = -1;
    int64_t length = 0;
    JS_ToInt32(ctx, &fd, argv[0]);
    JS_ToInt64(ctx, &length, argv[1]);
    return status(ctx, ftruncate(fd, length));
}

/* utimes(path, atime, mtime) in milliseconds */
NATIVE(native_utimes)
{
    double times[2] = {0, 0};
    JS_ToFloat64(ctx, &times[0], argv[1]);
    JS_ToFloat64(ctx, &times[1], argv[2]);
    struct timespec spec[2];
    for (int i = 0; i < 2; i++) {
        spec[i].tv_sec = (time_t)(times[i] / 1e3);
        spec[i].tv_nsec = (long)((times[i] - spec[i].tv_sec * 1e3) * 1e6);
    }
    WITH_PATH(path, 0);
    JSValue result = status(ctx, utimensat(AT_FDCWD, path.text, spec, 0));
    JS_FreeCString(ctx, path.text);
    return result;
}

NATIVE(native_strerror)
{
    int32_t code = 0;
    JS_ToInt32(ctx, &code, argv[0]);
    return JS_NewString(ctx, strerror(code));
}

/* The names that scripts test for; the numbers are WASI's. */
static JSValue errno_names(JSContext *ctx)
{
    static const struct { const char *name; int code; } table[] = {
        {"EACCES", EACCES}, {"EAGAIN", EAGAIN}, {"EBADF", EBADF}, {"EBUSY", EBUSY}, {"EEXIST", EEXIST}, {"EFBIG", EFBIG},
        {"EINVAL", EINVAL}, {"EIO", EIO}, {"EISDIR", EISDIR}, {"ELOOP", ELOOP}, {"EMFILE", EMFILE}, {"EMLINK", EMLINK},
        {"ENAMETOOLONG", ENAMETOOLONG}, {"ENFILE", ENFILE}, {"ENOENT", ENOENT}, {"ENOMEM", ENOMEM}, {"ENOSPC", ENOSPC},
        {"ENOSYS", ENOSYS}, {"ENOTDIR", ENOTDIR}, {"ENOTEMPTY", ENOTEMPTY}, {"ENOTSUP", ENOTSUP}, {"EPERM", EPERM},
        {"EPIPE", EPIPE}, {"EROFS", EROFS}, {"ESPIPE", ESPIPE}, {"EXDEV", EXDEV}, {"EDQUOT", EDQUOT},
    };
    JSValue names = JS_NewObject(ctx);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        JS_SetPropertyStr(ctx, names, table[i].name, JS_NewInt32(ctx, table[i].code));
    return names;
}

/* ---- fetch: JSON request in, JSON response out ---- */

__attribute__((import_module("sandbox"), import_name("__sandbox_fetch"))) int32_t sandbox_fetch(const char *request, int32_t length);
__attribute__((import_module("sandbox"), import_name("__sandbox_fetch_response_len"))) int32_t sandbox_fetch_response_len(void);
__attribute__((import_module("sandbox"), import_name("__sandbox_fetch_response_read"))) int32_t sandbox_fetch_response_read(char *buffer, int32_t length);

/* fetch(json) -> [code, responseText | undefined] */
NATIVE(native_fetch)
{
    size_t length;
    const char *request = JS_ToCStringLen(ctx, &length, argv[0]);
    if (!request)
        return JS_EXCEPTION;
    int32_t code = sandbox_fetch(request, (int32_t)length);
    JS_FreeCString(ctx, request);
    JSValue result = JS_NewArray(ctx);
    JS_SetPropertyUint32(ctx, result, 0, JS_NewInt32(ctx, code));
    int32_t size = sandbox_fetch_response_len();
    if (size <= 0)
        return result;
    char *buffer = malloc(size);
    if (!buffer) {
        JS_FreeValue(ctx, result);
        return JS_ThrowOutOfMemory(ctx);
    }
    if (sandbox_fetch_response_read(buffer, size) >= 0)
        JS_SetPropertyUint32(ctx, result, 1, JS_NewStringLen(ctx, buffer, size));
    free(buffer);
    return result;
}

void host_add_bindings(JSContext *ctx, JSValue binding)
{
    static const struct { const char *name; JSCFunction *function; int arity; } table[] = {
        {"exit", native_exit, 1}, {"pendingExit", native_pending_exit, 0}, {"args", native_args, 0}, {"environ", native_environ, 0}, {"preopens", native_preopens, 0},
        {"hrtime", native_hrtime, 0}, {"sleep", native_sleep, 1}, {"utf8Encode", native_utf8_encode, 1},
        {"utf8Decode", native_utf8_decode, 1}, {"latin1Decode", native_latin1_decode, 1}, {"randomFill", native_random_fill, 1},
        {"open", native_open, 2}, {"close", native_close, 1}, {"read", native_read, 3}, {"write", native_write, 3},
        {"writeText", native_write_text, 2}, {"readAll", native_read_all, 2}, {"stat", native_stat, 2}, {"fstat", native_fstat, 1},
        {"readdir", native_readdir, 1}, {"readlink", native_readlink, 1}, {"mkdir", native_mkdir, 1}, {"rmdir", native_rmdir, 1},
        {"unlink", native_unlink, 1}, {"rename", native_rename, 2}, {"link", native_link, 2}, {"symlink", native_symlink, 2},
        {"ftruncate", native_ftruncate, 2}, {"utimes", native_utimes, 3}, {"strerror", native_strerror, 1}, {"fetch", native_fetch, 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        BIND(ctx, binding, table[i].name, table[i].function, table[i].arity);
    JS_SetPropertyStr(ctx, binding, "errnoNames", errno_names(ctx));
}
