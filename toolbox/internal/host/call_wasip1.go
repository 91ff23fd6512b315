package host

import "unsafe"

//go:wasmimport sandbox __sandbox_fetch
func sandboxFetch(request unsafe.Pointer, size uint32) int32

//go:wasmimport sandbox __sandbox_fetch_response_len
func sandboxFetchLen() int32

//go:wasmimport sandbox __sandbox_fetch_response_read
func sandboxFetchRead(into unsafe.Pointer, size uint32) int32

//go:wasmimport sandbox __sandbox_exec
func sandboxExec(request unsafe.Pointer, size uint32) int32

//go:wasmimport sandbox __sandbox_exec_response_len
func sandboxExecLen() int32

//go:wasmimport sandbox __sandbox_exec_response_read
func sandboxExecRead(into unsafe.Pointer, size uint32) int32

func collect(size int32, read func(unsafe.Pointer, uint32) int32) []byte {
	if size <= 0 {
		return nil
	}
	data := make([]byte, size)
	n := read(unsafe.Pointer(&data[0]), uint32(size))
	if n < 0 || n > size {
		return nil
	}
	return data[:n]
}

func callExec(request []byte) ([]byte, int32) {
	code := sandboxExec(unsafe.Pointer(&request[0]), uint32(len(request)))
	return collect(sandboxExecLen(), func(into unsafe.Pointer, size uint32) int32 { return sandboxExecRead(into, size) }), code
}

// CallFetch sends a fetch request and returns the response JSON and the host's code.
func CallFetch(request []byte) ([]byte, int32) {
	code := sandboxFetch(unsafe.Pointer(&request[0]), uint32(len(request)))
	return collect(sandboxFetchLen(), func(into unsafe.Pointer, size uint32) int32 { return sandboxFetchRead(into, size) }), code
}
