package core

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mounts are the guest names of the directories that the host gave us; the entry point fills it at the start of each run.
var Mounts []string

// Abs resolves a name against the working directory.
func Abs(dir, name string) string {
	if name == "" {
		return ""
	}
	if !path.IsAbs(name) {
		name = dir + "/" + name
	}
	return cleanKeepingSlash(name)
}

// A trailing slash says "must be a directory"; the operating system checks that, so it must survive the cleaning.
func cleanKeepingSlash(name string) string {
	clean := path.Clean(name)
	if strings.HasSuffix(name, "/") && clean != "/" {
		return clean + "/"
	}
	return clean
}

// Path resolves a name against the command's working directory.
func (c *Ctx) Path(name string) string { return Abs(c.Dir, name) }

// modes remembers chmod and files that this run created: WASI keeps no permission bits.
var modes = struct {
	sync.Mutex
	of map[string]fs.FileMode
}{of: map[string]fs.FileMode{}}

// Umask is the shell's file creation mask.
var Umask fs.FileMode = 0o022

// SetMode records the permission bits of a path for the rest of the run.
func SetMode(name string, mode fs.FileMode) {
	modes.Lock()
	modes.of[path.Clean(name)] = mode & 0o7777
	modes.Unlock()
}

func forgetMode(name string) {
	modes.Lock()
	delete(modes.of, path.Clean(name))
	modes.Unlock()
}

func moveMode(from, to string) {
	modes.Lock()
	if mode, ok := modes.of[path.Clean(from)]; ok {
		modes.of[path.Clean(to)] = mode
		delete(modes.of, path.Clean(from))
	}
	modes.Unlock()
}

func knownMode(name string) (fs.FileMode, bool) {
	modes.Lock()
	defer modes.Unlock()
	mode, ok := modes.of[path.Clean(name)]
	return mode, ok
}

// Perm returns the permission bits that we show for a file: recorded ones, else 0755 for directories and scripts, else 0644.
func Perm(name string, info fs.FileInfo) fs.FileMode {
	if mode, ok := knownMode(name); ok {
		return mode
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return 0o777
	case info.IsDir():
		return 0o755
	case info.Mode().IsRegular() && hasShebang(name):
		return 0o755
	case !info.Mode().IsRegular():
		return 0o666
	}
	return 0o644
}

func hasShebang(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	var head [2]byte
	n, _ := io.ReadFull(file, head[:])
	return n == 2 && head[0] == '#' && head[1] == '!'
}

// Info is a FileInfo with our own permission bits.
type Info struct {
	fs.FileInfo
	mode fs.FileMode
	name string
}

// Mode returns type and permission bits.
func (i Info) Mode() fs.FileMode { return i.mode }

// Name returns the base name that was asked for.
func (i Info) Name() string { return i.name }

func wrapInfo(name string, info fs.FileInfo) fs.FileInfo {
	bits := Perm(name, info)
	mode := info.Mode().Type() | bits&0o777
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if bits&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	return Info{info, mode, path.Base(name)}
}

// Stat follows links.
func Stat(name string) (fs.FileInfo, error) {
	if virtual := virtualInfo(name); virtual != nil {
		return virtual, nil
	}
	if name == "" {
		return nil, syscall.ENOENT
	}
	if IsNowhere(name) {
		return nil, syscall.ENOENT
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, missing(name, err)
	}
	return wrapInfo(resolveForMode(name), info), nil
}

// Modes are kept by real path, so that a link shows the bits of its target.
func resolveForMode(name string) string {
	if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if real, err := RealPath(name); err == nil {
			return real
		}
	}
	return name
}

// Lstat does not follow the last link.
func Lstat(name string) (fs.FileInfo, error) {
	if virtual := virtualInfo(name); virtual != nil {
		return virtual, nil
	}
	if name == "" {
		return nil, syscall.ENOENT
	}
	if strings.HasSuffix(name, "/") {
		return Stat(name)
	}
	if IsNowhere(name) {
		return nil, syscall.ENOENT
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, missing(name, err)
	}
	return wrapInfo(name, info), nil
}

// Outside every mount WASI answers EBADF or EPERM; a user expects "No such file or directory" there.
func missing(name string, err error) error {
	if underMount(name) {
		return err
	}
	return syscall.ENOENT
}

// IsNowhere tells without asking the host that a path is outside every mount; most directories of PATH are.
func IsNowhere(name string) bool { return name[0] == '/' && !underMount(path.Clean(name)) }

func underMount(name string) bool {
	if len(Mounts) == 0 {
		return true
	}
	for _, mount := range Mounts {
		if mount == "/" || name == mount || strings.HasPrefix(name, strings.TrimSuffix(mount, "/")+"/") {
			return true
		}
	}
	return false
}

type virtualDir struct {
	name string
	mode fs.FileMode
}

