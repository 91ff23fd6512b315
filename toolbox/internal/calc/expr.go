// Package calc holds expr, bc and their arithmetic.
package calc

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	core.Register(
		&core.Command{Name: "expr", Summary: "Evaluate an expression.", Usage: "expr EXPRESSION", Run: expr},
		&core.Command{Name: "factor", Summary: "Print prime factors.", Usage: "factor number...", Run: factor},
	)
}

type exprParser struct {
	args    []string
	pos     int
	problem string
}

func expr(c *core.Ctx) int {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return c.Usage(2, "missing operand")
	}
	p := &exprParser{args: args}
	value := p.or()
	if p.problem == "" && p.pos < len(p.args) {
		p.problem = "syntax error: unexpected argument ‘" + p.args[p.pos] + "’"
	}
	if p.problem != "" {
		return c.Fail(2, "%s", p.problem)
	}
	c.Out.WriteString(value + "\n")
	if isNull(value) {
		return 1
	}
	return 0
}

func isNull(value string) bool {
	if value == "" {
		return true
	}
	trimmed := strings.TrimPrefix(value, "-")
	return trimmed != "" && strings.Trim(trimmed, "0") == ""
}

func (p *exprParser) peek() string {
	if p.pos < len(p.args) {
		return p.args[p.pos]
	}
	return ""
}

func (p *exprParser) has(operators ...string) (string, bool) {
	if p.pos >= len(p.args) {
		return "", false
	}
	for _, operator := range operators {
		if p.args[p.pos] == operator {
			p.pos++
			return operator, true
		}
	}
	return "", false
}

func (p *exprParser) or() string {
	left := p.and()
	for {
		if _, ok := p.has("|"); !ok {
			return left
		}
		right := p.and()
		if isNull(left) {
			left = right
			if isNull(left) {
				left = "0"
			}
		}
	}
}

func (p *exprParser) and() string {
	left := p.comparison()
	for {
		if _, ok := p.has("&"); !ok {
			return left
		}
		right := p.comparison()
		if isNull(left) || isNull(right) {
			left = "0"
		}
	}
}

func integer(text string) (*big.Int, bool) {
	return new(big.Int).SetString(text, 10)
}

func (p *exprParser) comparison() string {
	left := p.sum()
	for {
		operator, ok := p.has("<", "<=", "=", "==", "!=", ">=", ">")
		if !ok {
			return left
		}
		right := p.sum()
		order := strings.Compare(left, right)
		x, okX := integer(left)
		y, okY := integer(right)
		if okX && okY {
			order = x.Cmp(y)
		}
		result := false
		switch operator {
		case "<":
			result = order < 0
		case "<=":
			result = order <= 0
		case "=", "==":
			result = order == 0
		case "!=":
			result = order != 0
		case ">=":
			result = order >= 0
		case ">":
			result = order > 0
		}
		left = map[bool]string{true: "1", false: "0"}[result]
	}
}

func (p *exprParser) arithmetic(operator, left, right string) string {
	x, okX := integer(left)
	y, okY := integer(right)
	if !okX || !okY {
		p.fail("non-integer argument")
		return "0"
	}
	switch operator {
	case "+":
		return x.Add(x, y).String()
	case "-":
		return x.Sub(x, y).String()
	case "*":
		return x.Mul(x, y).String()
	}
	if y.Sign() == 0 {
		p.fail("division by zero")
		return "0"
	}
	if operator == "/" {
		return x.Quo(x, y).String()
	}
	return x.Rem(x, y).String()
}

func (p *exprParser) fail(problem string) {
	if p.problem == "" {
		p.problem = problem
	}
}

func (p *exprParser) sum() string {
	left := p.product()
	for {
		operator, ok := p.has("+", "-")
		if !ok {
			return left
		}
		left = p.arithmetic(operator, left, p.product())
	}
}

func (p *exprParser) product() string {
	left := p.match()
	for {
		operator, ok := p.has("*", "/", "%")
		if !ok {
			return left
		}
		left = p.arithmetic(operator, left, p.match())
	}
}

func (p *exprParser) match() string {
	left := p.primary()
	for {
		if _, ok := p.has(":"); !ok {
			return left
		}
		left = p.matchRegex(left, p.primary())
	}
}

func (p *exprParser) matchRegex(text, source string) string {
	regex, err := posix.Compile("^"+strings.TrimPrefix(source, "^"), posix.Options{})
	if err != nil {
		p.fail(err.Error())
		return "0"
	}
	found := regex.FindIndex([]byte(text), 0)
	if found == nil {
		if regex.Groups() > 0 {
			return ""
		}
		return "0"
	}
	if regex.Groups() > 0 {
		if found[2] < 0 {
			return ""
		}
		return text[found[2]:found[3]]
	}
	return strconv.Itoa(utf8.RuneCountInString(text[:found[1]]))
}

func (p *exprParser) primary() string {
	if p.pos >= len(p.args) {
		p.fail("syntax error: missing argument after ‘" + p.args[len(p.args)-1] + "’")
		return ""
	}
	word := p.args[p.pos]
	p.pos++
	rest := len(p.args) - p.pos
	switch {
	case word == "+" && rest > 0:
		p.pos++
		return p.args[p.pos-1]
	case word == "(":
		value := p.or()
		if _, ok := p.has(")"); !ok {
			p.fail("syntax error: expecting ')' after ‘" + p.args[p.pos-1] + "’")
		}
		return value
	case word == "length" && rest > 0:
		return strconv.Itoa(utf8.RuneCountInString(p.primary()))
	case word == "match" && rest > 1:
		text := p.primary()
		return p.matchRegex(text, p.primary())
	case word == "index" && rest > 1:
		text, set := p.primary(), p.primary()
		at := strings.IndexAny(text, set)
		return strconv.Itoa(utf8.RuneCountInString(text[:at+1]))
	case word == "substr" && rest > 2:
		runes := []rune(p.primary())
		start, err1 := strconv.Atoi(p.primary())
		size, err2 := strconv.Atoi(p.primary())
		if err1 != nil || err2 != nil || start < 1 || size < 1 || start > len(runes) {
			return ""
		}
		return string(runes[start-1 : min(len(runes), start-1+size)])
	}
	return word
}

func factor(c *core.Ctx) int {
	for _, arg := range c.Args {
		number, err := strconv.ParseUint(arg, 10, 64)
		if err != nil {
			return c.Fail(1, "‘%s’ is not a valid positive integer", arg)
		}
		c.Out.WriteString(arg + ":")
		for divisor := uint64(2); divisor*divisor <= number; divisor++ {
			for number%divisor == 0 {
				c.Out.WriteString(" " + strconv.FormatUint(divisor, 10))
				number /= divisor
			}
		}
		if number > 1 {
			c.Out.WriteString(" " + strconv.FormatUint(number, 10))
		}
		c.Out.WriteByte('\n')
	}
	return 0
}
