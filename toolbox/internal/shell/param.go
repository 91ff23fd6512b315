package shell

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// parameter is the value of ${name}, ${name[i]} or a list, before operators.
type parameter struct {
	name   string
	values []string
	isSet  bool
	isList bool // "@" or "*" form
	isStar bool
	v      *variable
}

func (p *parameter) text() string {
	if len(p.values) == 0 {
		return ""
	}
	return p.values[0]
}

func subscriptText(index syntax.ArithmExpr) string {
	if word, ok := index.(*syntax.Word); ok {
		return word.Lit()
	}
	return ""
}

func (s *Shell) load(name string, index syntax.ArithmExpr) *parameter {
	if index == nil && (name == "@" || name == "*") {
		return &parameter{name: name, values: s.params, isSet: len(s.params) > 0, isList: true, isStar: name == "*"}
	}
	base := name
	v := s.special(name)
	if v == nil {
		base = s.resolve(name)
		if inner, sub, ok := cutSubscript(base); ok && index == nil {
			return s.loadElementText(inner, sub)
		}
		v = s.lookup(base)
	}
	p := &parameter{name: base, v: v}
	if index == nil {
		if v != nil {
			value, ok := v.first()
			p.values, p.isSet = []string{value}, ok
		}
		return p
	}
	if sub := subscriptText(index); sub == "@" || sub == "*" {
		p.isList, p.isStar = true, sub == "*"
		if v != nil {
			p.values = v.values()
			p.isSet = len(p.values) > 0
		}
		return p
	}
	if v == nil {
		if !s.isAssoc(base) {
			s.arithm(index)
		}
		return p
	}
	value, ok := s.element(v, base, index)
	p.values, p.isSet = []string{value}, ok
	return p
}

func (s *Shell) loadElementText(base, sub string) *parameter {
	v := s.find(base)
	p := &parameter{name: base + "[" + sub + "]", v: v}
	if v != nil && (sub == "@" || sub == "*") {
		p.values, p.isList, p.isStar = v.values(), true, sub == "*"
		p.isSet = len(p.values) > 0
		return p
	}
	value, ok := s.elementValue(base, sub)
	p.values, p.isSet = []string{value}, ok
	return p
}

func (s *Shell) isAssoc(name string) bool {
	v := s.lookup(name)
	return v != nil && v.kind == associative
}

func (s *Shell) element(v *variable, name string, index syntax.ArithmExpr) (string, bool) {
	if v.kind == associative {
		return v.table.get(s.keyText(index))
	}
	i := int(s.arithm(index))
	if v.kind == scalar {
		if i == 0 || i == -1 {
			return v.text, v.isSet
		}
		return "", false
	}
	if i < 0 {
		i += v.maxIndex() + 1
		if i < 0 {
			s.errorf("%s: bad array subscript", name)
			return "", false
		}
	}
	return v.at(i)
}

// keyText is the subscript of an associative array as text.
func (s *Shell) keyText(index syntax.ArithmExpr) string {
	if word, ok := index.(*syntax.Word); ok {
		return s.textOf(word)
	}
	if source, ok := indexSources[index]; ok {
		if word, err := newParser().Document(strings.NewReader(source)); err == nil {
			return s.document(word)
		}
		return source
	}
	return ""
}

// param expands ${...} into the builder.
func (s *Shell) param(b *builder, pe *syntax.ParamExp, quoted bool) {
	name := pe.Param.Value
	if pe.Names != 0 {
		s.emitList(b, s.namesWithPrefix(name), quoted, pe.Names == syntax.NamesPrefix)
		return
	}
	if pe.Excl {
		if sub := subscriptText(pe.Index); sub == "@" || sub == "*" {
			var keys []string
			if v := s.find(name); v != nil {
				keys = v.keys()
			}
			s.emitList(b, keys, quoted, sub == "*")
			return
		}
	}
	p := s.load(name, pe.Index)
	if pe.Excl {
		p = s.indirect(pe, p)
	}
	if pe.Length {
		s.emit(b, itoa(int64(s.length(p, name))), quoted)
		return
	}
	if pe.Exp != nil && s.substituteWord(b, pe, p, quoted) {
		return
	}
	if !p.isSet && s.opts.nounset && (pe.Exp == nil || pe.Exp.Op >= syntax.RemSmallSuffix) && !p.isList {
		s.fail(true, "%s: unbound variable", unboundName(pe))
	}
	if pe.Exp != nil && pe.Exp.Op == syntax.OtherParamOps {
		s.transform(b, pe, p, quoted)
		return
	}
	values := s.operate(pe, p)
	if p.isList {
		s.emitList(b, values, quoted, p.isStar)
	} else if len(values) > 0 {
		s.emit(b, values[0], quoted)
	} else if quoted {
		b.quoted("")
	}
}

