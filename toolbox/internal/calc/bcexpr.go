package calc

import (
	"fmt"
	"math/big"
	"strings"
)

func truthNumber(condition bool) number {
	if condition {
		return fromInt(1)
	}
	return fromInt(0)
}

func (p *bcParser) expression() bcExpr { return p.orExpr() }

func (p *bcParser) orExpr() bcExpr {
	left := p.andExpr()
	for p.accept("||") {
		first, second := left, p.andExpr()
		left = func(s *bcState) number {
			return truthNumber(first(s).digits.Sign() != 0 || second(s).digits.Sign() != 0)
		}
	}
	return left
}

func (p *bcParser) andExpr() bcExpr {
	left := p.notExpr()
	for p.accept("&&") {
		first, second := left, p.notExpr()
		left = func(s *bcState) number {
			return truthNumber(first(s).digits.Sign() != 0 && second(s).digits.Sign() != 0)
		}
	}
	return left
}

func (p *bcParser) notExpr() bcExpr {
	if p.accept("!") {
		inner := p.notExpr()
		return func(s *bcState) number { return truthNumber(inner(s).digits.Sign() == 0) }
	}
	return p.relation()
}

func (p *bcParser) relation() bcExpr {
	left := p.assignment()
	for {
		operator := p.peek()
		switch operator {
		case "==", "!=", "<", "<=", ">", ">=":
		default:
			return left
		}
		p.pos++
		first, second := left, p.assignment()
		left = func(s *bcState) number {
			order := first(s).compare(second(s))
			switch operator {
			case "==":
				return truthNumber(order == 0)
			case "!=":
				return truthNumber(order != 0)
			case "<":
				return truthNumber(order < 0)
			case "<=":
				return truthNumber(order <= 0)
			case ">":
				return truthNumber(order > 0)
			}
			return truthNumber(order >= 0)
		}
	}
}

// place is something that can be assigned: a variable, an array element or a special register.
type place struct {
	name  string
	index bcExpr
}

func (p *bcParser) place() (place, bool) {
	token := p.peek()
	if token == "" || token[0] < 'a' || token[0] > 'z' {
		return place{}, false
	}
	if p.pos+1 < len(p.tokens) && p.tokens[p.pos+1] == "(" {
		return place{}, false
	}
	p.pos++
	if p.accept("[") {
		index := p.expression()
		p.expect("]")
		return place{token, index}, true
	}
	return place{name: token}, true
}

func (t place) get(s *bcState) number {
	if t.index != nil {
		if value, ok := s.arrays[t.name][t.index(s).rescale(0).digits.String()]; ok {
			return value
		}
		return fromInt(0)
	}
	switch t.name {
	case "scale":
		return fromInt(int64(s.scale))
	case "ibase":
		return fromInt(int64(s.ibase))
	case "obase":
		return fromInt(int64(s.obase))
	case "last":
		return s.last
	}
	if value, ok := s.vars[t.name]; ok {
		return value
	}
	return fromInt(0)
}

func (t place) set(s *bcState, value number) {
	if t.index != nil {
		if s.arrays[t.name] == nil {
			s.arrays[t.name] = map[string]number{}
		}
		s.arrays[t.name][t.index(s).rescale(0).digits.String()] = value
		return
	}
	small := int(value.rescale(0).digits.Int64())
	switch t.name {
	case "scale":
		s.scale = max(0, min(small, 100000))
	case "ibase":
		s.ibase = max(2, min(small, 16))
	case "obase":
		s.obase = max(2, small)
	case "last":
		s.last = value
	default:
		s.vars[t.name] = value
	}
}

func (p *bcParser) assignment() bcExpr {
	start := p.pos
	if target, ok := p.place(); ok {
		switch operator := p.peek(); operator {
		case "=", "+=", "-=", "*=", "/=", "%=", "^=":
			p.pos++
			value := p.assignment()
			return func(s *bcState) number {
				result := value(s)
				if operator != "=" {
					result = s.apply(operator[:1], target.get(s), result)
				}
				target.set(s, result)
				return target.get(s)
			}
		}
	}
	p.pos = start
	return p.additive()
}

func (s *bcState) apply(operator string, x, y number) number {
	switch operator {
	case "+":
		return x.add(y)
	case "-":
		return x.add(y.negate())
	case "*":
		return x.multiply(y, s.scale)
	case "/":
		return x.divide(y, s.scale)
	case "%":
		return x.modulo(y, s.scale)
	}
	return x.power(y, s.scale)
}

func (p *bcParser) additive() bcExpr {
	left := p.multiplicative()
	for p.peek() == "+" || p.peek() == "-" {
		operator := p.next()
		first, second := left, p.multiplicative()
		left = func(s *bcState) number { return s.apply(operator, first(s), second(s)) }
	}
	return left
}

