package archive

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
)

func init() {
	core.Register(&core.Command{Name: "zip", Summary: "Package files in a zip archive.", Usage: "zip [-rqjDmufdT@0..9] [-i GLOB] [-x GLOB] archive [file...]", Run: zipCommand})
}

// Exit statuses of Info-ZIP.
const (
	zipBadParameters = 16
	zipNothingToDo   = 12
	zipCannotCreate  = 15
	zipBadArchive    = 3
)

type zipJob struct {
	c                *core.Ctx
	on               map[string]bool
	level            int
	include, exclude []string
	archive          string
	old              []*zip.File
	found            []zipSource // in the order in which they were named
	talk             io.Writer   // standard error when the archive goes to standard output
	out              bytes.Buffer
	writer           *zip.Writer
}

// zipSource is a file that was found for the archive.
type zipSource struct {
	name, stored string
	info         fs.FileInfo
}

func zipCommand(c *core.Ctx) int {
	c.Args = spreadLists(c.Args)
	options, operands, ok := core.Options{Short: "rqjumfdTvyoDX0123456789i:x:@", Long: "recurse-paths/r quiet/q junk-paths/j no-dir-entries/D move/m update/u freshen/f delete/d test/T exclude=/x include=/i names-stdin/@"}.Parse(c)
	if !ok {
		return zipBadParameters
	}
	z := &zipJob{c: c, on: map[string]bool{}, level: 6, talk: c.Out}
	for _, option := range options {
		z.set(option)
	}
	if len(operands) == 0 {
		return c.Fail(zipBadParameters, "error: nothing to do")
	}
	z.archive = operands[0]
	if z.archive == "-" {
		z.talk = c.Stderr
	} else if path.Ext(z.archive) == "" {
		z.archive += ".zip"
	}
	names := operands[1:]
	if z.on["@"] {
		names = append(names, z.namesFromInput()...)
	}
	return z.run(names)
}

// spreadLists gives every pattern its own option: -x and -i take all that follows, up to an option or "@".
func spreadLists(args []string) []string {
	var out []string
	option := ""
	for _, arg := range args {
		switch {
		case option != "" && arg == "@":
			option = ""
		case option != "" && !strings.HasPrefix(arg, "-"):
			out = append(out, option, arg)
		case arg == "-x" || arg == "-i":
			option = arg
		default:
			out, option = append(out, arg), ""
		}
	}
	return out
}

func (z *zipJob) set(option core.Option) {
	z.on[option.Name] = true
	switch {
	case option.Name == "x":
		z.exclude = append(z.exclude, option.Value)
	case option.Name == "i":
		z.include = append(z.include, option.Value)
	case option.Name >= "0" && option.Name <= "9":
		z.level = int(option.Name[0] - '0')
	}
}

func (z *zipJob) namesFromInput() []string {
	var names []string
	core.Lines(z.c.Stdin, '\n', func(line []byte, _ bool) bool {
		names = append(names, string(line))
		return true
	})
	return names
}

func (z *zipJob) run(names []string) int {
	if err := z.readOld(); err != nil {
		return z.fail(zipBadArchive, "Zip file structure invalid (%s)", z.archive)
	}
	if z.on["T"] && len(names) == 0 && len(z.old) > 0 {
		return z.test()
	}
	z.writer = zip.NewWriter(&z.out)
	work := z.update
	if z.on["d"] {
		work = z.remove
	}
	if !work(names) {
		if z.on["u"] || z.on["f"] {
			return zipNothingToDo // what is there is not older: no news is no error to speak of
		}
		return z.fail(zipNothingToDo, "Nothing to do! (%s)", z.archive)
	}
	return z.save()
}

func (z *zipJob) readOld() error {
	data, err := os.ReadFile(z.c.Path(z.archive))
	if err != nil || z.archive == "-" {
		return nil
	}
	reader, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err == nil {
		z.old = reader.File
	}
	return err
}

func (z *zipJob) say(format string, args ...any) {
	if !z.on["q"] {
		fmt.Fprintf(z.talk, format+"\n", args...)
	}
}

func (z *zipJob) fail(code int, format string, args ...any) int {
	fmt.Fprintf(z.talk, "\nzip error: "+format+"\n", args...)
	return code
}

// remove keeps the members that no pattern names; false when none is named.
func (z *zipJob) remove(patterns []string) bool {
	if len(z.old) == 0 {
		z.say("\tzip warning: %s not found or empty", z.archive)
	}
	removed := map[string]bool{}
	for _, pattern := range patterns {
		matches, isMatched := shell.Glob(pattern, false), false
		for _, member := range z.old {
			if member.Name == pattern || matches(member.Name) {
				isMatched, removed[member.Name] = true, true
			}
		}
		if !isMatched {
			z.say("\tzip warning: name not matched: %s", pattern)
		}
	}
	for _, member := range z.old {
		if removed[member.Name] {
			z.say("deleting: %s", member.Name)
		} else {
			z.writer.Copy(member)
		}
	}
	if len(removed) > 0 && len(removed) == len(z.old) {
		z.say("\tzip warning: zip file empty")
	}
	return len(removed) > 0
}

