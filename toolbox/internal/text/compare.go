package text

import (
	"bytes"
	"cmp"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
)

func (o *ordering) compare(a, b []byte, seed uint64) int {
	result := o.forward(a, b, seed)
	if o.reverse {
		return -result
	}
	return result
}

func (o *ordering) forward(a, b []byte, seed uint64) int {
	switch {
	case o.numeric:
		return compareDecimal(numberPrefix(a), numberPrefix(b))
	case o.general:
		return compareFloat(generalNumber(a), generalNumber(b))
	case o.human:
		return cmp.Compare(humanNumber(a), humanNumber(b))
	case o.month:
		return cmp.Compare(monthNumber(a), monthNumber(b))
	case o.version:
		return VersionCompare(string(a), string(b))
	case o.random:
		return cmp.Compare(scramble(a, seed), scramble(b, seed))
	}
	if o.ignoreBlanks {
		a, b = bytes.TrimLeft(a, " \t"), bytes.TrimLeft(b, " \t")
	}
	if o.dictionary || o.printable || o.fold {
		a, b = o.reduce(a), o.reduce(b)
	}
	return bytes.Compare(a, b)
}

func (o *ordering) reduce(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, b := range text {
		if o.dictionary && !(isBlank(b) || b >= '0' && b <= '9' || b|32 >= 'a' && b|32 <= 'z' || b >= 128) || o.printable && (b < 32 || b == 127) {
			continue
		}
		if o.fold && b >= 'a' && b <= 'z' {
			b -= 32
		}
		out = append(out, b)
	}
	return out
}

// numberPrefix is the part that "sort -n" looks at: blanks, sign, digits, point, digits.
func numberPrefix(text []byte) string {
	i := 0
	for i < len(text) && (isBlank(text[i]) || text[i] == '\n') {
		i++
	}
	start := i
	if i < len(text) && text[i] == '-' {
		i++
	}
	digits := i
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	if i < len(text) && text[i] == '.' {
		i++
		for i < len(text) && text[i] >= '0' && text[i] <= '9' {
			i++
		}
	}
	if i == digits || i == digits+1 && text[digits] == '.' {
		return "0"
	}
	return string(text[start:i])
}

// compareDecimal compares numbers of any length exactly.
func compareDecimal(a, b string) int {
	negA, intA, fracA := decimalParts(a)
	negB, intB, fracB := decimalParts(b)
	if negA != negB {
		if negA {
			return -1
		}
		return 1
	}
	result := cmp.Compare(len(intA), len(intB))
	if result == 0 {
		result = strings.Compare(intA, intB)
	}
	if result == 0 {
		result = strings.Compare(fracA, fracB)
	}
	if negA {
		return -result
	}
	return result
}

func decimalParts(text string) (negative bool, whole, fraction string) {
	text, negative = strings.CutPrefix(text, "-")
	whole, fraction, _ = strings.Cut(text, ".")
	whole = strings.TrimLeft(whole, "0")
	fraction = strings.TrimRight(fraction, "0")
	return negative && (whole != "" || fraction != ""), whole, fraction
}

func generalNumber(text []byte) float64 {
	trimmed := strings.TrimLeft(string(text), " \t")
	for end := min(len(trimmed), 60); end > 0; end-- {
		if value, err := strconv.ParseFloat(trimmed[:end], 64); err == nil {
			return value
		}
	}
	return math.NaN()
}

func compareFloat(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return -1
	case math.IsNaN(b):
		return 1
	}
	return cmp.Compare(a, b)
}

func humanNumber(text []byte) float64 {
	prefix := numberPrefix(text)
	value, _ := strconv.ParseFloat(prefix, 64)
	rest := bytes.TrimLeft(text, " \t")
	if len(prefix) < len(rest) {
		if power := strings.IndexByte("KMGTPEZY", rest[len(prefix)]&^32); power >= 0 {
			value *= math.Pow(1024, float64(power+1))
		}
	}
	return value
}

func monthNumber(text []byte) int {
	trimmed := bytes.TrimLeft(text, " \t")
	if len(trimmed) < 3 {
		return 0
	}
	at := strings.Index("JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", strings.ToUpper(string(trimmed[:3])))
	if at < 0 || at%3 != 0 {
		return 0
	}
	return at/3 + 1
}

func scramble(text []byte, seed uint64) uint64 {
	hash := fnv.New64a()
	var raw [8]byte
	for i := range raw {
		raw[i] = byte(seed >> (8 * i))
	}
	hash.Write(raw[:])
	hash.Write(text)
	value := hash.Sum64()
	value ^= value >> 33
	value *= 0xff51afd7ed558ccd
	return value ^ value>>29
}

// VersionCompare orders names as "sort -V" and "ls -v" do: digit runs by value.
func VersionCompare(a, b string) int {
	for a != "" || b != "" {
		plainA, plainB := nonDigits(a), nonDigits(b)
		if result := compareVersionText(plainA, plainB); result != 0 {
			return result
		}
		a, b = a[len(plainA):], b[len(plainB):]
		digitsA, digitsB := digitRun(a), digitRun(b)
		if result := compareDecimal(digitsA, digitsB); result != 0 {
			return result
		}
		a, b = a[len(digitsA):], b[len(digitsB):]
	}
	return 0
}

func nonDigits(text string) string {
	i := 0
	for i < len(text) && (text[i] < '0' || text[i] > '9') {
		i++
	}
	return text[:i]
}

func digitRun(text string) string {
	i := 0
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	return text[:i]
}

func compareVersionText(a, b string) int {
	for i := 0; i < len(a) || i < len(b); i++ {
		if result := cmp.Compare(versionRank(a, i), versionRank(b, i)); result != 0 {
			return result
		}
	}
	return 0
}

// In Debian's order "~" sorts before the end, letters before other characters.
func versionRank(text string, i int) int {
	if i >= len(text) {
		return 0
	}
	switch b := text[i]; {
	case b == '~':
		return -1
	case b|32 >= 'a' && b|32 <= 'z':
		return int(b)
	default:
		return int(b) + 256
	}
}
