package shell

import (
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
)

type kind uint8

const (
	scalar kind = iota
	indexed
	associative
)

type element struct {
	index int
	value string
}

// variable is one shell variable with its attributes. A declared but unset variable has isSet false.
type variable struct {
	kind     kind
	text     string
	list     []element // sorted by index
	table    *assoc
	isSet    bool
	exported bool
	readonly bool
	integer  bool
	lower    bool
	upper    bool
	nameref  bool
	traced   bool
}

func (v *variable) clone() *variable {
	copied := new(variable)
	v.cloneInto(copied)
	return copied
}

func (v *variable) cloneInto(copied *variable) {
	*copied = *v
	if v.list != nil {
		copied.list = append([]element(nil), v.list...)
	}
	if v.table != nil {
		copied.table = v.table.clone()
	}
}

func (v *variable) at(index int) (string, bool) {
	i := sort.Search(len(v.list), func(i int) bool { return v.list[i].index >= index })
	if i < len(v.list) && v.list[i].index == index {
		return v.list[i].value, true
	}
	return "", false
}

func (v *variable) put(index int, value string) {
	n := len(v.list)
	if n == 0 || v.list[n-1].index < index {
		v.list = append(v.list, element{index, value})
		return
	}
	i := sort.Search(n, func(i int) bool { return v.list[i].index >= index })
	if v.list[i].index == index {
		v.list[i].value = value
		return
	}
	v.list = append(v.list, element{})
	copy(v.list[i+1:], v.list[i:])
	v.list[i] = element{index, value}
}

func (v *variable) remove(index int) {
	i := sort.Search(len(v.list), func(i int) bool { return v.list[i].index >= index })
	if i < len(v.list) && v.list[i].index == index {
		v.list = append(v.list[:i], v.list[i+1:]...)
	}
}

func (v *variable) maxIndex() int {
	if len(v.list) == 0 {
		return -1
	}
	return v.list[len(v.list)-1].index
}

// first is the value of the bare name: element 0 of an array.
func (v *variable) first() (string, bool) {
	switch v.kind {
	case indexed:
		return v.at(0)
	case associative:
		return v.table.get("0")
	}
	return v.text, v.isSet
}

func (v *variable) values() []string {
	switch v.kind {
	case indexed:
		values := make([]string, len(v.list))
		for i, item := range v.list {
			values[i] = item.value
		}
		return values
	case associative:
		return v.table.values()
	}
	if v.isSet {
		return []string{v.text}
	}
	return nil
}

func (v *variable) keys() []string {
	switch v.kind {
	case indexed:
		keys := make([]string, len(v.list))
		for i, item := range v.list {
			keys[i] = strconv.Itoa(item.index)
		}
		return keys
	case associative:
		return v.table.keys()
	}
	if v.isSet {
		return []string{"0"}
	}
	return nil
}

func (v *variable) setList(values []string) {
	v.kind, v.isSet, v.table, v.text = indexed, true, nil, ""
	v.list = make([]element, len(values))
	for i, value := range values {
		v.list[i] = element{i, value}
	}
}

func (v *variable) flags() string {
	var flags strings.Builder
	for _, attribute := range []struct {
		on     bool
		letter byte
	}{{v.kind == indexed, 'a'}, {v.kind == associative, 'A'}, {v.integer, 'i'}, {v.lower, 'l'}, {v.nameref, 'n'}, {v.readonly, 'r'}, {v.traced, 't'}, {v.upper, 'u'}, {v.exported, 'x'}} {
		if attribute.on {
			flags.WriteByte(attribute.letter)
		}
	}
	return flags.String()
}

// assoc keeps bash's own iteration order: FNV-1 hash into 1024 buckets, newest first within a bucket.
type assoc struct {
	entries map[string]assocEntry
	serial  int
}

type assocEntry struct {
	value  string
	serial int
}

func newAssoc() *assoc { return &assoc{entries: map[string]assocEntry{}} }

func (a *assoc) clone() *assoc {
	copied := &assoc{entries: make(map[string]assocEntry, len(a.entries)), serial: a.serial}
	for key, entry := range a.entries {
		copied.entries[key] = entry
	}
	return copied
}

func (a *assoc) get(key string) (string, bool) {
	entry, ok := a.entries[key]
	return entry.value, ok
}

func (a *assoc) set(key, value string) {
	if entry, ok := a.entries[key]; ok {
		entry.value = value
		a.entries[key] = entry
		return
	}
	a.serial++
	a.entries[key] = assocEntry{value, a.serial}
}

func (a *assoc) delete(key string) { delete(a.entries, key) }

