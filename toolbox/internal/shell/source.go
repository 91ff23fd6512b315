package shell

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// runSource parses and runs text line by line: commands before a syntax error are executed, as in bash.
func (s *Shell) runSource(source, name string) {
	parser := newParser()
	var pending []*syntax.Stmt
	lastLine := uint(0)
	flush := func() bool {
		batch := pending
		pending = nil
		return s.runBatch(batch)
	}
	reader := strings.NewReader(source)
	for st, err := range parser.StmtsSeq(reader) {
		if err != nil {
			s.syntaxError(err, source, name, pending, lastLine, flush)
			return
		}
		recordIndexes(st, source)
		if len(pending) > 0 && st.Pos().Line() > lastLine {
			if !flush() {
				return
			}
		}
		pending = append(pending, st)
		lastLine = st.End().Line()
	}
	flush()
}

// runBatch runs the statements of one line; an expansion error drops the rest of the line.
func (s *Shell) runBatch(batch []*syntax.Stmt) (goOn bool) {
	depth := len(s.scopes)
	quiet := s.noErrExit
	defer func() {
		if reason := recover(); reason != nil {
			stop, ok := reason.(*abort)
			if !ok || s.nested > 0 {
				panic(reason)
			}
			s.scopes = s.scopes[:depth]
			s.noErrExit = quiet
			s.status = stop.status
			s.pipeStatus = []int{stop.status}
			goOn = !stop.exit && s.depth == 0 && !s.opts.errexit
			if !goOn {
				s.flow = exiting
			}
		}
	}()
	for _, st := range batch {
		s.stmt(st)
		if s.flow != running {
			return false
		}
	}
	return true
}

func (s *Shell) syntaxError(err error, source, name string, pending []*syntax.Stmt, lastLine uint, flush func() bool) {
	line := uint(0)
	message := err.Error()
	var parse syntax.ParseError
	if errors.As(err, &parse) {
		line, message = parse.Pos.Line(), parse.Text
	}
	var language syntax.LangError
	if errors.As(err, &language) {
		line = language.Pos.Line()
		message = "syntax error near unexpected token"
	}
	if len(pending) > 0 && lastLine < line && !flush() {
		return
	}
	prefix := s.argv0
	if name != "" && name != "eval" {
		prefix = name
	} else if name == "eval" {
		prefix += ": eval"
	}
	fmt.Fprintf(s.writer(2), "%s: line %d: syntax error: %s\n", prefix, line, message)
	s.status = 2
	s.pipeStatus = []int{2}
	if s.sourceDepth == 0 {
		s.flow = exiting
	}
}
