//! The main job, shown on a real photograph.

use crate::process;
use crate::setup;
use crate::workspace::{self, Executable, Package, Workspace};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// The command's package, and its program's name.
pub(crate) const COMMAND: (&str, &str) = ("onebuf-cli", "onebuf");
/// The package of the examples, and the one that the demo runs.
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
    let command = build(&workspace, COMMAND)?;
    let pipeline = build(&workspace, PIPELINE)?;
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

/// Builds one program of the workspace as a user gets it.
pub(crate) fn build(workspace: &Workspace, (package, program): (&str, &str)) -> Result<Executable> {
    let package = workspace.member(package)?;
    let mut command = workspace::cargo();
    command.args(["build", "--release", "--package", &package.name]).args(selection(package, program)?);
    let built = workspace.build(&mut command)?;
    let found = built.into_iter().find(|one| one.package == package.name && one.target == program);
    found.with_context(|| format!("cargo built no {program} of {}", package.name))
}

/// The arguments with which cargo builds this program, whether it is an example or a binary, and its features.
fn selection(package: &Package, program: &str) -> Result<Vec<String>> {
    for target in package.targets.iter().filter(|target| target.name == program) {
        if let Some(kind) = target.kind.iter().find(|kind| ["bin", "example"].contains(&kind.as_str())) {
            let mut arguments = vec![format!("--{kind}"), program.to_string()];
            if !target.required_features.is_empty() {
                arguments.extend(["--features".to_string(), target.required_features.join(",")]);
            }
            return Ok(arguments);
        }
    }
    bail!("the package {} has no program {program}", package.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_and_binaries_are_selected_by_kind() {
        let package: Package = serde_json::from_value(serde_json::json!({
            "id": "e", "name": "e", "version": "1.0.0", "license": null, "license_file": null,
            "manifest_path": "/e/Cargo.toml",
            "targets": [
                { "name": "e", "kind": ["lib"] },
                { "name": "pipeline", "kind": ["example"], "required-features": ["wgpu"] },
                { "name": "tool", "kind": ["bin"] }
            ]
        }))
        .unwrap();
        assert_eq!(selection(&package, "pipeline").unwrap(), ["--example", "pipeline", "--features", "wgpu"]);
        assert_eq!(selection(&package, "tool").unwrap(), ["--bin", "tool"]);
        assert!(selection(&package, "e").is_err());
    }
}