func bucketOf(key string) uint32 {
	hash := uint32(2166136261)
	for i := 0; i < len(key); i++ {
		hash *= 16777619
		hash ^= uint32(key[i])
	}
	return hash & 1023
}

func (a *assoc) keys() []string {
	keys := make([]string, 0, len(a.entries))
	for key := range a.entries {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool {
		left, right := bucketOf(keys[i]), bucketOf(keys[j])
		if left != right {
			return left < right
		}
		return a.entries[keys[i]].serial > a.entries[keys[j]].serial
	})
	return keys
}

func (a *assoc) values() []string {
	keys := a.keys()
	for i, key := range keys {
		keys[i] = a.entries[key].value
	}
	return keys
}

type scope struct {
	vars     map[string]*variable
	function bool // a function call, where "local" declares
}

// clone takes one piece of memory for all variables: a pipeline clones them for every stage.
func (from *scope) clone() *scope {
	to := &scope{vars: make(map[string]*variable, len(from.vars)), function: from.function}
	block := make([]variable, len(from.vars))
	for name, v := range from.vars {
		v.cloneInto(&block[0])
		to.vars[name] = &block[0]
		block = block[1:]
	}
	return to
}

func newScope(function bool) *scope { return &scope{vars: map[string]*variable{}, function: function} }

// lookup finds a variable by dynamic scoping, without following namerefs.
func (s *Shell) lookup(name string) *variable {
	for i := len(s.scopes) - 1; i >= 0; i-- {
		if v, ok := s.scopes[i].vars[name]; ok {
			return v
		}
	}
	return nil
}

// resolve follows namerefs to the final name, which may carry a subscript.
func (s *Shell) resolve(name string) string {
	for depth := 0; depth < 16; depth++ {
		v := s.lookup(name)
		if v == nil || !v.nameref || !v.isSet || v.text == "" || v.text == name {
			return name
		}
		name = v.text
		if strings.Contains(name, "[") {
			return name
		}
	}
	s.errorf("warning: %s: circular name reference", name)
	return name
}

// find returns the variable behind a name after namerefs, or nil.
func (s *Shell) find(name string) *variable {
	if v := s.special(name); v != nil {
		return v
	}
	v := s.lookup(name)
	if v != nil && v.nameref {
		return s.lookup(s.resolve(name))
	}
	return v
}

// ensure returns the variable for assignment, creating a global one.
func (s *Shell) ensure(name string) *variable {
	if v := s.lookup(name); v != nil {
		return v
	}
	v := &variable{}
	if s.opts.allexport {
		v.exported = true
	}
	s.scopes[0].vars[name] = v
	return v
}

// get returns a scalar value; "" when unset.
func (s *Shell) get(name string) string {
	value, _ := s.getOK(name)
	return value
}

func (s *Shell) getOK(name string) (string, bool) {
	if v := s.special(name); v != nil {
		return v.first()
	}
	v := s.lookup(name)
	if v == nil {
		return "", false
	}
	if v.nameref {
		target := s.resolve(name)
		if base, sub, ok := cutSubscript(target); ok {
			return s.elementValue(base, sub)
		}
		if v = s.lookup(target); v == nil {
			return "", false
		}
	}
	return v.first()
}

func cutSubscript(name string) (base, sub string, ok bool) {
	open := strings.IndexByte(name, '[')
	if open <= 0 || name[len(name)-1] != ']' || !validName(name[:open]) {
		return name, "", false
	}
	return name[:open], name[open+1 : len(name)-1], true
}

func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		b := name[i]
		if b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || i > 0 && b >= '0' && b <= '9' {
			continue
		}
		return false
	}
	return name != ""
}

// set assigns a scalar, "name" or "name[sub]"; it reports readonly variables and returns false.
func (s *Shell) set(name, value string) bool {
	return s.assign(name, value, false)
}

func (s *Shell) assign(name, value string, appending bool) bool {
	base, sub, hasSub := cutSubscript(name)
	if !hasSub {
		base = s.resolve(name)
		base, sub, hasSub = cutSubscript(base)
	} else {
		base = s.resolve(base)
	}
	if !validName(base) {
		s.errorf("`%s': not a valid identifier", name)
		return false
	}
	v := s.ensure(base)
	if v.readonly {
		s.errorf("%s: readonly variable", base)
		s.assignFailed = true
		return false
	}
	if s.opts.allexport {
		v.exported = true
	}
	if v.kind == associative {
		if !hasSub {
			sub = "0"
		}
		old, _ := v.table.get(sub)
		v.table.set(sub, s.coerce(v, old, value, appending))
		v.isSet = true
		return true
	}
	if hasSub || v.kind == indexed {
		return s.assignElement(v, base, sub, hasSub, value, appending)
	}
	v.text = s.coerce(v, v.text, value, appending)
	v.isSet = true
	s.assigned(base, v)
	return true
}

