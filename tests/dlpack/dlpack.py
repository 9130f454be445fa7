"""onebuf's buffers in PyTorch, CuPy, JAX and NumPy, and their tensors in onebuf, by DLPack, on a machine with CUDA.

    python3 dlpack.py libonebuf_dlpack_peer.so [device]

Prints a table, and exits 1 where something that must work does not, at the same address, with the deleter called:

- PyTorch takes each kind of memory as a device's, and what the CPU sees as the CPU's, in both forms; CuPy the device's in both,
  NumPy the CPU's in both; JAX both, in the legacy form.
- PyTorch and CuPy take a tensor on a stream of theirs while onebuf's work on it is under way: no host waits, the stream does.
- PyTorch's tensors are buffers of onebuf.

Libraries that are not installed are named and left out. The device may also be a Vulkan one: all its memory goes out as
the CPU's.
"""

import ctypes
import gc
import importlib
import sys
import time

KINDS = ["device", "pinned", "managed", "exportable"]
VIEWS = ["placement", "device", "host"]
WORDS = 4096

library = ctypes.CDLL(sys.argv[1])
P, C = ctypes.c_void_p, ctypes.c_char_p
library.peer_error.restype = C
library.peer_open.restype, library.peer_open.argtypes = P, [C]
library.peer_close.argtypes = [P]
library.peer_export.restype = P
library.peer_export.argtypes = [P, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_bool, ctypes.c_bool, ctypes.c_size_t]
library.peer_address.restype, library.peer_address.argtypes = ctypes.c_uint64, [P]
library.peer_check.restype, library.peer_check.argtypes = ctypes.c_bool, [P, ctypes.c_uint32]
library.peer_live.restype, library.peer_live.argtypes = ctypes.c_uint64, [P]
library.peer_start.restype = ctypes.c_bool
library.peer_start.argtypes = [P, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_size_t]
library.peer_is_done.restype, library.peer_is_done.argtypes = ctypes.c_int32, [P]
library.peer_export_on.restype = P
library.peer_export_on.argtypes = [P, ctypes.c_uint32, ctypes.c_bool, ctypes.c_bool, ctypes.c_int64]
library.peer_import.restype, library.peer_import.argtypes = ctypes.c_bool, [P, P, ctypes.c_bool]

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [P, C, P]
python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = P, [ctypes.py_object, C]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, C]
python.PyCapsule_IsValid.restype, python.PyCapsule_IsValid.argtypes = ctypes.c_int, [ctypes.py_object, C]
# Capsules keep the address of their name.
NAMES = {True: C(b"dltensor_versioned"), False: C(b"dltensor")}
USED = {True: C(b"used_dltensor_versioned"), False: C(b"used_dltensor")}


class Exported:
    """What a library's from_dlpack takes: an object that gives a capsule, and says where its memory is."""

    def __init__(self, pointer, versioned, device):
        self.capsule = python.PyCapsule_New(pointer, NAMES[versioned], None)
        self.device = device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


class Ordered:
    """A buffer with work under way. Its consumer says on which stream it uses it."""

    def __init__(self, peer, view, device):
        self.peer, self.view, self.device = peer, view, device
        self.stream = "not asked"

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.stream = stream
        versioned = max_version is not None and max_version[0] >= 1
        pointer = library.peer_export_on(self.peer, self.view, versioned, stream is not None, stream or 0)
        if not pointer:
            raise BufferError(library.peer_error().decode())
        return python.PyCapsule_New(pointer, NAMES[versioned], None)

    def __dlpack_device__(self):
        return self.device


def label(pointer, versioned):
    """The device that a tensor's structure names."""
    offset = 32 + 8 if versioned else 8  # version, context, deleter, flags, data; or data
    return tuple((ctypes.c_int32 * 2).from_address(pointer + offset))


def release(pointer, versioned):
    """Calls the deleter of a tensor that nobody took."""
    offset = 16 if versioned else 56
    address = ctypes.c_void_p.from_address(pointer + offset).value
    ctypes.CFUNCTYPE(None, P)(address)(pointer)


