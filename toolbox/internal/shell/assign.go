package shell

import (
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// collector gathers the output of a command substitution.
type collector struct {
	mutex sync.Mutex
	data  []byte
	done  chan struct{}
}

func (c *collector) Write(data []byte) (int, error) {
	c.mutex.Lock()
	c.data = append(c.data, data...)
	c.mutex.Unlock()
	return len(data), nil
}

func (c *collector) text() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	text := string(c.data)
	if strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(text, "\x00", "")
	}
	return text
}

// assignOne performs one assignment of a command without a name.
func (s *Shell) assignOne(assign *syntax.Assign) {
	name := assign.Name.Value
	if assign.Array != nil {
		s.assignArray(s.resolve(name), assign, nil)
		return
	}
	target := name
	if assign.Index != nil {
		base := s.resolve(name)
		target = base + "[" + s.indexText(s.lookup(base), assign.Index) + "]"
	}
	value := s.assignText(assign.Value)
	if s.opts.xtrace {
		s.traceText(target + "=" + traceQuote(value))
	}
	if !s.assign(target, value, assign.Append) {
		s.assignFailed = true
	}
}

// assignArray performs name=(...) and name+=(...); v is given by declare, nil otherwise.
func (s *Shell) assignArray(name string, assign *syntax.Assign, v *variable) {
	if v == nil {
		v = s.ensure(name)
	}
	if v.readonly {
		s.errorf("%s: readonly variable", name)
		s.assignFailed = true
		return
	}
	if v.kind == associative {
		s.assignAssoc(name, v, assign)
		return
	}
	next := &variable{kind: indexed}
	if assign.Append {
		if v.kind == scalar && v.isSet {
			next.list = []element{{0, v.text}}
		} else {
			next.list = append(next.list, v.list...)
		}
	}
	position := next.maxIndex() + 1
	for _, elem := range assign.Array.Elems {
		if elem.Index != nil {
			position = int(s.arithm(elem.Index))
			if position < 0 {
				if position += next.maxIndex() + 1; position < 0 {
					s.errorf("%s: bad array subscript", name)
					s.assignFailed = true
					return
				}
			}
			next.put(position, s.coerce(v, "", s.assignText(elem.Value), false))
			position++
			continue
		}
		for _, value := range s.wordFields(nil, elem.Value) {
			next.put(position, s.coerce(v, "", value, false))
			position++
		}
	}
	v.kind, v.list, v.text, v.isSet = indexed, next.list, "", true
}

func (s *Shell) assignAssoc(name string, v *variable, assign *syntax.Assign) {
	next := newAssoc()
	if assign.Append && v.table != nil {
		next = v.table.clone()
	}
	var pending []string
	for _, elem := range assign.Array.Elems {
		if elem.Index != nil {
			key := s.keyText(elem.Index)
			if key == "" {
				s.errorf("%s[%s]: bad array subscript", name, key)
				continue
			}
			next.set(key, s.coerce(v, "", s.assignText(elem.Value), false))
			continue
		}
		pending = append(pending, s.wordFields(nil, elem.Value)...)
	}
	for i := 0; i < len(pending); i += 2 {
		value := ""
		if i+1 < len(pending) {
			value = pending[i+1]
		}
		next.set(pending[i], s.coerce(v, "", value, false))
	}
	v.table, v.isSet = next, true
}

// indexSources keeps the source text of subscripts that parse as arithmetic but may be keys ("m[a-b]").
var (
	indexSources      = map[syntax.ArithmExpr]string{}
	indexSourcesMutex sync.Mutex
)

// recordIndexes remembers the text of non-word subscripts below a node.
func recordIndexes(node syntax.Node, source string) {
	if strings.IndexByte(source, '[') < 0 {
		return
	}
	keep := func(index syntax.ArithmExpr) {
		if index == nil {
			return
		}
		if _, isWord := index.(*syntax.Word); isWord {
			return
		}
		start, end := int(index.Pos().Offset()), int(index.End().Offset())
		if start >= 0 && end <= len(source) && start <= end {
			indexSourcesMutex.Lock()
			indexSources[index] = source[start:end]
			indexSourcesMutex.Unlock()
		}
	}
	syntax.Walk(node, func(node syntax.Node) bool {
		switch node := node.(type) {
		case *syntax.ParamExp:
			keep(node.Index)
		case *syntax.Assign:
			keep(node.Index)
		case *syntax.ArrayElem:
			keep(node.Index)
		}
		return true
	})
}
