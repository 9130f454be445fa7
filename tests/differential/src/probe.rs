//! Tables of edge values for operators and built-ins: many probes of one signature make one kernel.

use std::fmt::Write as _;

use anyhow::Result;

use crate::case::Case;

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    I32,
    U32,
    F32,
    F16,
    I64,
    U64,
    F64,
    I16,
    U16,
}

impl Kind {
    /// The WGSL type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::I32 => "i32",
            Kind::U32 => "u32",
            Kind::F32 => "f32",
            Kind::F16 => "f16",
            Kind::I64 => "i64",
            Kind::U64 => "u64",
            Kind::F64 => "f64",
            Kind::I16 => "i16",
            Kind::U16 => "u16",
        }
    }

    fn bytes(self, value: f64, bits: u64) -> Vec<u8> {
        match self {
            Kind::I32 | Kind::U32 => (bits as u32).to_le_bytes().to_vec(),
            Kind::F32 => (value as f32).to_le_bytes().to_vec(),
            Kind::F16 | Kind::I16 | Kind::U16 => (bits as u16).to_le_bytes().to_vec(),
            Kind::I64 | Kind::U64 => bits.to_le_bytes().to_vec(),
            Kind::F64 => value.to_le_bytes().to_vec(),
        }
    }
}

/// How near to a reference a result must be.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// The same bits everywhere, but for the sign of a zero in a float.
    Exact,
    /// As WGSL's table of accuracies says, computed from the arguments: the exact result and the greatest error. `None`
    /// where WGSL promises nothing.
    Near(fn(&[f64]) -> Option<(f64, f64)>),
    /// The same bits, where the predicate holds.
    ExactWhere(fn(&[f64]) -> bool),
    /// One of the results that WGSL permits, of which implementations may choose differently.
    Permitted(fn(&[f64], u32) -> bool),
}

/// One expression in the arguments `x`, `y` and `z`, with a `u32` or `f32` result.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The WGSL expression.
    pub expression: &'static str,
    /// Whether the result is an `f32`.
    pub float: bool,
    /// What it must be.
    pub check: Check,
}

/// A result that must have the same bits.
pub const fn exact(expression: &'static str) -> Probe {
    Probe { expression, float: false, check: Check::Exact }
}

/// An `f32` result that must have the same bits.
pub const fn float(expression: &'static str) -> Probe {
    Probe { expression, float: true, check: Check::Exact }
}

/// An `f32` result near a reference.
pub const fn near(expression: &'static str, reference: fn(&[f64]) -> Option<(f64, f64)>) -> Probe {
    Probe { expression, float: true, check: Check::Near(reference) }
}

/// A `u32` result of which WGSL permits several.
pub const fn permitted(expression: &'static str, check: fn(&[f64], u32) -> bool) -> Probe {
    Probe { expression, float: false, check: Check::Permitted(check) }
}

/// Probes of one signature, on every combination of the values.
#[derive(Clone, Debug)]
pub struct Table {
    /// For messages.
    pub name: &'static str,
    /// The types of `x`, `y` and `z`, as many as there are.
    pub kinds: Vec<Kind>,
    /// The expressions.
    pub probes: Vec<Probe>,
    /// The rows: values of the arguments, as numbers and as bits.
    pub rows: Vec<Vec<(f64, u64)>>,
}

impl Table {
    /// Every combination of `values` for each of the kinds.
    pub fn new(name: &'static str, kinds: &[Kind], values: &[(f64, u64)], probes: Vec<Probe>) -> Table {
        let mut rows: Vec<Vec<(f64, u64)>> = vec![Vec::new()];
        for _ in kinds {
            rows = rows
                .iter()
                .flat_map(|row| {
                    values.iter().map(|value| {
                        let mut longer = row.clone();
                        longer.push(*value);
                        longer
                    })
                })
                .collect();
        }
        Table { name, kinds: kinds.to_vec(), probes, rows }
    }

