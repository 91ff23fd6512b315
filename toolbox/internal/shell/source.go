package shell

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// runSource parses and runs text line by line: commands before a syntax error are executed, as in bash.
func (s *Shell) runSource(source, name string) {
	var pending []*syntax.Stmt
	taken, lastLine, end := 0, uint(0), 0
	flush := func() bool {
		batch := pending
		pending = nil
		if len(batch) > 0 {
			end = int(batch[len(batch)-1].End().Offset())
		}
		return s.runBatch(batch)
	}
	for {
		next, failure := 0, error(nil)
		for st, err := range newParser().StmtsSeq(strings.NewReader(source)) {
			if err != nil {
				failure = err
				break
			}
			if next++; next <= taken { // ran before a repair
				continue
			}
			taken = next
			recordIndexes(st, source)
			if len(pending) > 0 && st.Pos().Line() > lastLine {
				if !flush() {
					return
				}
			}
			pending = append(pending, st)
			lastLine = st.End().Line()
		}
		if failure == nil {
			flush()
			return
		}
		repaired, ok := repair(source, end, failure)
		if !ok {
			s.syntaxError(failure, source, name, pending, lastLine, flush)
			return
		}
		source = repaired
		taken -= len(pending) // here-documents of this line were not parsed yet
		pending = nil
	}
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
