package shell

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// block runs statements in order until one leaves the flow.
func (s *Shell) block(stmts []*syntax.Stmt) {
	if len(stmts) == 0 {
		s.status = 0
	}
	for _, stmt := range stmts {
		s.stmt(stmt)
		if s.flow != running {
			return
		}
	}
}

// breathe lets timers and other goroutines run: WASM has one thread and Go cannot preempt there.
func (s *Shell) breathe() {
	if s.steps++; s.steps&63 == 0 {
		runtime.Gosched()
	}
	if s.ctx.Err() != nil {
		panic(&core.Death{Code: 143})
	}
}

func (s *Shell) stmt(st *syntax.Stmt) {
	s.breathe()
	if s.opts.noexec {
		return
	}
	if line := int(st.Position.Line()); line > 0 {
		s.line = line
	}
	s.runPendingTraps()
	if s.flow != running {
		return
	}
	if st.Background || st.Disown {
		s.background(st)
		return
	}
	if st.Negated {
		s.noErrExit++
	}
	s.command1(st)
	if st.Negated {
		s.noErrExit--
		s.status = int(truth(s.status == 0))
		return
	}
	if s.status != 0 && s.flow == running && checksErrors(st.Cmd) {
		s.failed()
	}
}

// checksErrors tells whether "set -e" and the ERR trap look at this kind of command itself rather than at its parts.
func checksErrors(cmd syntax.Command) bool {
	switch cmd := cmd.(type) {
	case *syntax.BinaryCmd:
		return cmd.Op == syntax.Pipe || cmd.Op == syntax.PipeAll
	case *syntax.Block, *syntax.IfClause, *syntax.WhileClause, *syntax.ForClause, *syntax.CaseClause, *syntax.TimeClause, *syntax.FuncDecl:
		return false
	}
	return true
}

func (s *Shell) failed() {
	if s.noErrExit > 0 {
		return
	}
	s.runTrap("ERR")
	if s.opts.errexit && s.flow == running {
		s.flow = exiting
	}
}

func (s *Shell) command1(st *syntax.Stmt) {
	if call, ok := st.Cmd.(*syntax.CallExpr); ok {
		s.simple(call, st)
		return
	}
	from := len(s.procSubsts)
	undo, ok := s.redirectAll(st.Redirs)
	if !ok {
		s.status = 1
		return
	}
	defer func() {
		s.restore(undo)
		if len(s.procSubsts) > from {
			s.endProcessSubsts(from)
		}
	}()
	s.compound(st.Cmd)
}

func (s *Shell) compound(cmd syntax.Command) {
	switch cmd := cmd.(type) {
	case nil:
		s.status = 0
	case *syntax.Block:
		s.block(cmd.Stmts)
	case *syntax.Subshell:
		s.status = s.inSubshell(func(sub *Shell) { sub.block(cmd.Stmts) })
	case *syntax.BinaryCmd:
		s.binary(cmd)
	case *syntax.IfClause:
		s.ifClause(cmd)
	case *syntax.WhileClause:
		s.whileClause(cmd)
	case *syntax.ForClause:
		s.forClause(cmd)
	case *syntax.CaseClause:
		s.caseClause(cmd)
	case *syntax.FuncDecl:
		s.defineFunction(cmd)
	case *syntax.ArithmCmd:
		s.runDebugTrap()
		s.status = int(truth(s.arithm(cmd.X) == 0))
	case *syntax.LetClause:
		var last int64
		for _, expr := range cmd.Exprs {
			last = s.arithm(expr)
		}
		s.status = int(truth(last == 0))
	case *syntax.TestClause:
		s.runDebugTrap()
		s.status = s.condition(cmd.X)
	case *syntax.DeclClause:
		s.declare(cmd)
	case *syntax.TimeClause:
		s.timeClause(cmd)
	case *syntax.CoprocClause:
		s.coproc(cmd)
	default:
		s.errorf("%T: not supported", cmd)
		s.status = 2
	}
}

func (s *Shell) defineFunction(cmd *syntax.FuncDecl) {
	name := cmd.Name.Value
	if old := s.funcs[name]; old != nil && s.readonlyFuncs()[name] {
		s.errorf("%s: readonly function", name)
		s.status = 1
		return
	}
	source := s.script
	if len(s.frames) > 0 {
		source = s.frames[len(s.frames)-1].source
	}
	if source == "" {
		source = "environment"
	}
	s.funcs[name] = &function{body: cmd.Body, source: source, decl: cmd}
	s.status = 0
}

func (s *Shell) readonlyFuncs() map[string]bool { return nil }

func (s *Shell) quietly(fn func()) {
	s.noErrExit++
	fn()
	s.noErrExit--
}

