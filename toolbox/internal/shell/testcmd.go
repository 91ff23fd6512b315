package shell

import (
	"fmt"

	"warmcell/toolbox/internal/core"
)

// testEval evaluates "test" arguments. It serves the builtin and the command of the same name.
type testEval struct {
	args   []string
	pos    int
	unary  func(operator, operand string) bool
	path   func(string) string
	failed string
}

var unaryOperators = map[string]bool{}

func init() {
	for _, letter := range "abcdefghknoprstuvwxzGLNOSR" {
		unaryOperators["-"+string(letter)] = true
	}
}

var binaryOperators = map[string]bool{"=": true, "==": true, "!=": true, "<": true, ">": true, "-eq": true, "-ne": true, "-lt": true, "-le": true,
	"-gt": true, "-ge": true, "-nt": true, "-ot": true, "-ef": true}

func (t *testEval) run() (result bool, problem string) {
	switch len(t.args) {
	case 0:
		return false, ""
	case 1:
		return t.args[0] != "", ""
	case 2:
		if t.args[0] == "!" {
			return t.args[1] == "", ""
		}
		if unaryOperators[t.args[0]] {
			return t.unary(t.args[0], t.args[1]), ""
		}
		return false, t.args[0] + ": unary operator expected"
	case 3:
		if binaryOperators[t.args[1]] {
			return t.binary(t.args[0], t.args[1], t.args[2]), t.failed
		}
		if t.args[1] == "-a" {
			return t.args[0] != "" && t.args[2] != "", ""
		}
		if t.args[1] == "-o" {
			return t.args[0] != "" || t.args[2] != "", ""
		}
		if t.args[0] == "!" {
			inner := *t
			inner.args = t.args[1:]
			result, problem := inner.run()
			return !result, problem
		}
		if t.args[0] == "(" && t.args[2] == ")" {
			return t.args[1] != "", ""
		}
		return false, t.args[1] + ": binary operator expected"
	case 4:
		if t.args[0] == "!" {
			inner := *t
			inner.args = t.args[1:]
			result, problem := inner.run()
			return !result, problem
		}
	}
	result = t.or()
	if t.failed == "" && t.pos < len(t.args) {
		t.failed = "too many arguments"
	}
	return result, t.failed
}

func (t *testEval) peek() string {
	if t.pos < len(t.args) {
		return t.args[t.pos]
	}
	return ""
}

func (t *testEval) or() bool {
	result := t.and()
	for t.peek() == "-o" {
		t.pos++
		right := t.and()
		result = result || right
	}
	return result
}

func (t *testEval) and() bool {
	result := t.not()
	for t.peek() == "-a" {
		t.pos++
		right := t.not()
		result = result && right
	}
	return result
}

func (t *testEval) not() bool {
	if t.pos >= len(t.args) {
		t.failed = "argument expected"
		return false
	}
	if t.peek() == "!" {
		t.pos++
		return !t.not()
	}
	return t.primary()
}

func (t *testEval) primary() bool {
	word := t.args[t.pos]
	rest := len(t.args) - t.pos
	switch {
	case rest >= 3 && binaryOperators[t.args[t.pos+1]]:
		result := t.binary(word, t.args[t.pos+1], t.args[t.pos+2])
		t.pos += 3
		return result
	case word == "(":
		t.pos++
		result := t.or()
		if t.peek() != ")" {
			t.failed = "`)' expected"
		}
		t.pos++
		return result
	case rest >= 2 && unaryOperators[word]:
		result := t.unary(word, t.args[t.pos+1])
		t.pos += 2
		return result
	}
	t.pos++
	return word != ""
}

func (t *testEval) binary(left, operator, right string) bool {
	switch operator {
	case "-eq", "-ne", "-lt", "-le", "-gt", "-ge":
		x, ok := isInteger(left)
		if !ok {
			t.failed = left + ": integer expression expected"
			return false
		}
		y, ok := isInteger(right)
		if !ok {
			t.failed = right + ": integer expression expected"
			return false
		}
		return compareNumbers(operator, x, y)
	}
	return BinaryFileTest(operator, left, right, t.path)
}

func testBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if argv[0] == "[" {
		if len(args) == 0 || args[len(args)-1] != "]" {
			s.errorf("[: missing `]'")
			return 2
		}
		args = args[:len(args)-1]
	}
	evaluation := &testEval{args: args, unary: s.unaryTest, path: s.path}
	result, problem := evaluation.run()
	if problem != "" {
		s.errorf("%s: %s", argv[0], problem)
		return 2
	}
	return int(truth(!result))
}

// testCommand is "test" outside a shell (xargs, find -exec).
func testCommand(c *core.Ctx) int {
	args := c.Args
	if c.Name == "[" {
		if len(args) == 0 || args[len(args)-1] != "]" {
			return c.Fail(2, "missing ‘]’")
		}
		args = args[:len(args)-1]
	}
	unary := func(operator, operand string) bool {
		switch operator {
		case "-z":
			return operand == ""
		case "-n":
			return operand != ""
		case "-t":
			return false
		}
		return FileTest(operator, c.Path(operand))
	}
	evaluation := &testEval{args: args, unary: unary, path: c.Path}
	result, problem := evaluation.run()
	if problem != "" {
		fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name, problem)
		return 2
	}
	return int(truth(!result))
}
