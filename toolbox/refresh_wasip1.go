package main

import (
	"unsafe"
)

// The module is a snapshot taken after initialisation: whatever Go read from its host by then is read again here.

//go:wasmimport wasi_snapshot_preview1 args_sizes_get
//go:noescape
func argsSizes(count, size unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 args_get
//go:noescape
func argsGet(pointers, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
//go:noescape
func environSizes(count, size unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
//go:noescape
func environGet(pointers, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_get
//go:noescape
func prestatGet(fd uint32, into unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_dir_name
//go:noescape
func prestatDirName(fd uint32, path unsafe.Pointer, size uint32) uint32

// preopen mirrors syscall's own type; the variable is syscall's list of mounted directories.
type preopen struct {
	fd   int32
	name string
}

//go:linkname preopens syscall.preopens
var preopens []preopen

// randomState mirrors runtime.globalRand up to its "init" mark; resetting that mark lets the runtime seed itself again.
type randomState struct {
	lock  uintptr
	seed  [32]byte
	state struct {
		buf     [32]uint64
		seed    [4]uint64
		i, n, c uint32
	}
	init bool
}

//go:linkname globalRand runtime.globalRand
var globalRand randomState

//go:linkname randinit runtime.randinit
func randinit()

//go:linkname mrandinit runtime.mrandinit
func mrandinit(m unsafe.Pointer)

//go:linkname m0 runtime.m0
var m0 byte

func refresh() {
	globalRand.init = false
	randinit()
	mrandinit(unsafe.Pointer(&m0))
	readPreopens()
}

func readPreopens() {
	preopens = make([]preopen, 0, 4)
	for fd := uint32(3); ; fd++ {
		var prestat struct {
			kind uint8
			size uint32
		}
		if prestatGet(fd, unsafe.Pointer(&prestat)) != 0 {
			return
		}
		if prestat.kind != 0 || prestat.size == 0 {
			continue
		}
		name := make([]byte, prestat.size)
		if prestatDirName(fd, unsafe.Pointer(&name[0]), prestat.size) != 0 {
			return
		}
		preopens = append(preopens, preopen{int32(fd), string(name)})
	}
}

func arguments() []string   { return readList(argsSizes, argsGet) }
func environment() []string { return readList(environSizes, environGet) }

// readList reads the NUL-terminated strings of args_get or environ_get.
func readList(sizes, get func(unsafe.Pointer, unsafe.Pointer) uint32) []string {
	var count, size uint32
	if sizes(unsafe.Pointer(&count), unsafe.Pointer(&size)) != 0 || count == 0 {
		return nil
	}
	pointers := make([]uint32, count)
	buffer := make([]byte, size)
	if get(unsafe.Pointer(&pointers[0]), unsafe.Pointer(&buffer[0])) != 0 {
		return nil
	}
	values := make([]string, count)
	base := uint32(uintptr(unsafe.Pointer(&buffer[0])))
	for i, pointer := range pointers {
		start := pointer - base
		end := start
		for end < size && buffer[end] != 0 {
			end++
		}
		values[i] = string(buffer[start:end])
	}
	return values
}
