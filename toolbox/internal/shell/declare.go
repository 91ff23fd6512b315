package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// declaring holds the parsed options of declare, local, export, readonly and typeset.
type declaring struct {
	shell    *Shell
	command  string
	on, off  map[byte]bool
	global   bool
	print    bool
	funcs    bool
	names    bool // -F
	isLocal  bool
	status   int
	operands int
}

func (s *Shell) declare(cmd *syntax.DeclClause) {
	s.substStatus = 0
	d := &declaring{shell: s, command: cmd.Variant.Value, on: map[byte]bool{}, off: map[byte]bool{}}
	if !d.start() {
		s.status = 1
		return
	}
	var traced []string
	for _, assign := range cmd.Args {
		if assign.Name != nil && !assign.Naked {
			d.operands++
			d.assign(assign)
			continue
		}
		if assign.Name != nil {
			d.word(assign.Name.Value)
			continue
		}
		for _, word := range s.words([]*syntax.Word{assign.Value}) {
			traced = append(traced, word)
			d.word(word)
		}
	}
	d.finish()
	s.status = d.status
	s.pipeStatus = []int{d.status}
	s.assignFailed = false
}

// declareBuiltin is the form where the words were already expanded ("command export X=1").
func declareBuiltin(s *Shell, argv []string) int {
	d := &declaring{shell: s, command: argv[0], on: map[byte]bool{}, off: map[byte]bool{}}
	if !d.start() {
		return 1
	}
	for _, word := range argv[1:] {
		d.word(word)
	}
	d.finish()
	s.assignFailed = false
	return d.status
}

func (d *declaring) start() bool {
	inFunction := d.shell.functionScope() != nil
	switch d.command {
	case "local":
		if !inFunction {
			d.shell.errorf("local: can only be used in a function")
			return false
		}
		d.isLocal = true
	case "declare", "typeset":
		d.isLocal = inFunction
	case "export":
		d.on['x'] = true
	case "readonly":
		d.on['r'] = true
	}
	return true
}

func (s *Shell) functionScope() *scope {
	for i := len(s.scopes) - 1; i >= 0; i-- {
		if s.scopes[i].function {
			return s.scopes[i]
		}
	}
	return nil
}

func (d *declaring) word(word string) {
	if d.operands == 0 && len(word) > 1 && (word[0] == '-' || word[0] == '+') {
		d.flags(word)
		return
	}
	d.operands++
	name, value, hasValue := strings.Cut(word, "=")
	appending := hasValue && strings.HasSuffix(name, "+")
	name = strings.TrimSuffix(name, "+")
	if d.funcs || d.names {
		d.printFunction(name)
		return
	}
	if d.print {
		d.printVariable(name)
		return
	}
	if hasValue && strings.HasPrefix(value, "(") && strings.HasSuffix(value, ")") && (d.on['a'] || d.on['A']) {
		if file, err := newParser().Parse(strings.NewReader(name+"="+value), ""); err == nil && len(file.Stmts) == 1 {
			if call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr); ok && len(call.Assigns) == 1 {
				d.assign(call.Assigns[0])
				return
			}
		}
	}
	v := d.variable(name)
	if v == nil {
		return
	}
	if hasValue {
		d.scalar(name, v, value, appending)
	}
	d.attributes(v)
}

func (d *declaring) flags(word string) {
	into := d.on
	if word[0] == '+' {
		into = d.off
	}
	for i := 1; i < len(word); i++ {
		switch c := word[i]; c {
		case 'p':
			d.print = true
		case 'f':
			d.funcs = true
		case 'F':
			d.names = true
		case 'g':
			d.global, d.isLocal = true, false
		case 'n':
			if d.command == "export" {
				d.off['x'] = true
				delete(d.on, 'x')
			} else {
				into[c] = true
			}
		case 'a', 'A', 'i', 'l', 'u', 'r', 'x', 't', 'I':
			into[c] = true
		case '-':
		default:
			d.shell.errorf("%s: -%c: invalid option", d.command, c)
			d.status = 2
		}
	}
}

