//! Which bytes of a buffer are data: the rest is padding, of which no one says what it holds.

use crate::generate::Rng;
use naga::{ArraySize, Handle, Module, Type, TypeInner, proc::Layouter};

/// The types of a module.
#[derive(Debug)]
pub struct Layout {
    module: Module,
    layouter: Layouter,
}

impl Layout {
    /// The types of the module in `source`.
    ///
    /// # Panics
    /// If the source is not valid: it has been translated before.
    pub fn of(source: &str) -> Layout {
        let module = naga::front::wgsl::parse_str(source).expect("the source has been parsed before");
        let mut layouter = Layouter::default();
        layouter.update(module.to_ctx()).expect("the layout has been computed before");
        Layout { module, layouter }
    }

    fn type_of(&self, name: &str) -> Handle<Type> {
        let mut variables = self.module.global_variables.iter().map(|(_, variable)| variable);
        variables
            .find(|variable| variable.name.as_deref() == Some(name))
            .expect("a variable of the interface")
            .ty
    }

    /// For each byte of a buffer of `bytes` bytes that holds the global variable named `name`, whether it is data.
    ///
    /// # Panics
    /// If the module has no such variable.
    pub fn data_bytes(&self, name: &str, bytes: usize) -> Vec<bool> {
        let mut data = vec![false; bytes];
        mark(&self.module, &self.layouter, self.type_of(name), 0, &mut data);
        data
    }

    /// Fills the data of a buffer: integers with anything, edges more often; floats with small multiples of a quarter.
    ///
    /// # Panics
    /// If the module has no such variable.
    pub fn fill(&self, name: &str, bytes: &mut [u8], rng: &mut Rng) {
        fill_type(&self.module, self.type_of(name), 0, bytes, rng);
    }
}

fn mark(module: &Module, layouter: &Layouter, ty: Handle<Type>, at: usize, data: &mut [bool]) {
    match module.types[ty].inner {
        TypeInner::Struct { ref members, .. } => {
            members
                .iter()
                .for_each(|member| mark(module, layouter, member.ty, at + member.offset as usize, data));
        }
        TypeInner::Array { base, size, stride } => {
            let stride = stride as usize;
            let count = match size {
                ArraySize::Constant(count) => count.get() as usize,
                _ => data.len().saturating_sub(at) / stride,
            };
            (0..count).for_each(|index| mark(module, layouter, base, at + index * stride, data));
        }
        TypeInner::Matrix { columns, rows, scalar } => {
            let padded = if rows as usize == 3 { 4 } else { rows as usize };
            for column in 0..columns as usize {
                let at = at + column * padded * scalar.width as usize;
                data[at..at + rows as usize * scalar.width as usize].fill(true);
            }
        }
        _ => data[at..at + layouter[ty].size as usize].fill(true),
    }
}

fn fill_type(module: &Module, ty: Handle<Type>, at: usize, bytes: &mut [u8], rng: &mut Rng) {
    let mut word = |at: usize, kind: naga::ScalarKind| {
        let value = match kind {
            naga::ScalarKind::Float => ((rng.below(257) as f32 - 128.0) * 0.25).to_bits(),
            _ => match rng.below(6) {
                0 => i32::MIN as u32,
                1 => u32::MAX,
                2 => i32::MAX as u32,
                3 => rng.below(40) as u32,
                _ => rng.next() as u32,
            },
        };
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    match module.types[ty].inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => word(at, scalar.kind),
        TypeInner::Vector { size, scalar } => {
            (0..size as usize).for_each(|index| word(at + 4 * index, scalar.kind))
        }
        TypeInner::Matrix { columns, rows, scalar } => {
            let stride = if rows as usize == 2 { 8 } else { 16 };
            for column in 0..columns as usize {
                (0..rows as usize).for_each(|row| word(at + stride * column + 4 * row, scalar.kind));
            }
        }
        TypeInner::Array { base, size, stride } => {
            let stride = stride as usize;
            let count = match size {
                ArraySize::Constant(count) => count.get() as usize,
                _ => bytes.len().saturating_sub(at) / stride,
            };
            (0..count).for_each(|index| fill_type(module, base, at + index * stride, bytes, rng));
        }
        TypeInner::Struct { ref members, .. } => {
            members
                .iter()
                .for_each(|member| fill_type(module, member.ty, at + member.offset as usize, bytes, rng));
        }
        _ => {}
    }
}

/// Whether the words around byte `at` are both zero as floats, whatever their signs.
pub fn both_zero(a: &[u8], b: &[u8], at: usize) -> bool {
    let word = at & !3;
    let is_zero =
        |bytes: &[u8]| bytes.get(word..word + 4).is_some_and(|word| matches!(word, [0, 0, 0, 0 | 0x80]));
    is_zero(a) && is_zero(b)
}