// update puts what was found in the place of the members of the same names, and the rest behind them.
func (z *zipJob) update(names []string) bool {
	for _, name := range names {
		z.find(name)
	}
	wanted := map[string]zipSource{}
	for _, source := range z.found {
		wanted[source.stored] = source
	}
	written := 0
	for _, member := range z.old {
		source, isNamed := wanted[member.Name]
		delete(wanted, member.Name)
		if !isNamed || (z.on["u"] || z.on["f"]) && !isNewer(source.info, member) {
			z.writer.Copy(member)
		} else if z.put("updating", source) {
			written++
		}
	}
	for _, source := range z.found {
		if _, isLeft := wanted[source.stored]; !isLeft || z.on["f"] {
			continue
		}
		delete(wanted, source.stored)
		if z.put("  adding", source) {
			written++
		}
	}
	return written > 0
}

// isNewer compares as the archive can: it keeps time in steps of two seconds.
func isNewer(info fs.FileInfo, member *zip.File) bool {
	return info.ModTime().Truncate(2 * time.Second).After(member.Modified.Truncate(2 * time.Second))
}

func (z *zipJob) find(name string) {
	info, err := core.Stat(z.c.Path(name))
	if err != nil {
		z.say("\tzip warning: name not matched: %s", name)
		return
	}
	stored := strings.TrimPrefix(strings.TrimLeft(name, "/"), "./")
	if z.on["j"] {
		stored = path.Base(name)
	}
	if !info.IsDir() {
		z.note(zipSource{name, stored, info})
		return
	}
	stored = strings.TrimRight(stored, "/")
	if !z.on["D"] && !z.on["j"] && stored != "." && stored != "" {
		z.note(zipSource{name, stored + "/", info})
	}
	if !z.on["r"] {
		return
	}
	entries, _ := core.ReadDir(z.c.Path(name))
	for _, entry := range entries {
		z.find(strings.TrimRight(name, "/") + "/" + entry.Name())
	}
}

func (z *zipJob) note(source zipSource) {
	isOwn := z.c.Path(source.name) == z.c.Path(z.archive)
	if isOwn || matchesAny(z.exclude, source.stored) || len(z.include) > 0 && !matchesAny(z.include, source.stored) {
		return
	}
	z.found = append(z.found, source)
}

func matchesAny(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if shell.Glob(pattern, false)(name) {
			return true
		}
	}
	return false
}

// put writes one member: deflated where that makes it smaller.
func (z *zipJob) put(verb string, source zipSource) bool {
	header := newHeader(source)
	var data []byte
	if !source.info.IsDir() {
		var err error
		if data, err = os.ReadFile(z.c.Path(source.name)); err != nil {
			z.say("\tzip warning: could not open for reading: %s", source.name)
			return false
		}
	}
	packed, note := data, "stored"
	if smaller := z.deflated(data); len(smaller) < len(data) {
		packed, note, header.Method = smaller, "deflated", zip.Deflate
	}
	header.CRC32 = crc32.ChecksumIEEE(data)
	header.UncompressedSize64, header.CompressedSize64 = uint64(len(data)), uint64(len(packed))
	entry, err := z.writer.CreateRaw(header)
	if err != nil {
		z.say("\tzip warning: could not store: %s", source.name)
		return false
	}
	entry.Write(packed)
	z.say("%s: %s (%s %d%%)", verb, source.stored, note, saved(len(data), len(packed)))
	return true
}

// newHeader keeps the time twice, as Info-ZIP does: in steps of two seconds, and to the second since 1970.
func newHeader(source zipSource) *zip.FileHeader {
	header := &zip.FileHeader{Name: source.stored}
	header.SetMode(source.info.Mode())
	header.SetModTime(source.info.ModTime())
	extra := []byte{'U', 'T', 5, 0, 1}
	header.Extra = binary.LittleEndian.AppendUint32(extra, uint32(source.info.ModTime().Unix()))
	return header
}

func (z *zipJob) deflated(data []byte) []byte {
	if z.level == 0 || len(data) == 0 {
		return data
	}
	var out bytes.Buffer
	compressor, _ := flate.NewWriter(&out, z.level) // fails for levels past 9 only
	compressor.Write(data)
	compressor.Close()
	return out.Bytes()
}

// saved is the share that packing saved, in per cent, rounded.
func saved(before, after int) int {
	if after >= before {
		return 0
	}
	return (1 + 200*(before-after)/before) / 2
}

func (z *zipJob) save() int {
	z.writer.Close()
	if z.archive == "-" {
		z.c.Out.Write(z.out.Bytes())
		return 0
	}
	file, err := z.c.Create(z.archive)
	if err != nil {
		return z.fail(zipCannotCreate, "Could not create output file (%s): %s", z.archive, core.Reason(err))
	}
	defer file.Close()
	if _, err := file.Write(z.out.Bytes()); err != nil {
		return z.fail(zipCannotCreate, "Output file write failure: %s", core.Reason(err))
	}
	if z.on["m"] {
		z.removeSources()
	}
	return 0
}

// removeSources implements -m after the archive was written; directories go last, and only empty ones.
func (z *zipJob) removeSources() {
	for i := len(z.found) - 1; i >= 0; i-- {
		if err := core.Remove(z.c.Path(z.found[i].name)); err != nil && !z.found[i].info.IsDir() {
			z.say("\tzip warning: could not remove %s: %s", z.found[i].name, core.Reason(err))
		}
	}
}

func (z *zipJob) test() int {
	for _, member := range z.old {
		content, err := member.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, content)
			content.Close()
		}
		if err != nil {
			return z.fail(8, "Zip file invalid (%s: %s)", member.Name, core.Reason(err))
		}
	}
	z.say("test of %s OK", z.archive)
	return 0
}