def torch_ways():
    torch = importlib.import_module("torch")

    def take(exported):
        return torch.from_dlpack(exported)

    def use(tensor):
        # In place, on the device or the CPU. PyTorch adds in 32 bits without a sign only as with one.
        tensor.view(torch.int32).add_(1)
        if tensor.is_cuda:
            torch.cuda.synchronize()
        return tensor.data_ptr(), 1

    return take, use


def cupy_ways():
    cupy = importlib.import_module("cupy")

    def use(array):
        array += cupy.uint32(1)
        cupy.cuda.Device().synchronize()
        return array.data.ptr, 1

    return cupy.from_dlpack, use


def numpy_ways():
    numpy = importlib.import_module("numpy")

    def use(array):
        # A capsule of the legacy form cannot say that it may be written, and NumPy takes it as one that may not.
        if array.flags.writeable:
            array += numpy.uint32(1)
            return array.ctypes.data, 1
        assert array.reshape(-1).tolist() == list(range(0, 3 * WORDS, 3)), "it reads other words"
        return array.ctypes.data, 0

    return numpy.from_dlpack, use


def jax_ways():
    jax = importlib.import_module("jax")

    def use(array):
        # Its arrays do not change, so what is checked is what it reads.
        assert array.reshape(-1).tolist() == list(range(0, 3 * WORDS, 3)), "it reads other words"
        return array.unsafe_buffer_pointer(), 0

    return jax.dlpack.from_dlpack, use


# In each: how a tensor is taken; and how it is used, which gives its address, and what was added to its words.
WAYS = {"torch": torch_ways, "cupy": cupy_ways, "numpy": numpy_ways, "jax": jax_ways}


def one(peer, ways, kind, view, versioned):
    """What became of one tensor in one library: `ok`, `refused` by it, `none` from onebuf, or what is wrong."""
    take, use = ways
    pointer = library.peer_export(peer, kind, view, versioned, False, WORDS)
    if not pointer:
        return "none", library.peer_error().decode().splitlines()[0]
    address = library.peer_address(peer)
    device = label(pointer, versioned)
    exported = Exported(pointer, versioned, device)
    try:
        taken = take(exported)
    except Exception as error:  # What a library raises is its own affair.
        if python.PyCapsule_IsValid(exported.capsule, NAMES[versioned]):
            release(pointer, versioned)
        live = library.peer_live(peer)
        verdict = "refused" if live == 0 else f"refused, and {live} buffer(s) live"
        return verdict, f"{device}: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    problems = []
    try:
        at, added = use(taken)
        if at != address:
            problems.append(f"a copy at {at:#x} of {address:#x}")
        if not library.peer_check(peer, added):
            problems.append("what it wrote is not there" if added else "the words are others now")
    except Exception as error:
        problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}")
    del taken, exported
    gc.collect()
    live = library.peer_live(peer)
    if live != 0:
        problems.append(f"{live} buffer(s) live on")
    return ("ok" if not problems else "wrong"), f"{device} " + "; ".join(problems)


def long_enough(peer, kind):
    """Steps that keep a device busy for at least 0.2 s."""
    steps = 1 << 16
    while True:
        library.peer_live(peer)
        if not library.peer_start(peer, kind, steps, WORDS):
            return None
        start = time.perf_counter()
        while library.peer_is_done(peer) == 0:
            time.sleep(0.001)
        if library.peer_is_done(peer) != 1:
            return None
        took = time.perf_counter() - start
        if took > 0.2 or steps >= 1 << 30:
            return steps
        steps = min(1 << 30, int(steps * max(2, min(16, 0.3 / max(took, 0.001)))))


