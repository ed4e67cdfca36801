# Options and requests that libnbd's tools do not send, by its Python module. SOCKET is replaced by the test.
import errno
import os
import nbd

PATH = "SOCKET"
SIZE = 16 << 20


def expect(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error, number)
    else:
        raise AssertionError("no error, expected %s" % errno.errorcode[number])


def handle(setup=lambda h: None, connect=True):
    h = nbd.NBD()
    h.set_export_name("disk")
    setup(h)
    if connect:
        h.connect_unix(PATH)
    return h


# Without structured replies, and without fixed newstyle.
for setup in [
    lambda h: h.set_request_structured_replies(False),
    lambda h: h.set_handshake_flags(0),
    lambda h: h.set_handshake_flags(nbd.HANDSHAKE_FLAG_NO_ZEROES),
]:
    h = handle(setup)
    assert not h.get_structured_replies_negotiated()
    assert not h.can_df()
    data = os.urandom(5000)
    h.pwrite(data, 1001)
    assert h.pread(5000, 1001) == data
    assert h.get_size() == SIZE
    h.shutdown()

# Options one by one.
h = handle(lambda h: (h.set_opt_mode(True), h.add_meta_context("base:allocation")))
assert h.get_structured_replies_negotiated()
names = []
h.opt_list(lambda name, text: names.append(name))
assert names == ["disk"], names
contexts = []
h.opt_list_meta_context(contexts.append)
assert contexts == ["base:allocation"], contexts
h.set_export_name("other")
expect(errno.ENOENT, h.opt_info)
expect(errno.ENOENT, h.opt_go)
h.set_export_name("disk")
h.opt_info()
assert h.get_size() == SIZE
assert h.can_meta_context("base:allocation")
h.opt_go()
h.shutdown()
h = handle(lambda h: h.set_opt_mode(True))
h.opt_abort()

# Requests in flight together, answered in any order.
h = handle(lambda h: h.add_meta_context("base:allocation"))
h.set_strict_mode(0)
blocks = [os.urandom(65536) for _ in range(64)]
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b)), i * 65536) for i, b in enumerate(blocks)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(c) for c in cookies)
buffers = [(nbd.Buffer(65536), i) for i in range(64)]
cookies = [h.aio_pread(b, i * 65536) for b, i in buffers]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(c) for c in cookies)
assert all(bytes(b.to_bytearray()) == blocks[i] for b, i in buffers)

# Structured reads come in one piece, also with DF.
pieces = []


def piece(data, offset, status, error):
    pieces.append((len(data), offset, status))


h.pread_structured(70000, 10, piece)
h.pread_structured(70000, 10, piece, flags=nbd.CMD_FLAG_DF)
assert pieces == [(70000, 10, nbd.READ_DATA)] * 2, pieces

# Extents: all, and one.
extents = []


def extent(context, offset, entries, error):
    extents.append((context, offset, list(entries)))


h.block_status(SIZE, 0, extent)
h.block_status(SIZE, 0, extent, flags=nbd.CMD_FLAG_REQ_ONE)
assert extents == [
    ("base:allocation", 0, [4 << 20, 0, 12 << 20, 3]),
    ("base:allocation", 0, [4 << 20, 0]),
], extents

# Errors of requests: the connection stays.
expect(errno.EINVAL, lambda: h.pread(512, SIZE))
expect(errno.EINVAL, lambda: h.pread(513, SIZE - 512))
expect(errno.ENOSPC, lambda: h.pwrite(b"x" * 513, SIZE - 512))
expect(errno.ENOSPC, lambda: h.zero(512, SIZE))
expect(errno.EINVAL, lambda: h.trim(512, SIZE))
expect(errno.EINVAL, lambda: h.cache(512, SIZE))
expect(errno.EINVAL, lambda: h.block_status(512, SIZE, extent))
expect(errno.EINVAL, lambda: h.trim(512, 0, flags=1 << 7))
h.cache(4096, 0)
h.zero(4096, 0, flags=nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(4096, 0) == bytes(4096)
h.trim(4096, 4096, flags=nbd.CMD_FLAG_FUA)
h.flush()
big = os.urandom(16 << 20)
h.pwrite(big, 0)
assert h.pread(16 << 20, 0) == big
h.shutdown()

# Without a selected context there are no extents.
h = handle()
h.set_strict_mode(0)
expect(errno.EINVAL, lambda: h.block_status(512, 0, extent))
h.shutdown()
print("all passed")
