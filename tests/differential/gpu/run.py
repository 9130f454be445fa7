"""Runs what `export` wrote on an NVIDIA GPU, and compares with the Vulkan device's results.

    python3 run.py FOLDER [--limit FILES] [--programs N] [--seconds S]

Prints a table last. Exits with 1 if anything differs.
"""

import argparse
import ctypes
import glob
import gzip
import json
import math
import multiprocessing
import os
import struct
import sys
import time

from cuda import Cuda, Nvrtc


def load(path):
    with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as file:
        return json.load(file)


def compile_file(arguments):
    path, prelude, architecture = arguments
    started = time.time()
    data = load(path)
    try:
        cubin = Nvrtc().compile(prelude + data["source"], architecture)
    except RuntimeError as error:
        return path, None, str(error), time.time() - started
    return path, cubin, "", time.time() - started


def tiny(bits):
    return bits & 0x7F800000 == 0


def same_float(a, b):
    nan = lambda bits: bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF
    return a == b or (tiny(a) and tiny(b)) or (nan(a) and nan(b))


def check_exact(program, index, got, expected, mask):
    """Differences in the bytes that count; the sign of a zero does not."""
    if got == expected:
        return None
    table = "probes" in program and index == program["out"]
    for at in range(0, len(got), 4):
        g, e, m = got[at : at + 4], expected[at : at + 4], mask[at : at + 4]
        if all(a == b or not c for a, b, c in zip(g, e, m)):
            continue
        a, b = int.from_bytes(g, "little"), int.from_bytes(e, "little")
        if table:
            expression, is_float = program["probes"][at // 4 % len(program["probes"])]
            if is_float and same_float(a, b):
                continue
            return f"{expression} (row {at // 4 // len(program['probes'])}): {a:#x}, not {b:#x}"
        if (a | b) == 0x80000000:
            continue
        return f"buffer {index} byte {at}: {a:#x}, not {b:#x}"
    return None


def check_near(program, out):
    faults = []
    for index, value, error in program.get("near", []):
        got = struct.unpack_from("<f", out, 4 * index)[0]
        if not abs(got - value) <= error + 1.2e-38:
            expression = program["probes"][index % len(program["probes"])][0]
            faults.append(f"{expression} (row {index // len(program['probes'])}): {got!r}, not {value!r} within {error:g}")
    return faults


def run_program(cuda, module, program):
    pointers = []
    values = []
    buffers = [bytes.fromhex(text) for text in program["buffers"]]
    try:
        for data in buffers:
            pointer = cuda.alloc(len(data))
            pointers.append(pointer)
            cuda.write(pointer, data)
        for kind, value in program["params"]:
            if kind == "buffer":
                values.append(pointers[value])
            else:
                data = bytes.fromhex(value)
                values.append((ctypes.c_char * len(data)).from_buffer_copy(data))
        function = cuda.function(module, program["kernel"])
        cuda.launch(function, program["grid"], program["block"], values)
        cuda.synchronize()
        results = [cuda.read(pointer, len(data)) for pointer, data in zip(pointers, buffers)]
    finally:
        for pointer in pointers:
            cuda.free(pointer)
    faults = []
    for index, (got, expected, mask) in enumerate(zip(results, program["expected"], program["data"])):
        fault = check_exact(program, index, got, bytes.fromhex(expected), bytes.fromhex(mask))
        if fault:
            faults.append(fault)
    if "out" in program:
        faults += check_near(program, results[program["out"]])
    return faults, sum(len(data) for data in buffers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--limit", type=int, default=0, help="files of random programs, 0 for all")
    parser.add_argument("--programs", type=int, default=0, help="programs of each file, 0 for all")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no file after this time")
    parser.add_argument("--cubins", help="a folder to keep cubins in, or to take them from")
    options = parser.parse_args()
    started = time.time()
    paths = sorted(glob.glob(os.path.join(options.folder, "tables.json*")))
    programs = sorted(glob.glob(os.path.join(options.folder, "programs_*.json*")))
    paths += programs[: options.limit] if options.limit else programs
    prelude = open(os.path.join(options.folder, "prelude.cuh")).read()
    cubins = {}
    missing = []
    for path in paths:
        kept = options.cubins and os.path.join(options.cubins, os.path.basename(path) + ".cubin")
        if kept and os.path.exists(kept):
            cubins[path] = (open(kept, "rb").read(), "")
        else:
            missing.append(path)
    seconds = 0.0
    # The context comes after the workers, which must not inherit it.
    architecture = os.environ.get("ONEBUF_ARCHITECTURE", "sm_90")
    if missing:
        with multiprocessing.get_context("fork").Pool(min(len(missing), os.cpu_count() or 1)) as pool:
            for path, cubin, log, took in pool.imap_unordered(compile_file, [(p, prelude, architecture) for p in missing]):
                cubins[path] = (cubin, log)
                seconds += took
                if options.cubins and cubin:
                    os.makedirs(options.cubins, exist_ok=True)
                    with open(os.path.join(options.cubins, os.path.basename(path) + ".cubin"), "wb") as file:
                        file.write(cubin)
    compiled_after = time.time() - started
    cuda = Cuda()
    rows, faults, ran, tables, values = [], [], 0, 0, 0
    for path in paths:
        if time.time() - started > options.seconds:
            faults.append(f"{os.path.basename(path)}: no time left")
            continue
        cubin, log = cubins[path]
        if cubin is None:
            faults.append(f"{os.path.basename(path)}: NVRTC refused it: {log[:1500]}")
            continue
        data = load(path)
        module = cuda.module(cubin)
        chosen = data["programs"][: options.programs] if options.programs else data["programs"]
        for program in chosen:
            try:
                found, _ = run_program(cuda, module, program)
            except RuntimeError as error:
                faults.append(f"{program['name']}: {error}")
                print("\n".join(faults[:50]))
                sys.exit(1)
            if "probes" in program:
                tables += 1
                values += len(program["expected"][program["out"]]) // 8
                rows.append((program["name"], len(found)))
            else:
                ran += 1
            faults += [f"{program['name']}: {fault}" for fault in found]
    for fault in faults[:60]:
        print("FAULT", fault)
    print(f"device {cuda.name()} {cuda.architecture()}, NVRTC {Nvrtc().version()}, {len(missing)} files compiled in "
          f"{compiled_after:.1f} s ({seconds:.1f} s of compiler time), all in {time.time() - started:.1f} s")
    for name, count in rows:
        print(f"  table {name:24} {count} faults")
    print(f"RESULT {tables} tables with {values} values, {ran} random programs: {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
