package system

import "warmcell/toolbox/internal/core"

// known are the users of the process cage's /etc/passwd that a program may ask for; each has a group of its own.
var known = map[string]string{core.UserName: core.UserID, "root": "0"}

// lookUp finds a user by name or number.
func lookUp(wanted string) (name, number string, ok bool) {
	for name, number := range known {
		if wanted == name || wanted == number {
			return name, number, true
		}
	}
	return "", "", false
}

func whoami(c *core.Ctx) int {
	_, operands, ok := core.Options{}.Parse(c)
	if !ok {
		return 1
	}
	if len(operands) > 0 {
		return c.Usage(1, "extra operand ‘%s’", operands[0])
	}
	c.Out.WriteString(core.UserName + "\n")
	return 0
}

func groups(c *core.Ctx) int {
	_, operands, ok := core.Options{}.Parse(c)
	if !ok {
		return 1
	}
	if len(operands) == 0 {
		c.Out.WriteString(core.UserName + "\n")
	}
	status := 0
	for _, operand := range operands {
		name, _, ok := lookUp(operand)
		if !ok {
			status = c.Fail(1, "‘%s’: no such user", operand)
			continue
		}
		c.Out.WriteString(operand + " : " + name + "\n")
	}
	return status
}

func id(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "augGnrz", Long: "user/u group/g groups/G name/n real/r zero/z"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	for _, option := range options {
		on[option.Name] = true
	}
	kinds := 0
	for _, kind := range []string{"u", "g", "G"} {
		if on[kind] {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		return c.Fail(1, `cannot print "only" of more than one choice`)
	case kinds == 0 && (on["n"] || on["r"]):
		return c.Fail(1, "cannot print only names or real IDs in default format")
	}
	if len(operands) == 0 {
		operands = []string{core.UserName}
	}
	status := 0
	for _, operand := range operands {
		name, number, ok := lookUp(operand)
		if !ok {
			status = c.Fail(1, "‘%s’: no such user", operand)
			continue
		}
		writeIdentity(c, name, number, kinds > 0, on["n"], on["z"])
	}
	return status
}

func writeIdentity(c *core.Ctx, name, number string, isOne, asName, isZeroEnded bool) {
	text := "uid=" + number + "(" + name + ") gid=" + number + "(" + name + ") groups=" + number + "(" + name + ")"
	switch {
	case isOne && asName:
		text = name
	case isOne:
		text = number
	}
	end := "\n"
	if isZeroEnded {
		end = "\x00"
	}
	c.Out.WriteString(text + end)
}