    /// The kernel that evaluates every probe on every row.
    pub fn source(&self) -> String {
        let mut source = String::new();
        if self.kinds.contains(&Kind::F16) {
            source.push_str("enable f16;\n");
        }
        if self.kinds.iter().any(|kind| matches!(kind, Kind::I16 | Kind::U16)) {
            source.push_str("enable wgpu_int16;\n");
        }
        for (index, kind) in self.kinds.iter().enumerate() {
            _ = writeln!(
                source,
                "@group(0) @binding({index}) var<storage> in{index}: array<{}>;",
                kind.name()
            );
        }
        _ = writeln!(
            source,
            "@group(0) @binding(3) var<storage, read_write> out: array<u32>;\n\
             @compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    \
             let row = id.x;\n    if row >= {}u {{ return; }}",
            self.rows.len()
        );
        for (index, name) in ["x_", "y_", "z_"].iter().enumerate().take(self.kinds.len()) {
            _ = writeln!(source, "    let {name} = in{index}[row];");
        }
        for (index, probe) in self.probes.iter().enumerate() {
            let expression = with_arguments(probe.expression);
            let bits = if probe.float { format!("bitcast<u32>({expression})") } else { expression };
            _ = writeln!(source, "    out[row * {}u + {index}u] = {bits};", self.probes.len());
        }
        source.push_str("}\n");
        source
    }

    /// The table as a case.
    ///
    /// # Errors
    /// What the compiler says of an expression.
    pub fn case(&self) -> Result<Case> {
        let source = self.source();
        let mut case = Case::new(self.name, &source, |binding| match binding.slot.binding {
            3 => vec![0xa5; 4 * self.rows.len() * self.probes.len()],
            index => self
                .rows
                .iter()
                .flat_map(|row| {
                    let (value, bits) = row[index as usize];
                    self.kinds[index as usize].bytes(value, bits)
                })
                .collect(),
        })?;
        case.grid = [(self.rows.len() as u32).div_ceil(64), 1, 1];
        Ok(case)
    }

    /// The results in the buffer `out`: one for each row and probe.
    pub fn results(&self, out: &[u8]) -> Vec<u32> {
        out.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// What is wrong with a result, against a second implementation's where the bits must be the same.
    pub fn fault(&self, index: usize, got: u32, other: Option<u32>) -> Option<String> {
        let (row, probe) = (&self.rows[index / self.probes.len()], &self.probes[index % self.probes.len()]);
        let arguments: Vec<f64> = row.iter().map(|(value, _)| *value).collect();
        let same = |other: u32| {
            got == other
                || probe.float && (got | other) & 0x7fff_ffff == 0
                || probe.float && is_tiny(got) && is_tiny(other)
                || probe.float && f32::from_bits(got).is_nan() && f32::from_bits(other).is_nan()
        };
        let mut wrong = got;
        let expected = match probe.check {
            Check::Exact => other.filter(|&other| !same(other)).map(|other| format!("{other:#x}")),
            Check::ExactWhere(holds) => {
                other.filter(|&other| holds(&arguments) && !same(other)).map(|other| format!("{other:#x}"))
            }
            Check::Near(reference) => reference(&arguments).and_then(|(exact, error)| {
                let value = f64::from(f32::from_bits(got));
                // A result too small to be normal may be flushed.
                let near = (value - exact).abs() <= error + 1.2e-38 || value == exact as f32 as f64;
                (!near).then(|| format!("{exact:e} within {error:e}"))
            }),
            Check::Permitted(permits) => {
                [Some(got), other].into_iter().flatten().find(|&bits| !permits(&arguments, bits)).map(
                    |bits| {
                        wrong = bits;
                        "what WGSL permits".to_owned()
                    },
                )
            }
        }?;
        let value = f32::from_bits(wrong);
        Some(format!(
            "{}: {} on {arguments:?} gives {wrong:#x} ({value:e}), not {expected}",
            self.name, probe.expression
        ))
    }
}

/// Below the least normal number, which an implementation may flush to zero.
fn is_tiny(bits: u32) -> bool {
    bits & 0x7f80_0000 == 0
}

/// Puts the names of the arguments into an expression that calls them `x`, `y` and `z`.
fn with_arguments(expression: &str) -> String {
    let mut text = String::new();
    let bytes = expression.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let is_word = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'.')
        };
        let alone = !is_word(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !bytes.get(at + 1).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        text.push(byte as char);
        if alone && matches!(byte, b'x' | b'y' | b'z') {
            text.push('_');
        }
    }
    text
}
