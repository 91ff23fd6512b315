"""Large buffers of an image, behind its pickles. Every session that reads the image maps them privately.

A buffer takes no memory of its own until the session writes to it. The file is sealed, so what one session writes no
other one sees.
"""

import ctypes
import mmap
import os
import pickle
import struct

#: The last bytes of an image: where the list of buffers starts.
_TRAILER = struct.Struct("<Q")
#: Made when this is imported, which is before the fork for most sessions.
_library = ctypes.CDLL(None)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def write(out, buffers):
    """Writes the buffers, each at the start of a page, and where they lie."""
    places = []
    for buffer in buffers:
        out.write(bytes(-out.size % mmap.PAGESIZE))
        with buffer.raw() as data:
            places.append((out.size, data.nbytes))
            out.write(data)
    start = out.size
    pickle.dump(places, out, 5)
    out.write(_TRAILER.pack(start))


def read(descriptor):
    """The buffers of an image, in the order in which its pickle refers to them."""
    end = os.fstat(descriptor).st_size - _TRAILER.size
    (start,) = _TRAILER.unpack(os.pread(descriptor, _TRAILER.size, end))
    places = pickle.loads(os.pread(descriptor, end - start, start))  # noqa: S301  # in the cage, like the variables
    return [_map(descriptor, offset, size) for offset, size in places]


def _map(descriptor, offset, size):
    """Not by `mmap.mmap`, which keeps a descriptor open for each mapping: the next image would have to explain it."""
    how = mmap.PROT_READ | mmap.PROT_WRITE
    address = _library.mmap(None, size, how, mmap.MAP_PRIVATE, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map a buffer of {size} bytes")
    array = (ctypes.c_char * size).from_address(address)
    array.mapping = _Mapping(address, size)
    return memoryview(array).cast("B")


class _Mapping:
    """Ends with the last object that uses its memory."""

    def __init__(self, address, size):
        self._unmap, self._range = _library.munmap, (address, size)

    def __del__(self):
        self._unmap(*self._range)
