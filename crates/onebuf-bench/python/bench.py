"""The lines of `onebuf bench` in PyTorch and CuPy, on a machine with CUDA.

    python3 bench.py [--rounds 12] > python.json
    python3 bench.py --table onebuf.json python.json   # onebuf's JSON beside it, as the table of docs/benchmarks.md

The work is that of crates/onebuf-bench: a kernel of one thread that steps a word (line 1, 2, 3, 4), 64 MiB there and back
(5), 1 MiB taken and given back (6). What is computed is checked. Times are medians of rounds, in microseconds; lines 2, 3
and 6 are CPU time of the calling thread, the others are time on the wall, as in onebuf's own.
"""

import argparse
import json
import statistics
import sys
import time

STEP = "extern \"C\" __global__ void step(unsigned* cell, unsigned k) { cell[0] = cell[0] * 3u + k; }"
WORDS = 16 << 20


def median_of(rounds, sample):
    for _ in range(2):
        sample()
    return statistics.median(sample() for _ in range(rounds))


def wall(work):
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e3


def cpu(work):
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / 1e3


class Chain:
    """The words that the steps must leave."""

    def __init__(self, count=1):
        self.words = [(0x9E3779B9 * (i + 1)) & 0xFFFFFFFF for i in range(count)]

    def step(self, at, k):
        self.words[at] = (self.words[at] * 3 + k) & 0xFFFFFFFF


def check(found, expected):
    if list(found) != list(expected):
        sys.exit(f"wrong result: {found}, and it should be {expected}")