def on_streams(peer, name, ordinal, steps):
    """What a library reads on a stream of its own while onebuf's work is under way; with one that is told not to wait."""
    module = importlib.import_module(name)
    torch = name == "torch"
    side = module.cuda.Stream() if torch else module.cuda.Stream(non_blocking=True)

    def use(exported):
        """On the stream, and without a wait: the words, and what was computed of them."""
        with module.cuda.stream(side) if torch else side:
            taken = None if exported is None else module.from_dlpack(exported)
            if torch:
                source = module.zeros(WORDS, dtype=module.int32, device="cuda") if taken is None else taken
                return taken, source.view(module.int32) + 0
            source = module.zeros(WORDS, dtype=module.uint32) if taken is None else taken
            return taken, source + module.uint32(0)

    # Loading a kernel and taking memory from the driver may wait for the whole device, so both are done before.
    warm = use(None)
    side.synchronize()
    del warm
    problems, told = [], []
    for waits in (True, False):
        library.peer_live(peer)
        if not library.peer_start(peer, 0, steps, WORDS):
            return [library.peer_error().decode()], ""
        exported = Ordered(peer, 1, (2, ordinal))
        start = time.perf_counter()
        taken, words = use(exported if waits else Unordered(exported))
        issued = time.perf_counter() - start
        was_done = library.peer_is_done(peer) != 0
        side.synchronize()
        waited = time.perf_counter() - start
        now_done = library.peer_is_done(peer) == 1
        right = words.tolist() == list(range(0, 3 * WORDS, 3))
        told.append(f"stream {exported.stream}: issued in {issued * 1e3:.2f} ms, there after {waited * 1e3:.1f}")
        if waits:
            if was_done:
                problems.append(f"the host waited: {issued * 1e3:.1f} ms, and the work was over")
            if not right:
                problems.append("the stream did not wait: it read old words")
            if not now_done:
                problems.append("the stream was done before onebuf's work")
        elif right and not was_done:
            problems.append("without order it read new words: this test shows nothing")
        del taken, words, exported
        gc.collect()
    live = library.peer_live(peer)
    if live != 0:
        problems.append(f"{live} buffer(s) live on")
    return problems, "; ".join(told)


class Unordered:
    """Another tensor, whose consumer is taken to have said that nobody is to wait."""

    def __init__(self, exported):
        self.exported = exported

    def __dlpack__(self, *, stream=None, **said):
        return self.exported.__dlpack__(stream=-1, **said)

    def __dlpack_device__(self):
        return self.exported.__dlpack_device__()


def on_the_host(peer, kind, view, device, steps):
    """What NumPy, which says no stream, reads of a buffer with work under way."""
    numpy = importlib.import_module("numpy")
    library.peer_live(peer)
    if not library.peer_start(peer, kind, steps, WORDS):
        return [library.peer_error().decode()]
    exported = Ordered(peer, view, device)
    words = numpy.from_dlpack(exported)
    problems = []
    if library.peer_is_done(peer) != 1:
        problems.append("nobody waited for the work")
    if words.tolist() != list(range(0, 3 * WORDS, 3)):
        problems.append("it read old words")
    if exported.stream is not None:
        problems.append(f"it said the stream {exported.stream}")
    del words, exported
    gc.collect()
    return problems


def streams(peer, name):
    """Who waits for work that is under way when a tensor goes out."""
    failed = 0
    device, _, number = name.partition(":")
    cuda, ordinal = device == "cuda", int(number or 0)
    for stream in (0, -2):
        if library.peer_start(peer, 0, 1, WORDS) and library.peer_export_on(peer, 2 - cuda, True, True, stream):
            print(f"a tensor went out for the stream {stream}  <-- FAILED")
            failed += 1
    kinds = [(1, 0, (3, 0)), (2, 0, (13, ordinal)), (1, 2, (1, 0)), (2, 2, (1, 0))] if cuda else [(0, 2, (1, 0))]
    runs = [("numpy", lambda steps, at=at: (on_the_host(peer, *at, steps), f"{KINDS[at[0]]}, label {at[2][0]}"), at[0]) for at in kinds]
    if cuda:
        runs += [(name, lambda steps, name=name: on_streams(peer, name, ordinal, steps), 0) for name in ("torch", "cupy")]
    for name, run, kind in runs:
        steps = long_enough(peer, kind)
        if steps is None:
            print(f"work of {KINDS[kind]} memory: {library.peer_error().decode()}  <-- FAILED")
            failed += 1
            continue
        try:
            problems, told = run(steps)
        except ImportError:
            continue
        except Exception as error:
            problems, told = [f"{type(error).__name__}: {error}"], ""
        mark = "  <-- FAILED" if problems else ""
        print(f"{name:8} while work is under way: {'; '.join(problems) or 'ok'} ({told}){mark}")
        failed += len(problems)
    library.peer_live(peer)
    return failed


