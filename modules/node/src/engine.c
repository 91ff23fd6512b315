/* QuickJS as one translation unit with us: reseeding, the stack limit and object introspection have no public API. */
#include "quickjs.c"
#include "glue.h"

/* The snapshot froze the random state and the time origin; a run must not inherit them. QuickJS switches its own stack
   check off on WASI, where it is needed as much: without it, deep recursion is a trap instead of a RangeError. */
void engine_start_run(JSContext *ctx, uint64_t seed, size_t stack_bytes)
{
    ctx->random_state = seed ? seed : 1;
    ctx->time_origin = js__now_ms();
    ctx->rt->stack_top = js_get_stack_pointer();
    ctx->rt->stack_size = stack_bytes;
    ctx->rt->stack_limit = ctx->rt->stack_top - stack_bytes;
}

static const char *class_label(JSClassID id)
{
    switch (id) {
    case JS_CLASS_ARRAY: return "Array";
    case JS_CLASS_ERROR: return "Error";
    case JS_CLASS_NUMBER: return "Number";
    case JS_CLASS_STRING: return "String";
    case JS_CLASS_BOOLEAN: return "Boolean";
    case JS_CLASS_SYMBOL: return "Symbol";
    case JS_CLASS_BIG_INT: return "BigInt";
    case JS_CLASS_ARGUMENTS: case JS_CLASS_MAPPED_ARGUMENTS: return "Arguments";
    case JS_CLASS_DATE: return "Date";
    case JS_CLASS_MODULE_NS: return "Module";
    case JS_CLASS_REGEXP: return "RegExp";
    case JS_CLASS_ARRAY_BUFFER: return "ArrayBuffer";
    case JS_CLASS_SHARED_ARRAY_BUFFER: return "SharedArrayBuffer";
    case JS_CLASS_DATAVIEW: return "DataView";
    case JS_CLASS_MAP: return "Map";
    case JS_CLASS_SET: return "Set";
    case JS_CLASS_WEAKMAP: return "WeakMap";
    case JS_CLASS_WEAKSET: return "WeakSet";
    case JS_CLASS_WEAK_REF: return "WeakRef";
    case JS_CLASS_MAP_ITERATOR: return "Map Iterator";
    case JS_CLASS_SET_ITERATOR: return "Set Iterator";
    case JS_CLASS_GENERATOR: case JS_CLASS_ASYNC_GENERATOR: return "Generator";
    case JS_CLASS_PROXY: return "Proxy";
    case JS_CLASS_PROMISE: return "Promise";
    case JS_CLASS_DOM_EXCEPTION: return "DOMException";
    default:
        return id >= JS_CLASS_UINT8C_ARRAY && id <= JS_CLASS_FLOAT64_ARRAY ? "TypedArray" : "Object";
    }
}

/* classOf(value): the engine's own idea of what an object is, which no property of the object can change */
static JSValue class_of(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    return JS_NewString(ctx, JS_IsObject(argv[0]) ? class_label(JS_GetClassID(argv[0])) : "");
}

static JSValue pair(JSContext *ctx, JSValue first, JSValue second)
{
    JSValue array = JS_NewArray(ctx);
    JS_SetPropertyUint32(ctx, array, 0, first);
    JS_SetPropertyUint32(ctx, array, 1, second);
    return array;
}

/* promiseDetails(promise) -> [0 pending | 1 fulfilled | 2 rejected, result] */
static JSValue promise_details(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    int state = JS_PromiseState(ctx, argv[0]);
    int code = state == JS_PROMISE_FULFILLED ? 1 : state == JS_PROMISE_REJECTED ? 2 : 0;
    return pair(ctx, JS_NewInt32(ctx, code), code ? JS_PromiseResult(ctx, argv[0]) : JS_UNDEFINED);
}

static JSValue proxy_details(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    if (!JS_IsProxy(argv[0]))
        return JS_UNDEFINED;
    return pair(ctx, JS_GetProxyTarget(ctx, argv[0]), JS_GetProxyHandler(ctx, argv[0]));
}

/* errorFrames(error) -> the raw frames that QuickJS recorded; undefined for anything that is not an Error */
static JSValue error_frames(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    if (JS_GetClassID(argv[0]) != JS_CLASS_ERROR)
        return JS_UNDEFINED;
    return js_dup(JS_VALUE_GET_OBJ(argv[0])->u.object_data);
}

void engine_add_bindings(JSContext *ctx, JSValue binding)
{
    BIND(ctx, binding, "classOf", class_of, 1);
    BIND(ctx, binding, "promiseDetails", promise_details, 1);
    BIND(ctx, binding, "proxyDetails", proxy_details, 1);
    BIND(ctx, binding, "errorFrames", error_frames, 1);
    JS_SetPropertyStr(ctx, binding, "engineVersion", JS_NewString(ctx, JS_GetVersion()));
}
