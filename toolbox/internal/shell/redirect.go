package shell

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// saved remembers a descriptor that a redirection replaced.
type saved struct {
	fd  int
	old *descriptor // nil when the number was closed
}

// install puts a descriptor under a number and remembers what was there.
func (s *Shell) install(undo *[]saved, fd int, next *descriptor) {
	*undo = append(*undo, saved{fd, s.fds[fd]})
	if next == nil {
		delete(s.fds, fd)
	} else {
		s.fds[fd] = next
	}
}

// restore undoes redirections in reverse order.
func (s *Shell) restore(undo []saved) {
	for i := len(undo) - 1; i >= 0; i-- {
		item := undo[i]
		if now := s.fds[item.fd]; now != nil {
			now.release()
		}
		if item.old == nil {
			delete(s.fds, item.fd)
		} else {
			s.fds[item.fd] = item.old
		}
	}
}

// keep makes redirections permanent ("exec >file").
func (s *Shell) keep(undo []saved) {
	for _, item := range undo {
		if item.old != nil {
			item.old.release()
		}
	}
}

func (s *Shell) redirectAll(redirs []*syntax.Redirect) (undo []saved, ok bool) {
	for _, redir := range redirs {
		if !s.redirect(&undo, redir) {
			s.restore(undo)
			return nil, false
		}
	}
	return undo, true
}

func (s *Shell) redirect(undo *[]saved, redir *syntax.Redirect) bool {
	fd, variable := s.redirectNumber(redir)
	switch redir.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		s.place(undo, orStdin(fd), variable, textDescriptor(s.heredoc(redir)))
		return true
	case syntax.WordHdoc:
		s.place(undo, orStdin(fd), variable, textDescriptor(s.textOf(redir.Word)+"\n"))
		return true
	case syntax.DplOut, syntax.DplIn:
		return s.duplicate(undo, redir, fd, variable)
	}
	names := s.words([]*syntax.Word{redir.Word})
	if len(names) != 1 {
		s.errorf("%s: ambiguous redirect", sourceOf(redir.Word))
		return false
	}
	opened, err := s.openRedirect(redir.Op, names[0])
	if err != nil {
		s.errorf("%s: %s", names[0], redirectReason(err))
		return false
	}
	switch redir.Op {
	case syntax.RdrAll, syntax.AppAll:
		s.install(undo, 1, opened)
		s.install(undo, 2, opened.retain())
		return true
	case syntax.RdrIn, syntax.RdrInOut:
		fd = orStdin(fd)
	default:
		if fd < 0 {
			fd = 1
		}
	}
	s.place(undo, fd, variable, opened)
	return true
}

// place installs a descriptor under a number, or for "{variable}<" under a free one that stays after the command.
func (s *Shell) place(undo *[]saved, fd int, variable string, opened *descriptor) {
	if variable == "" {
		s.install(undo, fd, opened)
		return
	}
	fd = s.freeNumber()
	s.set(variable, strconv.Itoa(fd))
	s.fds[fd] = opened
}

var errExists = errors.New("cannot overwrite existing file")

func redirectReason(err error) string {
	if err == errExists {
		return err.Error()
	}
	return core.Reason(err)
}

func orStdin(fd int) int {
	if fd < 0 {
		return 0
	}
	return fd
}

func (s *Shell) redirectNumber(redir *syntax.Redirect) (fd int, variable string) {
	if redir.N == nil {
		return -1, ""
	}
	if name, ok := strings.CutPrefix(redir.N.Value, "{"); ok {
		return -1, strings.TrimSuffix(name, "}")
	}
	number, _ := strconv.Atoi(redir.N.Value)
	return number, ""
}

func (s *Shell) freeNumber() int {
	fd := 10
	for s.fds[fd] != nil {
		fd++
	}
	return fd
}

func (s *Shell) openRedirect(operator syntax.RedirOperator, name string) (*descriptor, error) {
	flags := os.O_RDONLY
	switch operator {
	case syntax.RdrOut, syntax.RdrAll, syntax.RdrClob:
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		if s.opts.noclobber && operator != syntax.RdrClob {
			if info, err := core.Stat(s.path(name)); err == nil && info.Mode().IsRegular() {
				return nil, errExists
			}
		}
	case syntax.AppOut, syntax.AppAll:
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	case syntax.RdrInOut:
		flags = os.O_RDWR | os.O_CREATE
	}
	file, err := s.context(nil).OpenFile(name, flags)
	if err != nil {
		return nil, err
	}
	opened := newDescriptor(nil, nil, func() { file.Close() })
	if flags&os.O_WRONLY == 0 {
		opened.in = newInput(file)
	}
	if flags != os.O_RDONLY {
		opened.out = file
	}
	return opened, nil
}

func textDescriptor(content string) *descriptor {
	return newDescriptor(newInput(strings.NewReader(content)), nil, nil)
}

