package files

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(
		&core.Command{Name: "stat", Summary: "Display file status.", Usage: "stat [-L] [-c FORMAT] [--printf=FORMAT] [-t] [-f] file...", Run: stat},
		&core.Command{Name: "file", Summary: "Determine file type.", Usage: "file [-biL] [--mime-type] file...", Run: fileType},
		&core.Command{Name: "df", Summary: "Report file system space (mount points only).", Usage: "df [-hkP] [file...]", Run: df},
	)
}

func kindName(info fs.FileInfo) string {
	mode := info.Mode()
	switch {
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case mode&fs.ModeCharDevice != 0:
		return "character special file"
	case info.Size() == 0:
		return "regular empty file"
	}
	return "regular file"
}

func stat(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "Lc:tf", Long: "dereference/L format=/c printf= terse/t file-system/f"}.Parse(c)
	if !ok {
		return 1
	}
	format, end, follow, system := "", "\n", false, false
	for _, option := range options {
		switch option.Name {
		case "L":
			follow = true
		case "c":
			format = option.Value
		case "printf":
			format, end = unescape(option.Value), ""
		case "t":
			format = "%n %s %b %f %u %g %D %i %h %t %T %X %Y %Z %W %o"
		case "f":
			system = true
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	status := 0
	for _, name := range names {
		look := core.Lstat
		if follow {
			look = core.Stat
		}
		info, err := look(c.Path(name))
		if err != nil {
			c.Errorf("cannot statx '%s': %s", name, core.Reason(err))
			status = 1
			continue
		}
		layout := format
		if layout == "" {
			layout = "  File: %N\n  Size: %s\t\tBlocks: %b          IO Block: %o   %F\nDevice: 0,1\tInode: %i           Links: %h\nAccess: (%04a/%A)  Uid: ( %u/    %U)   Gid: ( %g/    %G)\nAccess: %x\nModify: %y\nChange: %z\n Birth: -"
			if system {
				layout = "  File: \"%n\"\n    ID: 0        Namelen: 255     Type: wasi"
			}
		}
		c.Out.WriteString(statText(c, layout, name, info) + end)
	}
	return status
}

func unescape(text string) string {
	return strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\"`, `"`, `\0`, "\x00").Replace(text)
}

func statText(c *core.Ctx, layout, name string, info fs.FileInfo) string {
	var out strings.Builder
	zone := strftime.Zone(c.Getenv("TZ"))
	when := info.ModTime().In(zone)
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' || i+1 == len(layout) {
			out.WriteByte(layout[i])
			continue
		}
		i++
		width := ""
		for i < len(layout)-1 && (layout[i] >= '0' && layout[i] <= '9' || strings.IndexByte("-#+. ", layout[i]) >= 0) {
			width += string(layout[i])
			i++
		}
		value := ""
		switch layout[i] {
		case 'n':
			value = name
		case 'N':
			value = name
			if link, err := os.Readlink(c.Path(name)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				value = name + " -> " + link
			}
		case 's':
			value = strconv.FormatInt(info.Size(), 10)
		case 'b':
			value = strconv.FormatInt(blocksOf(info)*2, 10)
		case 'B':
			value = "512"
		case 'o':
			value = "4096"
		case 'F':
			value = kindName(info)
		case 'a':
			value = strconv.FormatUint(uint64(core.Perm(c.Path(name), info)), 8)
		case 'A':
			value = modeText(info.Mode())
		case 'f':
			kind := map[bool]uint64{true: 0o040000, false: 0o100000}[info.IsDir()]
			value = strconv.FormatUint(kind|uint64(info.Mode().Perm()), 16)
		case 'u', 'g':
			value = core.UserID
		case 'U', 'G':
			value = core.UserName
		case 'h':
			value = strconv.Itoa(linkCount(info))
		case 'i':
			value = "1"
		case 'd', 'D', 't', 'T':
			value = "0"
		case 'm':
			value = "/"
		case 'x', 'y', 'z':
			value = strftime.Format("%Y-%m-%d %H:%M:%S.%N %z", when)
		case 'X', 'Y', 'Z':
			value = strconv.FormatInt(when.Unix(), 10)
		case 'w':
			value = "-"
		case 'W':
			value = "0"
		case '%':
			value = "%"
		default:
			value = "?"
		}
		if width != "" && strings.HasPrefix(width, "0") {
			for n, _ := strconv.Atoi(width); len(value) < n; {
				value = "0" + value
			}
		} else if width != "" {
			value = fmt.Sprintf("%"+width+"s", value)
		}
		out.WriteString(value)
	}
	return out.String()
}

func fileType(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "biLhszN", Long: "brief/b mime/i mime-type dereference/L mime-encoding"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	for _, option := range options {
		on[option.Name] = true
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	width := 0
	for _, name := range names {
		width = max(width, len(name))
	}
	for _, name := range names {
		description, mime := describe(c, name, on["L"])
		switch {
		case on["mime-type"]:
			description = mime
		case on["i"]:
			description = mime + "; charset=" + charset(c, name)
		}
		if !on["b"] {
			c.Out.WriteString(name + ": " + strings.Repeat(" ", width-len(name)))
		}
		c.Out.WriteString(description + "\n")
	}
	return 0
}

func headOf(c *core.Ctx, name string) ([]byte, error) {
	reader, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	data, err := io.ReadAll(io.LimitReader(reader, 64<<10))
	return data, err
}

func charset(c *core.Ctx, name string) string {
	data, err := headOf(c, name)
	switch {
	case err != nil || bytes.IndexByte(data, 0) >= 0:
		return "binary"
	case isASCII(data):
		return "us-ascii"
	case utf8.Valid(data):
		return "utf-8"
	}
	return "unknown-8bit"
}

func isASCII(data []byte) bool {
	for _, b := range data {
		if b >= 128 {
			return false
		}
	}
	return true
}

var signatures = []struct{ magic, text, mime string }{
	{"\x89PNG\r\n\x1a\n", "PNG image data", "image/png"}, {"\xff\xd8\xff", "JPEG image data", "image/jpeg"}, {"GIF8", "GIF image data", "image/gif"},
	{"%PDF-", "PDF document", "application/pdf"}, {"PK\x03\x04", "Zip archive data, at least v2.0 to extract", "application/zip"}, {"\x1f\x8b", "gzip compressed data", "application/gzip"},
	{"BZh", "bzip2 compressed data", "application/x-bzip2"}, {"\xfd7zXZ\x00", "XZ compressed data", "application/x-xz"}, {"\x7fELF", "ELF", "application/x-executable"},
	{"\x00asm", "WebAssembly (wasm) binary module version 0x1 (MVP)", "application/wasm"}, {"SQLite format 3\x00", "SQLite 3.x database", "application/vnd.sqlite3"}, {"RIFF", "RIFF (little-endian) data", "application/octet-stream"},
	{"<?xml", "XML 1.0 document, ASCII text", "text/xml"}, {"#!/bin/sh", "POSIX shell script, ASCII text executable", "text/x-shellscript"}, {"#!/bin/bash", "Bourne-Again shell script, ASCII text executable", "text/x-shellscript"},
	{"#!/usr/bin/env bash", "Bourne-Again shell script, ASCII text executable", "text/x-shellscript"}, {"#!/usr/bin/env python", "Python script, ASCII text executable", "text/x-script.python"}, {"#!/usr/bin/python", "Python script, ASCII text executable", "text/x-script.python"},
	{"<!DOCTYPE html", "HTML document, ASCII text", "text/html"}, {"<html", "HTML document, ASCII text", "text/html"},
}

func describe(c *core.Ctx, name string, follow bool) (text, mime string) {
	look := core.Lstat
	if follow {
		look = core.Stat
	}
	info, err := look(c.Path(name))
	if name != "-" {
		if err != nil {
			return "cannot open `" + name + "' (" + core.Reason(err) + ")", "cannot open"
		}
		if info.IsDir() {
			return "directory", "inode/directory"
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(c.Path(name))
			if _, err := core.Stat(c.Path(name)); err != nil {
				return "broken symbolic link to " + target, "inode/symlink"
			}
			return "symbolic link to " + target, "inode/symlink"
		}
	}
	data, err := headOf(c, name)
	if err != nil {
		return "cannot open `" + name + "' (" + core.Reason(err) + ")", "cannot open"
	}
	return classify(data)
}