func (s *Shell) binary(cmd *syntax.BinaryCmd) {
	switch cmd.Op {
	case syntax.AndStmt, syntax.OrStmt:
		s.quietly(func() { s.stmt(cmd.X) })
		if s.flow == running && (s.status == 0) == (cmd.Op == syntax.AndStmt) {
			s.stmt(cmd.Y)
		}
	default:
		s.pipeline(cmd)
	}
}

func flattenPipeline(cmd *syntax.BinaryCmd) (stages []*syntax.Stmt, both []bool) {
	var walk func(st *syntax.Stmt)
	walk = func(st *syntax.Stmt) {
		inner, ok := st.Cmd.(*syntax.BinaryCmd)
		if ok && (inner.Op == syntax.Pipe || inner.Op == syntax.PipeAll) && len(st.Redirs) == 0 && !st.Negated && !st.Background {
			walk(inner.X)
			both[len(both)-1] = inner.Op == syntax.PipeAll
			walk(inner.Y)
			return
		}
		stages = append(stages, st)
		both = append(both, false)
	}
	walk(&syntax.Stmt{Cmd: cmd})
	return stages, both
}

// pipeline runs every stage at once: all but the last in goroutines, connected by in-memory pipes.
func (s *Shell) pipeline(cmd *syntax.BinaryCmd) {
	stages, both := flattenPipeline(cmd)
	statuses := make([]int, len(stages))
	finished := make([]chan struct{}, len(stages)-1)
	var upstream *core.PipeReader
	for i := range stages[:len(stages)-1] {
		reader, writer := core.NewPipe(s.ctx)
		sub := s.subshell()
		connect(sub, upstream, writer, both[i])
		upstream = reader
		finished[i] = make(chan struct{})
		go func() {
			defer close(finished[i])
			statuses[i] = sub.stage(stages[i])
		}()
	}
	last := stages[len(stages)-1]
	if s.shopt["lastpipe"] {
		in := newDescriptor(newInput(upstream), nil, func() { upstream.Close() })
		var undo []saved
		s.install(&undo, 0, in)
		s.quietly(func() { s.stmt(last) })
		statuses[len(statuses)-1] = s.status
		s.restore(undo)
	} else {
		sub := s.subshell()
		connect(sub, upstream, nil, false)
		statuses[len(statuses)-1] = sub.stage(last)
	}
	for _, done := range finished {
		<-done
	}
	s.finishPipeline(statuses)
}

func (s *Shell) finishPipeline(statuses []int) {
	s.pipeStatus = statuses
	s.status = statuses[len(statuses)-1]
	if s.opts.pipefail {
		s.status = 0
		for _, status := range statuses {
			if status != 0 {
				s.status = status
			}
		}
	}
}

func connect(sub *Shell, upstream *core.PipeReader, writer *core.PipeWriter, both bool) {
	if upstream != nil {
		sub.swap(0, newDescriptor(newInput(upstream), nil, func() { upstream.Close() }))
	}
	if writer != nil {
		out := newDescriptor(nil, writer, func() { writer.Close() })
		sub.swap(1, out)
		if both {
			sub.swap(2, out.retain())
		}
	}
}

func (s *Shell) swap(fd int, next *descriptor) {
	if old := s.fds[fd]; old != nil {
		old.release()
	}
	s.fds[fd] = next
}

// stage runs one statement as a pipeline element and closes its shell.
func (s *Shell) stage(st *syntax.Stmt) int {
	defer s.close()
	return s.guarded(func() { s.stmt(st) })
}

func (s *Shell) ifClause(cmd *syntax.IfClause) {
	for clause := cmd; clause != nil; clause = clause.Else {
		if len(clause.Cond) == 0 && !clause.ThenPos.IsValid() {
			s.block(clause.Then)
			return
		}
		s.quietly(func() { s.block(clause.Cond) })
		if s.flow != running {
			return
		}
		if s.status == 0 {
			s.block(clause.Then)
			return
		}
	}
	s.status = 0
}

func (s *Shell) whileClause(cmd *syntax.WhileClause) {
	status := 0
	s.loopDepth++
	defer func() { s.loopDepth-- }()
	for {
		s.breathe()
		s.quietly(func() { s.block(cmd.Cond) })
		if s.flow != running {
			if s.loopEnds() {
				break
			}
			continue
		}
		if (s.status == 0) == cmd.Until {
			break
		}
		s.block(cmd.Do)
		status = s.status
		if s.loopEnds() {
			status = s.status
			break
		}
	}
	if s.flow != exiting && s.flow != returning {
		s.status = status
	}
}

