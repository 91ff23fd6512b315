package shell

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"warmcell/toolbox/internal/core"
)

// descriptor is an open file description, shared by counting.
type descriptor struct {
	in    *input
	out   io.Writer
	close func()
	refs  atomic.Int32
	seek  io.Seeker
}

func newDescriptor(in *input, out io.Writer, closer func()) *descriptor {
	d := &descriptor{in: in, out: out, close: closer}
	d.refs.Store(1)
	return d
}

func borrowReader(from io.Reader) *descriptor {
	if from == nil {
		from = core.Null
	}
	if already, ok := from.(*input); ok {
		return newDescriptor(already, nil, nil)
	}
	return newDescriptor(newInput(from), nil, nil)
}

func borrowWriter(to io.Writer) *descriptor {
	if to == nil {
		to = core.Null
	}
	return newDescriptor(nil, to, nil)
}

func (d *descriptor) retain() *descriptor {
	d.refs.Add(1)
	return d
}

func (d *descriptor) release() {
	if d.refs.Add(-1) == 0 && d.close != nil {
		d.close()
	}
}

// Read and Write make a descriptor usable as /dev/fd/N of a command.
func (d *descriptor) Read(into []byte) (int, error) {
	if d.in == nil {
		return 0, syscall.EBADF
	}
	return d.in.Read(into)
}

func (d *descriptor) Write(data []byte) (int, error) {
	if d.out == nil {
		return 0, syscall.EBADF
	}
	return d.out.Write(data)
}

// input is a stream whose readers all share one buffer, so that "read" may take a line and leave the rest to the next command.
type input struct {
	mutex  sync.Mutex
	source io.Reader
	buffer []byte
	start  int
	end    int
}

func newInput(source io.Reader) *input { return &input{source: source} }

var closedInput = newInput(closedReader{})

type closedReader struct{}

func (closedReader) Read([]byte) (int, error) { return 0, syscall.EBADF }

type closedOutput struct{}

func (closedOutput) Write([]byte) (int, error) { return 0, syscall.EBADF }

// Read hands out buffered bytes first; large reads go straight to the source.
func (i *input) Read(into []byte) (int, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.start < i.end {
		n := copy(into, i.buffer[i.start:i.end])
		i.start += n
		return n, nil
	}
	return i.source.Read(into)
}

// ReadByte is for "read": one byte at a time out of the shared buffer.
func (i *input) ReadByte() (byte, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	for i.start == i.end {
		if i.buffer == nil {
			i.buffer = make([]byte, 4096)
		}
		n, err := i.source.Read(i.buffer)
		i.start, i.end = 0, n
		if n == 0 {
			if err == nil {
				continue
			}
			return 0, err
		}
	}
	b := i.buffer[i.start]
	i.start++
	return b, nil
}

// ready tells whether a read would return at once, as far as we can know.
func (i *input) ready() bool {
	if i.start < i.end {
		return true
	}
	if pipe, ok := i.source.(*core.PipeReader); ok {
		waiting, ended := pipe.Buffered()
		return waiting > 0 || ended
	}
	return true
}

// Unwrap gives the stream below, for Ctx.HasInput.
func (i *input) Unwrap() io.Reader { return i.source }
