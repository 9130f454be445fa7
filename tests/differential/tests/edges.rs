//! Every operator and built-in on edge values.
//!
//! What WGSL defines to the bit must be the same on the CPU, from printed CUDA C++, and on the Vulkan device. What it
//! defines within an error must lie within it on the CPU.

use onebuf_differential::{
    case::Case,
    device::Runner,
    host::{self, Sanitize},
    probe::Table,
    tables,
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
    let device = match Runner::open().unwrap_or_else(|error| panic!("{error:#}")) {
        Some(runner) => runner.run(&all).unwrap_or_else(|error| panic!("{error:#}")),
        None => vec![None; all.len()],
    };
    let (mut faults, mut values, mut compared) = (Vec::new(), 0, 0);
    for (((table, case), host), device) in tables.iter().zip(&cases).zip(&host).zip(&device) {
        let host = out(table, case, host);
        let device = device.as_ref().map(|device| out(table, case, device));
        for (index, &got) in host.iter().enumerate() {
            values += 1;
            let other = device.as_ref().map(|device| device[index]);
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
