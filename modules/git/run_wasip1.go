//go:build wasip1

package main

import (
	"os"
	"strings"
	"unsafe"
	_ "unsafe" // for go:linkname
)

func main() {}

// run is the entry point. The module was snapshotted after Go's own initialisation, which saw no arguments, no
// environment and no directories; all three are asked of the host here, once per run.
//
//go:wasmexport run
func run() int32 {
	os.Args = readStrings(argsSizesGet, argsGet)
	os.Clearenv()
	for _, entry := range readStrings(environSizesGet, environGet) {
		if name, value, found := strings.Cut(entry, "="); found && name != "" {
			os.Setenv(name, value)
		}
	}
	loadPreopens()
	return int32(runMain(os.Args[min(1, len(os.Args)):]))
}

// preopen and the two variables below are package syscall's own (fs_wasip1.go), filled there once at start-up.
type preopen struct {
	fd   int32
	name string
}

//go:linkname syscallPreopens syscall.preopens
var syscallPreopens []preopen

//go:linkname syscallCwd syscall.cwd
var syscallCwd string

func loadPreopens() {
	syscallPreopens = nil
	for fd := int32(3); ; fd++ {
		var stat [2]uint32 // tag, length of the name
		if fdPrestatGet(fd, unsafe.Pointer(&stat)) != 0 {
			break
		}
		name := make([]byte, stat[1]+1)
		if fdPrestatDirName(fd, unsafe.Pointer(&name[0]), stat[1]) == 0 {
			syscallPreopens = append(syscallPreopens, preopen{fd, string(name[:stat[1]])})
		}
	}
	syscallCwd = "/"
	if directory := os.Getenv("PWD"); strings.HasPrefix(directory, "/") {
		syscallCwd = strings.TrimRight(directory, "/")
	} else if len(syscallPreopens) > 0 {
		syscallCwd = syscallPreopens[0].name
	}
	if syscallCwd == "" {
		syscallCwd = "/"
	}
}

func readStrings(sizes func(count, bytes unsafe.Pointer) uint32, get func(table, buffer unsafe.Pointer) uint32) []string {
	var count, size uint32
	if sizes(unsafe.Pointer(&count), unsafe.Pointer(&size)) != 0 || count == 0 {
		return nil
	}
	table, buffer := make([]uint32, count), make([]byte, size+1)
	if get(unsafe.Pointer(&table[0]), unsafe.Pointer(&buffer[0])) != 0 {
		return nil
	}
	base := uint32(uintptr(unsafe.Pointer(&buffer[0])))
	found := make([]string, count)
	for i, address := range table {
		text := string(buffer[address-base:])
		found[i] = text[:strings.IndexByte(text, 0)]
	}
	return found
}

//go:wasmimport wasi_snapshot_preview1 args_sizes_get
//go:noescape
func argsSizesGet(count, bytes unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 args_get
//go:noescape
func argsGet(table, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
//go:noescape
func environSizesGet(count, bytes unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
//go:noescape
func environGet(table, buffer unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_get
//go:noescape
func fdPrestatGet(fd int32, stat unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_dir_name
//go:noescape
func fdPrestatDirName(fd int32, name unsafe.Pointer, length uint32) uint32
