//! What can be wrong with a source or a request, each with what is allowed instead.

use std::fmt;

use naga::{Span, WithSpan};

/// A place in a source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Length of the marked text in bytes.
    pub length_bytes: u32,
}

impl Location {
    /// The place of `span` in `source`, if the span is known and lies in it.
    pub(crate) fn of(span: Span, source: &str) -> Option<Location> {
        let range = span.to_range()?;
        let before = source.get(..range.start)?;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Some(Location {
            line: before.matches('\n').count() as u32 + 1,
            column: before[line_start..].chars().count() as u32 + 1,
            length_bytes: (range.end.saturating_sub(range.start)) as u32,
        })
    }
}

/// A message about a place in the source. Its `Display` shows the line with a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The message alone, on one line.
    pub message: String,
    /// The first place it speaks of; `None` for a message about the whole module.
    pub location: Option<Location>,
    rendered: String,
}

impl Diagnostic {
    pub(crate) fn from_parse_error(error: &naga::front::wgsl::ParseError, source: &str) -> Diagnostic {
        Diagnostic {
            message: error.message().to_owned(),
            location: error.labels().find_map(|(span, _)| Location::of(span, source)),
            rendered: error.emit_to_string(source),
        }
    }

    pub(crate) fn from_with_span<E: std::error::Error>(error: &WithSpan<E>, source: &str) -> Diagnostic {
        let mut message = error.as_inner().to_string();
        let mut cause = error.as_inner().source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Diagnostic {
            message,
            location: error.spans().find_map(|(span, _)| Location::of(*span, source)),
            rendered: error.emit_to_string(source),
        }
    }

    pub(crate) fn at(span: Span, message: String, label: &str, source: &str) -> Diagnostic {
        let in_source = Location::of(span, source).is_some();
        let span = if in_source { span } else { Span::UNDEFINED };
        Diagnostic::from_with_span(&WithSpan::new(Message(message)).with_span(span, label), source)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rendered.trim_end())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Message(String);

/// Why a source was refused, or a request could not be met.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not WGSL.
    #[error("{0}")]
    Parse(Diagnostic),

    /// The text is WGSL by its grammar but breaks a rule of the language.
    #[error("{0}")]
    Validation(Diagnostic),

    /// The text is valid WGSL that uses something a kernel on buffers cannot have.
    #[error("{diagnostic}")]
    Unsupported {
        /// The construct, as `texture` or `ray query`.
        construct: String,
        /// Where it stands.
        diagnostic: Diagnostic,
    },

    /// No entry point of this name, or none was named where there are several.
    #[error("{}", entry_point_message(.asked.as_deref(), .available))]
    EntryPoint {
        /// The name that was asked for.
        asked: Option<String>,
        /// The compute entry points of the module.
        available: Vec<String>,
    },

    /// The named entry point is not a compute shader.
    #[error(
        "entry point `{entry}` is a {stage} shader; only @compute entry points can be launched as kernels"
    )]
    NotCompute {
        /// Its name.
        entry: String,
        /// Its stage.
        stage: String,
    },

    /// The module has no overridable constant of this name.
    #[error("no override `{name}`; the module has {}", list(.available))]
    UnknownOverride {
        /// The name that was given.
        name: String,
        /// The names there are.
        available: Vec<String>,
    },

    /// The same constant was given two values.
    #[error("override `{name}` was given twice; give each constant one value")]
    DuplicateOverride {
        /// The name as declared.
        name: String,
    },

    /// A constant without a default was given no value.
    #[error("override `{name}: {ty}` has no default; give it a value")]
    MissingOverride {
        /// Its name.
        name: String,
        /// Its WGSL type.
        ty: String,
    },

    /// The value does not fit the constant's type.
    #[error("override `{name}: {ty}` cannot be {value}; {allowed}")]
    OverrideValue {
        /// Its name.
        name: String,
        /// Its WGSL type.
        ty: String,
        /// The value that was given.
        value: f64,
        /// The values that are allowed.
        allowed: String,
    },

    /// The values of the overrides make the module invalid, as a workgroup size of 0 does.
    #[error("with these override values the module is invalid: {0}")]
    Specialization(String),

    /// The source nests deeper, or chains more operators in one expression, than is accepted.
    #[error(
        "line {line} chains more than {limit} operators in one expression; split it with `let` or a loop"
    )]
    TooDeep {
        /// The line on which the limit was passed, from 1.
        line: u32,
        /// The limit.
        limit: u32,
    },

    /// The module cannot be written in the asked form.
    #[error("cannot write `{entry}` as {target}: {reason}")]
    Write {
        /// The entry point.
        entry: String,
        /// `SPIR-V` or `CUDA C++`.
        target: &'static str,
        /// Why.
        reason: String,
    },

    /// A fault of the compiler itself: it is reported, never a crash.
    #[error("the WGSL compiler failed: {0}; this is a bug, please report it with the source")]
    Internal(String),
}

impl Error {
    /// The place in the source that the error speaks of, if there is one.
    pub fn location(&self) -> Option<Location> {
        match self {
            Error::Parse(diagnostic)
            | Error::Validation(diagnostic)
            | Error::Unsupported { diagnostic, .. } => diagnostic.location,
            _ => None,
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn entry_point_message(asked: Option<&str>, available: &[String]) -> String {
    match (asked, available) {
        (_, []) => "the module has no @compute entry point".to_owned(),
        (Some(name), _) => format!("no compute entry point `{name}`; the module has {}", list(available)),
        (None, _) => format!("the module has several compute entry points; name one of {}", list(available)),
    }
}