func (s *Shell) assignElement(v *variable, base, sub string, hasSub bool, value string, appending bool) bool {
	if v.kind == scalar {
		v.list = nil
		if v.isSet {
			v.list = []element{{0, v.text}}
		}
		v.kind, v.text = indexed, ""
	}
	index := 0
	if hasSub {
		if sub == "@" || sub == "*" {
			s.errorf("%s[%s]: bad array subscript", base, sub)
			return false
		}
		index = int(s.arithText(sub))
		if index < 0 {
			index += v.maxIndex() + 1
		}
		if index < 0 {
			s.errorf("%s[%s]: bad array subscript", base, sub)
			s.assignFailed = true
			return false
		}
	}
	old, _ := v.at(index)
	v.put(index, s.coerce(v, old, value, appending))
	v.isSet = true
	return true
}

// coerce applies -i, -l and -u, and "+=".
func (s *Shell) coerce(v *variable, old, value string, appending bool) string {
	if v.integer {
		number := s.arithText(value)
		if appending {
			number += s.arithText(old)
		}
		return strconv.FormatInt(number, 10)
	}
	if appending {
		value = old + value
	}
	if v.lower {
		return strings.ToLower(value)
	}
	if v.upper {
		return strings.ToUpper(value)
	}
	return value
}

// assigned reacts to variables that steer the shell.
func (s *Shell) assigned(name string, v *variable) {
	switch name {
	case "OPTIND":
		s.optPosition = 0
	case "RANDOM":
		seed, _ := strconv.ParseUint(v.text, 10, 32)
		s.random, s.seeded = uint32(seed), true
	case "SECONDS":
		seconds, _ := strconv.ParseInt(v.text, 10, 64)
		s.secondsBase = seconds
		s.secondsFrom = s.now()
	case "IFS":
		s.ifsCached = false
	}
}

// elementValue reads name[sub] where sub is text.
func (s *Shell) elementValue(base, sub string) (string, bool) {
	v := s.find(base)
	if v == nil {
		return "", false
	}
	if sub == "@" || sub == "*" {
		values := v.values()
		return strings.Join(values, " "), len(values) > 0
	}
	switch v.kind {
	case associative:
		return v.table.get(sub)
	case indexed:
		index := int(s.arithText(sub))
		if index < 0 {
			index += v.maxIndex() + 1
		}
		return v.at(index)
	}
	if s.arithText(sub) == 0 {
		return v.text, v.isSet
	}
	return "", false
}

// unset removes a variable; within the function that declared it local it stays local.
func (s *Shell) unset(name string) bool {
	for i := len(s.scopes) - 1; i >= 0; i-- {
		v, ok := s.scopes[i].vars[name]
		if !ok {
			continue
		}
		if v.readonly {
			s.errorf("unset: %s: cannot unset: readonly variable", name)
			return false
		}
		if i == len(s.scopes)-1 && s.scopes[i].function {
			s.scopes[i].vars[name] = &variable{}
		} else {
			delete(s.scopes[i].vars, name)
		}
		if name == "IFS" {
			s.ifsCached = false
		}
		return true
	}
	return true
}

// environ lists exported variables for a command.
func (s *Shell) environ() []string {
	var exported []preset
	for i, scope := range s.scopes {
		for name, v := range scope.vars {
			if v.exported && v.isSet && v.kind == scalar && !s.isHidden(name, i) {
				exported = append(exported, preset{name, v.text})
			}
		}
	}
	slices.SortFunc(exported, func(a, b preset) int { return strings.Compare(a.name, b.name) })
	env := make([]string, len(exported))
	for i, each := range exported {
		env[i] = each.name + "=" + each.value
	}
	return env
}

// isHidden tells whether an inner scope has a variable of the same name.
func (s *Shell) isHidden(name string, scope int) bool {
	for _, inner := range s.scopes[scope+1:] {
		if inner.vars[name] != nil {
			return true
		}
	}
	return false
}

// names lists visible variable names in order.
func (s *Shell) names() []string {
	seen := map[string]bool{}
	var names []string
	for i := len(s.scopes) - 1; i >= 0; i-- {
		for name := range s.scopes[i].vars {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	return names
}

func capitalize(text string, change func(rune) rune, all bool, matches func(string) bool) string {
	var out strings.Builder
	for i, r := range text {
		if (all || i == 0) && (matches == nil || matches(string(r))) {
			r = change(r)
		}
		out.WriteRune(r)
	}
	return out.String()
}

func swapCase(r rune) rune {
	if unicode.IsUpper(r) {
		return unicode.ToLower(r)
	}
	return unicode.ToUpper(r)
}
