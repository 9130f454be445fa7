"""CUDA's driver and NVRTC through ctypes: as much as the two runners need, with no package but Python's own."""

import ctypes
import glob
import os
import site
import sys

c_void_p, byref = ctypes.c_void_p, ctypes.byref


def library(names, patterns):
    """The first library that loads, of `names` for the loader and then of `patterns` for glob."""
    found = []
    roots = site.getsitepackages() + [site.getusersitepackages()] + sys.path
    for pattern in patterns:
        for root in ["/usr/local"] + roots:
            found += sorted(glob.glob(os.path.join(root, pattern)), reverse=True)
    for name in [os.environ.get("ONEBUF_NVRTC", "")] * ("nvrtc" in names[0]) + found + names:
        if name:
            try:
                return ctypes.CDLL(name)
            except OSError:
                pass
    raise SystemExit(f"none of {names} loads")


class Nvrtc:
    def __init__(self):
        self.lib = library(
            ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            ["cuda*/lib64/libnvrtc.so.1[0-9]", "cuda*/targets/*/lib/libnvrtc.so.1[0-9]", "nvidia/*/lib/libnvrtc.so.1[0-9]"],
        )

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.lib.nvrtcVersion(byref(major), byref(minor))
        return major.value, minor.value

    def _bytes(self, program, size, get):
        length = ctypes.c_size_t()
        size(program, byref(length))
        buffer = ctypes.create_string_buffer(length.value)
        get(program, buffer)
        return buffer.raw

    def compile(self, source, architecture, options=()):
        """The cubin, or an exception with the log."""
        program = c_void_p()
        self.lib.nvrtcCreateProgram(byref(program), source.encode(), b"kernel.cu", 0, None, None)
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"] + [o.encode() for o in options]
        status = self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = self._bytes(program, self.lib.nvrtcGetProgramLogSize, self.lib.nvrtcGetProgramLog).decode(errors="replace")
        if status:
            raise RuntimeError(log[:4000])
        cubin = self._bytes(program, self.lib.nvrtcGetCUBINSize, self.lib.nvrtcGetCUBIN)
        self.lib.nvrtcDestroyProgram(byref(program))
        return cubin


class Cuda:
    """One device, its primary context, and calls that raise."""

    def __init__(self, ordinal=0):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.device = ctypes.c_int()
        self("cuDeviceGet", byref(self.device), ordinal)
        self.context = c_void_p()
        self("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        function = getattr(self.lib, name + "_v2", None) if name in VERSIONED else getattr(self.lib, name)
        status = function(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(status, byref(text))
            raise RuntimeError(f"{name}: {status} {(text.value or b'').decode()}")

    def attribute(self, attribute):
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", byref(value), attribute, self.device)
        return value.value

    def name(self):
        buffer = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", buffer, 256, self.device)
        return buffer.value.decode()

    def architecture(self):
        return f"sm_{self.attribute(75)}{self.attribute(76)}"

    def alloc(self, size):
        pointer = ctypes.c_uint64()
        self("cuMemAlloc", byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer

    def free(self, pointer):
        self("cuMemFree", pointer)

    def write(self, pointer, data):
        self("cuMemcpyHtoD", pointer, data, ctypes.c_size_t(len(data)))

    def read(self, pointer, size):
        buffer = ctypes.create_string_buffer(max(size, 1))
        self("cuMemcpyDtoH", buffer, pointer, ctypes.c_size_t(size))
        return buffer.raw[:size]

    def module(self, cubin):
        module = c_void_p()
        self("cuModuleLoadData", byref(module), cubin)
        return module

    def function(self, module, name):
        function = c_void_p()
        self("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(self, function, grid, block, values, stream=None):
        """`values` are ctypes objects, which must outlive the call."""
        pointers = (c_void_p * max(len(values), 1))(*[ctypes.addressof(value) for value in values])
        self("cuLaunchKernel", function, *grid, *block, 0, stream, pointers, None)

    def synchronize(self):
        self("cuCtxSynchronize")


VERSIONED = {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH"}
