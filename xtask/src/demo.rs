//! The main job, shown on a real photograph.

use crate::process;
use crate::setup;
use crate::workspace::{self, Executable, Workspace};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// The command: its package and its name.
pub(crate) const COMMAND: (&str, &str) = ("onebuf-cli", "onebuf");
/// The example that the demo runs, likewise.
pub(crate) const PIPELINE: (&str, &str) = ("onebuf-examples", "pipeline");
/// The photograph that the pipeline reads by default, from the workspace's root.
pub(crate) const PHOTOGRAPH: &str = "assets/coffee.png";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The photograph, PNG or JPEG [default: assets/coffee.png]
    #[arg(long)]
    input: Option<PathBuf>,
    /// Where the pictures and the page are written [default: target/demo]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// `cargo xtask demo`.
pub(crate) fn chore(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    setup::to_run()?;
    let built = build(&workspace, &["--bin", COMMAND.1, "--bin", PIPELINE.1])?;
    let command = find(&built, COMMAND)?;
    let pipeline = find(&built, PIPELINE)?;
    let onebuf = |arguments: &[&str]| process::run(Command::new(&command.path).args(arguments));

    println!("\n== The devices of this machine");
    onebuf(&["devices"])?;
    println!("\n== What they share, each claim tried");
    onebuf(&["report", "--verify"])?;

    println!("\n== An image pipeline on memory that the CPU and the device share");
    let input = options.input.clone().unwrap_or_else(|| workspace.root.join(PHOTOGRAPH));
    let out = options.out.clone().unwrap_or_else(|| workspace.target.join("demo"));
    std::fs::create_dir_all(&out).with_context(|| format!("could not make {}", out.display()))?;
    process::run(Command::new(&pipeline.path).arg("--input").arg(&input).arg("--out").arg(&out))?;

    let page = out.join("index.html");
    if !page.is_file() {
        bail!("the pipeline wrote no {}", page.display());
    }
    println!("\nThe pictures are in {}; the page that shows them is {}", out.display(), page.display());
    Ok(())
}

/// Builds programs of the command's and the examples' packages as a user gets them. They are built in one go, since
/// cargo builds a dependency once for each set of features that it is asked for at a time.
pub(crate) fn build(workspace: &Workspace, selection: &[&str]) -> Result<Vec<Executable>> {
    let mut command = workspace::cargo();
    command.args(["build", "--release", "--all-features", "--package", COMMAND.0, "--package", PIPELINE.0]);
    workspace.build(command.args(selection))
}

/// One of the programs that were built.
pub(crate) fn find<'a>(built: &'a [Executable], (package, name): (&str, &str)) -> Result<&'a Executable> {
    let found = built.iter().find(|one| one.package == package && one.target == name);
    found.with_context(|| format!("cargo built no {name} of {package}"))
}
