package core

import (
	"io/fs"
	"strconv"
	"strings"
)

// FileMode is fs.FileMode, so that callers need not import io/fs for permission bits.
type FileMode = fs.FileMode

// ParseMode applies an octal or symbolic mode to the current bits.
func ParseMode(text string, current FileMode, isDir bool) (FileMode, bool) {
	if number, err := strconv.ParseUint(text, 8, 16); err == nil {
		return FileMode(number) & 0o7777, true
	}
	for _, clause := range strings.Split(text, ",") {
		var ok bool
		if current, ok = applyClause(clause, current, isDir); !ok {
			return 0, false
		}
	}
	return current, true
}

func applyClause(clause string, current FileMode, isDir bool) (FileMode, bool) {
	at := strings.IndexAny(clause, "+-=")
	if at < 0 {
		return 0, false
	}
	var who FileMode
	for _, letter := range clause[:at] {
		switch letter {
		case 'u':
			who |= 0o4700
		case 'g':
			who |= 0o2070
		case 'o':
			who |= 0o1007
		case 'a':
			who |= 0o7777
		default:
			return 0, false
		}
	}
	implicit := who == 0
	if implicit {
		who = 0o7777
	}
	for rest := clause[at:]; rest != ""; {
		operator := rest[0]
		end := strings.IndexAny(rest[1:], "+-=")
		letters := rest[1:]
		if end >= 0 {
			letters, rest = rest[1:1+end], rest[1+end:]
		} else {
			rest = ""
		}
		bits, ok := permBits(letters, current, isDir)
		if !ok {
			return 0, false
		}
		bits &= who
		if implicit {
			bits &^= Umask & 0o777
		}
		switch operator {
		case '+':
			current |= bits
		case '-':
			current &^= bits
		case '=':
			current = current&^(who&0o777) | bits
		}
	}
	return current, true
}

func permBits(letters string, current FileMode, isDir bool) (FileMode, bool) {
	var bits FileMode
	for _, letter := range letters {
		switch letter {
		case 'r':
			bits |= 0o444
		case 'w':
			bits |= 0o222
		case 'x':
			bits |= 0o111
		case 'X':
			if isDir || current&0o111 != 0 {
				bits |= 0o111
			}
		case 's':
			bits |= 0o6000
		case 't':
			bits |= 0o1000
		case 'u':
			bits |= (current >> 6 & 7) * 0o111
		case 'g':
			bits |= (current >> 3 & 7) * 0o111
		case 'o':
			bits |= (current & 7) * 0o111
		default:
			return 0, false
		}
	}
	return bits, true
}

// ParseSize reads 10, 2K, 1M, 3kB, 1MiB and b (512).
func ParseSize(value string) (int64, bool) {
	end := 0
	for end < len(value) && value[end] >= '0' && value[end] <= '9' {
		end++
	}
	number, err := strconv.ParseInt(value[:end], 10, 64)
	if err != nil {
		return 0, false
	}
	unit := value[end:]
	switch unit {
	case "":
		return number, true
	case "b":
		return number * 512, true
	}
	base := int64(1024)
	if strings.HasSuffix(unit, "B") && !strings.HasSuffix(unit, "iB") {
		base = 1000
	}
	power := strings.IndexByte("KMGTPE", strings.ToUpper(unit[:1])[0])
	if power < 0 || len(unit) > 3 {
		return 0, false
	}
	for ; power >= 0; power-- {
		number *= base
	}
	return number, true
}

// HumanSize renders bytes as ls -h does: rounded up, one digit after the point below ten.
func HumanSize(size int64, si bool) string {
	base, units := 1024.0, "KMGTPE"
	if si {
		base, units = 1000, "kMGTPE"
	}
	if float64(size) < base {
		return strconv.FormatInt(size, 10)
	}
	value := float64(size)
	unit := -1
	for value >= base && unit < len(units)-1 {
		value /= base
		unit++
	}
	if value < 10 {
		tenths := int64(value*10 + 0.9999999)
		if tenths < 100 {
			return strconv.FormatInt(tenths/10, 10) + "." + strconv.FormatInt(tenths%10, 10) + string(units[unit])
		}
	}
	whole := int64(value + 0.9999999)
	if float64(whole) >= base && unit < len(units)-1 {
		return "1.0" + string(units[unit+1])
	}
	return strconv.FormatInt(whole, 10) + string(units[unit])
}
