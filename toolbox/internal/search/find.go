package search

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	core.Register(&core.Command{Name: "find", Summary: "Search for files in a directory hierarchy.",
		Usage: "find [-H|-L|-P] [path...] [-name GLOB] [-iname GLOB] [-path GLOB] [-regex RE] [-type fdl] [-size N] [-mtime N] [-mmin N] [-newer FILE] [-empty] [-perm MODE] [-maxdepth N] [-mindepth N] [-prune] [-not] [-o] [-print] [-print0] [-printf F] [-ls] [-delete] [-exec CMD ;|+] [-quit]", Run: find})
}

// visit is one file that find looks at.
type visit struct {
	path  string
	full  string
	info  fs.FileInfo
	depth int
	start string
}

// test is a node of the expression.
type test func(v *visit) bool

type finder struct {
	c                  *core.Ctx
	args               []string
	pos                int
	maxDepth, minDepth int
	depthFirst, follow bool
	hasAction          bool
	prune, quit        bool
	status             int
	batches            []*batch
	problem            string
	regexType          posix.Options
	now                time.Time
}

type batch struct {
	command []string
	names   []string
	dir     string
}

func find(c *core.Ctx) int {
	f := &finder{c: c, maxDepth: -1, now: time.Now()}
	args := c.Args
	for len(args) > 0 && (args[0] == "-H" || args[0] == "-L" || args[0] == "-P") {
		f.follow = args[0] == "-L"
		args = args[1:]
	}
	var paths []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "(" && args[0] != "!" {
		paths, args = append(paths, args[0]), args[1:]
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	f.args = args
	expression := f.expression()
	if f.problem == "" && f.pos < len(f.args) {
		f.problem = "paths must precede expression: `" + f.args[f.pos] + "'"
	}
	if f.problem != "" {
		return c.Fail(1, "%s", f.problem)
	}
	if !f.hasAction {
		inner := expression
		expression = func(v *visit) bool {
			if inner == nil || inner(v) {
				c.Out.WriteString(v.path + "\n")
				return true
			}
			return false
		}
	}
	for _, start := range paths {
		if f.quit {
			break
		}
		info, err := f.stat(c.Path(start))
		if err != nil {
			c.Errorf("‘%s’: %s", start, core.Reason(err))
			f.status = 1
			continue
		}
		f.walk(&visit{path: start, full: strings.TrimRight(c.Path(start), "/"), info: info, start: start}, expression)
	}
	for _, one := range f.batches {
		f.flush(one)
	}
	return f.status
}

func (f *finder) stat(full string) (fs.FileInfo, error) {
	if f.follow {
		if info, err := core.Stat(full); err == nil {
			return info, nil
		}
	}
	return core.Lstat(full)
}

func (f *finder) walk(v *visit, expression test) {
	f.c.Check()
	if v.full == "" {
		v.full = "/"
	}
	f.prune = false
	selected := v.depth >= f.minDepth
	if selected && !f.depthFirst {
		expression(v)
	}
	pruned := f.prune
	if v.info.IsDir() && !f.quit && (!pruned || f.depthFirst) && (f.maxDepth < 0 || v.depth < f.maxDepth) {
		entries, err := core.ReadDir(v.full)
		if err != nil {
			f.c.Errorf("‘%s’: %s", v.path, core.Reason(err))
			f.status = 1
		}
		for _, entry := range entries {
			child := &visit{path: strings.TrimRight(v.path, "/") + "/" + entry.Name(), full: strings.TrimRight(v.full, "/") + "/" + entry.Name(), depth: v.depth + 1, start: v.start}
			if v.path == "/" {
				child.path = "/" + entry.Name()
			}
			if child.info, err = f.stat(child.full); err == nil {
				f.walk(child, expression)
			}
			if f.quit {
				return
			}
		}
	}
	if selected && f.depthFirst {
		expression(v)
	}
}

func (f *finder) peek() string {
	if f.pos < len(f.args) {
		return f.args[f.pos]
	}
	return ""
}

func (f *finder) expression() test {
	left := f.conjunction()
	for f.peek() == "-o" || f.peek() == "-or" || f.peek() == "," {
		comma := f.peek() == ","
		f.pos++
		first, second := left, f.conjunction()
		left = func(v *visit) bool {
			if comma {
				first(v)
				return second(v)
			}
			return first(v) || second(v)
		}
	}
	return left
}

func (f *finder) conjunction() test {
	var left test
	for f.pos < len(f.args) && f.problem == "" {
		switch f.peek() {
		case "-o", "-or", ")", ",":
			return orTrue(left)
		case "-a", "-and":
			f.pos++
			continue
		}
		next := f.unary()
		if next == nil {
			continue
		}
		if left == nil {
			left = next
			continue
		}
		first := left
		left = func(v *visit) bool { return first(v) && next(v) }
	}
	return orTrue(left)
}

func orTrue(t test) test {
	if t == nil {
		return func(*visit) bool { return true }
	}
	return t
}

func (f *finder) unary() test {
	switch word := f.args[f.pos]; word {
	case "!", "-not":
		f.pos++
		if f.pos >= len(f.args) {
			f.problem = "expected an expression after '" + word + "'"
			return nil
		}
		inner := orTrue(f.unary())
		return func(v *visit) bool { return !inner(v) }
	case "(":
		f.pos++
		inner := f.expression()
		if f.peek() != ")" {
			f.problem = "invalid expression; I was expecting to find a ')' somewhere but did not see one."
		}
		f.pos++
		return inner
	}
	word := f.args[f.pos]
	f.pos++
	return f.primary(word)
}

func (f *finder) value(word string) string {
	if f.pos >= len(f.args) {
		f.problem = "missing argument to `" + word + "'"
		return ""
	}
	f.pos++
	return f.args[f.pos-1]
}

// compareNumber understands N, +N and -N.
func compareNumber(spec string, round func(int64) int64) (func(int64) bool, bool) {
	sign := byte(0)
	if spec != "" && (spec[0] == '+' || spec[0] == '-') {
		sign, spec = spec[0], spec[1:]
	}
	number, err := strconv.ParseInt(spec, 10, 64)
	if err != nil {
		return nil, false
	}
	return func(value int64) bool {
		value = round(value)
		switch sign {
		case '+':
			return value > number
		case '-':
			return value < number
		}
		return value == number
	}, true
}

func (f *finder) glob(pattern string, fold bool, pick func(*visit) string) test {
	matcher := newGlob(pattern, fold)
	return func(v *visit) bool { return matcher(pick(v)) }
}

func baseName(v *visit) string { return path.Base(strings.TrimRight(v.path, "/") + "") }

func (f *finder) primary(word string) test {
	switch word {
	case "-name", "-iname":
		return f.glob(f.value(word), word == "-iname", func(v *visit) string {
			if v.path == "/" {
				return "/"
			}
			return baseName(v)
		})
	case "-path", "-wholename", "-ipath", "-iwholename":
		return f.glob(f.value(word), strings.HasPrefix(word, "-i"), func(v *visit) string { return v.path })
	case "-lname", "-ilname":
		return f.glob(f.value(word), word == "-ilname", func(v *visit) string { return readLink(v.full) })
	case "-regextype":
		f.regexType.Extended = strings.Contains(f.value(word), "e") && f.args[f.pos-1] != "emacs"
		return nil
	case "-regex", "-iregex":
		o := f.regexType
		o.WholeLine, o.IgnoreCase = true, word == "-iregex"
		source := f.value(word)
		regex, err := posix.Compile(source, o)
		if err != nil {
			f.problem = "failed to compile regular expression '" + source + "': " + err.Error()
			return nil
		}
		return func(v *visit) bool { return regex.Match([]byte(v.path)) }
	case "-type", "-xtype":
		kinds := f.value(word)
		return func(v *visit) bool { return strings.Contains(kinds, kindLetter(v.info)) }
	case "-size":
		return f.sizeTest(f.value(word))
	case "-empty":
		return isEmpty
	case "-maxdepth", "-mindepth":
		number, err := strconv.Atoi(f.value(word))
		if err != nil {
			f.problem = "Expected a positive decimal integer argument to " + word
		}
		if word == "-maxdepth" {
			f.maxDepth = number
		} else {
			f.minDepth = number
		}
		return nil
	case "-depth", "-d":
		f.depthFirst = true
		return nil
	case "-mount", "-xdev", "-noleaf", "-daystart", "-ignore_readdir_race", "-warn", "-nowarn":
		return nil
	case "-follow":
		f.follow = true
		return nil
	case "-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin":
		unit := int64(86400)
		if strings.HasSuffix(word, "min") {
			unit = 60
		}
		matches, ok := compareNumber(f.value(word), func(age int64) int64 { return age / unit })
		if !ok {
			f.problem = "invalid argument `" + f.args[f.pos-1] + "' to `" + word + "'"
			return nil
		}
		return func(v *visit) bool { return matches(int64(f.now.Sub(v.info.ModTime()) / time.Second)) }
	case "-newer", "-anewer", "-cnewer", "-newermt":
		return f.newerTest(word)
	case "-perm":
		return f.permTest(f.value(word))
	case "-user", "-group", "-uid", "-gid":
		wanted := f.value(word)
		return func(*visit) bool { return wanted == core.UserName || wanted == core.UserID }
	case "-links", "-inum":
		matches, _ := compareNumber(f.value(word), func(n int64) int64 { return n })
		return func(*visit) bool { return matches != nil && matches(1) }
	case "-readable", "-writable":
		return func(*visit) bool { return true }
	case "-executable":
		return func(v *visit) bool { return v.info.IsDir() || v.info.Mode()&0o111 != 0 }
	case "-true":
		return func(*visit) bool { return true }
	case "-false":
		return func(*visit) bool { return false }
	case "-prune":
		return func(*visit) bool { f.prune = true; return true }
	case "-quit":
		f.hasAction = true
		return func(*visit) bool { f.quit = true; return true }
	}
	return f.action(word)
}
