//! Expressions, and the paths to values.

use super::{Bool, F32, Generator, I32, NUMERIC, Scalar, Ty, U32, Variable};

impl Generator {
    pub(super) fn composite(&mut self, ty: &Ty, depth: usize) -> String {
        let whole: Vec<String> = self
            .scope
            .iter()
            .filter(|variable| variable.ty == *ty)
            .map(|variable| variable.name.clone())
            .collect();
        if !whole.is_empty() && self.rng.once_in(2) {
            return self.rng.pick(&whole).clone();
        }
        match ty {
            Ty::Scalar(_) | Ty::Vector(..) => self.stored(ty, depth),
            Ty::Matrix(columns, rows) => {
                let columns: Vec<String> =
                    (0..*columns).map(|_| self.stored(&Ty::Vector(F32, *rows), depth.min(1))).collect();
                format!("{}({})", self.type_name(ty), columns.join(", "))
            }
            Ty::Array(base, n) => {
                let elements: Vec<String> =
                    (0..*n).map(|_| self.composite(base, depth.saturating_sub(1))).collect();
                format!("{}({})", self.type_name(ty), elements.join(", "))
            }
            Ty::Struct(index) => {
                let members = self.structs[*index].clone();
                let values: Vec<String> =
                    members.iter().map(|member| self.composite(member, depth.saturating_sub(1))).collect();
                format!("S{index}({})", values.join(", "))
            }
        }
    }

    pub(super) fn walk(&mut self, variable: &Variable, steps: usize) -> (String, Ty) {
        let (mut path, mut ty) = (variable.name.clone(), variable.ty.clone());
        for _ in 0..steps {
            // An array of a buffer has no value as a whole where its length is not in its type.
            let must_go_on = variable.buffer && matches!(ty, Ty::Array(..)) && path == variable.name;
            if !must_go_on && self.rng.once_in(3) {
                break;
            }
            (path, ty) = match ty {
                Ty::Scalar(_) => break,
                Ty::Vector(scalar, n) => {
                    let step = match self.rng.below(3) {
                        0 => format!("[{}]", self.index(n, variable.buffer)),
                        _ => format!(".{}", ["x", "y", "z", "w"][self.rng.below(n)]),
                    };
                    (path + &step, Ty::Scalar(scalar))
                }
                Ty::Matrix(columns, rows) => {
                    (format!("{path}[{}]", self.index(columns, variable.buffer)), Ty::Vector(F32, rows))
                }
                Ty::Array(base, n) => (format!("{path}[{}]", self.index(n, variable.buffer)), *base),
                Ty::Struct(index) => {
                    let at = self.rng.below(self.structs[index].len());
                    (format!("{path}.m{at}"), self.structs[index][at].clone())
                }
            };
        }
        (path, ty)
    }

    pub(super) fn index(&mut self, length: usize, buffer: bool) -> String {
        match self.rng.below(3) {
            0 => self.rng.below(length).to_string(),
            // Beyond the end, on purpose: where naga clamps for the sake of atomics, that would differ.
            1 if !(buffer && self.storage_atomics) => {
                let value = self.dynamic(&Ty::Scalar(U32), 1);
                format!("{value} % {}u", length + 2)
            }
            _ => {
                let value = self.dynamic(&Ty::Scalar(U32), 1);
                format!("{value} % {length}u")
            }
        }
    }

    pub(super) fn stored(&mut self, ty: &Ty, depth: usize) -> String {
        let value = self.expression(ty, depth);
        match ty {
            Ty::Scalar(F32) => format!("q1({value})"),
            Ty::Vector(F32, n) => format!("q{n}({value})"),
            _ => value,
        }
    }

    pub(super) fn dynamic(&mut self, ty: &Ty, depth: usize) -> String {
        let value = self.expression(ty, depth);
        match ty {
            Ty::Scalar(I32) => format!("({value} + words[ids.x])"),
            Ty::Scalar(U32) => format!("({value} + ids.y)"),
            Ty::Scalar(F32) => format!("({value} + uni.d)"),
            Ty::Vector(I32, n) => format!("({value} + vec{n}(words[ids.z]))"),
            Ty::Vector(U32, n) => format!("({value} + vec{n}(ids.z))"),
            Ty::Vector(F32, n) => format!("({value} - vec{n}(uni.d))"),
            Ty::Scalar(Bool) => format!("({value} != (ids.x > 1u))"),
            Ty::Vector(Bool, n) => format!("({value} != vec{n}(ids.x > 1u))"),
            _ => value,
        }
    }

