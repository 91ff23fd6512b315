package text

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	for name, make := range map[string]func() hash.Hash{"md5sum": md5.New, "sha1sum": sha1.New, "sha224sum": sha256.New224, "sha256sum": sha256.New, "sha384sum": sha512.New384, "sha512sum": sha512.New} {
		core.Register(&core.Command{Name: name, Summary: "Print or check message digests.", Usage: name + " [-bctwz] [--tag] [--quiet] [--status] [--ignore-missing] [--strict] [file...]",
			Run: func(c *core.Ctx) int { return digests(c, make) }})
	}
	core.Register(
		&core.Command{Name: "base64", Summary: "Encode or decode base64.", Usage: "base64 [-d] [-i] [-w COLS] [file]", Run: baseCommand},
		&core.Command{Name: "base32", Summary: "Encode or decode base32.", Usage: "base32 [-d] [-i] [-w COLS] [file]", Run: baseCommand},
		&core.Command{Name: "cksum", Summary: "Print CRC checksum and size.", Usage: "cksum [file...]", Run: cksum},
	)
}

func digests(c *core.Ctx, make func() hash.Hash) int {
	options, names, ok := core.Options{Short: "bctwz", Long: "binary/b check/c text/t warn/w zero/z tag quiet status ignore-missing strict"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	for _, option := range options {
		on[option.Name] = true
	}
	if on["c"] {
		return each(c, names, func(name string, reader io.Reader) error { return checkDigests(c, name, reader, make, on) }) | c.Code()
	}
	return each(c, names, func(name string, reader io.Reader) error {
		sum := make()
		if _, err := io.CopyBuffer(sum, onlyReader{reader}, bigBlock()); err != nil {
			return err
		}
		text := hex.EncodeToString(sum.Sum(nil))
		if on["tag"] {
			fmt.Fprintf(c.Out, "%s (%s) = %s\n", strings.ToUpper(strings.TrimSuffix(c.Name, "sum")), name, text)
			return nil
		}
		mark, end := " ", "\n"
		if on["b"] {
			mark = "*"
		}
		if on["z"] {
			end = "\x00"
		}
		c.Out.WriteString(text + " " + mark + name + end)
		return nil
	})
}

// onlyReader hides WriterTo, so that the large buffer is used.
type onlyReader struct{ io.Reader }

func bigBlock() []byte { return make([]byte, 256<<10) }

func checkDigests(c *core.Ctx, list string, reader io.Reader, make func() hash.Hash, on map[string]bool) error {
	failed, missing, malformed, good := 0, 0, 0, 0
	err := core.Lines(reader, '\n', func(line []byte, _ bool) bool {
		text := string(line)
		if text == "" {
			return true
		}
		digest, name, ok := strings.Cut(text, " ")
		if algorithm, rest, tagged := strings.Cut(text, " ("); tagged && strings.Contains(rest, ") = ") && !strings.Contains(algorithm, " ") {
			name, digest, _ = strings.Cut(rest, ") = ")
			ok = true
		} else if ok && len(name) > 0 {
			name = name[1:]
		}
		if _, err := hex.DecodeString(digest); !ok || err != nil || len(digest) != make().Size()*2 {
			malformed++
			return true
		}
		data, err := c.Open(name)
		if err != nil {
			if on["ignore-missing"] {
				return true
			}
			c.Errorf("%s: %s", name, core.Reason(err))
			if !on["status"] {
				c.Out.WriteString(name + ": FAILED open or read\n")
			}
			missing++
			return true
		}
		sum := make()
		io.CopyBuffer(sum, onlyReader{data}, bigBlock())
		data.Close()
		if hex.EncodeToString(sum.Sum(nil)) != strings.ToLower(digest) {
			failed++
			if !on["status"] {
				c.Out.WriteString(name + ": FAILED\n")
			}
			return true
		}
		good++
		if !on["quiet"] && !on["status"] {
			c.Out.WriteString(name + ": OK\n")
		}
		return true
	})
	plural := func(n int, one, many string) string {
		if n == 1 {
			return fmt.Sprintf("%d %s", n, one)
		}
		return fmt.Sprintf("%d %s", n, many)
	}
	if good+failed+missing == 0 {
		c.Errorf("%s: no properly formatted checksum lines found", list)
		c.SetCode(1)
		return err
	}
	if !on["status"] {
		if malformed > 0 {
			c.Errorf("WARNING: %s improperly formatted", plural(malformed, "line is", "lines are"))
		}
		if missing > 0 {
			c.Errorf("WARNING: %s could not be read", plural(missing, "listed file", "listed files"))
		}
		if failed > 0 {
			c.Errorf("WARNING: %s did NOT match", plural(failed, "computed checksum", "computed checksums"))
		}
	}
	if failed+missing > 0 || malformed > 0 && on["strict"] {
		c.SetCode(1)
	}
	return err
}

func baseCommand(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "diw:", Long: "decode/d ignore-garbage/i wrap=/w"}.Parse(c)
	if !ok {
		return 1
	}
	decode, ignore, wrap := false, false, int64(76)
	for _, option := range options {
		switch option.Name {
		case "d":
			decode = true
		case "i":
			ignore = true
		case "w":
			if wrap, ok = parseSize(option.Value); !ok {
				return c.Fail(1, "invalid wrap size: ‘%s’", option.Value)
			}
		}
	}
	if len(names) > 1 {
		return c.Usage(1, "extra operand ‘%s’", names[1])
	}
	type codec interface {
		EncodeToString([]byte) string
		DecodeString(string) ([]byte, error)
	}
	var coding codec = base64.StdEncoding
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
	if c.Name == "base32" {
		coding, alphabet = base32.StdEncoding, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567="
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		if decode {
			text := strings.Map(func(r rune) rune {
				if r == '\n' || ignore && !strings.ContainsRune(alphabet, r) {
					return -1
				}
				return r
			}, string(data))
			raw, err := coding.DecodeString(text)
			c.Out.Write(raw)
			if err != nil {
				c.Errorf("invalid input")
				c.SetCode(1)
			}
			return nil
		}
		writeWrapped(c, coding.EncodeToString(data), int(wrap))
		return nil
	}) | c.Code()
}

func writeWrapped(c *core.Ctx, text string, width int) {
	if width == 0 {
		c.Out.WriteString(text)
		return
	}
	for len(text) > 0 {
		n := min(width, len(text))
		c.Out.WriteString(text[:n] + "\n")
		text = text[n:]
	}
}

// cksum is the POSIX CRC: polynomial 04C11DB7, not reflected, with the length appended.
func cksum(c *core.Ctx) int {
	_, names, ok := core.Options{}.Parse(c)
	if !ok {
		return 1
	}
	return each(c, names, func(name string, reader io.Reader) error {
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		crc := uint32(0)
		feed := func(b byte) {
			crc ^= uint32(b) << 24
			for i := 0; i < 8; i++ {
				if crc&(1<<31) != 0 {
					crc = crc<<1 ^ 0x04c11db7
				} else {
					crc <<= 1
				}
			}
		}
		for _, b := range data {
			feed(b)
		}
		for n := len(data); n > 0; n >>= 8 {
			feed(byte(n))
		}
		fmt.Fprintf(c.Out, "%d %d", ^crc, len(data))
		if name != "-" || len(names) > 0 {
			c.Out.WriteString(" " + name)
		}
		c.Out.WriteByte('\n')
		return nil
	})
}