def cupy_lines(rounds):
    import cupy
    import numpy

    kernel = cupy.RawKernel(STEP, "step")
    stream = cupy.cuda.Stream(non_blocking=True)
    lines = []

    def line(number, name, value):
        lines.append({"line": number, "name": name, "unit": "us", "value": value})

    with stream:
        chain = Chain()
        cell = cupy.asarray(numpy.array(chain.words, dtype=numpy.uint32))

        def launch_and_wait(read):
            times = []
            for k in range(24):
                def work():
                    kernel((1,), (1,), (cell, numpy.uint32(k)))
                    return int(cell[0]) if read else stream.synchronize()

                times.append(wall(work))
                chain.step(0, k)
            check(cell.get(), chain.words)
            return statistics.median(times[1:])

        line(1, "tiny kernel, launch and wait", median_of(rounds, lambda: launch_and_wait(False)))
        line(4, "a 4-byte result to the CPU", median_of(rounds, lambda: launch_and_wait(True)))

        many = Chain(10)
        cells = [cupy.asarray(numpy.array([word], dtype=numpy.uint32)) for word in many.words]

        def launches():
            def work():
                for k in range(1000):
                    kernel((1,), (1,), (cells[k % 10], numpy.uint32(k)))

            taken = cpu(work)
            stream.synchronize()
            for k in range(1000):
                many.step(k % 10, k)
            check([int(cell[0]) for cell in cells], many.words)
            return taken / 1000

        line(2, "1,000 launches, each", median_of(rounds, launches))

        for nodes in (10, 1000):
            stream.begin_capture()
            for k in range(nodes):
                kernel((1,), (1,), (cells[k % 10], numpy.uint32(k)))
            graph = stream.end_capture()
            graph.upload(stream)
            stream.synchronize()

            def replay():
                taken = cpu(lambda: graph.launch(stream))
                stream.synchronize()
                for k in range(nodes):
                    many.step(k % 10, k)
                check([int(cell[0]) for cell in cells], many.words)
                return taken

            line(3, f"a graph of {nodes:,} nodes, replayed", median_of(rounds, replay))

        pinned = cupy.cuda.alloc_pinned_memory(4 * WORDS)
        host = numpy.frombuffer(pinned, numpy.uint32, WORDS)
        device = cupy.empty(WORDS, dtype=numpy.uint32)
        base = numpy.arange(WORDS, dtype=numpy.uint32)

        def there_and_back():
            host[:] = base
            there = wall(lambda: (device.set(host, stream=stream), stream.synchronize()))
            device[:] += 1
            stream.synchronize()
            host[:] = 0
            back = wall(lambda: (device.get(stream=stream, out=host), stream.synchronize()))
            if not (host == base + 1).all():
                sys.exit("wrong result of a copy")
            return there + back

        line(5, "64 MiB copied, there and back", median_of(max(3, rounds // 2), there_and_back))

        def lives():
            def work():
                for _ in range(200):
                    cupy.empty(1 << 20, dtype=numpy.uint8)

            return cpu(work) / 200

        line(6, "pooled alloc and free, 1 MiB", median_of(rounds, lives))
    return {"library": "CuPy", "version": cupy.__version__, "lines": lines}


def torch_lines(rounds):
    import torch

    lines = []

    def line(number, name, value):
        lines.append({"line": number, "name": name, "unit": "us", "value": value})

    # PyTorch has no kernel of the user's without a compiler, so a step is its smallest operator in place.
    mask = 0xFFFFFFFF

    def signed(word):
        return word - (1 << 32) if word >= 1 << 31 else word

    class Adds:
        def __init__(self, count=1):
            self.words = [(0x9E3779B9 * (i + 1)) & mask for i in range(count)]

        def step(self, at, k):
            self.words[at] = (self.words[at] + k) & mask

    chain = Adds()
    cell = torch.tensor([signed(chain.words[0])], dtype=torch.int32, device="cuda")

    def values(tensors):
        return [int(tensor.item()) & mask for tensor in tensors]

    def launch_and_wait(read):
        times = []
        for k in range(24):
            def work():
                cell.add_(k)
                return cell.item() if read else torch.cuda.synchronize()

            times.append(wall(work))
            chain.step(0, k)
        check(values([cell]), chain.words)
        return statistics.median(times[1:])

    line(1, "tiny kernel, launch and wait", median_of(rounds, lambda: launch_and_wait(False)))
    line(4, "a 4-byte result to the CPU", median_of(rounds, lambda: launch_and_wait(True)))

    many = Adds(10)
    cells = [torch.tensor([signed(word)], dtype=torch.int32, device="cuda") for word in many.words]

    def steps(count):
        for k in range(count):
            cells[k % 10].add_(k)

    def launches():
        taken = cpu(lambda: steps(1000))
        torch.cuda.synchronize()
        for k in range(1000):
            many.step(k % 10, k)
        check(values(cells), many.words)
        return taken / 1000

    line(2, "1,000 launches, each", median_of(rounds, launches))

    for nodes in (10, 1000):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            steps(nodes)
        torch.cuda.synchronize()

        def replay():
            taken = cpu(graph.replay)
            torch.cuda.synchronize()
            for k in range(nodes):
                many.step(k % 10, k)
            check(values(cells), many.words)
            return taken

        line(3, f"a graph of {nodes:,} nodes, replayed", median_of(rounds, replay))

    host = torch.empty(WORDS, dtype=torch.int32, pin_memory=True)
    device = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    base = torch.arange(WORDS, dtype=torch.int32)

    def there_and_back():
        host.copy_(base)
        there = wall(lambda: (device.copy_(host, non_blocking=True), torch.cuda.synchronize()))
        device.add_(1)
        torch.cuda.synchronize()
        host.zero_()
        back = wall(lambda: (host.copy_(device, non_blocking=True), torch.cuda.synchronize()))
        if not torch.equal(host, base + 1):
            sys.exit("wrong result of a copy")
        return there + back

    line(5, "64 MiB copied, there and back", median_of(max(3, rounds // 2), there_and_back))

    def lives():
        def work():
            for _ in range(200):
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")

        return cpu(work) / 200

    line(6, "pooled alloc and free, 1 MiB", median_of(rounds, lives))
    return {"library": "PyTorch", "version": torch.__version__, "lines": lines}


def table(onebuf_path, python_path):
    with open(onebuf_path) as file:
        onebuf = json.load(file)
    with open(python_path) as file:
        others = {one["library"]: one for one in json.load(file)["libraries"] if "lines" in one}

    def number(value):
        return "" if value is None else f"{value:.3g}"

    names = list(others)
    print("| line | onebuf | by hand | / by hand | " + " | ".join(names) + " | " + " | ".join(f"{n} / onebuf" for n in names) + " | goal | |")
    print("|---|" + "---|" * (5 + 2 * len(names)))
    for line in onebuf["lines"]:
        def value_of(name):
            for one in others[name]["lines"]:
                if (one["line"], one["name"]) == (line["line"], line["name"]):
                    return one["value"]
            return None

        theirs = [value_of(name) for name in names]
        factors = [None if value is None else value / line["onebuf"] for value in theirs]
        row = [f"{line['line']} {line['name']}", number(line["onebuf"]), number(line.get("raw")), number(line.get("ratio_raw"))]
        row += [number(value) for value in theirs] + [number(factor) for factor in factors]
        row += [line["goal"], "met" if line["met"] else "**missed**"]
        print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--table", nargs=2, metavar=("ONEBUF", "PYTHON"))
    options = parser.parse_args()
    if options.table:
        return table(*options.table)
    libraries = []
    for name, lines in (("PyTorch", torch_lines), ("CuPy", cupy_lines)):
        try:
            libraries.append(lines(options.rounds))
        except ImportError as error:
            libraries.append({"library": name, "missing": str(error)})
    print(json.dumps({"schema": "onebuf.bench-python/1", "libraries": libraries}, indent=1))
    if not any("lines" in one for one in libraries):
        sys.exit("neither PyTorch nor CuPy is here")


main()
