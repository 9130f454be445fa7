// Runs the programs of a batch on the cases in a file, and writes what they leave in their buffers.
//
// All numbers are little-endian u32. A case is: program, grid (3), parameters; then for each parameter its kind
// (0 a buffer, 1 a value), its size in bytes, and its bytes, padded to 4. The output is the bytes of the buffers, padded.
#pragma once

struct shim_program {
    const char *name;
    void (*launch)(void **, shim_dim);
};

static int shim_main(const shim_program *programs, int argc, char **argv) {
    if (argc != 3) return 2;
    std::FILE *in = std::fopen(argv[1], "rb");
    std::FILE *out = std::fopen(argv[2], "wb");
    if (!in || !out) return 2;
    auto word = [&](unsigned &value) { return std::fread(&value, 4, 1, in) == 1; };
    unsigned program;
    while (word(program)) {
        shim_dim grid;
        unsigned count;
        if (!word(grid.x) || !word(grid.y) || !word(grid.z) || !word(count)) return 2;
        std::vector<void *> memory(count), values(count);
        std::vector<unsigned> kinds(count), sizes(count);
        for (unsigned i = 0; i < count; ++i) {
            if (!word(kinds[i]) || !word(sizes[i])) return 2;
            // Exactly as large as it says, so that the sanitizer sees any access beyond.
            if (posix_memalign(&memory[i], 64, sizes[i])) return 2;
            char padding[4];
            unsigned rest = -sizes[i] & 3u;
            if (std::fread(memory[i], 1, sizes[i], in) != sizes[i] || std::fread(padding, 1, rest, in) != rest) return 2;
            values[i] = kinds[i] == 0 ? static_cast<void *>(&memory[i]) : memory[i];
        }
        std::fprintf(stderr, "%s\n", programs[program].name);
        programs[program].launch(values.data(), grid);
        for (unsigned i = 0; i < count; ++i) {
            if (kinds[i] == 0) {
                std::fwrite(memory[i], 1, sizes[i], out);
                std::fwrite("\0\0\0", 1, -sizes[i] & 3u, out);
            }
            std::free(memory[i]);
        }
    }
    std::fclose(in);
    return std::fclose(out);
}
