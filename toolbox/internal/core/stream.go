package core

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
)

const pipeCapacity = 64 << 10

// Out is the buffered standard output of a command. A reader that went away ends the command, as SIGPIPE does.
type Out struct {
	sink   io.Writer
	buffer []byte
	err    error
}

var outBuffers = sync.Pool{New: func() any { return make([]byte, 0, 16<<10) }}

// NewOut wraps a stream.
func NewOut(sink io.Writer) *Out { return &Out{sink: sink} }

// Write buffers; it never fails in the way of an io.Writer: a broken pipe ends the command, other errors are kept for Err.
func (o *Out) Write(data []byte) (int, error) {
	if len(o.buffer)+len(data) > 16<<10 {
		o.Flush()
		if len(data) >= 16<<10 {
			o.send(data)
			return len(data), nil
		}
	}
	o.ensure()
	o.buffer = append(o.buffer, data...)
	return len(data), nil
}

func (o *Out) ensure() {
	if o.buffer == nil {
		o.buffer = outBuffers.Get().([]byte)[:0]
	}
}

// WriteString is Write for strings.
func (o *Out) WriteString(text string) (int, error) {
	if len(o.buffer)+len(text) > 16<<10 {
		return o.Write([]byte(text))
	}
	o.ensure()
	o.buffer = append(o.buffer, text...)
	return len(text), nil
}

// WriteByte appends one byte.
func (o *Out) WriteByte(b byte) error {
	if len(o.buffer) >= 16<<10 {
		o.Flush()
	}
	o.ensure()
	o.buffer = append(o.buffer, b)
	return nil
}

// WriteRune appends one UTF-8 rune.
func (o *Out) WriteRune(r rune) (int, error) { return o.WriteString(string(r)) }

// Flush hands the buffered bytes to the stream.
func (o *Out) Flush() error {
	if len(o.buffer) == 0 {
		return o.err
	}
	data := o.buffer
	o.buffer = nil
	o.send(data)
	outBuffers.Put(data[:0])
	return o.err
}

// Err returns the first write error that was not a broken pipe.
func (o *Out) Err() error { return o.err }

func (o *Out) send(data []byte) {
	if o.err != nil {
		return
	}
	_, err := o.sink.Write(data)
	if err == nil {
		return
	}
	if IsBrokenPipe(err) {
		panic(brokenPipe)
	}
	o.err = err
}

// IsBrokenPipe tells whether a write failed because nobody reads any more.
func IsBrokenPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

// Pipe is an in-memory pipe with a bounded buffer: WASI has none.
type Pipe struct {
	mutex        sync.Mutex
	wake         *sync.Cond
	data         []byte
	start        int
	readers      int
	writers      int
	ctx          context.Context
	stopWatching func() bool
}

// NewPipe returns the two ends. Each end can be shared with Retain; a stream ends when the last holder closed it.
func NewPipe(ctx context.Context) (*PipeReader, *PipeWriter) {
	pipe := &Pipe{readers: 1, writers: 1, ctx: ctx}
	pipe.wake = sync.NewCond(&pipe.mutex)
	if ctx != nil && ctx.Done() != nil {
		pipe.stopWatching = context.AfterFunc(ctx, func() {
			pipe.mutex.Lock()
			pipe.wake.Broadcast()
			pipe.mutex.Unlock()
		})
	}
	return &PipeReader{pipe}, &PipeWriter{pipe}
}

func (p *Pipe) cancelled() bool { return p.ctx != nil && p.ctx.Err() != nil }

// PipeReader is the reading end.
type PipeReader struct{ pipe *Pipe }

// PipeWriter is the writing end.
type PipeWriter struct{ pipe *Pipe }

func (r *PipeReader) Read(into []byte) (int, error) {
	p := r.pipe
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for len(p.data) == p.start {
		if p.writers == 0 || p.readers == 0 {
			return 0, io.EOF
		}
		if p.cancelled() {
			panic(killed)
		}
		p.wake.Wait()
	}
	n := copy(into, p.data[p.start:])
	p.start += n
	if p.start == len(p.data) {
		p.data, p.start = p.data[:0], 0
	}
	p.wake.Broadcast()
	return n, nil
}

