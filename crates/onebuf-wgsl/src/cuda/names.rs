//! Names in the printed source: those of WGSL, but for what C++ or the prelude has taken.

use std::{cell::RefCell, sync::LazyLock};

use naga::{
    FastHashMap,
    proc::{CaseInsensitiveKeywordSet, KeywordSet, NameKey, Namer},
};

/// Words that no printed name may be: C++'s keywords and alternative tokens, macros that compilers define unasked, CUDA's
/// built-in variables, and the type names of the prelude.
const RESERVED: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "assert",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char8_t",
    "char16_t",
    "char32_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    "final",
    "override",
    "import",
    "module",
    "std",
    "main",
    // Macros.
    "linux",
    "unix",
    "i386",
    "NULL",
    "INFINITY",
    "NAN",
    "HUGE_VALF",
    "EOF",
    "errno",
    "signbit",
    "isnan",
    "isinf",
    "WG",
    "WG_CTOR",
    // CUDA.
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "dim3",
    "uint3",
    // The prelude.
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "f16",
    "f32",
    "f64",
    "vec",
    "vec2",
    "vec3",
    "vec4",
    "mat",
    "array",
    "runtime_array",
    "atomic",
    "memcpy",
];

/// What the prelude and the printed source keep for themselves, and what C++ keeps for the compiler.
const RESERVED_PREFIXES: &[&str] = &["wg_", "WG_", "__", "kernel_"];

static KEYWORDS: LazyLock<KeywordSet> = LazyLock::new(|| RESERVED.iter().copied().collect());

/// The name of each thing in a module, and a source of fresh ones.
pub(super) struct Names {
    by_key: FastHashMap<NameKey, String>,
    namer: RefCell<Namer>,
}

impl Names {
    pub(super) fn new(ir: &naga::Module) -> Names {
        let mut namer = Namer::default();
        let mut by_key = FastHashMap::default();
        namer.reset(
            ir,
            &KEYWORDS,
            KeywordSet::empty(),
            CaseInsensitiveKeywordSet::empty(),
            RESERVED_PREFIXES,
            &mut by_key,
        );
        Names { by_key, namer: RefCell::new(namer) }
    }

    pub(super) fn get(&self, key: NameKey) -> &str {
        self.by_key.get(&key).map_or("wg_unnamed", String::as_str)
    }

    /// A name that nothing has yet, close to `wanted`.
    pub(super) fn fresh(&self, wanted: &str) -> String {
        self.namer.borrow_mut().call(wanted)
    }
}
