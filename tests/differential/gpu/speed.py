"""Times translated kernels against hand-written CUDA C++ of the same algorithm.

    python3 speed.py FOLDER [--rounds N]

`export FOLDER speed` makes the input. Every result is checked; outputs are poisoned before each round; the order of the
variants turns from round to round; a ratio is the median over the rounds of hand-written time over translated time, so
that 1.0 is as fast and more is faster. The control times the hand-written kernel against itself.
"""

import argparse
import array
import ctypes
import json
import math
import os
import random
import statistics
import struct
import sys

from cuda import Cuda, Nvrtc

N = 1 << 26


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def floats(count, period, scale):
    """Small numbers that repeat, so that sums are exact and transfers compress to one block."""
    block = array.array("f", [((i * 7919) % period - period // 2) * scale for i in range(1 << 16)])
    return block.tobytes() * (count >> 16)


class Job:
    """Buffers (bytes or sizes), immediates, launch and check of one kernel."""

    def __init__(self, buffers, outputs, immediates, hand_scalars, grid, block, check, traffic):
        self.buffers, self.outputs, self.immediates = buffers, outputs, immediates
        self.hand_scalars, self.grid, self.block, self.check, self.traffic = hand_scalars, grid, block, check, traffic


def close(got, want, error):
    return all(abs(g - w) <= error * max(1.0, abs(w)) for g, w in zip(got, want)) and len(got) == len(want)


def unpack(kind, data, count, offset=0):
    return struct.unpack_from(f"<{count}{kind}", data, offset)


def jobs():
    made = {}
    x, y = floats(N, 1001, 0.25), floats(N, 501, 0.5)

    def saxpy(results):
        a, b, got = unpack("f", x, 4096, 4096), unpack("f", y, 4096, 4096), unpack("f", results[1], 4096, 4096)
        return close(got, [2.0 * p + q for p, q in zip(a, b)], 0.0)

    made["saxpy"] = Job([x, y], [1], struct.pack("<fI", 2.0, N), struct.pack("<fI", 2.0, N), (N // 256, 1, 1), (256, 1, 1), saxpy, 12 * N)

    side = int(N ** 0.5)

    def transpose(results):
        points = [(random.randrange(side), random.randrange(side)) for _ in range(3000)]
        return all(
            results[1][4 * (px * side + py) : 4 * (px * side + py) + 4] == x[4 * (py * side + px) : 4 * (py * side + px) + 4]
            for px, py in points
        )

    made["transpose"] = Job([x, len(x)], [1], u32(side, side), u32(side, side), (side // 32, side // 32, 1), (32, 8, 1), transpose, 8 * N)

    n = 2048
    a, b = floats(n * n, 17, 0.125), floats(n * n, 23, 0.25)

    def matmul(results):
        for _ in range(60):
            r, c = random.randrange(n), random.randrange(n)
            row, column = unpack("f", a, n, 4 * r * n), [unpack("f", b, 1, 4 * (k * n + c))[0] for k in range(n)]
            want = sum(p * q for p, q in zip(row, column))
            if abs(unpack("f", results[2], 1, 4 * (r * n + c))[0] - want) > 1e-3 * max(1.0, abs(want)):
                return False
        return True

    made["matmul"] = Job([a, b, 4 * n * n], [2], u32(n), u32(n), (n // 64, n // 64, 1), (16, 16, 1), matmul, 0)

    total = sum(array.array("f", x[: 4 << 16])) * (N >> 16)
    reduced = lambda results: abs(sum(unpack("f", results[1], 2048)) - total) <= 1e-6 * max(1.0, abs(total))
    made["reduce_tree"] = Job([x, 4 * 2048], [1], u32(N), u32(N), (2048, 1, 1), (256, 1, 1), reduced, 4 * N)
    made["reduce_subgroup"] = Job([x, 4 * 2048], [1], u32(N), u32(N), (2048, 1, 1), (256, 1, 1), reduced, 4 * N)

    noise = random.Random(5).randbytes(1 << 20) * (4 * N >> 20)
    counts = [0] * 256
    for byte in noise[: 1 << 20]:
        counts[byte] += 4 * N >> 20
    histogram = lambda results: list(unpack("I", results[1], 256)) == counts
    made["histogram"] = Job([noise, bytes(1024)], [1], u32(4 * N), u32(4 * N), (2048, 1, 1), (256, 1, 1), histogram, 4 * N)

    m = 65536
    source = random.Random(7)
    bodies = struct.pack(f"<{4 * m}f", *[source.uniform(-1, 1) if i % 4 < 3 else 1.0 / m for i in range(4 * m)])
    positions = unpack("f", bodies, 4 * m)

    def nbody(results):
        for i in [0, 777, m - 1]:
            ax = 0.0
            for j in range(m):
                r = [positions[4 * j + k] - positions[4 * i + k] for k in range(3)]
                ax += r[0] * positions[4 * j + 3] / (r[0] * r[0] + r[1] * r[1] + r[2] * r[2] + 0.01) ** 1.5
            if abs(unpack("f", results[1], 1, 16 * i)[0] - 0.01 * ax) > 1e-5:
                return False
        return True

    made["nbody"] = Job([bodies, bytes(16 * m), 16 * m], [1, 2], struct.pack("<ffI", 0.01, 0.01, m), struct.pack("<ffI", 0.01, 0.01, m), (m // 256, 1, 1), (256, 1, 1), nbody, 0)
    return made


def values(variant, job, pointers):
    """The parameters in order: translated kernels say theirs, hand-written ones take buffers and then scalars."""
    if "params" not in variant:
        scalars = [ctypes.c_uint32(word) for (word,) in struct.iter_unpack("<I", job.hand_scalars)]
        return list(pointers) + scalars
    made = []
    for param in variant["params"]:
        if param[0] == "buffer":
            made.append(pointers[param[1]])
        elif param[0] == "length":
            data = job.buffers[param[1]]
            size = data if isinstance(data, int) else len(data)
            made.append(ctypes.c_uint32(size // param[2]))
        else:
            made.append((ctypes.c_char * param[1]).from_buffer_copy(job.immediates.ljust(param[1], b"\0")))
    return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    nvrtc, cuda = Nvrtc(), Cuda()
    architecture = cuda.architecture()
    start, end = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuEventCreate", ctypes.byref(start), 0)
    cuda("cuEventCreate", ctypes.byref(end), 0)
    made, table, geometric = jobs(), [], {"checked": [], "unchecked": []}
    failed = False
    for kernel in sorted(json.load(open(os.path.join(options.folder, "speed.json"))), key=lambda k: k["name"]):
        name = kernel["name"]
        job = made[name]
        pointers = []
        for data in job.buffers:
            pointer = cuda.alloc(data if isinstance(data, int) else len(data))
            if not isinstance(data, int):
                cuda.write(pointer, data)
            pointers.append(pointer)
        variants = {"hand": kernel["hand"], "control": kernel["hand"], "unchecked": kernel["unchecked"], "checked": kernel["checked"]}
        functions, parameters, times = {}, {}, {key: [] for key in variants}
        for key, variant in variants.items():
            module = cuda.module(nvrtc.compile(variant["source"], architecture))
            functions[key] = cuda.function(module, variant["kernel"])
            parameters[key] = values(variant, job, pointers)

        def reset():
            for index in job.outputs:
                data = job.buffers[index]
                if isinstance(data, int):
                    cuda("cuMemsetD8_v2", pointers[index], 0xCD, ctypes.c_size_t(data))
                else:
                    cuda.write(pointers[index], data)

        for key in variants:
            reset()
            cuda.launch(functions[key], job.grid, job.block, parameters[key])
            cuda.synchronize()
            sizes = [data if isinstance(data, int) else len(data) for data in job.buffers]
            results = [cuda.read(p, s) if i in job.outputs else b"" for i, (p, s) in enumerate(zip(pointers, sizes))]
            if not job.check(results):
                print(f"WRONG {name} {key}")
                failed = True
        keys = list(variants)
        small = [i for i in job.outputs if isinstance(job.buffers[i], int)]
        repeats = 5
        for turn in range(options.rounds + 2):
            for key in keys[turn % 4 :] + keys[: turn % 4]:
                for index in small:
                    cuda("cuMemsetD8_v2", pointers[index], 0xCD, ctypes.c_size_t(job.buffers[index]))
                cuda.launch(functions[key], job.grid, job.block, parameters[key])
                cuda("cuEventRecord", start, None)
                for _ in range(repeats):
                    cuda.launch(functions[key], job.grid, job.block, parameters[key])
                cuda("cuEventRecord", end, None)
                cuda("cuEventSynchronize", end)
                elapsed = ctypes.c_float()
                cuda("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
                if turn >= 2:
                    times[key].append(elapsed.value / repeats)
        ratio = {key: statistics.median(h / t for h, t in zip(times["hand"], times[key])) for key in keys}
        for key in geometric:
            geometric[key].append(ratio[key])
        milliseconds = statistics.median(times["hand"])
        rate = f"{job.traffic / milliseconds / 1e6:8.0f} GB/s" if job.traffic else " " * 13
        table.append(f"{name:16} hand {milliseconds:8.4f} ms {rate}  control {ratio['control']:.3f}  "
                     f"unchecked {ratio['unchecked']:.3f}  checked {ratio['checked']:.3f}")
        for pointer in pointers:
            cuda.free(pointer)
    print(f"device {cuda.name()}, NVRTC {nvrtc.version()}, {options.rounds} rounds; hand-written time / translated time")
    for line in table:
        print(line)
    mean = lambda ratios: math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"SPEED geometric mean: unchecked {mean(geometric['unchecked']):.3f}, checked {mean(geometric['checked']):.3f}"
          f"{'  RESULTS WRONG' if failed else ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