func (s *Shell) duplicate(undo *[]saved, redir *syntax.Redirect, fd int, variable string) bool {
	target := s.textOf(redir.Word)
	if redir.Op == syntax.DplIn {
		fd = orStdin(fd)
	}
	if target == "-" {
		if variable != "" {
			fd, _ = strconv.Atoi(s.get(variable))
			if held := s.fds[fd]; held != nil {
				held.release()
				delete(s.fds, fd)
			}
			return true
		}
		if fd < 0 {
			fd = 1
		}
		s.install(undo, fd, nil)
		return true
	}
	moving := strings.HasSuffix(target, "-")
	number, err := strconv.Atoi(strings.TrimSuffix(target, "-"))
	if err != nil {
		if redir.Op == syntax.DplOut && fd < 0 {
			return s.redirect(undo, &syntax.Redirect{Op: syntax.RdrAll, Word: redir.Word})
		}
		s.errorf("%s: ambiguous redirect", sourceOf(redir.Word))
		return false
	}
	if fd < 0 {
		fd = 1
	}
	held := s.fds[number]
	if held == nil {
		s.errorf("%d: Bad file descriptor", number)
		return false
	}
	if variable != "" {
		fd = s.freeNumber()
		s.set(variable, strconv.Itoa(fd))
		s.fds[fd] = held.retain()
		return true
	}
	s.install(undo, fd, held.retain())
	if moving {
		s.install(undo, number, nil)
	}
	return true
}

func isQuotedDelimiter(word *syntax.Word) bool {
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); !ok || strings.Contains(lit.Value, "\\") {
			return true
		}
	}
	return false
}

func (s *Shell) heredoc(redir *syntax.Redirect) string {
	if redir.Hdoc == nil {
		return ""
	}
	body := redir.Hdoc
	if redir.Op == syntax.DashHdoc {
		body = stripTabs(body)
	}
	if isQuotedDelimiter(redir.Word) {
		return rawText(body)
	}
	return s.document(body)
}

func rawText(word *syntax.Word) string {
	var out strings.Builder
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok {
			out.WriteString(lit.Value)
		}
	}
	return out.String()
}

func stripTabs(word *syntax.Word) *syntax.Word {
	stripped := &syntax.Word{}
	atStart := true
	for _, part := range word.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			stripped.Parts = append(stripped.Parts, part)
			atStart = false
			continue
		}
		lines := strings.SplitAfter(lit.Value, "\n")
		for i, line := range lines {
			if i > 0 || atStart {
				lines[i] = strings.TrimLeft(line, "\t")
			}
		}
		atStart = strings.HasSuffix(lit.Value, "\n")
		stripped.Parts = append(stripped.Parts, &syntax.Lit{Value: strings.Join(lines, "")})
	}
	return stripped
}

func sourceOf(word *syntax.Word) string {
	var out strings.Builder
	syntax.NewPrinter().Print(&out, word)
	return out.String()
}

// processSubst starts <(...) or >(...) and returns the /dev/fd name.
func (s *Shell) processSubst(part *syntax.ProcSubst) string {
	reader, writer := core.NewPipe(s.ctx)
	sub := s.subshell()
	var mine, theirs *descriptor
	target := 1
	if part.Op == syntax.CmdIn {
		mine = newDescriptor(newInput(reader), nil, func() { reader.Close() })
		theirs = newDescriptor(nil, writer, func() { writer.Close() })
	} else {
		target = 0
		mine = newDescriptor(nil, writer, func() { writer.Close() })
		theirs = newDescriptor(newInput(reader), nil, func() { reader.Close() })
	}
	if old := sub.fds[target]; old != nil {
		old.release()
	}
	sub.fds[target] = theirs
	job := s.jobs.start(sub, "", true)
	s.lastBackground = job.pid
	go job.run(func() int {
		defer sub.close()
		return sub.guarded(func() { sub.block(part.Stmts) })
	})
	fd := 63
	for s.fds[fd] != nil {
		fd--
	}
	s.fds[fd] = mine
	s.procSubsts = append(s.procSubsts, mine)
	if part.Op == syntax.CmdOut {
		s.jobs.outputs = append(s.jobs.outputs, job)
	}
	return "/dev/fd/" + strconv.Itoa(fd)
}

// endProcessSubsts closes what the finished command was given and waits for >(...) consumers, whose output belongs to it.
func (s *Shell) endProcessSubsts(from int) {
	for _, held := range s.procSubsts[from:] {
		for fd, open := range s.fds {
			if open == held {
				delete(s.fds, fd)
			}
		}
		held.release()
	}
	s.procSubsts = s.procSubsts[:from]
	if from == 0 {
		outputs := s.jobs.outputs
		s.jobs.outputs = nil
		for _, job := range outputs {
			job.wait()
		}
	}
}

var _ io.Reader = (*input)(nil)