func unboundName(pe *syntax.ParamExp) string {
	if pe.Index != nil {
		if word, ok := pe.Index.(*syntax.Word); ok && word.Lit() != "" {
			return pe.Param.Value + "[" + word.Lit() + "]"
		}
	}
	return pe.Param.Value
}

func (s *Shell) indirect(pe *syntax.ParamExp, p *parameter) *parameter {
	if v := s.lookup(pe.Param.Value); v != nil && v.nameref && pe.Index == nil {
		return &parameter{name: pe.Param.Value, values: []string{v.text}, isSet: v.isSet}
	}
	target := p.text()
	if !p.isSet || target == "" {
		if pe.Exp != nil && pe.Exp.Op < syntax.RemSmallSuffix && !p.isSet {
			return &parameter{name: pe.Param.Value}
		}
		s.fail(false, "%s: invalid indirect expansion", pe.Param.Value)
	}
	if base, sub, ok := cutSubscript(target); ok {
		return s.loadElementText(base, sub)
	}
	if !validName(target) && !isSpecialName(target) {
		s.fail(false, "%s: invalid variable name", target)
	}
	return s.load(target, nil)
}

func isSpecialName(name string) bool {
	if len(name) == 1 && strings.Contains("@*#?-$!_", name) {
		return true
	}
	for i := 0; i < len(name); i++ {
		if name[i] < '0' || name[i] > '9' {
			return false
		}
	}
	return name != ""
}

func (s *Shell) length(p *parameter, name string) int {
	if p.isList {
		return len(p.values)
	}
	if !p.isSet && s.opts.nounset {
		s.fail(true, "%s: unbound variable", name)
	}
	return utf8.RuneCountInString(p.text())
}

func (s *Shell) namesWithPrefix(prefix string) []string {
	var names []string
	for _, name := range s.names() {
		if v := s.lookup(name); strings.HasPrefix(name, prefix) && v.isSet {
			names = append(names, name)
		}
	}
	return names
}

func (s *Shell) emit(b *builder, value string, quoted bool) {
	if quoted {
		b.quoted(value)
	} else {
		b.expansion(value)
	}
}

// emitList adds "$@", "$*" and array expansions.
func (s *Shell) emitList(b *builder, values []string, quoted, star bool) {
	if quoted && star {
		b.quoted(strings.Join(values, s.ifsJoin()))
		return
	}
	if !b.split {
		separator := " "
		if star {
			separator = s.ifsJoin()
		}
		joined := strings.Join(values, separator)
		if quoted {
			b.quoted(joined)
		} else {
			b.literal(joined)
		}
		return
	}
	for i, value := range values {
		if i > 0 && (quoted || b.active) {
			b.end()
		}
		if quoted {
			b.quoted(value)
			continue
		}
		if value != "" && i > 0 {
			b.closed = false
		}
		b.expansion(value)
	}
}

// substituteWord handles - + ? = and their colon forms; it returns false when the value itself is to be used.
func (s *Shell) substituteWord(b *builder, pe *syntax.ParamExp, p *parameter, quoted bool) bool {
	isNull := !p.isSet
	if p.isList {
		isNull = len(p.values) == 0
	}
	isEmpty := isNull || len(p.values) <= 1 && p.text() == "" || p.isList && strings.Join(p.values, "") == "" && len(p.values) <= 1
	if p.isList && p.isStar && s.ifsJoin() == "" && strings.Join(p.values, "") == "" {
		isEmpty = true
	}
	missing := isNull
	switch pe.Exp.Op {
	case syntax.AlternateUnsetOrNull, syntax.DefaultUnsetOrNull, syntax.ErrorUnsetOrNull, syntax.AssignUnsetOrNull:
		missing = isEmpty
	}
	switch pe.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if !missing {
			s.emitWord(b, pe.Exp.Word, quoted)
		} else if quoted && !p.isList {
			b.quoted("")
		}
		return true
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
		if missing {
			s.emitWord(b, pe.Exp.Word, quoted)
			return true
		}
	case syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if missing {
			s.assignDefault(b, pe, p, quoted)
			return true
		}
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if missing {
			message := s.quotedText(pe.Exp.Word)
			if message == "" {
				message = "parameter null or not set"
				if pe.Exp.Op == syntax.ErrorUnset {
					message = "parameter not set"
				}
			}
			s.errorf("%s: %s", pe.Param.Value, message)
			status := 127
			if s.depth > 0 {
				status = 1
			}
			panic(&abort{status: status, exit: true})
		}
	}
	return false
}

