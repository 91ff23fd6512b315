package calc

import (
	"fmt"
	"io"
	"math/big"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "bc", Summary: "Arbitrary precision calculator.", Usage: "bc [-lqsw] [file...]", Run: bc})
}

// number is a decimal: value = digits / 10^scale.
type number struct {
	digits *big.Int
	scale  int
}

type bcState struct {
	c                   *core.Ctx
	vars                map[string]number
	arrays              map[string]map[string]number
	funcs               map[string]*bcFunc
	scale, ibase, obase int
	last                number
	depth               int
}

type bcFunc struct {
	params, autos []string
	body          []bcNode
}

type bcError string

type bcFlow uint8

const (
	bcNormal bcFlow = iota
	bcBreak
	bcContinue
	bcReturn
	bcQuit
)

func bc(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "lqswi", Long: "mathlib/l quiet/q standard/s warn/w interactive/i"}.Parse(c)
	if !ok {
		return 1
	}
	s := &bcState{c: c, vars: map[string]number{}, arrays: map[string]map[string]number{}, funcs: map[string]*bcFunc{}, ibase: 10, obase: 10, last: fromInt(0)}
	for _, option := range options {
		if option.Name == "l" {
			s.scale = 20
		}
	}
	names = append(names, "-")
	for _, name := range names {
		reader, err := c.Open(name)
		if err != nil {
			return c.Fail(1, "File %s is unavailable.", name)
		}
		data, _ := io.ReadAll(reader)
		reader.Close()
		if s.run(string(data)) {
			break
		}
	}
	return 0
}

// run executes a program statement by statement; true means quit.
func (s *bcState) run(source string) (quit bool) {
	p := &bcParser{tokens: bcTokens(source)}
	for !p.done() {
		stop := s.guard(func() bool {
			node := p.statement()
			if node == nil {
				return false
			}
			flow, _ := node(s)
			return flow == bcQuit
		}, p)
		s.c.Out.Flush()
		if stop {
			return true
		}
	}
	return false
}

func (s *bcState) guard(fn func() bool, p *bcParser) (stop bool) {
	defer func() {
		if reason := recover(); reason != nil {
			problem, ok := reason.(bcError)
			if !ok {
				panic(reason)
			}
			s.c.Out.Flush()
			fmt.Fprintf(s.c.Stderr, "%s\n", string(problem))
			p.skipLine()
		}
	}()
	return fn()
}

func fromInt(n int64) number { return number{big.NewInt(n), 0} }

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// rescale changes the number of decimals, truncating.
func (a number) rescale(scale int) number {
	switch {
	case scale == a.scale:
		return a
	case scale > a.scale:
		return number{new(big.Int).Mul(a.digits, pow10(scale-a.scale)), scale}
	}
	return number{new(big.Int).Quo(a.digits, pow10(a.scale-scale)), scale}
}

func (a number) add(b number) number {
	scale := max(a.scale, b.scale)
	return number{new(big.Int).Add(a.rescale(scale).digits, b.rescale(scale).digits), scale}
}

func (a number) negate() number { return number{new(big.Int).Neg(a.digits), a.scale} }

func (a number) multiply(b number, scale int) number {
	product := number{new(big.Int).Mul(a.digits, b.digits), a.scale + b.scale}
	return product.rescale(min(a.scale+b.scale, max(scale, a.scale, b.scale)))
}

func (a number) divide(b number, scale int) number {
	if b.digits.Sign() == 0 {
		panic(bcError("Runtime error (func=(main), adr=3): Divide by zero"))
	}
	top := new(big.Int).Mul(a.digits, pow10(scale+b.scale))
	return number{top.Quo(top, new(big.Int).Mul(b.digits, pow10(a.scale))), scale}
}

func (a number) modulo(b number, scale int) number {
	quotient := a.divide(b, scale)
	result := a.add(quotient.multiply(b, scale+b.scale+a.scale).negate())
	return result.rescale(max(scale+b.scale, a.scale))
}

