//! Random programs, both ways.

use anyhow::Result;

use crate::{
    case::{Case, Outcome},
    device::Runner,
    generate,
    host::{self, Sanitize},
    layout::{self, Layout},
};

/// Where two outcomes differ, in bytes that are data.
fn difference(case: &Case, host: &Outcome, device: &Outcome) -> Option<String> {
    let layout = Layout::of(&case.source);
    for ((binding, host), device) in case.kernel.interface().bindings.iter().zip(host).zip(device) {
        let data = layout.data_bytes(&binding.name, host.len());
        for at in (0..host.len()).filter(|&at| data[at]) {
            if host[at] != device[at] && !layout::both_zero(host, device, at) {
                return Some(format!(
                    "{}: byte {at}: CPU {:#04x}, device {:#04x}",
                    binding.name, host[at], device[at]
                ));
            }
        }
    }
    None
}

/// Runs the programs of some seeds both ways, and says which differ.
///
/// # Errors
/// What a compiler, a sanitizer or the driver says of one of them.
pub fn compare(runner: &Runner, seeds: impl Iterator<Item = u64>, sanitize: Sanitize) -> Result<Vec<String>> {
    let cases = seeds.map(generate::case).collect::<Result<Vec<Case>>>()?;
    let cases: Vec<&Case> = cases.iter().collect();
    let host = host::run(&cases, sanitize)?;
    let device = runner.run(&cases)?;
    let differences = cases.iter().zip(&host).zip(&device).filter_map(|((case, host), device)| {
        let difference = match device {
            Some(device) => difference(case, host, device)?,
            None => "the device lacks what random programs use".to_owned(),
        };
        Some(format!("{}: {difference}", case.name))
    });
    Ok(differences.collect())
}
