package calc

import (
	"strings"
)

// bcNode is a statement; it returns how it ended and, for expressions, a value.
type bcNode func(s *bcState) (bcFlow, number)

type bcExpr func(s *bcState) number

type bcParser struct {
	tokens []string
	pos    int
}

func bcTokens(source string) []string {
	var tokens []string
	for i := 0; i < len(source); {
		c := source[i]
		switch {
		case c == '\\' && i+1 < len(source) && source[i+1] == '\n':
			i += 2
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '#':
			for i < len(source) && source[i] != '\n' {
				i++
			}
		case strings.HasPrefix(source[i:], "/*"):
			end := strings.Index(source[i+2:], "*/")
			if end < 0 {
				return tokens
			}
			i += end + 4
		case c == '"':
			end := strings.IndexByte(source[i+1:], '"')
			if end < 0 {
				end = len(source) - i - 1
			}
			tokens = append(tokens, source[i:i+1+end])
			i += end + 2
		case c >= '0' && c <= '9' || c == '.' || c >= 'A' && c <= 'F':
			start := i
			for i < len(source) && (source[i] >= '0' && source[i] <= '9' || source[i] == '.' || source[i] >= 'A' && source[i] <= 'F') {
				i++
			}
			tokens = append(tokens, source[start:i])
		case c >= 'a' && c <= 'z':
			start := i
			for i < len(source) && (source[i] >= 'a' && source[i] <= 'z' || source[i] == '_' || source[i] >= '0' && source[i] <= '9') {
				i++
			}
			tokens = append(tokens, source[start:i])
		default:
			size := 1
			for _, operator := range []string{"++", "--", "+=", "-=", "*=", "/=", "%=", "^=", "==", "<=", ">=", "!=", "&&", "||"} {
				if strings.HasPrefix(source[i:], operator) {
					size = 2
				}
			}
			tokens = append(tokens, source[i:i+size])
			i += size
		}
	}
	return tokens
}

func (p *bcParser) done() bool { return p.pos >= len(p.tokens) }

func (p *bcParser) peek() string {
	if p.done() {
		return ""
	}
	return p.tokens[p.pos]
}

func (p *bcParser) next() string {
	token := p.peek()
	p.pos++
	return token
}

func (p *bcParser) accept(token string) bool {
	if !p.done() && p.tokens[p.pos] == token {
		p.pos++
		return true
	}
	return false
}

func (p *bcParser) expect(token string) {
	if !p.accept(token) {
		panic(bcError("(standard_in) 1: syntax error"))
	}
}

func (p *bcParser) skipLine() {
	for !p.done() && p.peek() != "\n" {
		p.pos++
	}
}

func (p *bcParser) newlines() {
	for p.peek() == "\n" && !p.done() {
		p.pos++
	}
}

func (p *bcParser) block() []bcNode {
	var body []bcNode
	p.newlines()
	if !p.accept("{") {
		return []bcNode{p.statement()}
	}
	for !p.accept("}") {
		if p.done() {
			panic(bcError("(standard_in) 1: syntax error"))
		}
		if node := p.statement(); node != nil {
			body = append(body, node)
		}
	}
	return body
}

func runBlock(s *bcState, body []bcNode) (bcFlow, number) {
	for _, node := range body {
		if node == nil {
			continue
		}
		if flow, value := node(s); flow != bcNormal {
			return flow, value
		}
	}
	return bcNormal, number{}
}

func (p *bcParser) statement() bcNode {
	switch token := p.peek(); {
	case token == "\n" || token == ";":
		p.pos++
		return nil
	case token == "{":
		body := p.block()
		return func(s *bcState) (bcFlow, number) { return runBlock(s, body) }
	case strings.HasPrefix(token, `"`):
		p.pos++
		return func(s *bcState) (bcFlow, number) { s.c.Out.WriteString(token[1:]); return bcNormal, number{} }
	}
	switch token := p.peek(); token {
	case "define":
		p.define()
		return nil
	case "if":
		return p.ifStatement()
	case "while":
		p.pos++
		p.expect("(")
		condition := p.expression()
		p.expect(")")
		body := p.block()
		return loop(nil, condition, nil, body)
	case "for":
		return p.forStatement()
	case "break", "continue", "quit", "halt":
		p.pos++
		flow := map[string]bcFlow{"break": bcBreak, "continue": bcContinue, "quit": bcQuit, "halt": bcQuit}[token]
		return func(*bcState) (bcFlow, number) { return flow, number{} }
	case "return":
		return p.returnStatement()
	case "print":
		return p.printStatement()
	case "scale", "ibase", "obase", "last":
	}
	start := p.pos
	value := p.expression()
	if token := p.peek(); !p.done() && token != "\n" && token != ";" && token != "}" {
		panic(bcError("(standard_in) 1: syntax error"))
	}
	silent := p.isAssignment(start)
	return func(s *bcState) (bcFlow, number) {
		result := value(s)
		if !silent {
			s.last = result
			s.c.Out.WriteString(s.text(result) + "\n")
		}
		return bcNormal, result
	}
}

