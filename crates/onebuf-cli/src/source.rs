//! WGSL files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use onebuf::core::kernel::Override;
use onebuf_wgsl::{Module, Specialized};

use crate::error::{Error, Result};

/// More than any kernel has, and little enough to read a wrong file by mistake.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a file and chooses an entry point of it, with values for its overrides.
///
/// # Errors
/// [`Error::Usage`] where the command line asks for what the source does not have; [`Error::Failed`] where the source
/// is wrong, with its line.
pub(crate) fn specialize(path: &Path, entry: Option<&str>, overrides: &[Override]) -> Result<Specialized> {
    let source = read(path)?;
    Module::parse(&source).and_then(|module| module.specialize(entry, overrides)).map_err(|error| {
        use onebuf_wgsl::Error as Wgsl;
        let text = format!("{}: {error}", path.display());
        match error {
            Wgsl::EntryPoint { available, .. } if available.is_empty() => Error::Failed(text),
            Wgsl::EntryPoint { .. } | Wgsl::NotCompute { .. } => {
                Error::Usage(format!("{text}; choose with --entry NAME"))
            }
            Wgsl::UnknownOverride { .. } | Wgsl::DuplicateOverride { .. } | Wgsl::OverrideValue { .. } => {
                Error::Usage(text)
            }
            Wgsl::MissingOverride { name, .. } => Error::Usage(format!("{text}: --set {name}=VALUE")),
            _ => Error::Failed(text),
        }
    })
}

fn read(path: &Path) -> Result<String> {
    let io = |error| Error::io(path.display(), error);
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::Failed(format!("{}: more than 16 MiB are no kernel's source", path.display())));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::Failed(format!("{}: it is no UTF-8 text, which WGSL is", path.display())))
}
