//! Random programs, both ways.

use anyhow::Result;

use crate::{
    case::{Case, Outcome},
    generate,
    host::{self, Sanitize},
    layout::{self, Layout},
    vulkan::Runner,
};

/// Where two outcomes differ, in bytes that are data.
fn difference(case: &Case, host: &Outcome, vulkan: &Outcome) -> Option<String> {
    let layout = Layout::of(&case.source);
    for ((binding, host), vulkan) in case.kernel.interface().bindings.iter().zip(host).zip(vulkan) {
        let data = layout.data_bytes(&binding.name, host.len());
        for at in (0..host.len()).filter(|&at| data[at]) {
            if host[at] != vulkan[at] && !layout::both_zero(host, vulkan, at) {
                return Some(format!(
                    "{}: byte {at}: CPU {:#04x}, Vulkan {:#04x}",
                    binding.name, host[at], vulkan[at]
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
pub fn compare(
    runner: &mut Runner,
    seeds: impl Iterator<Item = u64>,
    sanitize: Sanitize,
) -> Result<Vec<String>> {
    let cases = seeds.map(generate::case).collect::<Result<Vec<Case>>>()?;
    let cases: Vec<&Case> = cases.iter().collect();
    let host = host::run(&cases, sanitize)?;
    let vulkan = runner.run(&cases)?;
    let differences = cases.iter().zip(&host).zip(&vulkan).filter_map(|((case, host), vulkan)| {
        difference(case, host, vulkan).map(|difference| format!("{}: {difference}", case.name))
    });
    Ok(differences.collect())
}
