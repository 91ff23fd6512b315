package main

import (
	"bytes"
	"unsafe"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
)

// Typical shell commands. None of them may open a file of the host.
var rehearsals = []string{
	"echo hi | wc -c",
	"printf '%s\\n' a b | cat",
	"x=$(echo a b); for i in $x; do echo \"$i\"; done | sort | head -n 1 | grep -c a",
}

// rehearse is called before the snapshot is taken: data that a first run creates (tables of the runtime, spans of memory to
// allocate from, the stacks of goroutines) is then there in every instance.
//
//go:wasmexport rehearse
func rehearse() int32 {
	core.Mounts = []string{"/work"}
	for _, script := range rehearsals {
		var problems bytes.Buffer
		env := []string{"PWD=/work", "HOME=/work", "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}
		c := &core.Ctx{Env: env, Dir: "/work", Stdin: core.Null, Stdout: new(bytes.Buffer), Stderr: &problems}
		if code := dispatch(c, []string{"sh", "-c", script}); code != 0 || problems.Len() > 0 {
			print(script, ": ", problems.String())
			return 1
		}
	}
	core.Mounts = nil
	shell.ForgetProcesses()
	beginNewSpans()
	return 0
}

// The sizes that Go's allocator has spans for, as far as short runs use them.
var spanSizes = []int{
	8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448, 480, 512, 576, 640,
	704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200, 3456, 4096,
}

const (
	spanAlignment = 8 << 10
	pointerBytes  = 8
	// Objects with pointers in them have one above a certain size.
	headerBytes, mostWithoutHeader = 8, 512
)

// newest keeps what is allocated off the stack.
var newest unsafe.Pointer

// beginNewSpans allocates until each size, with pointers and without, has just begun a span: a run then finds room in it,
// where it would otherwise use up an old one and have to fetch the next.
func beginNewSpans() {
	for _, size := range spanSizes {
		header := 0
		if size > mostWithoutHeader {
			header = headerBytes
		}
		untilSpanBegins(0, func() { newest = unsafe.Pointer(unsafe.SliceData(make([]byte, size))) })
		untilSpanBegins(header, func() {
			newest = unsafe.Pointer(unsafe.SliceData(make([]*byte, (size-header)/pointerBytes)))
		})
	}
	newest = nil
}

func untilSpanBegins(header int, allocate func()) {
	allocate()
	for uintptr(newest)%spanAlignment != uintptr(header) {
		allocate()
	}
}