func (s *Shell) assignDefault(b *builder, pe *syntax.ParamExp, p *parameter, quoted bool) {
	if p.isList || isSpecialName(p.name) {
		s.fail(false, "$%s: cannot assign in this way", p.name)
	}
	value := s.quotedText(pe.Exp.Word)
	if !quoted {
		value = s.textOf(orEmpty(pe.Exp.Word))
	}
	target := p.name
	if pe.Index != nil {
		target += "[" + s.indexText(p.v, pe.Index) + "]"
	}
	if !s.set(target, value) {
		panic(&abort{status: 1})
	}
	s.emit(b, s.get2(target), quoted)
}

func (s *Shell) get2(target string) string {
	if base, sub, ok := cutSubscript(target); ok {
		value, _ := s.elementValue(base, sub)
		return value
	}
	return s.get(target)
}

func (s *Shell) indexText(v *variable, index syntax.ArithmExpr) string {
	if v != nil && v.kind == associative {
		return s.keyText(index)
	}
	return itoa(s.arithm(index))
}

func orEmpty(word *syntax.Word) *syntax.Word {
	if word == nil {
		return &syntax.Word{}
	}
	return word
}

// quotedText expands an operator's word as if in double quotes.
func (s *Shell) quotedText(word *syntax.Word) string {
	if word == nil {
		return ""
	}
	b := &builder{shell: s}
	for _, part := range word.Parts {
		if quoted, ok := part.(*syntax.SglQuoted); ok && !quoted.Dollar {
			b.quoted(quoted.Value)
			continue
		}
		s.quotedPart(b, part, '}')
	}
	return joinFields(b.finish())
}

func (s *Shell) emitWord(b *builder, word *syntax.Word, quoted bool) {
	if word == nil || len(word.Parts) == 0 {
		if quoted {
			b.quoted("")
		}
		return
	}
	for i, part := range word.Parts {
		if quoted {
			s.quotedPart(b, part, '}')
			continue
		}
		lit, ok := part.(*syntax.Lit)
		if !ok {
			s.part(b, part, i == 0)
			continue
		}
		value := lit.Value
		if i == 0 {
			if prefix, rest, found := s.tilde(value); found {
				b.quoted(prefix)
				value = rest
			}
		}
		s.splitLiteral(b, value)
	}
}

// splitLiteral adds unquoted text of an operator's word: it is split at IFS, escapes are honoured.
func (s *Shell) splitLiteral(b *builder, value string) {
	for value != "" {
		at := strings.IndexByte(value, '\\')
		if at < 0 {
			b.expansion(value)
			return
		}
		b.expansion(value[:at])
		if at+1 == len(value) {
			b.quoted("\\")
			return
		}
		_, size := utf8.DecodeRuneInString(value[at+1:])
		b.quoted(value[at+1 : at+1+size])
		value = value[at+1+size:]
	}
}

// operate applies slices, removal, replacement and case operators to each value.
func (s *Shell) operate(pe *syntax.ParamExp, p *parameter) []string {
	switch {
	case pe.Slice != nil:
		return s.slice(pe, p)
	case pe.Repl != nil:
		return s.replace(pe.Repl, p.values)
	case pe.Exp == nil:
		return p.values
	}
	switch pe.Exp.Op {
	case syntax.RemSmallSuffix, syntax.RemLargeSuffix, syntax.RemSmallPrefix, syntax.RemLargePrefix:
		pattern := compilePattern(s.patternOf(pe.Exp.Word), s.shopt["extglob"] || true, false)
		return mapValues(p.values, func(value string) string { return pattern.trim(value, pe.Exp.Op) })
	case syntax.UpperFirst, syntax.UpperAll, syntax.LowerFirst, syntax.LowerAll:
		return s.changeCase(pe.Exp, p.values)
	}
	return p.values
}