// Buffered returns how many bytes wait, and whether the writers are gone.
func (r *PipeReader) Buffered() (int, bool) {
	r.pipe.mutex.Lock()
	defer r.pipe.mutex.Unlock()
	return len(r.pipe.data) - r.pipe.start, r.pipe.writers == 0
}

// Retain counts one more holder of the reading end.
func (r *PipeReader) Retain() { r.pipe.add(&r.pipe.readers, 1) }

// Close drops one holder.
func (r *PipeReader) Close() error { r.pipe.add(&r.pipe.readers, -1); return nil }

// Retain counts one more holder of the writing end.
func (w *PipeWriter) Retain() { w.pipe.add(&w.pipe.writers, 1) }

// Close drops one holder.
func (w *PipeWriter) Close() error { w.pipe.add(&w.pipe.writers, -1); return nil }

func (p *Pipe) add(counter *int, delta int) {
	p.mutex.Lock()
	*counter += delta
	if p.readers <= 0 && p.writers <= 0 && p.stopWatching != nil {
		p.stopWatching()
	}
	p.wake.Broadcast()
	p.mutex.Unlock()
}

func (w *PipeWriter) Write(data []byte) (int, error) {
	p := w.pipe
	p.mutex.Lock()
	defer p.mutex.Unlock()
	written := 0
	for len(data) > 0 {
		if p.readers <= 0 {
			return written, syscall.EPIPE
		}
		if p.cancelled() {
			panic(killed)
		}
		room := pipeCapacity - (len(p.data) - p.start)
		if room <= 0 {
			p.wake.Wait()
			continue
		}
		if p.start > 0 && len(p.data)+min(room, len(data)) > cap(p.data) {
			p.data = p.data[:copy(p.data, p.data[p.start:])]
			p.start = 0
		}
		n := min(room, len(data))
		p.data = append(p.data, data[:n]...)
		data, written = data[n:], written+n
		p.wake.Broadcast()
	}
	return written, nil
}

// Lines calls fn for each line without its delimiter; last tells whether a delimiter was missing. fn returns false to stop.
func Lines(reader io.Reader, delimiter byte, fn func(line []byte, terminated bool) bool) error {
	buffered := bufio.NewReaderSize(reader, 64<<10)
	var long []byte
	for {
		piece, err := buffered.ReadSlice(delimiter)
		if err == bufio.ErrBufferFull {
			long = append(long, piece...)
			continue
		}
		line := piece
		if len(long) > 0 {
			long = append(long, piece...)
			line = long
		}
		if len(line) > 0 {
			terminated := line[len(line)-1] == delimiter
			if terminated {
				line = line[:len(line)-1]
			}
			if !fn(line, terminated) {
				return nil
			}
			if cap(long) > 1<<20 {
				long = nil
			} else {
				long = long[:0]
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Unwrapper is a stream around another one.
type Unwrapper interface{ Unwrap() io.Reader }

// HasInput tells whether there is something on standard input that a command without operands should read. What the host
// gives is a pipe or a file even when the caller gave nothing: only looking tells.
func (c *Ctx) HasInput() bool {
	switch unwrapped(c.Stdin) {
	case nil, io.Reader(Null):
		return false
	case io.Reader(os.Stdin):
	default:
		return true
	}
	first := make([]byte, 1)
	n, _ := io.ReadFull(c.Stdin, first)
	c.Stdin = io.MultiReader(bytes.NewReader(first[:n]), c.Stdin)
	return n > 0
}

func unwrapped(reader io.Reader) io.Reader {
	for {
		wrapped, ok := reader.(Unwrapper)
		if !ok {
			return reader
		}
		reader = wrapped.Unwrap()
	}
}
