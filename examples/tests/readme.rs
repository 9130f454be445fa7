//! The program in the README: the file beside this one is what stands there, and runs.

mod program {
    include!("readme/program.rs");

    pub(crate) fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

#[test]
fn the_program_in_the_readme_runs() {
    let readme = include_str!("../../README.md");
    let program = include_str!("readme/program.rs");
    assert!(readme.contains(&format!("```rust,no_run\n{program}```")), "README.md has another program");
    if onebuf::no_device_here().unwrap() {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "not run: no device here");
        return;
    }
    program::run().unwrap();
}
