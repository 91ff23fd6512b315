package system

import (
	"io"
	"strings"
	"time"

	"warmcell/toolbox/internal/clock"
	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(
		&core.Command{Name: "date", Summary: "Print the date and time.", Usage: "date [-u] [-R] [-I[SPEC]] [-d DATE] [-r FILE] [+FORMAT]", Run: date},
		&core.Command{Name: "whoami", Summary: "Print the user name.", Usage: "whoami", Run: whoami},
		&core.Command{Name: "logname", Summary: "Print the user name.", Usage: "logname", Run: printer(core.UserName)},
		&core.Command{Name: "hostname", Summary: "Print the host name.", Usage: "hostname [-s]", Run: hostname},
		&core.Command{Name: "uname", Summary: "Print system information.", Usage: "uname [-asnrvmpio]", Run: uname},
		&core.Command{Name: "arch", Summary: "Print the machine name.", Usage: "arch", Run: printer("wasm32")},
		&core.Command{Name: "nproc", Summary: "Print the number of processors.", Usage: "nproc", Run: printer("1")},
		&core.Command{Name: "tty", Summary: "Print the terminal name.", Usage: "tty", Run: tty},
		&core.Command{Name: "id", Summary: "Print user and group identity.", Usage: "id [-ugGnrz] [user...]", Run: id},
		&core.Command{Name: "groups", Summary: "Print group names.", Usage: "groups [user...]", Run: groups},
		&core.Command{Name: "pwd", Summary: "Print the working directory.", Usage: "pwd [-LP]", Run: pwd},
		&core.Command{Name: "less", Summary: "Show files (without paging).", Usage: "less [file...]", Run: less},
		&core.Command{Name: "more", Summary: "Show files (without paging).", Usage: "more [file...]", Run: less},
		&core.Command{Name: "clear", Summary: "Clear the screen.", Usage: "clear", Run: func(c *core.Ctx) int { c.Out.WriteString("\x1b[H\x1b[2J"); return 0 }},
		&core.Command{Name: "sync", Summary: "Do nothing, successfully.", Usage: "sync", Run: func(*core.Ctx) int { return 0 }},
	)
}

func printer(text string) core.Func {
	return func(c *core.Ctx) int {
		c.Out.WriteString(text + "\n")
		return 0
	}
}

func hostname(c *core.Ctx) int {
	name := c.Getenv("HOSTNAME")
	if name == "" {
		name = "sandbox"
	}
	c.Out.WriteString(name + "\n")
	return 0
}

func tty(c *core.Ctx) int {
	c.Out.WriteString("not a tty\n")
	return 1
}

func pwd(c *core.Ctx) int {
	dir := c.Dir
	for _, arg := range c.Args {
		if arg == "-P" {
			if real, err := core.RealPath(dir); err == nil {
				dir = real
			}
		}
	}
	c.Out.WriteString(dir + "\n")
	return 0
}

func uname(c *core.Ctx) int {
	options, _, ok := core.Options{Short: "asnrvmpio", Long: "all/a kernel-name/s nodename/n kernel-release/r kernel-version/v machine/m processor/p hardware-platform/i operating-system/o"}.Parse(c)
	if !ok {
		return 1
	}
	fields := []struct{ letter, value string }{{"s", "Linux"}, {"n", "sandbox"}, {"r", "6.1.0-wasi"}, {"v", "#1 WASI preview1"}, {"m", "wasm32"}, {"o", "GNU/Linux"}}
	wanted := map[string]bool{}
	for _, option := range options {
		if option.Name == "p" || option.Name == "i" {
			option.Name = "m"
		}
		wanted[option.Name] = true
	}
	if len(wanted) == 0 {
		wanted["s"] = true
	}
	var out []string
	for _, one := range fields {
		if wanted[one.letter] || wanted["a"] {
			out = append(out, one.value)
		}
	}
	c.Out.WriteString(strings.Join(out, " ") + "\n")
	return 0
}

func less(c *core.Ctx) int {
	_, names, ok := core.Options{Short: "NSRFXEiIJKMmnqQsxz:eGgw", Long: "LINE-NUMBERS/N RAW-CONTROL-CHARS/R quit-if-one-screen/F no-init/X chop-long-lines/S"}.Parse(c)
	if !ok {
		return 1
	}
	if len(names) == 0 {
		names = []string{"-"}
	}
	status := 0
	for _, name := range names {
		reader, err := c.Open(name)
		if err != nil {
			c.Out.Flush()
			io.WriteString(c.Stderr, name+": "+core.Reason(err)+"\n")
			status = 1
			continue
		}
		io.Copy(c.Out, reader)
		reader.Close()
	}
	return status
}

var isoLayouts = map[string]string{"": "%Y-%m-%d", "date": "%Y-%m-%d", "hours": "%Y-%m-%dT%H%:z", "minutes": "%Y-%m-%dT%H:%M%:z", "seconds": "%Y-%m-%dT%H:%M:%S%:z", "ns": "%Y-%m-%dT%H:%M:%S,%N%:z"}

func date(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "uRI::d:r:s:f:", Long: "utc/u universal/u rfc-email/R rfc-2822/R iso-8601?/I rfc-3339= date=/d reference=/r set=/s file=/f"}.Parse(c)
	if !ok {
		return 1
	}
	zone := strftime.Zone(c.Getenv("TZ"))
	when, layout := time.Now(), "%a %b %e %H:%M:%S %Z %Y"
	text, hasText := "", false
	for _, option := range options {
		switch option.Name {
		case "u":
			zone = time.UTC
		case "R":
			layout = "%a, %d %b %Y %H:%M:%S %z"
		case "I":
			layout, ok = isoLayouts[option.Value]
			if !ok {
				return c.Usage(1, "invalid argument ‘%s’ for ‘--iso-8601’", option.Value)
			}
		case "rfc-3339":
			layout = strings.Replace(isoLayouts[option.Value], "T", " ", 1)
			layout = strings.Replace(layout, ",%N", ".%N", 1)
		case "d":
			text, hasText = option.Value, true
		case "r":
			info, err := core.Stat(c.Path(option.Value))
			if err != nil {
				return c.Fail(1, "%s: %s", option.Value, core.Reason(err))
			}
			when = info.ModTime()
		case "s":
			return c.Fail(1, "cannot set date: Operation not permitted")
		}
	}
	if hasText {
		if text == "" {
			text = "00:00"
		}
		if when, ok = clock.Parse(text, time.Now().In(zone)); !ok {
			return c.Fail(1, "invalid date ‘%s’", text)
		}
	}
	if len(operands) > 0 {
		if !strings.HasPrefix(operands[0], "+") {
			return c.Fail(1, "invalid date ‘%s’", operands[0])
		}
		if len(operands) > 1 {
			return c.Usage(1, "extra operand ‘%s’", operands[1])
		}
		layout = operands[0][1:]
	}
	c.Out.WriteString(strftime.Format(layout, when.In(zone)) + "\n")
	return 0
}