// loopEnds takes care of break and continue after a loop body.
func (s *Shell) loopEnds() bool {
	switch s.flow {
	case running:
		return false
	case breaking, continuing:
		s.flowCount--
		if s.flowCount > 0 {
			return true
		}
		wasBreak := s.flow == breaking
		s.flow = running
		return wasBreak
	}
	return true
}

func (s *Shell) forClause(cmd *syntax.ForClause) {
	s.loopDepth++
	defer func() { s.loopDepth-- }()
	if loop, ok := cmd.Loop.(*syntax.CStyleLoop); ok {
		s.cLoop(loop, cmd.Do)
		return
	}
	loop := cmd.Loop.(*syntax.WordIter)
	items := s.params
	if loop.InPos.IsValid() {
		items = s.words(loop.Items)
	}
	if cmd.Select {
		s.selectLoop(loop.Name.Value, items, cmd.Do)
		return
	}
	s.status = 0
	for _, item := range append([]string(nil), items...) {
		s.breathe()
		if !s.setLoopVariable(loop.Name.Value, item) {
			s.status = 1
			return
		}
		s.runDebugTrap()
		s.block(cmd.Do)
		if s.loopEnds() {
			return
		}
	}
}

// A nameref as loop variable is re-pointed, not written through.
func (s *Shell) setLoopVariable(name, item string) bool {
	if v := s.lookup(name); v != nil && v.nameref {
		v.text, v.isSet = item, true
		return true
	}
	return s.set(name, item)
}

func (s *Shell) cLoop(loop *syntax.CStyleLoop, body []*syntax.Stmt) {
	if loop.Init != nil {
		s.arithm(loop.Init)
	}
	s.status = 0
	for loop.Cond == nil || s.arithm(loop.Cond) != 0 {
		s.breathe()
		s.block(body)
		if s.loopEnds() {
			return
		}
		if loop.Post != nil {
			s.arithm(loop.Post)
		}
	}
}

func (s *Shell) selectLoop(name string, items []string, body []*syntax.Stmt) {
	s.status = 0
	if len(items) == 0 {
		return
	}
	prompt, ok := s.getOK("PS3")
	if !ok {
		prompt = "#? "
	}
	showMenu := true
	for {
		s.breathe()
		if showMenu {
			for i, item := range items {
				fmt.Fprintf(s.writer(2), "%d) %s\n", i+1, item)
			}
		}
		fmt.Fprint(s.writer(2), prompt)
		line, ended := s.readLine(s.stdin(), '\n', -1)
		if ended && line == "" {
			fmt.Fprintln(s.writer(1))
			s.status = 1
			return
		}
		if showMenu = line == ""; showMenu {
			continue
		}
		s.set("REPLY", line)
		choice := ""
		var number int
		if _, err := fmt.Sscan(line, &number); err == nil && number >= 1 && number <= len(items) {
			choice = items[number-1]
		}
		s.set(name, choice)
		s.block(body)
		if s.loopEnds() {
			return
		}
	}
}

func (s *Shell) caseClause(cmd *syntax.CaseClause) {
	subject := s.textOf(cmd.Word)
	s.status = 0
	fallThrough := false
	for _, item := range cmd.Items {
		if !fallThrough && !s.caseMatches(item, subject) {
			continue
		}
		s.block(item.Stmts)
		if s.flow != running {
			return
		}
		switch item.Op {
		case syntax.Fallthrough:
			fallThrough = true
		case syntax.Resume:
			fallThrough = false
		default:
			return
		}
	}
}

func (s *Shell) caseMatches(item *syntax.CaseItem, subject string) bool {
	for _, word := range item.Patterns {
		if compilePattern(s.patternOf(word), true, s.shopt["nocasematch"]).matches(subject) {
			return true
		}
	}
	return false
}

func (s *Shell) timeClause(cmd *syntax.TimeClause) {
	start := time.Now()
	if cmd.Stmt != nil {
		s.stmt(cmd.Stmt)
	}
	seconds := time.Since(start).Seconds()
	if cmd.PosixFormat {
		fmt.Fprintf(s.writer(2), "real %.2f\nuser %.2f\nsys 0.00\n", seconds, seconds)
		return
	}
	clock := fmt.Sprintf("%dm%.3fs", int(seconds)/60, seconds-float64(int(seconds)/60*60))
	if format, ok := s.getOK("TIMEFORMAT"); ok {
		if format != "" {
			plain := fmt.Sprintf("%.3f", seconds)
			fmt.Fprintln(s.writer(2), strings.NewReplacer("%R", plain, "%U", plain, "%S", "0.000", "%lR", clock, "%lU", clock, "%lS", "0m0.000s", "%%", "%").Replace(format))
		}
		return
	}
	fmt.Fprintf(s.writer(2), "\nreal\t%s\nuser\t%s\nsys\t0m0.000s\n", clock, clock)
}
