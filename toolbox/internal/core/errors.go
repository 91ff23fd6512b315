package core

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"syscall"
)

var errnoTexts = map[syscall.Errno]string{
	syscall.ENOENT: "No such file or directory", syscall.EEXIST: "File exists", syscall.EACCES: "Permission denied",
	syscall.EPERM: "Operation not permitted", syscall.ENOTDIR: "Not a directory", syscall.EISDIR: "Is a directory",
	syscall.ENOTEMPTY: "Directory not empty", syscall.EINVAL: "Invalid argument", syscall.EBADF: "Bad file descriptor",
	syscall.EROFS: "Read-only file system", syscall.ELOOP: "Too many levels of symbolic links", syscall.ENOSPC: "No space left on device",
	syscall.EXDEV: "Invalid cross-device link", syscall.ENAMETOOLONG: "File name too long", syscall.EPIPE: "Broken pipe",
	syscall.EIO: "Input/output error", syscall.ENOTSUP: "Operation not supported", syscall.ENXIO: "No such device or address",
	syscall.EFBIG: "File too large", syscall.ENOSYS: "Function not implemented", syscall.EMFILE: "Too many open files",
	syscall.EBUSY: "Device or resource busy", syscall.EILSEQ: "Invalid or incomplete multibyte or wide character",
	syscall.EDQUOT: "Disk quota exceeded", syscall.ENOEXEC: "Exec format error", syscall.ETXTBSY: "Text file busy",
}

// Reason gives the text that GNU tools print for an error.
func Reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		// A capability that WASI does not grant is, for the guest, a permission it lacks.
		if text, ok := errnoTexts[errno]; ok {
			return text
		}
		return errno.Error()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errnoTexts[syscall.ENOENT]
	case errors.Is(err, fs.ErrExist):
		return errnoTexts[syscall.EEXIST]
	case errors.Is(err, fs.ErrPermission):
		return errnoTexts[syscall.EACCES]
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "unexpected end of file"
	case errors.Is(err, context.Canceled):
		return "Interrupted"
	}
	return err.Error()
}

// RandomBytes fills from the system's generator: the snapshot must not freeze a seed.
func RandomBytes(into []byte) (int, error) { return rand.Read(into) }

// Random64 returns 64 random bits.
func Random64() uint64 {
	var raw [8]byte
	rand.Read(raw[:])
	return binary.LittleEndian.Uint64(raw[:])
}
