//! What a kernel is given on the command line, matched with what it takes.

use std::str::FromStr;

use onebuf::core::kernel::Override;
use onebuf::{Access, Binding, BindingKind, KernelInterface, Slot};

use super::file::{ArrayPath, Format};
use super::npy::{DType, Shape};
use crate::error::{Error, Result};

/// A place of the kernel and a text: `0:1=file.npy`.
fn place(text: &str) -> Result<(Slot, &str), String> {
    let wrong = || format!("`{text}` does not begin with a place; write GROUP:BINDING=FILE, as in 0:1=a.npy");
    let (slot, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (group, binding) = slot.split_once(':').ok_or_else(wrong)?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|_| plain).ok_or_else(wrong)
    };
    Ok((Slot { group: number(group)?, binding: number(binding)? }, rest))
}

/// `G:B=FILE`, of `--in` and `--uniform`.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    slot: Slot,
    file: ArrayPath,
}

impl FromStr for Input {
    type Err = String;

    fn from_str(text: &str) -> Result<Input, String> {
        let (slot, name) = place(text)?;
        Ok(Input { slot, file: ArrayPath::new(name)? })
    }
}

/// `G:B=FILE:DTYPE:SHAPE`, of `--out`.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    slot: Slot,
    file: ArrayPath,
    dtype: DType,
    shape: Shape,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Output, String> {
        let (slot, rest) = place(text)?;
        // From the right: a file's name may have colons.
        let mut parts = rest.rsplitn(3, ':');
        let (Some(shape), Some(dtype), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("`{rest}` is not FILE:DTYPE:SHAPE, as in out.npy:f4:480,640"));
        };
        Ok(Output { slot, file: ArrayPath::new(name)?, dtype: dtype.parse()?, shape: shape.parse()? })
    }
}

/// `G:B=IN:OUT`, of `--inout`.
#[derive(Clone, Debug)]
pub(crate) struct InOut {
    slot: Slot,
    from: ArrayPath,
    to: ArrayPath,
}

impl FromStr for InOut {
    type Err = String;

    fn from_str(text: &str) -> Result<InOut, String> {
        let (slot, rest) = place(text)?;
        // Names may have colons: the right one stands between two names of array files.
        let mut pairs = rest.match_indices(':').filter_map(|(at, _)| {
            Some((ArrayPath::new(&rest[..at]).ok()?, ArrayPath::new(&rest[at + 1..]).ok()?))
        });
        let (Some((from, to)), None) = (pairs.next(), pairs.next()) else {
            return Err(format!("`{rest}` is not IN:OUT, two names that end with .npy or .bin"));
        };
        if from.format == Format::Bin && to.format == Format::Npy {
            return Err("a .bin has no element type for a .npy; write a .bin".into());
        }
        Ok(InOut { slot, from, to })
    }
}

/// `X[,Y[,Z]]`, of `--groups`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups(pub(crate) [u32; 3]);

impl FromStr for Groups {
    type Err = String;

    fn from_str(text: &str) -> Result<Groups, String> {
        let wrong = || format!("`{text}` is no grid; write 64, 64,64 or 64,64,1: workgroups along x, y, z");
        let mut groups = [1; 3];
        let mut axes = groups.iter_mut();
        for digits in text.split(',') {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let axis = axes.next().ok_or_else(wrong)?;
            *axis = digits.parse().ok().filter(|&n| plain && n > 0).ok_or_else(wrong)?;
        }
        Ok(Groups(groups))
    }
}

/// `NAME=VALUE`, of `--set`.
pub(crate) fn parse_override(text: &str) -> Result<Override, String> {
    let wrong = || format!("`{text}` is not NAME=VALUE, with a number, true or false");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let value = match value {
        "true" => 1.0,
        "false" => 0.0,
        number => number.parse().ok().filter(|n: &f64| n.is_finite()).ok_or_else(wrong)?,
    };
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(Override { name: name.to_owned(), value })
}

/// What one binding is given.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    /// Read from a file.
    In(ArrayPath),
    /// Zeros at first, then written to a file.
    Out(ArrayPath, DType, Shape),
    /// Read from a file, then written to another one.
    InOut(ArrayPath, ArrayPath),
    /// A uniform, read from a file.
    Uniform(ArrayPath),
}

impl Given {
    /// The option that gave it.
    pub(crate) fn option(&self) -> &'static str {
        match self {
            Given::In(_) => "--in",
            Given::Out(..) => "--out",
            Given::InOut(..) => "--inout",
            Given::Uniform(_) => "--uniform",
        }
    }
}

/// All that was given.
#[derive(Debug, Default)]
pub(crate) struct All(Vec<(Slot, Given)>);