def back(peer):
    """PyTorch's tensors in onebuf, in both directions of time: its memory, a kernel of onebuf, its eyes."""
    torch = importlib.import_module("torch")
    problems = []
    # A fourth of those imports is of a tensor that is gone before onebuf uses it: the tensor's owner is onebuf then.
    for size in (1024, 1 << 20):
        tensor = torch.arange(size, dtype=torch.int32, device="cuda").view(torch.uint32)
        torch.cuda.synchronize()
        capsule = torch.utils.dlpack.to_dlpack(tensor)
        versioned = bool(python.PyCapsule_IsValid(capsule, NAMES[True]))
        pointer = python.PyCapsule_GetPointer(capsule, NAMES[versioned])
        python.PyCapsule_SetName(capsule, USED[versioned])
        if not library.peer_import(peer, pointer, versioned):
            problems.append(library.peer_error().decode())
            continue
        expected = torch.arange(1, size + 1, dtype=torch.int32, device="cuda")
        if not torch.equal(tensor.view(torch.int32), expected):
            problems.append(f"{size} elements: onebuf's kernel did not add to them")
    strided = torch.zeros(64, 64, dtype=torch.int32, device="cuda").t()
    capsule = torch.utils.dlpack.to_dlpack(strided)
    versioned = bool(python.PyCapsule_IsValid(capsule, NAMES[True]))
    pointer = python.PyCapsule_GetPointer(capsule, NAMES[versioned])
    python.PyCapsule_SetName(capsule, USED[versioned])
    if library.peer_import(peer, pointer, versioned):
        problems.append("a transposed tensor of another type was taken")
    if library.peer_live(peer) != 0:
        problems.append("buffers live on")
    return problems


def main():
    name = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
    peer = library.peer_open(name.encode())
    if not peer:
        sys.exit(f"{name}: {library.peer_error().decode()}")
    failed = 0
    print(f"{'library':8} {'kind':11} {'view':10} {'form':10} {'outcome':8} details")
    for library_name, make in WAYS.items():
        try:
            ways = make()
        except ImportError as error:
            print(f"{library_name:8} not installed: {error}")
            continue
        for kind, kind_name in enumerate(KINDS):
            for view, view_name in enumerate(VIEWS):
                for versioned in (True, False):
                    verdict, why = one(peer, ways, kind, view, versioned)
                    # Of a device that is not CUDA's only the CPU's view is there, and not of every kind.
                    on_cuda = name.startswith("cuda")
                    near = kind_name in ("pinned", "managed") if on_cuda else verdict != "none"
                    device_view, host_view = on_cuda and view_name == "device", near and view_name == "host"
                    must = {
                        "torch": device_view or host_view,
                        "cupy": device_view,
                        "numpy": host_view,
                        "jax": (device_view or host_view) and not versioned,
                    }[library_name] 
                    bad = verdict not in ("ok", "refused", "none") or must and verdict != "ok"
                    failed += bad
                    form = "versioned" if versioned else "legacy"
                    mark = "  <-- FAILED" if bad else ""
                    print(f"{library_name:8} {kind_name:11} {view_name:10} {form:10} {verdict:8} {why}{mark}")
    if library.peer_export(peer, 0, 1 if name.startswith("cuda") else 2, False, True, WORDS):
        print("a tensor that may only be read went out in the legacy form  <-- FAILED")
        failed += 1
    failed += streams(peer, name)
    try:
        if not name.startswith("cuda"):
            raise ImportError("its tensors are CUDA's here")
        problems = back(peer)
        print("torch's tensors in onebuf:", "; ".join(problems) or "ok")
        failed += len(problems)
    except ImportError:
        pass
    except Exception as error:
        print(f"torch's tensors in onebuf: {type(error).__name__}: {error}  <-- FAILED")
        failed += 1
    library.peer_close(peer)
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


main()
