package shell

import (
	"fmt"
	"io"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// simple runs a simple command: expansions, redirections, assignments, then function, builtin or command.
func (s *Shell) simple(call *syntax.CallExpr, st *syntax.Stmt) {
	if s.traps["DEBUG"] != "" || len(s.traps) > 0 {
		s.command = commandText(st)
	}
	s.runDebugTrap()
	if len(call.Args) > 0 && len(s.aliases) > 0 && s.shopt["expand_aliases"] && s.expandAlias(call, st) {
		return
	}
	from := len(s.procSubsts)
	s.substStatus = 0
	argv := s.words(call.Args)
	undo, ok := s.redirectAll(st.Redirs)
	defer func() {
		if len(s.procSubsts) > from {
			s.endProcessSubsts(from)
		}
	}()
	if !ok {
		s.status = 1
		s.pipeStatus = []int{1}
		if len(argv) > 0 && isSpecialBuiltin(argv[0]) && s.opts.posix {
			s.flow = exiting
		}
		return
	}
	if len(argv) > 0 && argv[0] == "exec" && s.funcs["exec"] == nil {
		s.execBuiltin(call, argv[1:], undo)
		return
	}
	defer func() { s.restore(undo) }()
	if len(argv) == 0 {
		s.assignments(call.Assigns)
	} else {
		s.runCommand(call.Assigns, argv)
	}
	s.pipeStatus = []int{s.status}
}

func (s *Shell) assignments(assigns []*syntax.Assign) {
	s.assignFailed = false
	for _, assign := range assigns {
		s.assignOne(assign)
		if s.assignFailed {
			s.assignFailed = false
			panic(&abort{status: 1})
		}
	}
	s.status = s.substStatus
}

func (s *Shell) runCommand(assigns []*syntax.Assign, argv []string) {
	if s.opts.xtrace {
		s.trace(argv)
	}
	name := argv[0]
	function, isFunction := s.funcs[name]
	builtin, isBuiltin := builtins[name]
	isBuiltin = isBuiltin && !s.disabled[name]
	defer func() { s.lastArgument = argv[len(argv)-1] }()
	if len(assigns) > 0 {
		s.pushTemporary(assigns)
		defer s.popTemporary()
		if s.assignFailed {
			s.assignFailed = false
			s.status = 1
			return
		}
	}
	switch {
	case isFunction:
		s.callFunction(name, function, argv[1:])
	case isBuiltin:
		s.status = builtin(s, argv)
	default:
		s.status = s.external(argv)
	}
}

// pushTemporary makes "VAR=x command" visible to that command only.
func (s *Shell) pushTemporary(assigns []*syntax.Assign) {
	temporary := newScope(false)
	s.assignFailed = false
	for _, assign := range assigns {
		name := assign.Name.Value
		if v := s.lookup(name); v != nil && v.readonly {
			s.errorf("%s: readonly variable", name)
			s.assignFailed = true
			continue
		}
		value := s.assignText(assign.Value)
		if assign.Append {
			value = s.get(name) + value
		}
		temporary.vars[name] = &variable{text: value, isSet: true, exported: true}
		if s.opts.xtrace {
			s.traceText(name + "=" + backslashQuote(value))
		}
	}
	s.scopes = append(s.scopes, temporary)
}

func (s *Shell) popTemporary() { s.scopes = s.scopes[:len(s.scopes)-1] }

func (s *Shell) callFunction(name string, fn *function, args []string) {
	limit := maxFunctionDepth
	if nest := int(s.arithText(s.get("FUNCNEST"))); nest > 0 {
		limit = nest
	}
	if len(s.frames) >= limit {
		s.errorf("%s: maximum function nesting level exceeded (%d)", name, limit)
		panic(&abort{status: 1})
	}
	oldParams, oldLoop, oldReturnTrap := s.params, s.loopDepth, s.traps["RETURN"]
	oldErr, hadErr := s.traps["ERR"]
	if !s.opts.errtrace && hadErr {
		delete(s.traps, "ERR")
	}
	s.params, s.loopDepth = args, 0
	s.frames = append(s.frames, frame{name, fn.source, s.line})
	s.scopes = append(s.scopes, newScope(true))
	depth := len(s.scopes)
	defer func() {
		s.scopes = s.scopes[:depth-1]
		s.frames = s.frames[:len(s.frames)-1]
		s.params, s.loopDepth = oldParams, oldLoop
		if _, changed := s.traps["ERR"]; hadErr && !changed && !s.opts.errtrace {
			s.traps["ERR"] = oldErr
		}
	}()
	s.command1(fn.body)
	if s.flow == returning {
		s.flow = running
	}
	if s.flow == breaking || s.flow == continuing {
		s.flow = running
	}
	if trap := s.traps["RETURN"]; trap != "" && (s.opts.functrace || trap != oldReturnTrap) {
		s.runTrap("RETURN")
	}
}

// commandSubst runs $(...) and returns its output without trailing newlines.
func (s *Shell) commandSubst(part *syntax.CmdSubst) string {
	if len(part.Stmts) == 0 {
		s.substStatus = 0
		return ""
	}
	if word := fileShortcut(part.Stmts); word != nil {
		return s.readWhole(s.textOf(word))
	}
	if s.depth >= maxSubshellDepth {
		s.fail(true, "command substitution: maximum nesting exceeded (%d)", maxSubshellDepth)
	}
	sub := s.subshell()
	if !s.shopt["inherit_errexit"] && !s.opts.posix {
		sub.opts.errexit = false
	}
	sub.status = s.status
	collected := &collector{done: make(chan struct{})}
	out := newDescriptor(nil, collected, func() { close(collected.done) })
	sub.swap(1, out)
	s.substStatus = sub.guarded(func() { sub.block(part.Stmts) })
	sub.closeAndWait(collected.done)
	return strings.TrimRight(collected.text(), "\n")
}

// closeAndWait closes the subshell and waits until background jobs that hold its output are done too, as reading a pipe would.
func (s *Shell) closeAndWait(done chan struct{}) {
	for _, held := range s.fds {
		held.release()
	}
	s.fds = map[int]*descriptor{}
	select {
	case <-done:
	case <-s.ctx.Done():
	}
	s.cancel()
}

func fileShortcut(stmts []*syntax.Stmt) *syntax.Word {
	if len(stmts) != 1 || stmts[0].Cmd != nil || len(stmts[0].Redirs) != 1 || stmts[0].Redirs[0].Op != syntax.RdrIn {
		return nil
	}
	return stmts[0].Redirs[0].Word
}

func (s *Shell) readWhole(name string) string {
	file, err := s.openRead(name)
	if err != nil {
		s.errorf("%s: %s", name, core.Reason(err))
		s.substStatus = 1
		return ""
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	s.substStatus = 0
	if err != nil {
		s.substStatus = 1
	}
	return strings.TrimRight(strings.ReplaceAll(string(data), "\x00", ""), "\n")
}

func (s *Shell) trace(argv []string) {
	quoted := make([]string, len(argv))
	for i, arg := range argv {
		quoted[i] = traceQuote(arg)
	}
	s.traceText(strings.Join(quoted, " "))
}

func traceQuote(arg string) string {
	if arg == "" {
		return "''"
	}
	if hasUnprintable(arg) {
		return dollarQuote(arg)
	}
	for i := 0; i < len(arg); i++ {
		if b := arg[i]; b < 128 && !isAlnum(b) && !strings.Contains("_-./:@%+,=", string(b)) {
			return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return arg
}

func (s *Shell) traceText(text string) {
	prompt := s.get("PS4")
	if prompt != "" {
		if word, err := newParser().Document(strings.NewReader(prompt)); err == nil {
			traced := s.opts.xtrace
			s.opts.xtrace = false
			prompt = s.document(word)
			s.opts.xtrace = traced
		}
	}
	fmt.Fprintf(s.writer(2), "%s%s\n", prompt, text)
}

func commandText(st *syntax.Stmt) string {
	var out strings.Builder
	copied := *st
	copied.Comments = nil
	syntax.NewPrinter(syntax.SingleLine(true)).Print(&out, &copied)
	return strings.TrimSpace(out.String())
}

// expandAlias re-parses the command with the alias text in place of its name, as bash does while reading.
func (s *Shell) expandAlias(call *syntax.CallExpr, st *syntax.Stmt) bool {
	name := call.Args[0].Lit()
	if _, ok := s.aliases[name]; !ok || name == "" {
		return false
	}
	var source strings.Builder
	printer := syntax.NewPrinter()
	for _, assign := range call.Assigns {
		printer.Print(&source, &syntax.CallExpr{Assigns: []*syntax.Assign{assign}})
		source.WriteByte(' ')
	}
	used := map[string]bool{}
	next := true
	for i, word := range call.Args {
		if i > 0 {
			source.WriteByte(' ')
		}
		lit := word.Lit()
		if next && lit != "" && !used[lit] {
			value, blank, ok := s.aliasText(lit, used)
			if ok {
				source.WriteString(value)
				next = blank
				continue
			}
		}
		next = false
		printer.Print(&source, word)
	}
	bare := *st
	bare.Cmd = nil
	bare.Comments = nil
	if len(st.Redirs) > 0 {
		source.WriteByte(' ')
		bare.Negated = false
		printer.Print(&source, &bare)
	}
	file, err := newParser().Parse(strings.NewReader(source.String()), "")
	if err != nil {
		return false
	}
	saved := s.aliases
	s.aliases = cloneMap(saved)
	for name := range used {
		delete(s.aliases, name)
	}
	hidden := len(s.aliases)
	s.block(file.Stmts)
	if len(s.aliases) == hidden {
		s.aliases = saved
	} else {
		for name := range used {
			if _, again := s.aliases[name]; !again {
				s.aliases[name] = saved[name]
			}
		}
	}
	return true
}

// aliasText follows aliases of the first word; blank tells that the next word is to be looked up too.
func (s *Shell) aliasText(name string, used map[string]bool) (value string, blank, ok bool) {
	entry, found := s.aliases[name]
	if !found || used[name] {
		return "", false, false
	}
	used[name] = true
	value = entry.value
	trimmed := strings.TrimLeft(value, " \t")
	first, rest := trimmed, ""
	if end := strings.IndexAny(trimmed, " \t\n;|&"); end >= 0 {
		first, rest = trimmed[:end], trimmed[end:]
	}
	if inner, _, deeper := s.aliasText(first, used); deeper {
		value = inner + rest
	}
	return value, strings.HasSuffix(entry.value, " ") || strings.HasSuffix(entry.value, "\t"), true
}