    pub(super) fn literal(&mut self, scalar: Scalar) -> String {
        match scalar {
            I32 => match self.rng.below(6) {
                0 => "(-2147483647i - 1i)".to_owned(),
                1 => "2147483647i".to_owned(),
                2 => "-1i".to_owned(),
                3 => format!("{}i", self.rng.below(40)),
                _ => format!("{}i", (self.rng.word() >> 33) as i32),
            },
            U32 => match self.rng.below(5) {
                0 => "4294967295u".to_owned(),
                1 => "2147483648u".to_owned(),
                2 => format!("{}u", self.rng.below(40)),
                _ => format!("{}u", self.rng.word() >> 32),
            },
            F32 => (*self
                .rng
                .pick(&["0.0f", "1.0f", "-1.0f", "0.5f", "2.25f", "-7.75f", "1.5f", "-2.5f", "30.0f"]))
            .to_owned(),
            Bool => (*self.rng.pick(&["true", "false"])).to_owned(),
        }
    }

    pub(super) fn leaf(&mut self, ty: &Ty) -> String {
        let scope = self.scope.clone();
        for _ in 0..6 {
            let variable = self.rng.pick(&scope);
            // An index in the path makes expressions itself: those must end.
            let shallow = matches!(variable.ty, Ty::Scalar(_) | Ty::Vector(..) | Ty::Matrix(..));
            if variable.ty == *ty {
                return variable.name.clone();
            }
            if shallow || self.rng.once_in(3) {
                let (path, found) = self.path_without_expressions(variable);
                if found == *ty {
                    return path;
                }
            }
        }
        match ty {
            Ty::Scalar(scalar) => self.literal(*scalar),
            Ty::Vector(scalar, n) => {
                let parts: Vec<String> = (0..*n).map(|_| self.literal(*scalar)).collect();
                format!("vec{n}<{}>({})", scalar.name(), parts.join(", "))
            }
            other => format!("{}()", self.type_name(other)),
        }
    }

    pub(super) fn path_without_expressions(&mut self, variable: &Variable) -> (String, Ty) {
        let (mut path, mut ty) = (variable.name.clone(), variable.ty.clone());
        let own = *self.rng.pick(&["ids.x", "ids.y", "ids.z"]);
        loop {
            (path, ty) = match ty {
                Ty::Scalar(_) => return (path, ty),
                Ty::Vector(scalar, n) => {
                    if self.rng.once_in(3) {
                        return (path, Ty::Vector(scalar, n));
                    }
                    (format!("{path}.{}", ["x", "y", "z", "w"][self.rng.below(n)]), Ty::Scalar(scalar))
                }
                Ty::Matrix(columns, rows) => {
                    (format!("{path}[{}]", self.rng.below(columns)), Ty::Vector(F32, rows))
                }
                Ty::Array(base, n) if n >= 4 => (format!("{path}[{own}]"), *base),
                Ty::Array(base, n) => (format!("{path}[{}]", self.rng.below(n)), *base),
                Ty::Struct(index) => {
                    let at = self.rng.below(self.structs[index].len());
                    (format!("{path}.m{at}"), self.structs[index][at].clone())
                }
            };
        }
    }

    pub(super) fn expression(&mut self, ty: &Ty, depth: usize) -> String {
        if depth == 0 || self.rng.once_in(5) {
            return self.leaf(ty);
        }
        match ty {
            Ty::Scalar(scalar) => self.scalar(*scalar, depth),
            Ty::Vector(scalar, n) => self.vector(*scalar, *n, depth),
            other => self.leaf(other),
        }
    }

    pub(super) fn scalar(&mut self, scalar: Scalar, depth: usize) -> String {
        let d = depth - 1;
        if self.rng.once_in(4) {
            // From a vector.
            let n = 2 + self.rng.below(3);
            let vector = self.dynamic(&Ty::Vector(scalar, n), d);
            return match self.rng.below(3) {
                0 if scalar != Bool => {
                    let other = self.operand(&Ty::Vector(scalar, n), d);
                    let vector = if scalar == F32 { format!("q{n}({vector})") } else { vector };
                    format!("dot({vector}, {other})")
                }
                1 => format!("{vector}[{}]", self.index(n, false)),
                _ => format!("{vector}.{}", ["x", "y", "z", "w"][self.rng.below(n)]),
            };
        }
        let same = Ty::Scalar(scalar);
        match scalar {
            I32 | U32 => self.integer(&same, scalar, depth),
            F32 => self.float(&same, depth),
            Bool => {
                let of = Ty::Scalar(*self.rng.pick(&NUMERIC));
                match self.rng.below(6) {
                    0 => format!("!{}", self.dynamic(&same, d)),
                    1 => {
                        let op = *self.rng.pick(&["&&", "||", "&", "|", "!=", "=="]);
                        let (a, b) = (self.dynamic(&same, d), self.dynamic(&same, d));
                        format!("({a} {op} {b})")
                    }
                    2 => {
                        let n = 2 + self.rng.below(3);
                        let function = if self.rng.once_in(2) { "all" } else { "any" };
                        format!("{function}({})", self.dynamic(&Ty::Vector(Bool, n), d))
                    }
                    _ => {
                        let op = *self.rng.pick(&["<", "<=", ">", ">=", "==", "!="]);
                        let (a, b) = (self.dynamic(&of, d), self.expression(&of, d));
                        format!("({a} {op} {b})")
                    }
                }
            }
        }
    }

