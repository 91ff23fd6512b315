/* node.wasm: `init` builds the engine and its JavaScript library (once, at build time, before the snapshot);
   `run` executes one command line and returns its exit status. `process.exit` leaves through proc_exit for statuses that WASI knows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "glue.h"

/* name NUL source NUL, repeated; wiped after init so that the snapshot does not carry it */
static char library[] = {
#embed "library.bundle"
    , 0
};

/* Of the native stack that the host gives, the part of QuickJS's own (linear memory) stack that a script may use: measured so
   that recursion through any mix of calls, getters, callbacks and generators meets our RangeError before the host's trap. */
enum { NATIVE_STACK_DEFAULT = 2 << 20, NATIVE_STACK_MAX = 10 << 20, STACK_SHARE_PERCENT = 31, RUN_FAILED = 70 };

static JSRuntime *runtime;
static JSContext *context;
static JSValue hooks; /* { main, resolve, load, importMeta, rejection } filled by lib/bootstrap.js */

static JSValue call_hook(JSContext *ctx, const char *name, int argc, JSValueConst *argv)
{
    JSValue hook = JS_GetPropertyStr(ctx, hooks, name);
    JSValue result = JS_Call(ctx, hook, JS_UNDEFINED, argc, argv);
    JS_FreeValue(ctx, hook);
    return result;
}

/* ---- ES modules ---- */

static char *normalize_module(JSContext *ctx, const char *base, const char *name, void *opaque)
{
    JSValue args[] = {JS_NewString(ctx, base), JS_NewString(ctx, name)};
    JSValue resolved = call_hook(ctx, "resolve", 2, (JSValueConst *)args);
    JS_FreeValue(ctx, args[0]);
    JS_FreeValue(ctx, args[1]);
    if (JS_IsException(resolved))
        return NULL;
    const char *text = JS_ToCString(ctx, resolved);
    JS_FreeValue(ctx, resolved);
    char *copy = text ? js_strdup(ctx, text) : NULL;
    JS_FreeCString(ctx, text);
    return copy;
}

static JSModuleDef *compile_module(JSContext *ctx, JSValueConst source, const char *name)
{
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, source);
    if (!text)
        return NULL;
    JSValue compiled = JS_Eval(ctx, text, length, name, JS_EVAL_TYPE_MODULE | JS_EVAL_FLAG_COMPILE_ONLY);
    JS_FreeCString(ctx, text);
    if (JS_IsException(compiled))
        return NULL;
    JSModuleDef *module = JS_VALUE_GET_PTR(compiled);
    JS_FreeValue(ctx, compiled);
    JSValue meta = JS_GetImportMeta(ctx, module);
    JSValue args[] = {meta, JS_NewString(ctx, name)};
    JS_FreeValue(ctx, call_hook(ctx, "importMeta", 2, (JSValueConst *)args));
    JS_FreeValue(ctx, args[1]);
    JS_FreeValue(ctx, meta);
    return module;
}

static JSModuleDef *load_module(JSContext *ctx, const char *name, void *opaque)
{
    JSValue arg = JS_NewString(ctx, name);
    JSValue source = call_hook(ctx, "load", 1, (JSValueConst *)&arg);
    JS_FreeValue(ctx, arg);
    if (JS_IsException(source))
        return NULL;
    JSModuleDef *module = compile_module(ctx, source, name);
    JS_FreeValue(ctx, source);
    return module;
}

/* evalModule(source, name) -> promise of the module's evaluation */
static JSValue native_eval_module(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    const char *name = JS_ToCString(ctx, argv[1]);
    if (!name)
        return JS_EXCEPTION;
    JSModuleDef *module = compile_module(ctx, argv[0], name);
    JS_FreeCString(ctx, name);
    if (!module)
        return JS_EXCEPTION;
    JSValue value = JS_DupValue(ctx, JS_MKPTR(JS_TAG_MODULE, module));
    if (JS_ResolveModule(ctx, value) < 0) {
        JS_FreeValue(ctx, value);
        return JS_EXCEPTION;
    }
    return JS_EvalFunction(ctx, value);
}

/* ---- scripts and jobs ---- */

/* evalScript(source, filename, firstLine, isAsync) -> completion value, or the promise of { value } where await is allowed */
static JSValue native_eval_script(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    size_t length;
    int32_t line = 1;
    JS_ToInt32(ctx, &line, argv[2]);
    int flags = JS_EVAL_TYPE_GLOBAL | (JS_ToBool(ctx, argv[3]) ? JS_EVAL_FLAG_ASYNC : 0);
    const char *source = JS_ToCStringLen(ctx, &length, argv[0]);
    const char *name = JS_ToCString(ctx, argv[1]);
    JSValue result = JS_EXCEPTION;
    if (source && name) {
        JSEvalOptions options = {.version = JS_EVAL_OPTIONS_VERSION, .eval_flags = flags, .filename = name, .line_num = line};
        result = JS_Eval2(ctx, source, length, &options);
    }
    JS_FreeCString(ctx, source);
    JS_FreeCString(ctx, name);
    return result;
}

