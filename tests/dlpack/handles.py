"""Memory of onebuf in another process of CUDA that has no onebuf, and such a process's memory in onebuf.

    python3 handles.py libonebuf_dlpack_peer.so [device]

The other process is this script once more, without the library: it works through cuda-python, CuPy or PyTorch. Handles go
over a Unix socket, descriptors by SCM_RIGHTS. Each side writes words that the other one looks at. Prints a table, with the
number of failures last. Packages that are not installed are named and left out.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys

WORDS = 300_001
WAYS = ["legacy handle", "descriptor", "pool"]


# The other process.


def driver_ways():
    """Memory by cuda-python."""
    from cuda.bindings import driver as cu

    def ok(answer):
        if answer[0] != cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{answer[0]!r}")
        return answer[1] if len(answer) == 2 else answer[1:]

    ok(cu.cuInit(0))
    device = ok(cu.cuDeviceGet(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(device))))
    fd_type = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def here():
        place = cu.CUmemLocation()
        place.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = 0
        return place

    def everything():
        access = cu.CUmemAccessDesc()
        access.location = here()
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def filled(structure, token):
        ctypes.memmove(structure.getPtr(), token, 64)
        return structure

    def mapped(handle, size):
        pointer = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
        ok(cu.cuMemMap(pointer, size, 0, handle, 0))
        ok(cu.cuMemSetAccess(pointer, size, [everything()], 1))

        def close():
            ok(cu.cuMemUnmap(pointer, size))
            ok(cu.cuMemAddressFree(pointer, size))
            ok(cu.cuMemRelease(handle))

        return int(pointer), close

    def open_it(way, token, fds, size):
        if way == 0:
            handle = filled(cu.CUipcMemHandle(), token)
            pointer = ok(cu.cuIpcOpenMemHandle(handle, cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value))
            return int(pointer), lambda: ok(cu.cuIpcCloseMemHandle(pointer))
        if way == 1:
            return mapped(ok(cu.cuMemImportFromShareableHandle(fds[0], fd_type)), size)
        pool = ok(cu.cuMemPoolImportFromShareableHandle(fds[1], fd_type, 0))
        ok(cu.cuMemPoolSetAccess(pool, [everything()], 1))
        pointer = ok(cu.cuMemPoolImportPointer(pool, filled(cu.CUmemPoolPtrExportData(), token)))

        def close():
            ok(cu.cuMemFree(pointer))
            ok(cu.cuMemPoolDestroy(pool))

        return int(pointer), close

    def make(way, size):
        """The address, what closes it, its token and descriptors, the size of the allocation, and where in it it is."""
        if way == 0:
            pointer = ok(cu.cuMemAlloc(size))
            token = ctypes.string_at(ok(cu.cuIpcGetMemHandle(pointer)).getPtr(), 64)
            return int(pointer), lambda: ok(cu.cuMemFree(pointer)), token, [], size, 0
        if way == 1:
            wanted = cu.CUmemAllocationProp()
            wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            wanted.requestedHandleTypes = fd_type
            wanted.location = here()
            least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            granule = ok(cu.cuMemGetAllocationGranularity(wanted, least))
            size = (size + granule - 1) // granule * granule
            handle = ok(cu.cuMemCreate(size, wanted, 0))
            fd = int(ok(cu.cuMemExportToShareableHandle(handle, fd_type, 0)))
            pointer, close = mapped(handle, size)
            return pointer, close, bytes(64), [fd], size, 0
        wanted = cu.CUmemPoolProps()
        wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.handleTypes = fd_type
        wanted.location = here()
        pool = ok(cu.cuMemPoolCreate(wanted))
        # Two buffers of one pool: the second one is given away.
        first, pointer = (ok(cu.cuMemAllocFromPoolAsync(size, pool, 0)) for _ in range(2))
        ok(cu.cuCtxSynchronize())
        fd = int(ok(cu.cuMemPoolExportToShareableHandle(pool, fd_type, 0)))
        token = ctypes.string_at(ok(cu.cuMemPoolExportPointer(pointer)).getPtr(), 64)

        def close():
            ok(cu.cuMemFree(pointer))
            ok(cu.cuMemFree(first))
            ok(cu.cuMemPoolDestroy(pool))

        return int(pointer), close, token, [fd], size, 0

    def read(pointer, words):
        found = (ctypes.c_uint32 * words)()
        ok(cu.cuMemcpyDtoH(ctypes.addressof(found), pointer, 4 * words))
        return found

    def write(pointer, words):
        ok(cu.cuMemcpyHtoD(pointer, ctypes.addressof(words), ctypes.sizeof(words)))
        ok(cu.cuCtxSynchronize())

    return open_it, make, read, write


def cupy_ways():
    """Memory by CuPy, whose legacy handles are those of CUDA's runtime."""
    import cupy

    runtime = cupy.cuda.runtime

    def open_it(way, token, fds, size):
        pointer = runtime.ipcOpenMemHandle(token)
        return pointer, lambda: runtime.ipcCloseMemHandle(pointer)

    def make(way, size):
        kept = [cupy.cuda.memory.Memory(size)]
        pointer = kept[0].ptr
        return pointer, kept.clear, runtime.ipcGetMemHandle(pointer), [], size, 0

    def array_at(pointer, words):
        memory = cupy.cuda.UnownedMemory(pointer, 4 * words, None)
        return cupy.ndarray(words, cupy.uint32, cupy.cuda.MemoryPointer(memory, 0))

    def read(pointer, words):
        return array_at(pointer, words).get()

    def write(pointer, words):
        import numpy

        array_at(pointer, len(words))[:] = cupy.asarray(numpy.ctypeslib.as_array(words))
        cupy.cuda.Device().synchronize()

    return open_it, make, read, write