func (d *declaring) assign(assign *syntax.Assign) {
	s := d.shell
	name := assign.Name.Value
	if d.funcs {
		return
	}
	if assign.Array == nil && assign.Index == nil {
		value := s.assignText(assign.Value)
		v := d.variable(name)
		if v == nil {
			return
		}
		d.scalar(name, v, value, assign.Append)
		d.attributes(v)
		return
	}
	v := d.variable(name)
	if v == nil {
		return
	}
	if assign.Array != nil {
		d.kindOf(v)
		if d.on['i'] {
			v.integer = true
		}
		s.assignArray(name, assign, v)
	} else {
		s.assignOne(assign)
	}
	if s.assignFailed {
		d.status = 1
		s.assignFailed = false
		return
	}
	d.attributes(v)
}

// variable finds or makes the variable to work on, in the right scope.
func (d *declaring) variable(name string) *variable {
	s := d.shell
	base, sub, hasSub := cutSubscript(name)
	if !validName(base) {
		s.errorf("%s: `%s': not a valid identifier", d.command, name)
		d.status = 1
		return nil
	}
	if hasSub && sub == "" || hasSub {
		d.on['a'] = d.on['a'] || !d.on['A'] && !s.isAssoc(base)
	}
	if d.isLocal {
		current := s.functionScope()
		if v, ok := current.vars[base]; ok {
			return v
		}
		if outer := s.lookup(base); outer != nil && outer.readonly && d.scopeOf(base) == s.scopes[0] && d.command == "local" {
			s.errorf("local: %s: readonly variable", base)
			d.status = 1
			return nil
		}
		v := &variable{}
		if temporary := s.scopes[len(s.scopes)-1]; !temporary.function {
			if given, ok := temporary.vars[base]; ok {
				v = given.clone()
			}
		}
		if outer := s.lookup(base); outer != nil && (s.shopt["localvar_inherit"] || d.on['I']) {
			v = outer.clone()
		}
		current.vars[base] = v
		return v
	}
	if d.global {
		if v, ok := s.scopes[0].vars[base]; ok {
			return v
		}
		v := &variable{}
		s.scopes[0].vars[base] = v
		return v
	}
	if !d.on['n'] && !d.off['n'] {
		base, _, _ = cutSubscript(s.resolve(base))
	}
	return s.ensure(base)
}

func (d *declaring) scopeOf(name string) *scope {
	for i := len(d.shell.scopes) - 1; i >= 0; i-- {
		if _, ok := d.shell.scopes[i].vars[name]; ok {
			return d.shell.scopes[i]
		}
	}
	return nil
}

func (d *declaring) kindOf(v *variable) {
	switch {
	case d.on['A'] && v.kind != associative:
		v.kind, v.table, v.list = associative, newAssoc(), nil
		v.isSet, v.text = false, ""
	case d.on['a'] && v.kind == scalar:
		if v.isSet {
			v.list = []element{{0, v.text}}
		}
		v.kind, v.text = indexed, ""
	}
}

func (d *declaring) scalar(name string, v *variable, value string, appending bool) {
	s := d.shell
	if v.readonly {
		s.errorf("%s: readonly variable", name)
		d.status = 1
		return
	}
	d.kindOf(v)
	if d.on['i'] {
		v.integer = true
	}
	d.caseFlags(v)
	if d.on['n'] {
		if value == name {
			s.errorf("%s: %s: nameref variable self references not allowed", d.command, name)
			d.status = 1
			return
		}
		if base, _, _ := cutSubscript(value); !validName(base) {
			s.errorf("%s: `%s': invalid variable name for name reference", d.command, value)
			d.status = 1
			return
		}
		v.nameref, v.text, v.isSet = true, value, true
		return
	}
	base, sub, hasSub := cutSubscript(name)
	if v.nameref && !d.isLocal {
		s.assign(name, value, appending)
		return
	}
	switch v.kind {
	case associative:
		if !hasSub {
			sub = "0"
		}
		old, _ := v.table.get(sub)
		v.table.set(sub, s.coerce(v, old, value, appending))
	case indexed:
		if !hasSub {
			sub = "0"
		}
		s.assignElement(v, base, sub, true, value, appending)
	default:
		v.text = s.coerce(v, v.text, value, appending)
		s.assigned(name, v)
	}
	v.isSet = true
}

func (d *declaring) caseFlags(v *variable) {
	if d.on['l'] {
		v.lower, v.upper = true, false
	}
	if d.on['u'] {
		v.upper, v.lower = true, false
	}
}