/* runJobs(): promise reactions until there are none; throws what a job threw */
static JSValue native_run_jobs(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    JSContext *job_context;
    int result;
    while ((result = JS_ExecutePendingJob(runtime, &job_context)) > 0)
        ;
    return result < 0 ? JS_EXCEPTION : JS_UNDEFINED;
}

static JSValue native_gc(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    JS_RunGC(runtime);
    return JS_UNDEFINED;
}

static JSValue native_heap_used(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    JSMemoryUsage usage;
    JS_ComputeMemoryUsage(runtime, &usage);
    return JS_NewInt64(ctx, usage.malloc_size);
}

/* The host tells an out-of-memory death from an ordinary one by the trap. */
static JSValue native_abort(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    __builtin_trap();
}

static void on_rejection(JSContext *ctx, JSValueConst promise, JSValueConst reason, bool is_handled, void *opaque)
{
    JSValueConst args[] = {promise, reason, JS_NewBool(ctx, is_handled)};
    JS_FreeValue(ctx, call_hook(ctx, "rejection", 3, args));
}

/* ---- life cycle ---- */

static void print_exception(JSContext *ctx)
{
    JSValue error = JS_GetException(ctx);
    const char *text = JS_ToCString(ctx, error);
    JSValue stack = JS_GetPropertyStr(ctx, error, "stack");
    const char *frames = JS_ToCString(ctx, stack);
    dprintf(2, "node: internal error: %s\n%s\n", text ? text : "?", frames ? frames : "");
}

static JSValue make_binding(JSContext *ctx)
{
    JSValue binding = JS_NewObject(ctx);
    engine_add_bindings(ctx, binding);
    host_add_bindings(ctx, binding);
    digest_add_bindings(ctx, binding);
    BIND(ctx, binding, "evalModule", native_eval_module, 2);
    BIND(ctx, binding, "evalScript", native_eval_script, 4);
    BIND(ctx, binding, "runJobs", native_run_jobs, 0);
    BIND(ctx, binding, "gc", native_gc, 0);
    BIND(ctx, binding, "heapUsed", native_heap_used, 0);
    BIND(ctx, binding, "abort", native_abort, 0);
    JS_SetPropertyStr(ctx, binding, "hooks", JS_DupValue(ctx, hooks));
    return binding;
}

/* Every library file is a function body `(binding, internal, module, exports)`; the map of them goes to bootstrap.js. */
static JSValue load_library(JSContext *ctx)
{
    JSValue files = JS_NewObject(ctx);
    for (char *name = library; *name;) {
        char *source = name + strlen(name) + 1;
        size_t length = strlen(source);
        JSValue function = JS_Eval(ctx, source, length, name, JS_EVAL_TYPE_GLOBAL);
        if (JS_IsException(function))
            return function;
        JS_SetPropertyStr(ctx, files, name, function);
        name = source + length + 1;
    }
    memset(library, 0, sizeof library);
    return files;
}

__attribute__((export_name("init"))) int32_t init(void)
{
    runtime = JS_NewRuntime();
    context = JS_NewContext(runtime);
    if (!context)
        return 1;
    JS_AddPerformance(context);
    hooks = JS_NewObject(context);
    JS_SetModuleLoaderFunc(runtime, normalize_module, load_module, NULL);
    JSValue files = load_library(context);
    if (JS_IsException(files)) {
        print_exception(context);
        return 1;
    }
    JSValue binding = make_binding(context);
    JSValue bootstrap = JS_GetPropertyStr(context, files, "node:internal/bootstrap");
    JSValueConst args[] = {binding, files};
    JSValue result = JS_Call(context, bootstrap, JS_UNDEFINED, 2, args);
    JS_FreeValue(context, bootstrap);
    JS_FreeValue(context, binding);
    JS_FreeValue(context, files);
    if (JS_IsException(result)) {
        print_exception(context);
        return 1;
    }
    JS_SetHostPromiseRejectionTracker(runtime, on_rejection, NULL);
    JS_RunGC(runtime);
    return 0;
}

__attribute__((export_name("run"))) int32_t run(void)
{
    uint64_t seed;
    host_start_run();
    host_random(&seed, sizeof seed);
    size_t native_stack = host_native_stack(NATIVE_STACK_DEFAULT);
    if (native_stack > NATIVE_STACK_MAX)
        native_stack = NATIVE_STACK_MAX;
    engine_start_run(context, seed, native_stack / 100 * STACK_SHARE_PERCENT);
    JSValue result = call_hook(context, "main", 0, NULL);
    int32_t code = RUN_FAILED;
    if (host_pending_exit >= 0)
        return host_pending_exit;
    if (JS_IsException(result))
        print_exception(context);
    else
        JS_ToInt32(context, &code, result);
    return code;
}