def torch_ways():
    """A tensor of PyTorch, which lies somewhere in a block of its caching allocator."""
    import torch

    kept = {}

    def make(way, size):
        torch.zeros(1000, device="cuda")  # What lies before it in the block.
        filler = torch.zeros(50_000, device="cuda")
        tensor = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
        kept[tensor.data_ptr()] = (tensor, filler)
        # With a version and a kind before the handle, as of PyTorch 2.5.
        _, handle, bytes_, offset, *_ = tensor.untyped_storage()._share_cuda_()
        return tensor.data_ptr(), kept.clear, handle[-64:], [], offset + bytes_, offset

    def read(pointer, words):
        torch.cuda.synchronize()
        return kept[pointer][0].cpu().numpy().view("uint32")

    def write(pointer, words):
        import numpy

        host = torch.from_numpy(numpy.ctypeslib.as_array(words).view("int32"))
        kept[pointer][0].copy_(host)
        torch.cuda.synchronize()

    return None, make, read, write


WITH = {"cuda-python": driver_ways, "cupy": cupy_ways, "torch": torch_ways}


def pattern(factor, more, words=WORDS):
    return (ctypes.c_uint32 * words)(*((i * factor + more) & 0xFFFFFFFF for i in range(words)))


def is_pattern(found, factor, more):
    return all(int(found[i]) == (i * factor + more) & 0xFFFFFFFF for i in range(WORDS))


def send(channel, message, fds=()):
    socket.send_fds(channel, [json.dumps(message).encode()], list(fds))


def receive(channel):
    text, fds, _, _ = socket.recv_fds(channel, 1 << 16, 4)
    if not text:
        raise EOFError("the other process is gone")
    return json.loads(text), fds


def other(channel):
    """Does what it is told, until the socket is closed."""
    ways, made = {}, None
    while True:
        try:
            asked, fds = receive(channel)
        except EOFError:
            return
        try:
            name = asked["with"]
            if name not in ways:
                try:
                    ways[name] = WITH[name]()
                except ImportError as error:
                    send(channel, {"absent": str(error)})
                    continue
            open_it, make, read, write = ways[name]
            answer, out = {}, []
            if asked["do"] == "open":
                pointer, close = open_it(asked["way"], bytes.fromhex(asked["token"]), fds, asked["bytes"])
                right = is_pattern(read(pointer, WORDS), 3, 0)
                write(pointer, pattern(5, 1))
                close()
                answer = {"right": right}
            elif asked["do"] == "make":
                pointer, close, token, out, size, offset = make(asked["way"], 4 * WORDS)
                write(pointer, pattern(7, 0))
                made = (pointer, close)
                answer = {"token": token.hex(), "bytes": size, "offset": offset}
            else:
                answer = {"right": is_pattern(read(made[0], WORDS), 7, 1)}
                made[1]()
            send(channel, answer, out)
            fds += out
        except Exception as error:  # What a library raises is what the table says.
            send(channel, {"wrong": f"{type(error).__name__}: {error}"})
        finally:
            # The lease, where there is one, is over here.
            [os.close(fd) for fd in fds]


# The process with onebuf.


class Given(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint8 * 64),
        ("fd", ctypes.c_int32),
        ("pool", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
    ]


class Absent(Exception):
    pass