func (p *bcParser) multiplicative() bcExpr {
	left := p.unary()
	for p.peek() == "*" || p.peek() == "/" || p.peek() == "%" {
		operator := p.next()
		first, second := left, p.unary()
		left = func(s *bcState) number { return s.apply(operator, first(s), second(s)) }
	}
	return left
}

// In bc unary minus binds tighter than "^".
func (p *bcParser) unary() bcExpr {
	base := p.negation()
	if p.accept("^") {
		exponent := p.unary()
		return func(s *bcState) number { return s.apply("^", base(s), exponent(s)) }
	}
	return base
}

func (p *bcParser) negation() bcExpr {
	if p.accept("-") {
		inner := p.negation()
		return func(s *bcState) number { return inner(s).negate() }
	}
	return p.postfix()
}

func (p *bcParser) postfix() bcExpr {
	if operator := p.peek(); operator == "++" || operator == "--" {
		p.pos++
		target, ok := p.place()
		if !ok {
			panic(bcError("(standard_in) 1: syntax error"))
		}
		return func(s *bcState) number {
			target.set(s, s.apply(operator[:1], target.get(s), fromInt(1)))
			return target.get(s)
		}
	}
	start := p.pos
	if target, ok := p.place(); ok {
		if operator := p.peek(); operator == "++" || operator == "--" {
			p.pos++
			return func(s *bcState) number {
				old := target.get(s)
				target.set(s, s.apply(operator[:1], old, fromInt(1)))
				return old
			}
		}
		return target.get
	}
	p.pos = start
	return p.primary()
}

func (p *bcParser) primary() bcExpr {
	token := p.next()
	switch {
	case token == "(":
		inner := p.expression()
		p.expect(")")
		return inner
	case token == "":
		panic(bcError("(standard_in) 1: syntax error"))
	case token[0] >= '0' && token[0] <= '9' || token[0] == '.' || token[0] >= 'A' && token[0] <= 'F':
		if strings.Count(token, ".") > 1 || token == "." && false {
			panic(bcError("(standard_in) 1: syntax error"))
		}
		return func(s *bcState) number { return s.parseNumber(token) }
	case token[0] >= 'a' && token[0] <= 'z' && p.accept("("):
		return p.call(token)
	}
	panic(bcError("(standard_in) 1: syntax error"))
}

func (p *bcParser) call(name string) bcExpr {
	var args []bcExpr
	for !p.accept(")") {
		args = append(args, p.expression())
		if p.accept("[") {
			p.expect("]")
		}
		p.accept(",")
		if p.done() && p.tokens[len(p.tokens)-1] != ")" {
			panic(bcError("(standard_in) 1: syntax error"))
		}
	}
	return func(s *bcState) number {
		values := make([]number, len(args))
		for i, arg := range args {
			values[i] = arg(s)
		}
		return s.call(name, values)
	}
}

func (s *bcState) call(name string, args []number) number {
	if fn := bcDefinitions[name]; fn != nil {
		return s.invoke(name, fn, args)
	}
	if len(args) != 1 && name != "j" {
		panic(bcError(fmt.Sprintf("Runtime error (func=(main), adr=3): Function %s not defined.", name)))
	}
	switch name {
	case "sqrt":
		return args[0].root(s.scale)
	case "length":
		digits := strings.TrimLeft(new(big.Int).Abs(args[0].digits).String(), "0")
		return fromInt(int64(max(1, len(digits), args[0].scale)))
	case "scale":
		return fromInt(int64(args[0].scale))
	case "abs":
		return number{new(big.Int).Abs(args[0].digits), args[0].scale}
	case "e":
		return exponential(args[0], s.scale)
	case "l":
		return logarithm(args[0], s.scale)
	case "s":
		return sine(args[0], s.scale)
	case "c":
		return cosine(args[0], s.scale)
	case "a":
		return arctangent(args[0], s.scale)
	}
	panic(bcError(fmt.Sprintf("Runtime error (func=(main), adr=3): Function %s not defined.", name)))
}

func (s *bcState) invoke(name string, fn *bcFunc, args []number) number {
	if len(args) != len(fn.params) {
		panic(bcError("Runtime error (func=" + name + ", adr=0): Parameter number mismatch"))
	}
	if s.depth++; s.depth > 2000 {
		panic(bcError("Runtime error (func=" + name + ", adr=0): Function call too deep"))
	}
	saved := map[string]number{}
	present := map[string]bool{}
	names := append(append([]string(nil), fn.params...), fn.autos...)
	for _, local := range names {
		saved[local], present[local] = s.vars[local], s.vars[local].digits != nil
	}
	for i, local := range names {
		s.vars[local] = fromInt(0)
		if i < len(args) {
			s.vars[local] = args[i]
		}
	}
	_, result := runBlock(s, fn.body)
	for _, local := range names {
		if present[local] {
			s.vars[local] = saved[local]
		} else {
			delete(s.vars, local)
		}
	}
	s.depth--
	if result.digits == nil {
		return fromInt(0)
	}
	return result
}
