"""onebuf's buffers in PyTorch, CuPy, JAX and NumPy, and their tensors in onebuf, by DLPack, on a machine with CUDA.

    python3 dlpack.py libonebuf_dlpack_peer.so [device]

Prints a table, and exits 1 where something that must work does not: with PyTorch each kind of memory as a device's, and
what the CPU sees as the CPU's, in both forms, at the same address, with the deleter called. Libraries that are not
installed are named and left out.
"""

import ctypes
import gc
import importlib
import sys

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
        return tensor.data_ptr()

    return take, use


def cupy_ways():
    cupy = importlib.import_module("cupy")

    def use(array):
        array += cupy.uint32(1)
        cupy.cuda.Device().synchronize()
        return array.data.ptr

    return cupy.from_dlpack, use


def numpy_ways():
    numpy = importlib.import_module("numpy")

    def use(array):
        array += numpy.uint32(1)
        return array.ctypes.data

    return numpy.from_dlpack, use


def jax_ways():
    jax = importlib.import_module("jax")

    def use(array):
        # Its arrays do not change, so what is checked is what it reads.
        assert int(array.reshape(-1)[5]) == 15
        return array.unsafe_buffer_pointer()

    return jax.dlpack.from_dlpack, use


WAYS = {"torch": torch_ways, "cupy": cupy_ways, "numpy": numpy_ways, "jax": jax_ways}


def one(peer, ways, name, kind, view, versioned):
    """What became of one tensor in one library: `ok`, `refused` by it, `none` from onebuf, or what is wrong."""
    take, use = ways
    pointer = library.peer_export(peer, kind, view, versioned, False, WORDS)
    if not pointer:
        return "none", library.peer_error().decode()
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
    at = use(taken)
    problems = []
    if at != address:
        problems.append(f"a copy at {at:#x} of {address:#x}")
    if name != "jax" and not library.peer_check(peer, 1):
        problems.append("what it wrote is not there")
    del taken, exported
    gc.collect()
    live = library.peer_live(peer)
    if live != 0:
        problems.append(f"{live} buffer(s) live on")
    return ("ok" if not problems else "wrong"), f"{device} " + "; ".join(problems)


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
                    verdict, why = one(peer, ways, library_name, kind, view, versioned)
                    device_view = view_name == "device"
                    host_view = view_name == "host" and kind_name in ("pinned", "managed")
                    must = library_name == "torch" and (device_view or host_view)
                    must = must or library_name == "cupy" and device_view
                    bad = verdict not in ("ok", "refused", "none") or must and verdict != "ok"
                    failed += bad
                    form = "versioned" if versioned else "legacy"
                    mark = "  <-- FAILED" if bad else ""
                    print(f"{library_name:8} {kind_name:11} {view_name:10} {form:10} {verdict:8} {why}{mark}")
    if library.peer_export(peer, 0, 1, False, True, WORDS):
        print("a tensor that may only be read went out in the legacy form  <-- FAILED")
        failed += 1
    try:
        problems = back(peer)
        print("torch's tensors in onebuf:", "; ".join(problems) or "ok")
        failed += len(problems)
    except ImportError:
        pass
    library.peer_close(peer)
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


main()