func (v virtualDir) Name() string       { return v.name }
func (v virtualDir) Size() int64        { return 0 }
func (v virtualDir) Mode() fs.FileMode  { return v.mode }
func (v virtualDir) ModTime() time.Time { return time.Unix(0, 0) }
func (v virtualDir) IsDir() bool        { return v.mode.IsDir() }
func (v virtualDir) Sys() any           { return nil }

// In name order, as every listing is.
var (
	devices         = []string{"fd", "full", "null", "random", "stderr", "stdin", "stdout", "urandom", "zero"}
	standardStreams = []string{"0", "1", "2"}
)

// virtualInfo knows the names that exist without being in any mount: "/", parents of mounts, and /dev.
func virtualInfo(name string) fs.FileInfo {
	if name == "" || name[0] != '/' {
		return nil
	}
	clean := path.Clean(name)
	if device, ok := strings.CutPrefix(clean, "/dev/"); ok {
		for _, known := range devices {
			if device == known {
				if device == "fd" {
					return virtualDir{device, fs.ModeDir | 0o755}
				}
				return virtualDir{device, fs.ModeDevice | fs.ModeCharDevice | 0o666}
			}
		}
		if strings.HasPrefix(device, "fd/") {
			return virtualDir{path.Base(device), fs.ModeNamedPipe | 0o600}
		}
		return nil
	}
	if len(Mounts) == 0 {
		return nil
	}
	if clean == "/dev" || HasMountBelow(clean) {
		return virtualDir{path.Base(clean), fs.ModeDir | 0o755}
	}
	return nil
}

// HasMountBelow tells whether a directory exists because a mount lies somewhere in it.
func HasMountBelow(dir string) bool {
	for _, mount := range Mounts {
		if mount == dir {
			return false
		}
	}
	for _, mount := range Mounts {
		if dir == "/" || strings.HasPrefix(mount, dir+"/") {
			return true
		}
	}
	return false
}

// ReadDir lists a directory in name order.
func ReadDir(name string) ([]fs.DirEntry, error) {
	clean := path.Clean(name)
	if len(Mounts) > 0 && HasMountBelow(clean) {
		return virtualEntries(clean), nil
	}
	if len(Mounts) > 0 && clean == "/dev" {
		return virtualList(clean, devices), nil
	}
	if len(Mounts) > 0 && clean == "/dev/fd" {
		return virtualList(clean, standardStreams), nil
	}
	entries, err := os.ReadDir(clean)
	if err != nil {
		return nil, missing(clean, err)
	}
	return entries, nil
}

func virtualList(dir string, names []string) []fs.DirEntry {
	entries := make([]fs.DirEntry, len(names))
	for i, name := range names {
		entries[i] = fs.FileInfoToDirEntry(virtualInfo(dir + "/" + name))
	}
	return entries
}

func virtualEntries(dir string) []fs.DirEntry {
	seen := map[string]bool{}
	for _, mount := range Mounts {
		rest, ok := strings.CutPrefix(mount, strings.TrimSuffix(dir, "/")+"/")
		if ok && rest != "" {
			first, _, _ := strings.Cut(rest, "/")
			seen[first] = true
		}
	}
	if dir == "/" {
		seen["dev"] = true
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	entries := make([]fs.DirEntry, len(names))
	for i, name := range names {
		entries[i] = fs.FileInfoToDirEntry(virtualDir{name, fs.ModeDir | 0o755})
	}
	return entries
}

// File is an open file.
type File interface {
	io.Reader
	io.Writer
	io.Closer
}

// Open opens for reading; "-" and /dev names mean the command's own streams.
func (c *Ctx) Open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(c.Stdin), nil
	}
	return c.OpenFile(name, os.O_RDONLY)
}

// Create opens for writing from scratch.
func (c *Ctx) Create(name string) (File, error) {
	return c.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}

// OpenFile is os.OpenFile with the command's directory, /dev, recorded modes and ENOENT outside the mounts.
func (c *Ctx) OpenFile(name string, flags int) (File, error) {
	if name == "" {
		return nil, syscall.ENOENT
	}
	full := c.Path(name)
	if strings.HasPrefix(full, "/dev/") {
		if device, err := c.openDevice(full[len("/dev/"):]); device != nil || err != nil {
			return device, err
		}
	}
	if len(Mounts) > 0 && virtualInfo(full) != nil {
		return nil, syscall.EISDIR
	}
	existed := true
	if flags&os.O_CREATE != 0 {
		_, err := os.Stat(full)
		existed = err == nil
	}
	if mode, ok := knownMode(full); ok && existed {
		if flags&(os.O_WRONLY|os.O_RDWR) != 0 && mode&0o222 == 0 && !IsRoot {
			return nil, syscall.EACCES
		}
		if flags&os.O_WRONLY == 0 && mode&0o444 == 0 && !IsRoot {
			return nil, syscall.EACCES
		}
	}
	file, err := os.OpenFile(full, flags, 0o666)
	if err != nil {
		return nil, missing(full, err)
	}
	if !existed {
		SetMode(full, 0o666&^Umask)
	} else if flags&(os.O_WRONLY|os.O_RDWR) == 0 {
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return &directory{file}, nil
		}
	}
	return file, nil
}