func (d *declaring) attributes(v *variable) {
	if v.readonly && (d.off['r'] || d.on['i'] || d.on['A']) {
		if d.off['r'] {
			d.shell.errorf("%s: readonly variable", d.command)
			d.status = 1
			return
		}
	}
	d.kindOf(v)
	d.caseFlags(v)
	for flag, field := range map[byte]*bool{'x': &v.exported, 'r': &v.readonly, 'i': &v.integer, 'n': &v.nameref, 't': &v.traced, 'l': &v.lower, 'u': &v.upper} {
		if d.off[flag] {
			*field = false
		} else if d.on[flag] && flag != 'l' && flag != 'u' {
			*field = true
		}
	}
}

func (d *declaring) printVariable(name string) {
	v := d.shell.lookup(name)
	if v == nil {
		v = d.shell.special(name)
	}
	if v == nil {
		d.shell.errorf("%s: %s: not found", d.command, name)
		d.status = 1
		return
	}
	d.shell.print(declaration(name, v), "\n")
}

func (d *declaring) printFunction(name string) {
	fn := d.shell.funcs[name]
	if fn == nil {
		d.status = 1
		return
	}
	if d.on['x'] {
		fn.export = true
		return
	}
	if d.names {
		d.shell.print(name, "\n")
		return
	}
	d.shell.print(functionText(name, fn), "\n")
}

// finish prints listings when no operand was given.
func (d *declaring) finish() {
	s := d.shell
	if d.operands > 0 {
		return
	}
	if d.funcs || d.names {
		for _, name := range sortedKeys(s.funcs) {
			if d.names {
				s.print("declare -f ", name, "\n")
			} else {
				s.print(functionText(name, s.funcs[name]), "\n")
			}
		}
		return
	}
	for _, name := range s.names() {
		v := s.lookup(name)
		if !d.matches(v) {
			continue
		}
		if d.print || d.command == "export" || d.command == "readonly" || len(d.on) > 0 {
			s.print(declaration(name, v), "\n")
		} else if v.isSet && d.command != "local" {
			s.print(name, "=", setQuote(v), "\n")
		}
	}
	if d.command == "local" {
		for _, name := range sortedKeys(s.functionScope().vars) {
			s.print(name, "=", setQuote(s.functionScope().vars[name]), "\n")
		}
	}
}

func (d *declaring) matches(v *variable) bool {
	flags := v.flags()
	for flag := range d.on {
		if strings.IndexByte(flags, flag) < 0 {
			return false
		}
	}
	return true
}

// setQuote is the value format of "set" and "declare" without options.
func setQuote(v *variable) string {
	if v.kind != scalar {
		return arrayText(v)
	}
	return traceQuoteSet(v.text)
}

func traceQuoteSet(value string) string {
	if value == "" {
		return ""
	}
	return traceQuote(value)
}

// functionText prints a function in bash's layout.
func functionText(name string, fn *function) string {
	var body strings.Builder
	printer := syntax.NewPrinter(syntax.Indent(4))
	copied := *fn.body
	printer.Print(&body, &copied)
	text := strings.TrimSpace(body.String())
	if strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "{\n") {
		inner := strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(text, "{")), "}")
		inner = strings.TrimSuffix(strings.TrimSpace(inner), ";")
		lines := strings.Split(inner, "; ")
		text = "{ \n    " + strings.Join(lines, ";\n    ") + "\n}"
	} else if strings.HasPrefix(text, "{\n") {
		lines := strings.Split(text, "\n")
		for i := 1; i < len(lines)-2; i++ {
			if needsSemicolon(lines[i]) {
				lines[i] += ";"
			}
		}
		text = "{ \n" + strings.Join(lines[1:], "\n")
	} else {
		text = "{ \n    " + text + "\n}"
	}
	return name + " () \n" + text
}

func needsSemicolon(line string) bool {
	trimmed := strings.TrimSpace(line)
	for _, ending := range []string{"then", "do", "else", "{", "(", "in", ";;", "&&", "||", "|", ")", ";", "&"} {
		if strings.HasSuffix(trimmed, ending) {
			return false
		}
	}
	return trimmed != ""
}