func mapValues(values []string, change func(string) string) []string {
	out := make([]string, len(values))
	for i, value := range values {
		out[i] = change(value)
	}
	return out
}

func (s *Shell) changeCase(exp *syntax.Expansion, values []string) []string {
	change := unicode.ToUpper
	if exp.Op == syntax.LowerFirst || exp.Op == syntax.LowerAll {
		change = unicode.ToLower
	}
	all := exp.Op == syntax.UpperAll || exp.Op == syntax.LowerAll
	var matches func(string) bool
	if exp.Word != nil && len(exp.Word.Parts) > 0 {
		matches = compilePattern(s.patternOf(exp.Word), true, false).matches
	}
	return mapValues(values, func(value string) string { return capitalize(value, change, all, matches) })
}

func (s *Shell) replace(repl *syntax.Replace, values []string) []string {
	source := s.patternOf(repl.Orig)
	anchor := byte(0)
	if !repl.All && source != "" && (source[0] == '#' || source[0] == '%') {
		anchor, source = source[0], source[1:]
	} else if !repl.All && len(source) > 1 && source[0] == '\\' && (source[1] == '#' || source[1] == '%') && startsWithLiteral(repl.Orig, source[1]) {
		anchor, source = source[1], source[2:]
	}
	with := s.replacementOf(repl.With)
	if source == "" && anchor == 0 {
		return values
	}
	pattern := compilePattern(source, true, s.shopt["nocasematch"])
	return mapValues(values, func(value string) string { return pattern.replace(value, with, repl.All, anchor) })
}

func startsWithLiteral(word *syntax.Word, c byte) bool {
	if word == nil || len(word.Parts) == 0 {
		return false
	}
	lit, ok := word.Parts[0].(*syntax.Lit)
	return ok && lit.Value != "" && lit.Value[0] == c
}

// replacementOf keeps quoted "&" apart from unquoted: bash 5.2 puts the match in place of the latter.
func (s *Shell) replacementOf(word *syntax.Word) []segment {
	if word == nil {
		return nil
	}
	return s.unsplit(word)
}

func (s *Shell) slice(pe *syntax.ParamExp, p *parameter) []string {
	offset := 0
	if pe.Slice.Offset != nil {
		offset = int(s.arithm(pe.Slice.Offset))
	}
	hasLength, length := pe.Slice.Length != nil, 0
	if hasLength {
		length = int(s.arithm(pe.Slice.Length))
	}
	if !p.isList {
		return []string{s.substring(pe, p.text(), offset, hasLength, length)}
	}
	if p.name == "@" || p.name == "*" {
		return s.sliceList(append([]string{s.argv0}, p.values...), offset, hasLength, length)
	}
	if p.v != nil && p.v.kind == indexed {
		return s.sliceIndexed(p.v, offset, hasLength, length)
	}
	return s.sliceList(p.values, offset, hasLength, length)
}

func (s *Shell) sliceIndexed(v *variable, offset int, hasLength bool, length int) []string {
	if offset < 0 {
		if offset += v.maxIndex() + 1; offset < 0 {
			return nil
		}
	}
	if hasLength && length < 0 {
		s.fail(false, "%d: substring expression < 0", length)
	}
	var out []string
	for _, item := range v.list {
		if item.index >= offset && (!hasLength || len(out) < length) {
			out = append(out, item.value)
		}
	}
	return out
}

func (s *Shell) sliceList(values []string, offset int, hasLength bool, length int) []string {
	if offset < 0 {
		if offset += len(values); offset < 0 {
			return nil
		}
	}
	if hasLength && length < 0 {
		s.fail(false, "%d: substring expression < 0", length)
	}
	if offset > len(values) {
		return nil
	}
	end := len(values)
	if hasLength && offset+length < end {
		end = offset + length
	}
	return values[offset:end]
}

func (s *Shell) substring(pe *syntax.ParamExp, value string, offset int, hasLength bool, length int) string {
	runes := []rune(value)
	if offset < 0 {
		if offset += len(runes); offset < 0 {
			return ""
		}
	}
	if offset > len(runes) {
		return ""
	}
	end := len(runes)
	if hasLength {
		if length < 0 {
			if end += length; end < offset {
				s.fail(false, "%s: substring expression < 0", itoa(int64(length)))
			}
		} else if offset+length < end {
			end = offset + length
		}
	}
	if !utf8.ValidString(value) {
		return value[offset:min(end, len(value))]
	}
	return string(runes[offset:end])
}
