package shell

import (
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

// condition evaluates [[ ... ]] and returns its status.
func (s *Shell) condition(expr syntax.TestExpr) int {
	switch expr := expr.(type) {
	case *syntax.ParenTest:
		return s.condition(expr.X)
	case *syntax.Word:
		return int(truth(s.textOf(expr) == ""))
	case *syntax.UnaryTest:
		if expr.Op == syntax.TsNot {
			status := s.condition(expr.X)
			if status > 1 {
				return status
			}
			return 1 - status
		}
		operand := ""
		if word, ok := expr.X.(*syntax.Word); ok {
			operand = s.textOf(word)
		}
		return int(truth(!s.unaryTest(expr.Op.String(), operand)))
	case *syntax.BinaryTest:
		return s.binaryCondition(expr)
	}
	return 2
}

func (s *Shell) binaryCondition(expr *syntax.BinaryTest) int {
	switch expr.Op {
	case syntax.AndTest:
		// The parser nests "a && b || c" to the right; in bash "&&" binds tighter.
		if either, ok := expr.Y.(*syntax.BinaryTest); ok && either.Op == syntax.OrTest {
			both := &syntax.BinaryTest{Op: syntax.AndTest, X: expr.X, Y: either.X}
			return s.binaryCondition(&syntax.BinaryTest{Op: syntax.OrTest, X: both, Y: either.Y})
		}
		if status := s.condition(expr.X); status != 0 {
			return status
		}
		return s.condition(expr.Y)
	case syntax.OrTest:
		if status := s.condition(expr.X); status == 0 {
			return 0
		}
		return s.condition(expr.Y)
	}
	left := s.textOf(expr.X.(*syntax.Word))
	right := expr.Y.(*syntax.Word)
	switch expr.Op {
	case syntax.TsMatch, syntax.TsMatchShort, syntax.TsNoMatch:
		matched := compilePattern(s.patternOf(right), true, s.shopt["nocasematch"]).matches(left)
		return int(truth(matched == (expr.Op == syntax.TsNoMatch)))
	case syntax.TsReMatch:
		return s.regexCondition(left, right)
	case syntax.TsEql, syntax.TsNeq, syntax.TsLss, syntax.TsLeq, syntax.TsGtr, syntax.TsGeq:
		return int(truth(!compareNumbers(expr.Op.String(), s.arithText(left), s.arithText(s.textOf(right)))))
	}
	return int(truth(!s.binaryTest(expr.Op.String(), left, s.textOf(right))))
}

func compareNumbers(operator string, x, y int64) bool {
	switch operator {
	case "-eq":
		return x == y
	case "-ne":
		return x != y
	case "-lt":
		return x < y
	case "-le":
		return x <= y
	case "-gt":
		return x > y
	}
	return x >= y
}

// regexSource renders the right side of =~: quoted parts are literal.
func (s *Shell) regexSource(word *syntax.Word) string {
	var out strings.Builder
	for _, piece := range s.unsplit(word) {
		if piece.quoted {
			out.WriteString(regexp.QuoteMeta(piece.text))
		} else {
			out.WriteString(piece.text)
		}
	}
	return out.String()
}

func (s *Shell) regexCondition(left string, word *syntax.Word) int {
	source := s.regexSource(word)
	expr, err := posix.Compile(source, posix.Options{Extended: true, IgnoreCase: s.shopt["nocasematch"]})
	v := s.ensure("BASH_REMATCH")
	if err != nil {
		v.setList(nil)
		return 2
	}
	match := expr.FindIndex([]byte(left), 0)
	if match == nil {
		v.setList(nil)
		return 1
	}
	groups := make([]string, 0, len(match)/2)
	for i := 0; i < len(match); i += 2 {
		if match[i] < 0 {
			groups = append(groups, "")
		} else {
			groups = append(groups, left[match[i]:match[i+1]])
		}
	}
	v.setList(groups)
	return 0
}

func (s *Shell) unaryTest(operator, operand string) bool {
	switch operator {
	case "-z":
		return operand == ""
	case "-n":
		return operand != ""
	case "-v":
		return s.isSetTest(operand)
	case "-R":
		v := s.lookup(operand)
		return v != nil && v.nameref
	case "-o":
		option := s.optionByName(operand)
		return option != nil && *option
	case "-t":
		return false
	}
	return FileTest(operator, s.path(operand))
}

func (s *Shell) isSetTest(name string) bool {
	if base, sub, ok := cutSubscript(name); ok {
		if v := s.find(base); v != nil && (sub == "@" || sub == "*") {
			return len(v.values()) > 0
		}
		_, set := s.elementValue(base, sub)
		return set
	}
	_, set := s.getOK(name)
	return set
}

// FileTest answers -e -f -d and the like for an absolute path.
func FileTest(operator, name string) bool {
	if name == "" {
		return false
	}
	if operator == "-L" || operator == "-h" {
		info, err := core.Lstat(strings.TrimSuffix(name, "/"))
		return err == nil && info.Mode()&fs.ModeSymlink != 0
	}
	info, err := core.Stat(name)
	if err != nil {
		return false
	}
	mode := info.Mode()
	switch operator {
	case "-e", "-a":
		return true
	case "-f":
		return mode.IsRegular()
	case "-d":
		return mode.IsDir()
	case "-s":
		return info.Size() > 0 || mode.IsDir()
	case "-r":
		return core.IsRoot || mode&0o444 != 0
	case "-w":
		return core.IsRoot || mode&0o222 != 0
	case "-x":
		return mode&0o111 != 0
	case "-p":
		return mode&fs.ModeNamedPipe != 0
	case "-S":
		return mode&fs.ModeSocket != 0
	case "-b":
		return mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	case "-c":
		return mode&fs.ModeCharDevice != 0
	case "-u":
		return mode&fs.ModeSetuid != 0
	case "-g":
		return mode&fs.ModeSetgid != 0
	case "-k":
		return mode&fs.ModeSticky != 0
	case "-O", "-G", "-N":
		return true
	}
	return false
}

func (s *Shell) binaryTest(operator, left, right string) bool {
	return BinaryFileTest(operator, left, right, s.path)
}

// BinaryFileTest answers string order and -nt -ot -ef.
func BinaryFileTest(operator, left, right string, resolve func(string) string) bool {
	switch operator {
	case "<":
		return left < right
	case ">":
		return left > right
	case "=", "==":
		return left == right
	case "!=":
		return left != right
	}
	one, errOne := core.Stat(resolve(left))
	two, errTwo := core.Stat(resolve(right))
	switch operator {
	case "-nt":
		return errOne == nil && (errTwo != nil || one.ModTime().After(two.ModTime()))
	case "-ot":
		return errTwo == nil && (errOne != nil || one.ModTime().Before(two.ModTime()))
	case "-ef":
		if errOne != nil || errTwo != nil {
			return false
		}
		realOne, _ := core.RealPath(resolve(left))
		realTwo, _ := core.RealPath(resolve(right))
		return realOne == realTwo || core.SameFile(one, two)
	}
	return false
}

func isInteger(text string) (int64, bool) {
	number, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return number, err == nil
}