    pub(super) fn operand(&mut self, ty: &Ty, depth: usize) -> String {
        self.stored(ty, depth)
    }

    pub(super) fn integer(&mut self, ty: &Ty, scalar: Scalar, depth: usize) -> String {
        let d = depth - 1;
        let (n, unsigned) = match ty {
            Ty::Vector(_, n) => (Some(*n), Ty::Vector(U32, *n)),
            _ => (None, Ty::Scalar(U32)),
        };
        let a = self.dynamic(ty, d);
        let of = |scalar: Scalar| match n {
            Some(n) => Ty::Vector(scalar, n),
            None => Ty::Scalar(scalar),
        };
        match self.rng.below(16) {
            0..=3 => {
                let op = *self.rng.pick(&["+", "-", "*", "&", "|", "^"]);
                let b = self.expression(ty, d);
                format!("({a} {op} {b})")
            }
            4 => {
                let op = *self.rng.pick(&["/", "%"]);
                let b = self.dynamic(ty, d);
                format!("({a} {op} {b})")
            }
            5 => {
                let op = *self.rng.pick(&["<<", ">>"]);
                let b = self.dynamic(&unsigned, d);
                format!("({a} {op} {b})")
            }
            6 => match scalar {
                I32 => format!("-{a}"),
                _ => format!("~{a}"),
            },
            7 => {
                let function = *self.rng.pick(&["min", "max"]);
                let b = self.expression(ty, d);
                format!("{function}({a}, {b})")
            }
            8 => {
                let function = *self.rng.pick(&[
                    "abs",
                    "sign",
                    "countOneBits",
                    "countLeadingZeros",
                    "countTrailingZeros",
                    "reverseBits",
                    "firstLeadingBit",
                    "firstTrailingBit",
                ]);
                if scalar == U32 && function == "sign" {
                    format!("abs({a})")
                } else {
                    format!("{function}({a})")
                }
            }
            9 => {
                let (offset, count) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                format!("extractBits({a}, {offset} % 40u, {count} % 40u)")
            }
            10 => {
                let b = self.dynamic(ty, d);
                let (offset, count) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                format!("insertBits({a}, {b}, {offset} % 40u, {count} % 40u)")
            }
            11 => {
                let from = *self.rng.pick(&[F32, Bool, if scalar == I32 { U32 } else { I32 }]);
                let value = self.dynamic(&of(from), d);
                format!("{}({value})", self.type_name(ty))
            }
            12 => {
                let value = self.dynamic(&of(if scalar == I32 { U32 } else { I32 }), d);
                format!("bitcast<{}>({value})", self.type_name(ty))
            }
            13 => {
                let (b, condition) = (self.expression(ty, d), self.expression(&of(Bool), d));
                format!("select({a}, {b}, {condition})")
            }
            14 if n.is_none() => {
                let (x, y) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                if scalar == I32 {
                    format!("dot4I8Packed({x}, {y})")
                } else {
                    format!("dot4U8Packed({x}, {y})")
                }
            }
            14 if n == Some(4) => {
                let x = self.dynamic(&Ty::Scalar(U32), d);
                if scalar == I32 { format!("unpack4xI8({x})") } else { format!("unpack4xU8({x})") }
            }
            15 if n.is_none() && scalar == U32 => {
                let function = *self.rng.pick(&["pack4xI8", "pack4xI8Clamp", "pack4xU8", "pack4xU8Clamp"]);
                let from = if function.contains('I') { I32 } else { U32 };
                format!("{function}({})", self.dynamic(&Ty::Vector(from, 4), d))
            }
            _ => {
                let b = self.expression(ty, d);
                format!("clamp({a}, min({b}, {a}), max({b}, {a}))")
            }
        }
    }

