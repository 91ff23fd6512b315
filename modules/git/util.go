package main

import (
	"cmp"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/object"
)

func sortBy[T any, K cmp.Ordered](items []T, key func(T) K) {
	slices.SortStableFunc(items, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func readAll(blob *object.Blob) []byte {
	reader, err := blob.Reader()
	must(err)
	defer reader.Close()
	data, err := io.ReadAll(reader)
	must(err)
	return data
}

func matchRegexp(pattern, text string) bool {
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		fatal("invalid regexp: %s", pattern)
	}
	return compiled.MatchString(text)
}

func plural(n int, one string) string {
	if n == 1 {
		return one
	}
	return one + "s"
}

// pathspec selects paths: a file, a directory and all below it, or a glob.
type pathspec []string

func (r *repo) pathspec(args []string) pathspec {
	var spec pathspec
	for _, arg := range args {
		spec = append(spec, r.repoPath(arg))
	}
	return spec
}

func (spec pathspec) matches(name string) bool {
	if len(spec) == 0 {
		return true
	}
	for _, each := range spec {
		if matchesOne(each, name) {
			return true
		}
	}
	return false
}

func matchesOne(each, name string) bool {
	if each == "" || each == name || strings.HasPrefix(name, each+"/") {
		return true
	}
	if !strings.ContainsAny(each, "*?[") {
		return false
	}
	return globRegexp(each).MatchString(name)
}

// globRegexp: in a pathspec `*` also matches slashes.
func globRegexp(glob string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; c {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteString(".")
		case '[':
			if end := strings.IndexByte(glob[i:], ']'); end > 0 {
				b.WriteString(strings.Replace(glob[i:i+end+1], "[!", "[^", 1))
				i += end
				continue
			}
			b.WriteString(`\[`)
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	b.WriteString("(/.*)?$")
	compiled, err := regexp.Compile(b.String())
	if err != nil {
		return regexp.MustCompile("^" + regexp.QuoteMeta(glob) + "$")
	}
	return compiled
}

// quoted is a path as Git prints it: unusual bytes in octal, between double quotes.
func quoted(name string) string {
	isPlain := true
	for i := 0; i < len(name); i++ {
		if c := name[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			isPlain = false
			break
		}
	}
	if isPlain {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			b.WriteByte('\\')
			b.WriteByte('0' + c>>6)
			b.WriteByte('0' + c>>3&7)
			b.WriteByte('0' + c&7)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func parentDirs(name string) []string {
	var dirs []string
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}

// options splits arguments into flags and the rest; "--" ends the flags. Flags in withValue take the next argument.
type options struct {
	flags      map[string][]string
	rest       []string
	paths      []string // after "--"
	hasDashes  bool
	unexpected string
}

func parseOptions(args []string, known string, withValue string) *options {
	o := &options{flags: map[string][]string{}}
	isKnown := func(name, list string) bool { return slices.Contains(strings.Fields(list), name) }
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			o.hasDashes = true
			o.paths = append(o.paths, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			o.rest = append(o.rest, arg)
			continue
		}
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(arg, "--") && isKnown(name, withValue):
			if !hasValue {
				if i+1 >= len(args) {
					usage("error: option `%s' requires a value", strings.TrimLeft(name, "-"))
				}
				i++
				value = args[i]
			}
			o.flags[name] = append(o.flags[name], value)
		case strings.HasPrefix(arg, "--") && isKnown(name, known):
			o.flags[name] = append(o.flags[name], value)
		case strings.HasPrefix(arg, "--"):
			usage("error: unknown option `%s'", strings.TrimLeft(name, "-"))
		case arg[1] >= '0' && arg[1] <= '9' && isKnown("-n", withValue):
			o.flags["-n"] = append(o.flags["-n"], arg[1:])
		default:
			i = o.parseShort(args, i, known, withValue, isKnown)
		}
	}
	return o
}

// parseShort handles a bundle such as -am "message".
func (o *options) parseShort(args []string, i int, known, withValue string, isKnown func(string, string) bool) int {
	letters := args[i][1:]
	for j := 0; j < len(letters); j++ {
		name := "-" + letters[j:j+1]
		switch {
		case isKnown(name, withValue):
			value := letters[j+1:]
			if value == "" {
				if i+1 >= len(args) {
					usage("error: switch `%s' requires a value", letters[j:j+1])
				}
				i++
				value = args[i]
			}
			o.flags[name] = append(o.flags[name], value)
			return i
		case isKnown(name, known):
			o.flags[name] = append(o.flags[name], "")
		default:
			usage("error: unknown switch `%s'", letters[j:j+1])
		}
	}
	return i
}

func (o *options) has(names ...string) bool {
	for _, name := range names {
		if _, found := o.flags[name]; found {
			return true
		}
	}
	return false
}

func (o *options) value(names ...string) string {
	for _, name := range names {
		if values := o.flags[name]; len(values) > 0 {
			return values[len(values)-1]
		}
	}
	return ""
}

func (o *options) all() []string { return append(append([]string{}, o.rest...), o.paths...) }
