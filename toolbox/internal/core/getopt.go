package core

import "strings"

// Option is one parsed command-line option.
type Option struct {
	Name  string // "n" or "lines"
	Value string
	Given bool // a value was attached or followed
}

// Options parses args in the way of GNU getopt_long with permutation.
// short is a getopt string ("n:ab::"), long maps "lines" to the short name or to a long name; a "=" suffix on the key means that
// a value is required, "?" that it is optional.
type Options struct {
	Short string
	Long  string // space separated: "lines=n quiet=q zero-terminated"; see parseLong
	Stop  bool   // stop at the first operand (POSIX order)
	Digit bool   // -5 is the option "5" of the caller's own meaning: returned with Name "#"
}

type longSpec struct {
	name  string
	alias string
	arg   byte // 0, ':' or '?'
}

func parseLong(text string) []longSpec {
	fields := strings.Fields(text)
	specs := make([]longSpec, 0, len(fields))
	for _, field := range fields {
		spec := longSpec{name: field}
		if name, alias, ok := strings.Cut(field, "/"); ok {
			spec.name, spec.alias = name, alias
		}
		if n := len(spec.name); spec.name[n-1] == '=' {
			spec.name, spec.arg = spec.name[:n-1], ':'
		} else if spec.name[n-1] == '?' {
			spec.name, spec.arg = spec.name[:n-1], '?'
		}
		if spec.alias == "" {
			spec.alias = spec.name
		}
		specs = append(specs, spec)
	}
	return specs
}

// Parse splits c.Args into options and operands; on a usage error it reports it and returns ok false.
func (o Options) Parse(c *Ctx) (options []Option, operands []string, ok bool) {
	args := c.Args
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return options, append(operands, args[i+1:]...), true
		case len(arg) > 2 && arg[:2] == "--":
			option, consumed, good := o.long(c, arg[2:], args[i+1:])
			if !good {
				return nil, nil, false
			}
			i += consumed
			options = append(options, option)
		case len(arg) > 1 && arg[0] == '-':
			if o.Digit && arg[1] >= '0' && arg[1] <= '9' && isDigits(arg[1:]) {
				options = append(options, Option{Name: "#", Value: arg[1:], Given: true})
				continue
			}
			consumed, good := o.short(c, arg[1:], args[i+1:], &options)
			if !good {
				return nil, nil, false
			}
			i += consumed
		default:
			if o.Stop {
				return options, append(operands, args[i:]...), true
			}
			operands = append(operands, arg)
		}
	}
	return options, operands, true
}

func isDigits(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

func (o Options) long(c *Ctx, text string, rest []string) (Option, int, bool) {
	specs := parseLong(o.Long)
	name, value, hasValue := strings.Cut(text, "=")
	var found *longSpec
	matches := 0
	for i := range specs {
		if specs[i].name == name {
			found, matches = &specs[i], 1
			break
		}
		if strings.HasPrefix(specs[i].name, name) {
			found = &specs[i]
			matches++
		}
	}
	if matches == 0 {
		c.Usage(2, "unrecognized option '--%s'", name)
		return Option{}, 0, false
	}
	if matches > 1 {
		c.Usage(2, "option '--%s' is ambiguous", name)
		return Option{}, 0, false
	}
	option := Option{Name: found.alias, Value: value, Given: hasValue}
	if found.arg == ':' && !hasValue {
		if len(rest) == 0 {
			c.Usage(2, "option '--%s' requires an argument", found.name)
			return Option{}, 0, false
		}
		option.Value, option.Given = rest[0], true
		return option, 1, true
	}
	if found.arg == 0 && hasValue {
		c.Usage(2, "option '--%s' doesn't allow an argument", found.name)
		return Option{}, 0, false
	}
	return option, 0, true
}

func (o Options) short(c *Ctx, cluster string, rest []string, options *[]Option) (int, bool) {
	for j := 0; j < len(cluster); j++ {
		letter := cluster[j]
		at := strings.IndexByte(o.Short, letter)
		if at < 0 || letter == ':' {
			c.Usage(2, "invalid option -- '%c'", letter)
			return 0, false
		}
		takes := at+1 < len(o.Short) && o.Short[at+1] == ':'
		optional := takes && at+2 < len(o.Short) && o.Short[at+2] == ':'
		option := Option{Name: string(letter)}
		if !takes {
			*options = append(*options, option)
			continue
		}
		if j+1 < len(cluster) {
			option.Value, option.Given = cluster[j+1:], true
			*options = append(*options, option)
			return 0, true
		}
		if optional {
			*options = append(*options, option)
			return 0, true
		}
		if len(rest) == 0 {
			c.Usage(2, "option requires an argument -- '%c'", letter)
			return 0, false
		}
		option.Value, option.Given = rest[0], true
		*options = append(*options, option)
		return 1, true
	}
	return 0, true
}
