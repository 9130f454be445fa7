//! Every operator and built-in on edge values.
//!
//! What WGSL defines to the bit must be the same on the CPU, from printed CUDA C++, and on the Vulkan device. What it
//! defines within an error must lie within it on the CPU.

use onebuf_differential::{
    case::Case,
    host::{self, Sanitize},
    probe::Table,
    required, tables,
    vulkan::Runner,
};

fn out(table: &Table, case: &Case, outcome: &[Vec<u8>]) -> Vec<u32> {
    let position = case.kernel.interface().position("out").unwrap();
    table.results(&outcome[position])
}

#[test]
fn edge_values_agree() {
    let tables = tables::all();
    let cases: Vec<Case> = tables
        .iter()
        .map(|table| table.case().unwrap_or_else(|error| panic!("{}: {error:#}", table.name)))
        .collect();
    let all: Vec<&Case> = cases.iter().collect();
    let host = host::run(&all, Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
    let mut runner = match Runner::open() {
        Ok(runner) => Some(runner),
        Err(error) => {
            assert!(!required("vulkan"), "ONEBUF_REQUIRE names vulkan: {error:#}");
            println!("against the references alone: {error:#}");
            None
        }
    };
    let (mut faults, mut values, mut compared) = (Vec::new(), 0, 0);
    for ((table, case), host) in tables.iter().zip(&cases).zip(&host) {
        let host = out(table, case, host);
        let available = runner.as_ref().map(Runner::features).unwrap_or_default();
        let vulkan = match &mut runner {
            Some(runner) if case.kernel.interface().features.missing_from(available).is_empty() => {
                Some(out(table, case, &runner.run(&[case]).unwrap()[0]))
            }
            _ => None,
        };
        for (index, &got) in host.iter().enumerate() {
            values += 1;
            let other = vulkan.as_ref().map(|vulkan| vulkan[index]);
            compared += usize::from(other.is_some());
            if let Some(fault) = table.fault(index, got, other) {
                faults.push(fault);
            }
        }
    }
    println!("{values} values in {} tables, {compared} compared: {} faults", tables.len(), faults.len());
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.iter().take(60).cloned().collect::<Vec<_>>().join("\n")
    );
}
