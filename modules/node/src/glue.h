/* What the C files of node.wasm share. The JavaScript half lives in ../lib. */
#ifndef WARMCELL_GLUE_H
#define WARMCELL_GLUE_H

#include <stddef.h>
#include <stdint.h>
#include "quickjs.h"

/* engine.c: the few things that need QuickJS's private structures */
void engine_start_run(JSContext *ctx, uint64_t seed, size_t stack_bytes);
void engine_add_bindings(JSContext *ctx, JSValue binding);

/* host.c: WASI, files, clock, fetch */
void host_add_bindings(JSContext *ctx, JSValue binding);
void host_start_run(void);
size_t host_native_stack(size_t fallback);
_Noreturn void host_exit(int code);
extern int host_pending_exit; /* -1, or the status that process.exit asked for */
void host_random(void *buffer, size_t length);

/* digest.c */
void digest_add_bindings(JSContext *ctx, JSValue binding);

#define BIND(ctx, object, name, function, arity) \
    JS_SetPropertyStr(ctx, object, name, JS_NewCFunction(ctx, function, name, arity))

#endif