    pub(super) fn float(&mut self, ty: &Ty, depth: usize) -> String {
        let d = depth - 1;
        let n = match ty {
            Ty::Vector(_, n) => Some(*n),
            _ => None,
        };
        let of = |scalar: Scalar| match n {
            Some(n) => Ty::Vector(scalar, n),
            None => Ty::Scalar(scalar),
        };
        let constant = |text: &str| match n {
            Some(n) => format!("vec{n}({text})"),
            None => text.to_owned(),
        };
        match self.rng.below(12) {
            0..=2 => {
                let op = *self.rng.pick(&["+", "-"]);
                let (a, b) = (self.dynamic(ty, d.min(2)), self.expression(ty, d.min(2)));
                format!("({a} {op} {b})")
            }
            3 | 4 => {
                let (a, b) = (self.operand(ty, d), self.operand(ty, d));
                format!("({a} * {b})")
            }
            5 => format!(
                "({} / {})",
                self.dynamic(ty, d),
                constant(if self.rng.once_in(2) { "2.0" } else { "0.5" })
            ),
            6 => {
                let function = *self.rng.pick(&["min", "max", "step"]);
                let (a, b) = (self.dynamic(ty, d), self.expression(ty, d));
                format!("{function}({a}, {b})")
            }
            7 => {
                let function =
                    *self.rng.pick(&["abs", "floor", "ceil", "trunc", "round", "fract", "sign", "saturate"]);
                format!("{function}({})", self.dynamic(ty, d))
            }
            8 => {
                let from = *self.rng.pick(&[I32, U32, Bool]);
                let value = self.dynamic(&of(from), d);
                format!("q{}({}({value}))", n.unwrap_or(1), self.type_name(ty))
            }
            9 => {
                let (a, b, condition) =
                    (self.dynamic(ty, d), self.expression(ty, d), self.expression(&of(Bool), d));
                format!("select({a}, {b}, {condition})")
            }
            10 => {
                let (a, b, c) = (self.operand(ty, d), self.operand(ty, d), self.operand(ty, d));
                if n == Some(3) && self.rng.once_in(2) {
                    format!("cross({a}, {b})")
                } else {
                    format!("fma({a}, {b}, {c})")
                }
            }
            _ => format!("(-{})", self.dynamic(ty, d)),
        }
    }

    pub(super) fn vector(&mut self, scalar: Scalar, n: usize, depth: usize) -> String {
        let d = depth - 1;
        let ty = Ty::Vector(scalar, n);
        match self.rng.below(8) {
            0 => {
                let parts: Vec<String> = (0..n).map(|_| self.expression(&Ty::Scalar(scalar), d)).collect();
                format!("vec{n}<{}>({})", scalar.name(), parts.join(", "))
            }
            1 if n > 2 => {
                let (head, tail) =
                    (self.expression(&Ty::Vector(scalar, n - 1), d), self.expression(&Ty::Scalar(scalar), d));
                format!("vec{n}<{}>({head}, {tail})", scalar.name())
            }
            2 => {
                let m = 2 + self.rng.below(3);
                let pattern: String = (0..n).map(|_| ["x", "y", "z", "w"][self.rng.below(m)]).collect();
                format!("{}.{pattern}", self.dynamic(&Ty::Vector(scalar, m), d))
            }
            3 => format!("vec{n}<{}>({})", scalar.name(), self.expression(&Ty::Scalar(scalar), d)),
            4 if scalar == F32 && self.rng.once_in(2) => {
                let m = 2 + self.rng.below(3);
                let columns: Vec<String> =
                    (0..m).map(|_| self.operand(&Ty::Vector(F32, n), d.min(1))).collect();
                let vector = self.operand(&Ty::Vector(F32, m), d);
                format!("(mat{m}x{n}<f32>({}) * {vector})", columns.join(", "))
            }
            _ => match scalar {
                I32 | U32 => self.integer(&ty, scalar, depth),
                F32 => self.float(&ty, depth),
                Bool => {
                    let of = Ty::Vector(*self.rng.pick(&NUMERIC), n);
                    match self.rng.below(4) {
                        0 => format!("!{}", self.dynamic(&ty, d)),
                        1 => {
                            let op = *self.rng.pick(&["&", "|", "=="]);
                            let (a, b) = (self.dynamic(&ty, d), self.dynamic(&ty, d));
                            format!("({a} {op} {b})")
                        }
                        _ => {
                            let op = *self.rng.pick(&["<", "<=", ">", ">=", "==", "!="]);
                            let (a, b) = (self.dynamic(&of, d), self.expression(&of, d));
                            format!("({a} {op} {b})")
                        }
                    }
                }
            },
        }
    }
}
