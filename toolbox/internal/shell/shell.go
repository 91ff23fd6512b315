// Package shell interprets bash scripts. Parsing is mvdan.cc/sh/v3/syntax; execution is ours, so that pipelines, jobs and
// descriptors live in memory inside one WASM instance and behave as bash does.
package shell

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

const (
	maxFunctionDepth = 4000
	maxSubshellDepth = 400
)

type flow uint8

const (
	running flow = iota
	breaking
	continuing
	returning
	exiting
)

type frame struct {
	name   string
	source string
	line   int
}

type aliasEntry struct{ value string }

// Shell is the state of one shell or subshell.
type Shell struct {
	ctx      context.Context
	cancel   context.CancelFunc
	fds      map[int]*descriptor
	dir      string
	dirStack []string
	params   []string
	argv0    string
	script   string
	scopes   []*scope
	funcs    map[string]*function
	aliases  map[string]aliasEntry
	frames   []frame
	opts     options
	shopt    map[string]bool // shared by subshells: setShopt puts another in its place
	traps    map[string]string
	jobs     *jobTable

	status         int
	substStatus    int // status of the last command substitution of the current simple command
	pipeStatus     []int
	line           int
	command        string
	lastArgument   string
	lastBackground int
	pid            int
	rootPID        int
	depth          int
	loopDepth      int
	noErrExit      int
	inTrap         map[string]bool
	sourceDepth    int
	flow           flow
	flowCount      int
	assignFailed   bool
	expandFailed   bool
	optPosition    int
	random         uint32
	seeded         bool
	secondsBase    int64
	secondsFrom    time.Time
	steps          int
	ifs            string
	ifsSet         bool
	ifsCached      bool
	hashes         map[string]string
	disabled       map[string]bool
	procSubsts     []*descriptor
	shownTraps     map[string]string // what "trap" lists in a subshell that set none itself
	nested         int               // inside eval, source or a trap: errors unwind to the outer line
}

type function struct {
	body   *syntax.Stmt
	source string
	decl   *syntax.FuncDecl
	export bool
}

const firstPID = 100

var pidCounter = struct {
	sync.Mutex
	next int
}{next: firstPID}

// ForgetProcesses numbers the next shell as if it were the first.
func ForgetProcesses() { pidCounter.next = firstPID }

func newPID() int {
	pidCounter.Lock()
	defer pidCounter.Unlock()
	pidCounter.next++
	return pidCounter.next
}

type preset struct{ name, value string }

var presetVariables = []preset{
	{"IFS", " \t\n"}, {"OPTIND", "1"}, {"BASH_VERSION", bashVersion}, {"BASH", "/bin/bash"}, {"PS4", "+ "}, {"HOSTNAME", "sandbox"},
	{"HOSTTYPE", "wasm32"}, {"OSTYPE", "linux-gnu"}, {"MACHTYPE", "wasm32-unknown-wasi"}, {"OPTERR", "1"},
}

var exportedPresets = []preset{{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"SHLVL", "0"}}

var initialShopt = map[string]bool{
	"cmdhist": true, "extquote": true, "sourcepath": true, "globasciiranges": true, "patsub_replacement": true, "promptvars": true, "progcomp": true,
	"interactive_comments": true, "checkwinsize": true, "complete_fullquote": true, "force_fignore": true, "hostcomplete": true, "globskipdots": true,
}

func (s *Shell) setShopt(name string, on bool) {
	s.shopt = cloneMap(s.shopt)
	s.shopt[name] = on
}

