// Package bytescan finds and counts bytes eight at a time: for WebAssembly Go's own bytes package has no assembly.
package bytescan

import (
	"bytes"
	"math/bits"
	"strings"
	"unsafe"
)

const (
	ones  = 0x0101010101010101
	lows  = 0x7f7f7f7f7f7f7f7f
	highs = 0x8080808080808080
	width = 8
)

// word loads eight bytes; the caller has checked that they are there.
func word(base unsafe.Pointer, at int) uint64 { return *(*uint64)(unsafe.Add(base, at)) }

// Backward jumps are slow in WebAssembly compiled by Go, slower than the work on a word: the loops take long strides.
const stride = 8 * width

// zeros has the high bit of each byte that is zero, and of no other: adding cannot carry from byte to byte here.
func zeros(word uint64) uint64 { return ^((word&lows + lows) | word | lows) }

// Count tells how often a byte occurs.
func Count(data []byte, wanted byte) int {
	pattern := ones * uint64(wanted)
	base := unsafe.Pointer(unsafe.SliceData(data))
	total, at := 0, 0
	for ; at+stride <= len(data); at += stride {
		total += bits.OnesCount64(zeros(word(base, at)^pattern)) + bits.OnesCount64(zeros(word(base, at+8)^pattern)) +
			bits.OnesCount64(zeros(word(base, at+16)^pattern)) + bits.OnesCount64(zeros(word(base, at+24)^pattern)) +
			bits.OnesCount64(zeros(word(base, at+32)^pattern)) + bits.OnesCount64(zeros(word(base, at+40)^pattern)) +
			bits.OnesCount64(zeros(word(base, at+48)^pattern)) + bits.OnesCount64(zeros(word(base, at+56)^pattern))
	}
	for ; at < len(data); at++ {
		if data[at] == wanted {
			total++
		}
	}
	return total
}

// Finder looks for a text. Two of its bytes, the rarest, are compared in all eight places of a word at once; the rest
// only where both are right.
type Finder struct {
	text                 []byte
	isFolded             bool
	first, second        int
	pattern1, pattern2   uint64
	caseBits1, caseBits2 uint64
	head                 uint64 // the first bytes of the text, as many as fit
	headMask, headCase   uint64
}

const caseBit = 0x20

// NewFinder prepares a search; folded ignores the case of ASCII letters. The text is not empty.
func NewFinder(text []byte, folded bool) *Finder {
	if folded {
		text = bytes.ToLower(text)
	}
	f := &Finder{text: text, isFolded: folded}
	for i := range text {
		if rarity(text[i]) > rarity(text[f.first]) {
			f.first = i
		}
	}
	f.second = (f.first + 1) % len(text)
	for i := range text {
		if i != f.first && rarity(text[i]) > rarity(text[f.second]) {
			f.second = i
		}
	}
	f.pattern1, f.caseBits1 = ones*uint64(text[f.first]), ones*f.caseOf(text[f.first])
	f.pattern2, f.caseBits2 = ones*uint64(text[f.second]), ones*f.caseOf(text[f.second])
	for i, b := range text[:min(width, len(text))] {
		f.head |= uint64(b) << (8 * i)
		f.headMask |= 0xff << (8 * i)
		f.headCase |= f.caseOf(b) << (8 * i)
	}
	return f
}

// caseOf is the bit that may differ.
func (f *Finder) caseOf(b byte) uint64 {
	if f.isFolded && b >= 'a' && b <= 'z' {
		return caseBit
	}
	return 0
}

// common holds the bytes of text and programs, the most frequent first.
const common = " etaoinsrhldcu\nmfpg01.,wybv2_k()-\"=/x345;:'6789ETAOINSRHLDCUMFPGWYBVKjqz{}[]"

func rarity(b byte) int {
	if at := strings.IndexByte(common, b); at >= 0 {
		return at
	}
	return len(common)
}

// Text is the text to search for.
func (f *Finder) Text() []byte { return f.text }

// Index returns the first place of the text, or -1.
func (f *Finder) Index(data []byte) int { return f.indexFrom(data, 0) }

func (f *Finder) indexFrom(data []byte, at int) int {
	base := unsafe.Pointer(unsafe.SliceData(data))
	last := len(data) - len(f.text)
	// The words that start at both bytes end inside the data as long as their places are left.
	for at+stride <= last+1 {
		a, b, c, d := f.hits(base, at), f.hits(base, at+8), f.hits(base, at+16), f.hits(base, at+24)
		if a|b|c|d == 0 {
			at += stride / 2
			if a, b, c, d = f.hits(base, at), f.hits(base, at+8), f.hits(base, at+16), f.hits(base, at+24); a|b|c|d == 0 {
				at += stride / 2
				continue
			}
		}
		// To the first word with a hit, without jumping back.
		if a|b == 0 {
			at, a, b = at+2*width, c, d
		}
		if a == 0 {
			at, a = at+width, b
		}
		for ; a != 0; a &= a - 1 {
			place := at + bits.TrailingZeros64(a)/width
			if place+width <= len(data) && (word(base, place)|f.headCase)&f.headMask != f.head {
				continue
			}
			if len(f.text) <= width && place+width <= len(data) || f.isAt(data, place) {
				return place
			}
		}
		at += width
	}
	for ; at+width <= last+1; at += width {
		for hits := f.hits(base, at); hits != 0; hits &= hits - 1 {
			if place := at + bits.TrailingZeros64(hits)/width; f.isAt(data, place) {
				return place
			}
		}
	}
	for ; at <= last; at++ {
		if f.isAt(data, at) {
			return at
		}
	}
	return -1
}

// hits marks the places of eight where both bytes are right, and perhaps a few more.
func (f *Finder) hits(base unsafe.Pointer, at int) uint64 {
	different1 := (word(base, at+f.first) | f.caseBits1) ^ f.pattern1
	different2 := (word(base, at+f.second) | f.caseBits2) ^ f.pattern2
	return (different1 - ones) &^ different1 & (different2 - ones) &^ different2 & highs
}

func (f *Finder) isAt(data []byte, at int) bool {
	if !f.isFolded {
		return string(data[at:at+len(f.text)]) == string(f.text)
	}
	for i, wanted := range f.text {
		if uint64(data[at+i])|f.caseOf(wanted) != uint64(wanted) {
			return false
		}
	}
	return true
}

// CountLines tells how many lines contain the text, which has no end of line in it.
func (f *Finder) CountLines(data []byte) int {
	count := 0
	for at := 0; ; count++ {
		place := f.indexFrom(data, at)
		if place < 0 {
			return count
		}
		if at = indexFrom(data, '\n', place) + 1; at == 0 {
			return count + 1
		}
	}
}

// indexFrom finds a byte that is likely to be near.
func indexFrom(data []byte, wanted byte, at int) int {
	base, pattern := unsafe.Pointer(unsafe.SliceData(data)), ones*uint64(wanted)
	for ; at+width <= len(data); at += width {
		if found := zeros(word(base, at) ^ pattern); found != 0 {
			return at + bits.TrailingZeros64(found)/width
		}
	}
	for ; at < len(data); at++ {
		if data[at] == wanted {
			return at
		}
	}
	return -1
}