// IsRoot: permission bits are kept for show; the host decides what may be read and written.
const IsRoot = true

type directory struct{ *os.File }

func (d *directory) Read([]byte) (int, error) { return 0, syscall.EISDIR }

func (c *Ctx) openDevice(name string) (File, error) {
	switch name {
	case "null":
		return nullDevice{}, nil
	case "zero", "full":
		return zeroDevice{}, nil
	case "random", "urandom":
		return randomDevice{}, nil
	case "stdin":
		return streamFile{reader: c.Stdin}, nil
	case "stdout":
		return streamFile{writer: c.Stdout}, nil
	case "stderr":
		return streamFile{writer: c.Stderr}, nil
	case "tty":
		return nil, syscall.ENXIO
	}
	number, ok := strings.CutPrefix(name, "fd/")
	if !ok {
		return nil, nil
	}
	fd, err := strconv.Atoi(number)
	if err != nil {
		return nil, syscall.ENOENT
	}
	switch fd {
	case 0:
		return streamFile{reader: c.Stdin}, nil
	case 1:
		return streamFile{writer: c.Stdout}, nil
	case 2:
		return streamFile{writer: c.Stderr}, nil
	}
	stream, ok := c.FDs[fd]
	if !ok {
		return nil, syscall.ENOENT
	}
	reader, _ := stream.(io.Reader)
	writer, _ := stream.(io.Writer)
	return streamFile{reader: reader, writer: writer}, nil
}

// streamFile gives a stream out under a name; closing it leaves the stream open.
type streamFile struct {
	reader io.Reader
	writer io.Writer
}

func (s streamFile) Read(into []byte) (int, error) {
	if s.reader == nil {
		return 0, syscall.EBADF
	}
	return s.reader.Read(into)
}

func (s streamFile) Write(data []byte) (int, error) {
	if s.writer == nil {
		return 0, syscall.EBADF
	}
	return s.writer.Write(data)
}

func (s streamFile) Close() error { return nil }

type nullDevice struct{}

func (nullDevice) Read([]byte) (int, error)       { return 0, io.EOF }
func (nullDevice) Write(data []byte) (int, error) { return len(data), nil }
func (nullDevice) Close() error                   { return nil }

type zeroDevice struct{ nullDevice }

func (zeroDevice) Read(into []byte) (int, error) { clear(into); return len(into), nil }

type randomDevice struct{ nullDevice }

func (randomDevice) Read(into []byte) (int, error) { return RandomBytes(into) }

// Null is /dev/null.
var Null File = nullDevice{}

// RealPath resolves every link of a name.
func RealPath(name string) (string, error) {
	return resolveLinks(name, 0)
}

func resolveLinks(name string, depth int) (string, error) {
	if depth > 40 {
		return "", syscall.ELOOP
	}
	resolved := "/"
	parts := strings.Split(path.Clean(name), "/")
	for i, part := range parts {
		if part == "" {
			continue
		}
		next := path.Join(resolved, part)
		info, err := Lstat(next)
		if err != nil {
			return next, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			resolved = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return next, err
		}
		if !path.IsAbs(target) {
			target = path.Join(resolved, target)
		}
		return resolveLinks(path.Join(append([]string{target}, parts[i+1:]...)...), depth+1)
	}
	return resolved, nil
}

// Remove deletes a file or an empty directory.
func Remove(name string) error {
	if err := os.Remove(name); err != nil {
		return missing(name, err)
	}
	forgetMode(name)
	return nil
}

// Rename moves a file and its recorded mode.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return missing(to, err)
	}
	moveMode(from, to)
	return nil
}

// Mkdir makes one directory.
func Mkdir(name string, mode fs.FileMode) error {
	if virtualInfo(name) != nil {
		return syscall.EEXIST
	}
	if err := os.Mkdir(name, 0o777); err != nil {
		return missing(name, err)
	}
	SetMode(name, mode)
	return nil
}

// MkdirAll makes a directory with its parents.
func MkdirAll(name string) error {
	info, err := Stat(name)
	if err == nil {
		if info.IsDir() {
			return nil
		}
		return syscall.EEXIST
	}
	parent := path.Dir(path.Clean(name))
	if parent != path.Clean(name) {
		if err := MkdirAll(parent); err != nil {
			if errors.Is(err, syscall.EEXIST) {
				return syscall.ENOTDIR
			}
			return err
		}
	}
	return Mkdir(path.Clean(name), 0o777&^Umask)
}

// SameFile compares identity by the operating system's own numbers.
func SameFile(one, two fs.FileInfo) bool {
	return os.SameFile(bareInfo(one), bareInfo(two))
}

func bareInfo(info fs.FileInfo) fs.FileInfo {
	if wrapped, ok := info.(Info); ok {
		return wrapped.FileInfo
	}
	return info
}

// Append opens for writing at the end.
func (c *Ctx) Append(name string) (File, error) {
	return c.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
}