// New makes a top-level shell from a command's context.
func New(c *core.Ctx, argv0 string) *Shell {
	ctx, cancel := context.WithCancel(orBackground(c.Context))
	s := &Shell{
		ctx: ctx, cancel: cancel, dir: c.Dir, argv0: argv0,
		scopes: []*scope{newScope(false)}, funcs: map[string]*function{}, aliases: map[string]aliasEntry{},
		shopt: initialShopt, traps: map[string]string{}, inTrap: map[string]bool{}, jobs: newJobTable(),
		pid: newPID(), secondsFrom: time.Now(), fds: map[int]*descriptor{}, hashes: map[string]string{}, disabled: map[string]bool{},
	}
	s.rootPID = s.pid
	s.opts.braceexpand, s.opts.hashall, s.opts.interactiveComments = true, true, true
	s.fds[0], s.fds[1], s.fds[2] = borrowReader(c.Stdin), borrowWriter(c.Stdout), borrowWriter(c.Stderr)
	for fd, stream := range c.FDs {
		if held, ok := stream.(*descriptor); ok {
			s.fds[fd] = held.retain()
		}
	}
	s.importEnvironment(c.Env)
	return s
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

func (s *Shell) importEnvironment(env []string) {
	vars := make(map[string]*variable, len(env)+len(presetVariables)+len(exportedPresets)+2)
	s.scopes[0].vars = vars
	for _, entry := range env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		if inner, found := strings.CutPrefix(name, "BASH_FUNC_"); found {
			s.importFunction(strings.TrimSuffix(inner, "%%"), value)
			continue
		}
		if validName(name) {
			vars[name] = &variable{text: value, isSet: true, exported: true}
		}
	}
	for _, preset := range presetVariables {
		if v := vars[preset.name]; v == nil || preset.name == "IFS" || preset.name == "OPTIND" {
			vars[preset.name] = text(preset.value)
		}
	}
	for _, preset := range exportedPresets {
		if vars[preset.name] == nil {
			vars[preset.name] = &variable{text: preset.value, isSet: true, exported: true}
		}
	}
	if vars["HOME"] == nil {
		vars["HOME"] = &variable{text: s.dir, isSet: true, exported: true}
	}
	level, _ := strconv.Atoi(vars["SHLVL"].text)
	vars["SHLVL"].text = strconv.Itoa(level + 1)
	vars["PWD"] = &variable{text: s.dir, isSet: true, exported: true}
}

func (s *Shell) importFunction(name, body string) {
	file, err := newParser().Parse(strings.NewReader(name+" "+body), "environment")
	if err != nil || len(file.Stmts) != 1 {
		return
	}
	if decl, ok := file.Stmts[0].Cmd.(*syntax.FuncDecl); ok {
		s.funcs[name] = &function{body: decl.Body, source: "environment", decl: decl, export: true}
	}
}

func newParser() *syntax.Parser { return syntax.NewParser(syntax.Variant(syntax.LangBash)) }

// subshell copies the state; the copy shares nothing that either side may change.
func (s *Shell) subshell() *Shell {
	copied := *s
	copied.ctx, copied.cancel = context.WithCancel(s.ctx)
	copied.fds = make(map[int]*descriptor, len(s.fds))
	for fd, held := range s.fds {
		copied.fds[fd] = held.retain()
	}
	copied.scopes = make([]*scope, len(s.scopes))
	for i, from := range s.scopes {
		copied.scopes[i] = from.clone()
	}
	copied.funcs = cloneMap(s.funcs)
	copied.aliases = cloneMap(s.aliases)
	copied.disabled = cloneMap(s.disabled)
	copied.hashes = cloneMap(s.hashes)
	copied.traps = map[string]string{}
	for name, action := range s.traps {
		if action == "" || s.opts.errtrace && name == "ERR" || s.opts.functrace && (name == "DEBUG" || name == "RETURN") {
			copied.traps[name] = action
		}
	}
	copied.shownTraps = s.traps
	copied.inTrap = map[string]bool{}
	copied.jobs = newJobTable()
	copied.params = append([]string(nil), s.params...)
	copied.dirStack = append([]string(nil), s.dirStack...)
	copied.frames = append([]frame(nil), s.frames...)
	copied.pipeStatus = append([]int(nil), s.pipeStatus...)
	copied.procSubsts = nil
	copied.loopDepth = 0
	copied.depth++
	copied.pid = newPID()
	return &copied
}

