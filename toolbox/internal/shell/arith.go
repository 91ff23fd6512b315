package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const maxArithDepth = 200

// arithm evaluates a parsed arithmetic expression.
func (s *Shell) arithm(expr syntax.ArithmExpr) int64 {
	return (&arithmetic{s, 0}).eval(expr)
}

// arithText evaluates text as bash does for $((text)), array subscripts and integer variables.
func (s *Shell) arithText(source string) int64 {
	return (&arithmetic{s, 0}).text(source)
}

type arithmetic struct {
	shell *Shell
	depth int
}

func (a *arithmetic) fail(format string, args ...any) { a.shell.fail(false, format, args...) }

func (a *arithmetic) text(source string) int64 {
	source = strings.TrimSpace(source)
	if source == "" {
		return 0
	}
	if number, ok := a.number(source); ok {
		return number
	}
	if a.depth++; a.depth > maxArithDepth {
		a.fail("%s: expression recursion level exceeded (error token is %q)", source, source)
	}
	defer func() { a.depth-- }()
	if validName(source) {
		return a.name(source)
	}
	if strings.ContainsAny(source, "'") {
		a.fail("%s: syntax error: operand expected (error token is %q)", source, source)
	}
	expr, err := newParser().Arithmetic(strings.NewReader(source))
	if err != nil || expr == nil {
		a.fail("%s: syntax error: operand expected (error token is %q)", source, lastToken(source))
	}
	if word, ok := expr.(*syntax.Word); ok && word.Lit() == source {
		a.fail("%s: syntax error: invalid arithmetic operator (error token is %q)", source, strings.TrimLeft(source, "0123456789"))
	}
	recordIndexes(expr, source)
	return a.eval(expr)
}

func lastToken(source string) string {
	for i := len(source) - 1; i >= 0; i-- {
		if strings.IndexByte("+-*/%<>=&|^!~", source[i]) >= 0 {
			return source[i:]
		}
	}
	return source
}

func (a *arithmetic) name(name string) int64 {
	s := a.shell
	value, ok := s.getOK(name)
	if !ok {
		if s.opts.nounset {
			s.fail(true, "%s: unbound variable", name)
		}
		return 0
	}
	return a.text(value)
}

// number parses decimal, 0octal, 0xhex and base#digits.
func (a *arithmetic) number(source string) (int64, bool) {
	if source[0] < '0' || source[0] > '9' {
		if source[0] == '-' && len(source) > 1 && source[1] >= '0' && source[1] <= '9' {
			number, ok := a.number(source[1:])
			return -number, ok
		}
		return 0, false
	}
	if base, digits, ok := strings.Cut(source, "#"); ok {
		radix, err := strconv.Atoi(base)
		if err != nil {
			return 0, false
		}
		if radix < 2 || radix > 64 {
			a.fail("%s: invalid arithmetic base (error token is %q)", source, source)
		}
		return a.digits(source, digits, radix)
	}
	radix := 10
	digits := source
	if len(source) > 1 && source[0] == '0' {
		radix, digits = 8, source[1:]
		if source[1] == 'x' || source[1] == 'X' {
			radix, digits = 16, source[2:]
		}
	}
	var number int64
	for i := 0; i < len(digits); i++ {
		digit := digitValue(digits[i], radix)
		if digit < 0 {
			return 0, false
		}
		if digit >= radix {
			a.fail("%s: value too great for base (error token is %q)", source, source)
		}
		number = number*int64(radix) + int64(digit)
	}
	return number, true
}

func (a *arithmetic) digits(source, digits string, radix int) (int64, bool) {
	var number int64
	if digits == "" {
		return 0, false
	}
	for i := 0; i < len(digits); i++ {
		digit := digitValue(digits[i], radix)
		if digit < 0 {
			return 0, false
		}
		if digit >= radix {
			a.fail("%s: value too great for base (error token is %q)", source, source)
		}
		number = number*int64(radix) + int64(digit)
	}
	return number, true
}

func digitValue(c byte, radix int) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'z':
		if radix <= 16 && c > 'f' {
			return -1
		}
		return int(c-'a') + 10
	case c >= 'A' && c <= 'Z':
		if radix <= 36 {
			if radix <= 16 && c > 'F' {
				return -1
			}
			return int(c-'A') + 10
		}
		return int(c-'A') + 36
	case c == '@':
		return 62
	case c == '_':
		return 63
	}
	return -1
}

func (a *arithmetic) eval(expr syntax.ArithmExpr) int64 {
	switch expr := expr.(type) {
	case nil:
		return 0
	case *syntax.Word:
		return a.word(expr)
	case *syntax.ParenArithm:
		return a.eval(expr.X)
	case *syntax.UnaryArithm:
		return a.unary(expr)
	case *syntax.BinaryArithm:
		return a.binary(expr)
	}
	return 0
}

func (a *arithmetic) word(word *syntax.Word) int64 {
	if len(word.Parts) == 1 {
		switch part := word.Parts[0].(type) {
		case *syntax.Lit:
			return a.text(part.Value)
		case *syntax.ParamExp:
			if part.Short && part.Index != nil {
				p := a.shell.load(part.Param.Value, part.Index)
				return a.text(p.text())
			}
		}
	}
	return a.text(a.shell.textOf(word))
}