func (a number) power(b number, scale int) number {
	exponent := b.rescale(0).digits.Int64()
	if exponent > 1000000 || exponent < -1000000 {
		panic(bcError("Runtime error (func=(main), adr=3): exponent too large in raise"))
	}
	if exponent < 0 {
		result := number{new(big.Int).Exp(a.digits, big.NewInt(-exponent), nil), a.scale * int(-exponent)}
		return fromInt(1).divide(result, scale)
	}
	result := number{new(big.Int).Exp(a.digits, big.NewInt(exponent), nil), a.scale * int(exponent)}
	return result.rescale(min(a.scale*int(exponent), max(scale, a.scale)))
}

func (a number) root(scale int) number {
	if a.digits.Sign() < 0 {
		panic(bcError("Runtime error (func=(main), adr=3): Square root of a negative number"))
	}
	scale = max(scale, a.scale)
	wide := a.rescale(2 * scale)
	return number{new(big.Int).Sqrt(wide.digits), scale}
}

func (a number) compare(b number) int {
	scale := max(a.scale, b.scale)
	return a.rescale(scale).digits.Cmp(b.rescale(scale).digits)
}

// text prints in the output base, without a leading zero, folded at 70 columns.
func (s *bcState) text(a number) string {
	if s.obase != 10 {
		return s.inBase(a)
	}
	sign := ""
	digits := new(big.Int).Abs(a.digits).String()
	if a.digits.Sign() < 0 {
		sign = "-"
	}
	if a.scale == 0 {
		return fold(sign + digits)
	}
	for len(digits) < a.scale {
		digits = "0" + digits
	}
	whole, fraction := digits[:len(digits)-a.scale], digits[len(digits)-a.scale:]
	if a.digits.Sign() == 0 {
		return "0"
	}
	return fold(sign + whole + "." + fraction)
}

func fold(text string) string {
	var out strings.Builder
	for len(text) > 69 {
		out.WriteString(text[:68] + "\\\n")
		text = text[68:]
	}
	return out.String() + text
}

func (s *bcState) inBase(a number) string {
	whole := a.rescale(0).digits
	sign := ""
	if a.digits.Sign() < 0 {
		sign = "-"
	}
	base := big.NewInt(int64(s.obase))
	var out []string
	for n := new(big.Int).Abs(whole); n.Sign() > 0; {
		digit := new(big.Int)
		n.QuoRem(n, base, digit)
		out = append([]string{s.digit(digit.Int64())}, out...)
	}
	if len(out) == 0 {
		out = []string{"0"}
	}
	text := sign + strings.Join(out, "")
	if a.scale > 0 {
		rest := new(big.Int).Abs(new(big.Int).Sub(a.digits, new(big.Int).Mul(whole, pow10(a.scale))))
		text += "."
		limit := pow10(a.scale)
		for covered := big.NewInt(1); covered.Cmp(limit) < 0; covered.Mul(covered, base) {
			rest.Mul(rest, base)
			digit := new(big.Int)
			digit.QuoRem(rest, limit, rest)
			text += s.digit(digit.Int64())
		}
	}
	return strings.TrimLeft(text, " ")
}

func (s *bcState) digit(value int64) string {
	if s.obase <= 16 {
		return string("0123456789ABCDEF"[value])
	}
	return fmt.Sprintf(" %0*d", len(fmt.Sprint(s.obase-1)), value)
}

func (s *bcState) parseNumber(text string) number {
	whole, fraction, _ := strings.Cut(text, ".")
	digits := new(big.Int)
	base := big.NewInt(int64(s.ibase))
	all := whole + fraction
	for _, r := range all {
		value := int64(r - '0')
		if r >= 'A' {
			value = int64(r-'A') + 10
		}
		if value >= int64(s.ibase) && len(all) > 1 {
			value = int64(s.ibase) - 1
		}
		digits.Mul(digits, base).Add(digits, big.NewInt(value))
	}
	if s.ibase == 10 {
		return number{digits, len(fraction)}
	}
	if len(fraction) == 0 {
		return number{digits, 0}
	}
	return number{digits, 0}.divide(number{new(big.Int).Exp(base, big.NewInt(int64(len(fraction))), nil), 0}, len(fraction))
}