func cloneMap[K comparable, V any](from map[K]V) map[K]V {
	to := make(map[K]V, len(from))
	for key, value := range from {
		to[key] = value
	}
	return to
}

// close releases the descriptors; a subshell ends with it.
func (s *Shell) close() {
	for _, held := range s.fds {
		held.release()
	}
	s.fds = map[int]*descriptor{}
	s.cancel()
}

// inSubshell runs fn in a copy and returns the exit status; a broken pipe or kill becomes its status.
func (s *Shell) inSubshell(fn func(sub *Shell)) int {
	if s.depth >= maxSubshellDepth {
		s.errorf("maximum subshell nesting exceeded (%d)", maxSubshellDepth)
		return 1
	}
	sub := s.subshell()
	defer sub.close()
	return sub.guarded(func() { fn(sub) })
}

// guarded runs fn, then the EXIT trap, and returns the final status. Expansion errors, broken pipes and kills end here.
func (s *Shell) guarded(fn func()) (status int) {
	defer func() {
		if reason := recover(); reason != nil {
			death, ok := reason.(*core.Death)
			if !ok {
				panic(reason)
			}
			status = death.Code
			if code, ok := s.killedBy(); ok && status == 143 {
				status = code
			}
		}
	}()
	s.untilAbort(fn)
	s.flow = running
	s.untilAbort(s.runExitTrap)
	return s.status
}

func (s *Shell) untilAbort(fn func()) {
	defer func() {
		if reason := recover(); reason != nil {
			stop, ok := reason.(*abort)
			if !ok {
				panic(reason)
			}
			s.status = stop.status
		}
	}()
	fn()
}

func (s *Shell) stdin() *input { return s.reader(0) }

func (s *Shell) reader(fd int) *input {
	if held := s.fds[fd]; held != nil && held.in != nil {
		return held.in
	}
	return closedInput
}

func (s *Shell) writer(fd int) io.Writer {
	if held := s.fds[fd]; held != nil && held.out != nil {
		return held.out
	}
	return closedOutput{}
}

func (s *Shell) print(values ...string) bool {
	_, err := io.WriteString(s.writer(1), strings.Join(values, ""))
	return s.wrote(err)
}

func (s *Shell) wrote(err error) bool {
	if err == nil {
		return true
	}
	if core.IsBrokenPipe(err) {
		panic(&core.Death{Code: 141})
	}
	return false
}

// errorf writes "bash: line N: message" as bash does for scripts and -c.
func (s *Shell) errorf(format string, args ...any) {
	prefix := s.argv0
	if len(s.frames) > 0 && s.frames[len(s.frames)-1].source != "" && s.frames[len(s.frames)-1].source != "environment" {
		prefix = s.frames[len(s.frames)-1].source
	}
	fmt.Fprintf(s.writer(2), "%s: line %d: %s\n", prefix, s.line, fmt.Sprintf(format, args...))
}

func (s *Shell) context(argv []string) *core.Ctx {
	fds := make(map[int]any, len(s.fds))
	for fd, held := range s.fds {
		if fd > 2 {
			fds[fd] = held
		}
	}
	c := &core.Ctx{Context: s.ctx, Env: s.environ(), Dir: s.dir, Stdin: s.stdin(), Stdout: s.writer(1), Stderr: s.writer(2), FDs: fds, Exec: execFromCommand}
	if len(argv) > 0 {
		c.Name, c.Args = argv[0], argv[1:]
	}
	return c
}

func (s *Shell) path(name string) string { return core.Abs(s.dir, name) }

func (s *Shell) openRead(name string) (io.ReadCloser, error) {
	return s.context(nil).OpenFile(name, os.O_RDONLY)
}

func sortedKeys[V any](from map[string]V) []string {
	keys := make([]string, 0, len(from))
	for key := range from {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