func classify(data []byte) (text, mime string) {
	if len(data) == 0 {
		return "empty", "inode/x-empty"
	}
	for _, signature := range signatures {
		if bytes.HasPrefix(data, []byte(signature.magic)) {
			return signature.text, signature.mime
		}
	}
	if len(data) > 262 && string(data[257:262]) == "ustar" {
		return "POSIX tar archive (GNU)", "application/x-tar"
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return "data", "application/octet-stream"
	}
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) > 1 && (trimmed[0] == '{' && trimmed[len(trimmed)-1] == '}' || trimmed[0] == '[' && trimmed[len(trimmed)-1] == ']') && looksLikeJSON(trimmed) {
		return "JSON text data", "application/json"
	}
	kind := "ASCII text"
	if !isASCII(data) {
		if !utf8.Valid(data) {
			return "ISO-8859 text", "text/plain"
		}
		kind = "Unicode text, UTF-8 text"
	}
	if bytes.Contains(data, []byte("\r\n")) {
		kind += ", with CRLF line terminators"
	} else if bytes.IndexByte(data, '\n') < 0 {
		kind += ", with no line terminators"
	}
	return kind, "text/plain"
}

func df(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "hkPTiaHm", Long: "human-readable/h portability/P print-type/T inodes/i all/a output? total"}.Parse(c)
	if !ok {
		return 1
	}
	human := false
	for _, option := range options {
		human = human || option.Name == "h"
	}
	mounts := core.Mounts
	if len(mounts) == 0 {
		mounts = []string{"/"}
	}
	head, size := "Filesystem     1K-blocks  Used Available Use% Mounted on", "0"
	if human {
		head = "Filesystem      Size  Used Avail Use% Mounted on"
	}
	c.Out.WriteString(head + "\n")
	shown := map[string]bool{}
	if len(names) > 0 {
		for _, name := range names {
			full := path.Clean(c.Path(name))
			if _, err := core.Stat(full); err != nil {
				return c.Fail(1, "%s: %s", name, core.Reason(err))
			}
			best := mounts[0]
			for _, mount := range mounts {
				if strings.HasPrefix(full+"/", strings.TrimSuffix(mount, "/")+"/") && len(mount) >= len(best) {
					best = mount
				}
			}
			shown[best] = true
		}
	}
	for _, mount := range mounts {
		if len(shown) > 0 && !shown[mount] {
			continue
		}
		fmt.Fprintf(c.Out, "%-14s %9s %5s %9s %4s %s\n", "sandbox", size, "0", "0", "-", mount)
	}
	return 0
}