// isAssignment looks for an assignment operator outside any parentheses: such statements print nothing.
func (p *bcParser) isAssignment(start int) bool {
	depth := 0
	for _, token := range p.tokens[start:p.pos] {
		switch token {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		case "=", "+=", "-=", "*=", "/=", "%=", "^=":
			return depth == 0
		}
	}
	return false
}

func (p *bcParser) ifStatement() bcNode {
	p.pos++
	p.expect("(")
	condition := p.expression()
	p.expect(")")
	then := p.block()
	var other []bcNode
	save := p.pos
	p.newlines()
	if p.accept("else") {
		other = p.block()
	} else {
		p.pos = save
	}
	return func(s *bcState) (bcFlow, number) {
		if condition(s).digits.Sign() != 0 {
			return runBlock(s, then)
		}
		return runBlock(s, other)
	}
}

func (p *bcParser) forStatement() bcNode {
	p.pos++
	p.expect("(")
	part := func(end string) bcExpr {
		if p.accept(end) {
			return nil
		}
		value := p.expression()
		p.expect(end)
		return value
	}
	first, condition, step := part(";"), part(";"), part(")")
	return loop(first, condition, step, p.block())
}

func loop(first, condition, step bcExpr, body []bcNode) bcNode {
	return func(s *bcState) (bcFlow, number) {
		if first != nil {
			first(s)
		}
		for condition == nil || condition(s).digits.Sign() != 0 {
			s.c.Check()
			flow, value := runBlock(s, body)
			if flow == bcBreak {
				break
			}
			if flow == bcReturn || flow == bcQuit {
				return flow, value
			}
			if step != nil {
				step(s)
			}
		}
		return bcNormal, number{}
	}
}

func (p *bcParser) returnStatement() bcNode {
	p.pos++
	if token := p.peek(); token == "\n" || token == ";" || token == "}" || p.done() {
		return func(*bcState) (bcFlow, number) { return bcReturn, fromInt(0) }
	}
	value := p.expression()
	return func(s *bcState) (bcFlow, number) { return bcReturn, value(s) }
}

func (p *bcParser) printStatement() bcNode {
	p.pos++
	var parts []func(s *bcState)
	for {
		if token := p.peek(); strings.HasPrefix(token, `"`) {
			p.pos++
			text := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\q`, `"`).Replace(token[1:])
			parts = append(parts, func(s *bcState) { s.c.Out.WriteString(text) })
		} else {
			value := p.expression()
			parts = append(parts, func(s *bcState) { s.c.Out.WriteString(s.text(value(s))) })
		}
		if !p.accept(",") {
			break
		}
	}
	return func(s *bcState) (bcFlow, number) {
		for _, part := range parts {
			part(s)
		}
		return bcNormal, number{}
	}
}

// define stores a function when it is executed; parsing it is enough, as bc does.
func (p *bcParser) define() {
	p.pos++
	name := p.next()
	p.expect("(")
	fn := &bcFunc{}
	for !p.accept(")") {
		fn.params = append(fn.params, p.next())
		if p.accept("[") {
			p.expect("]")
		}
		p.accept(",")
		if p.done() {
			panic(bcError("(standard_in) 1: syntax error"))
		}
	}
	p.newlines()
	p.expect("{")
	p.newlines()
	if p.accept("auto") {
		for token := p.next(); ; token = p.next() {
			fn.autos = append(fn.autos, token)
			if p.accept("[") {
				p.expect("]")
			}
			if !p.accept(",") {
				break
			}
		}
	}
	p.pos--
	p.tokens[p.pos] = "{"
	fn.body = p.block()
	bcDefinitions[name] = fn
}

var bcDefinitions = map[string]*bcFunc{}