impl All {
    /// From the options of each kind.
    pub(crate) fn new(inputs: &[Input], outputs: &[Output], both: &[InOut], uniforms: &[Input]) -> All {
        let inputs = inputs.iter().map(|i| (i.slot, Given::In(i.file.clone())));
        let outputs = outputs.iter().map(|o| (o.slot, Given::Out(o.file.clone(), o.dtype, o.shape.clone())));
        let both = both.iter().map(|b| (b.slot, Given::InOut(b.from.clone(), b.to.clone())));
        let uniforms = uniforms.iter().map(|u| (u.slot, Given::Uniform(u.file.clone())));
        All(inputs.chain(outputs).chain(both).chain(uniforms).collect())
    }

    /// What each binding of the kernel is given, in the order of its bindings.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the binding and the type that it wants.
    pub(crate) fn assign(self, interface: &KernelInterface) -> Result<Vec<Given>> {
        for (index, (slot, given)) in self.0.iter().enumerate() {
            if let Some((_, earlier)) = self.0[..index].iter().find(|(other, _)| other == slot) {
                let (place, one, two) = (short(*slot), earlier.option(), given.option());
                return Err(Error::usage(format!(
                    "binding {place} is given twice, by {one} and {two}; give it once"
                )));
            }
            if !interface.bindings.iter().any(|binding| binding.slot == *slot) {
                return Err(unknown(interface, *slot, given));
            }
        }
        let mut given = self.0;
        interface
            .bindings
            .iter()
            .map(|binding| match given.iter().position(|(slot, _)| *slot == binding.slot) {
                Some(index) => check(binding, given.swap_remove(index).1),
                None => Err(Error::usage(format!(
                    "{} is not given; give {}",
                    describe(binding),
                    suggestion(binding)
                ))),
            })
            .collect()
    }
}

fn short(slot: Slot) -> String {
    format!("{}:{}", slot.group, slot.binding)
}

/// A binding for a message: place, name, type and use.
pub(crate) fn describe(binding: &Binding) -> String {
    let place = short(binding.slot);
    format!("binding {place} `{}` ({}, {})", binding.name, binding.ty, used(binding))
}

fn used(binding: &Binding) -> &'static str {
    match (binding.kind, binding.access) {
        (BindingKind::Uniform, _) => "uniform",
        (_, Access::Read) => "read",
        (_, Access::Write) => "written",
        (_, Access::ReadWrite) => "read and written",
    }
}

fn suggestion(binding: &Binding) -> String {
    let place = short(binding.slot);
    let dtype = DType::ALL.into_iter().find(|dtype| Some(dtype.scalar()) == binding.scalar);
    let dtype = dtype.map_or("DTYPE", DType::name);
    match (binding.kind, binding.access) {
        (BindingKind::Uniform, _) => format!("--uniform {place}=FILE.npy"),
        (_, Access::Read) => format!("--in {place}=FILE.npy"),
        (_, Access::Write) => format!("--out {place}=FILE.npy:{dtype}:SHAPE"),
        (_, Access::ReadWrite) => {
            format!(
                "--inout {place}=IN.npy:OUT.npy or --out {place}=FILE.npy:{dtype}:SHAPE, which begins as zeros"
            )
        }
    }
}

fn unknown(interface: &KernelInterface, slot: Slot, given: &Given) -> Error {
    let place = short(slot);
    let known: Vec<String> =
        interface.bindings.iter().map(|binding| format!("\n  {}", describe(binding))).collect();
    let known = if known.is_empty() { " none".to_owned() } else { known.concat() };
    Error::usage(format!(
        "{} {place}: entry point `{}` uses no such binding; it uses:{known}",
        given.option(),
        interface.entry
    ))
}

/// The option fits the binding.
fn check(binding: &Binding, given: Given) -> Result<Given> {
    let fits = match (&given, binding.kind) {
        (Given::Uniform(_), kind) => kind == BindingKind::Uniform,
        (_, BindingKind::Uniform) => false,
        // A result that nobody writes is a mistake; an input that is written over may be meant.
        (Given::Out(..) | Given::InOut(..), _) => binding.access.writes(),
        (Given::In(_), _) => true,
    };
    if fits {
        return Ok(given);
    }
    Err(Error::usage(format!(
        "{} is given by {}; give {}",
        describe(binding),
        given.option(),
        suggestion(binding)
    )))
}

/// The elements of a file are what the kernel takes them for.
///
/// # Errors
/// [`Error::Usage`] naming the binding and both types.
pub(crate) fn check_elements(binding: &Binding, has: DType) -> Result<()> {
    match binding.scalar {
        // Bytes are untyped data, which any type is made of.
        Some(wants) if wants != has.scalar() && has != DType::U1 => {
            let wants = DType::ALL
                .into_iter()
                .find(|dtype| dtype.scalar() == wants)
                .map_or_else(|| wants.to_string(), |dtype| dtype.to_string());
            Err(Error::usage(format!("{} takes elements of {wants}, and is given {has}", describe(binding))))
        }
        _ => Ok(()),
    }
}
