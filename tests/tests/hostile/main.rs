//! Generated bad input: argument lists that do not fit, sources that are no kernels. An error each, never a panic, no
//! message of the validation layer, and memory back to where it was.

mod arguments;
mod sources;
