//! The kernels of `shaders/`, as WGSL. Each file says what it takes.

/// RGB bytes to RGBA8 words: `expand`.
pub const EXPAND: &str = include_str!("../../shaders/expand.wgsl");
/// Sets every word of a buffer: `fill`.
pub const FILL: &str = include_str!("../../shaders/fill.wgsl");
/// `y = a x + y`: `saxpy`.
pub const SAXPY: &str = include_str!("../../shaders/saxpy.wgsl");
/// A Gaussian blur in two passes: `horizontal`, `vertical`.
pub const BLUR: &str = include_str!("../../shaders/blur.wgsl");
/// The Sobel operator: `edges`.
pub const EDGES: &str = include_str!("../../shaders/edges.wgsl");
/// Counts of brightness: `histogram`.
pub const HISTOGRAM: &str = include_str!("../../shaders/histogram.wgsl");
/// A sum: `reduce`.
pub const REDUCE: &str = include_str!("../../shaders/reduce.wgsl");
/// A transposed matrix: `transpose_words`.
pub const TRANSPOSE: &str = include_str!("../../shaders/transpose.wgsl");
/// A product of matrices: `matmul`.
pub const MATMUL: &str = include_str!("../../shaders/matmul.wgsl");

/// Every kernel: the name of its file, its source, its entry points.
pub const ALL: [(&str, &str, &[&str]); 9] = [
    ("expand", EXPAND, &["expand"]),
    ("fill", FILL, &["fill"]),
    ("saxpy", SAXPY, &["saxpy"]),
    ("blur", BLUR, &["horizontal", "vertical"]),
    ("edges", EDGES, &["edges"]),
    ("histogram", HISTOGRAM, &["histogram"]),
    ("reduce", REDUCE, &["reduce"]),
    ("transpose", TRANSPOSE, &["transpose_words"]),
    ("matmul", MATMUL, &["matmul"]),
];