// target gives the assignable name behind an operand, with its subscript as text.
func (a *arithmetic) target(expr syntax.ArithmExpr) string {
	if paren, ok := expr.(*syntax.ParenArithm); ok {
		return a.target(paren.X)
	}
	word, ok := expr.(*syntax.Word)
	if !ok {
		a.fail("attempted assignment to non-variable")
	}
	if len(word.Parts) == 1 {
		if part, ok := word.Parts[0].(*syntax.ParamExp); ok && part.Short && part.Index != nil {
			name := part.Param.Value
			return name + "[" + a.shell.indexText(a.shell.find(name), part.Index) + "]"
		}
	}
	name := a.shell.textOf(word)
	if base, _, ok := cutSubscript(name); !ok && !validName(base) {
		a.fail("%s: attempted assignment to non-variable", name)
	}
	return name
}

func (a *arithmetic) store(name string, value int64) int64 {
	if !a.shell.set(name, itoa(value)) {
		panic(&abort{status: 1})
	}
	return value
}

func (a *arithmetic) current(name string) int64 {
	if base, sub, ok := cutSubscript(name); ok {
		value, _ := a.shell.elementValue(base, sub)
		return a.text(value)
	}
	return a.name(name)
}

func (a *arithmetic) unary(expr *syntax.UnaryArithm) int64 {
	switch expr.Op {
	case syntax.Inc, syntax.Dec:
		name := a.target(expr.X)
		old := a.current(name)
		delta := int64(1)
		if expr.Op == syntax.Dec {
			delta = -1
		}
		a.store(name, old+delta)
		if expr.Post {
			return old
		}
		return old + delta
	}
	value := a.eval(expr.X)
	switch expr.Op {
	case syntax.Not:
		return truth(value == 0)
	case syntax.BitNegation:
		return ^value
	case syntax.Minus:
		return -value
	}
	return value
}

func truth(condition bool) int64 {
	if condition {
		return 1
	}
	return 0
}

var assignOperators = map[syntax.BinAritOperator]syntax.BinAritOperator{
	syntax.AddAssgn: syntax.Add, syntax.SubAssgn: syntax.Sub, syntax.MulAssgn: syntax.Mul, syntax.QuoAssgn: syntax.Quo,
	syntax.RemAssgn: syntax.Rem, syntax.AndAssgn: syntax.And, syntax.OrAssgn: syntax.Or, syntax.XorAssgn: syntax.Xor,
	syntax.ShlAssgn: syntax.Shl, syntax.ShrAssgn: syntax.Shr, syntax.PowAssgn: syntax.Pow,
}

func (a *arithmetic) binary(expr *syntax.BinaryArithm) int64 {
	switch expr.Op {
	case syntax.Assgn:
		value := a.eval(expr.Y)
		return a.store(a.target(expr.X), value)
	case syntax.AndArit:
		return truth(a.eval(expr.X) != 0 && a.eval(expr.Y) != 0)
	case syntax.OrArit:
		return truth(a.eval(expr.X) != 0 || a.eval(expr.Y) != 0)
	case syntax.Comma:
		a.eval(expr.X)
		return a.eval(expr.Y)
	case syntax.TernQuest:
		branches := expr.Y.(*syntax.BinaryArithm)
		if a.eval(expr.X) != 0 {
			return a.eval(branches.X)
		}
		return a.eval(branches.Y)
	}
	if operator, ok := assignOperators[expr.Op]; ok {
		name := a.target(expr.X)
		return a.store(name, a.apply(operator, a.current(name), a.eval(expr.Y), expr.Y))
	}
	return a.apply(expr.Op, a.eval(expr.X), a.eval(expr.Y), expr.Y)
}

func (a *arithmetic) apply(operator syntax.BinAritOperator, x, y int64, right syntax.ArithmExpr) int64 {
	switch operator {
	case syntax.Add:
		return x + y
	case syntax.Sub:
		return x - y
	case syntax.Mul:
		return x * y
	case syntax.Quo, syntax.Rem:
		if y == 0 {
			a.fail("%s: division by 0 (error token is %q)", itoa(x)+operator.String()+"0", "0")
		}
		if y == -1 {
			if operator == syntax.Rem {
				return 0
			}
			return -x
		}
		if operator == syntax.Quo {
			return x / y
		}
		return x % y
	case syntax.Pow:
		return a.power(x, y)
	case syntax.Eql:
		return truth(x == y)
	case syntax.Neq:
		return truth(x != y)
	case syntax.Gtr:
		return truth(x > y)
	case syntax.Lss:
		return truth(x < y)
	case syntax.Geq:
		return truth(x >= y)
	case syntax.Leq:
		return truth(x <= y)
	case syntax.And:
		return x & y
	case syntax.Or:
		return x | y
	case syntax.Xor:
		return x ^ y
	case syntax.Shl:
		return x << (uint64(y) & 63)
	case syntax.Shr:
		return x >> (uint64(y) & 63)
	}
	return 0
}

func (a *arithmetic) power(base, exponent int64) int64 {
	if exponent < 0 {
		a.fail("exponent less than 0 (error token is %q)", itoa(exponent))
	}
	result := int64(1)
	for ; exponent > 0; exponent >>= 1 {
		if exponent&1 == 1 {
			result *= base
		}
		base *= base
	}
	return result
}