def main():
    library = ctypes.CDLL(sys.argv[1])
    P = ctypes.c_void_p
    library.peer_error.restype = ctypes.c_char_p
    library.peer_open.restype, library.peer_open.argtypes = P, [ctypes.c_char_p]
    library.peer_close.argtypes = [P]
    library.peer_give.restype = ctypes.c_bool
    library.peer_give.argtypes = [P, ctypes.c_uint32, ctypes.c_size_t, ctypes.POINTER(Given)]
    library.peer_holds.restype, library.peer_holds.argtypes = ctypes.c_bool, [P, ctypes.c_uint32, ctypes.c_uint32]
    library.peer_take.restype = ctypes.c_bool
    library.peer_take.argtypes = [
        P, ctypes.c_uint32, ctypes.POINTER(Given), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32
    ]
    library.peer_live.restype, library.peer_live.argtypes = ctypes.c_uint64, [P]

    name = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
    peer = library.peer_open(name.encode())
    if not peer:
        sys.exit(f"{name}: {library.peer_error().decode()}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    command = [sys.executable, sys.argv[0], "--other", str(theirs.fileno())]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()

    def ask(message, fds=()):
        send(ours, message, fds)
        answer, came = receive(ours)
        if "absent" in answer:
            raise Absent(answer["absent"])
        if "wrong" in answer:
            raise RuntimeError(answer["wrong"])
        return answer, came

    def told(done):
        if not done:
            raise RuntimeError(library.peer_error().decode())

    def ours_there(way, package):
        given = Given(fd=-1, pool=-1)
        told(library.peer_give(peer, way, WORDS, given))
        fds = [fd for fd in (given.fd, given.pool) if fd >= 0]
        message = {"do": "open", "way": way, "token": bytes(given.token).hex(), "bytes": given.bytes, "with": package}
        answer, _ = ask(message, fds)
        [os.close(fd) for fd in fds]
        assert answer["right"], "it did not read what onebuf wrote"
        assert library.peer_holds(peer, 5, 1), "onebuf does not see what it wrote"

    def theirs_here(way, package):
        made, fds = ask({"do": "make", "way": way, "with": package})
        given = Given(fd=-1, pool=-1, bytes=made["bytes"])
        given.token[:] = bytes.fromhex(made["token"])
        if way > 0:
            given.fd = given.pool = fds[0]
        told(library.peer_take(peer, way, given, made["offset"], WORDS, 7))
        assert ask({"do": "check", "with": package})[0]["right"], "it does not see what onebuf wrote"

    def a_lie(way, package):
        """More than there is, and bytes that are no handle."""
        made, _ = ask({"do": "make", "way": way, "with": package})
        for token, size in ((made["token"], 1 << 36), ("5a" * 64, 4096), ("00" * 64, 4096)):
            given = Given(fd=-1, pool=-1, bytes=size)
            given.token[:] = bytes.fromhex(token)
            assert not library.peer_take(peer, way, given, 0, 1, 7), "it was taken"
        assert "PID namespace" in library.peer_error().decode(), library.peer_error().decode()
        # It is as it was.
        given = Given(fd=-1, pool=-1, bytes=made["bytes"])
        given.token[:] = bytes.fromhex(made["token"])
        told(library.peer_take(peer, way, given, made["offset"], WORDS, 7))
        assert ask({"do": "check", "with": package})[0]["right"]

    rows = [("onebuf's", way, "cuda-python", ours_there) for way in range(3)]
    rows += [("onebuf's", 0, "cupy", ours_there)]
    rows += [("its own", way, "cuda-python", theirs_here) for way in range(3)]
    rows += [("its own", 0, package, theirs_here) for package in ("cupy", "torch")]
    rows += [("a lie", 0, "cuda-python", a_lie)]
    passed, failed = 0, 0
    print(f"{'memory':9} {'way':14} {'other process':14} outcome")
    for memory, way, package, check in rows:
        try:
            check(way, package)
            outcome, passed = "ok", passed + 1
        except Absent as error:
            outcome = f"left out, not installed: {error}"
        except Exception as error:  # The table says it.
            outcome, failed = f"FAILED: {error}", failed + 1
        print(f"{memory:9} {WAYS[way]:14} {package:14} {outcome}", flush=True)
    live = library.peer_live(peer)
    if live:
        print(f"{live} buffer(s) live on  <-- FAILED")
        failed += 1
    ours.close()
    child.wait(60)
    library.peer_close(peer)
    if not passed and not failed:
        print("nothing was tried: neither cuda-python nor CuPy nor PyTorch is installed")
        failed = 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if sys.argv[1] == "--other":
    other(socket.socket(fileno=int(sys.argv[2])))
else:
    main()
