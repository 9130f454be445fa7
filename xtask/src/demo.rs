//! The main job, shown on a real photograph.

use crate::process;
use crate::setup;
use crate::workspace::{self, Executable, Package, Workspace};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// A program of the workspace.
pub(crate) struct Program {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// Features to build it with, beside those that it requires.
    pub(crate) features: &'static [&'static str],
}

/// The command, with all that it can report.
pub(crate) const COMMAND: Program = Program { package: "onebuf-cli", name: "onebuf", features: &["wgpu"] };
/// The example that the demo runs.
pub(crate) const PIPELINE: Program = Program { package: "onebuf-examples", name: "pipeline", features: &[] };
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
    let command = build(&workspace, &COMMAND)?;
    let pipeline = build(&workspace, &PIPELINE)?;
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
pub(crate) fn build(workspace: &Workspace, program: &Program) -> Result<Executable> {
    let package = workspace.member(program.package)?;
    let mut command = workspace::cargo();
    command.args(["build", "--release", "--package", &package.name]).args(selection(package, program)?);
    let built = workspace.build(&mut command)?;
    let found = built.into_iter().find(|one| one.package == package.name && one.target == program.name);
    found.with_context(|| format!("cargo built no {} of {}", program.name, package.name))
}

/// The arguments with which cargo builds this program, whether it is an example or a binary, and its features.
fn selection(package: &Package, program: &Program) -> Result<Vec<String>> {
    for target in package.targets.iter().filter(|target| target.name == program.name) {
        if let Some(kind) = target.kind.iter().find(|kind| ["bin", "example"].contains(&kind.as_str())) {
            let mut arguments = vec![format!("--{kind}"), program.name.to_string()];
            let required = target.required_features.iter().map(String::as_str);
            let features: Vec<&str> = required.chain(program.features.iter().copied()).collect();
            if !features.is_empty() {
                arguments.extend(["--features".to_string(), features.join(",")]);
            }
            return Ok(arguments);
        }
    }
    bail!("the package {} has no program {}", package.name, program.name)
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
        let select = |name, features| selection(&package, &Program { package: "e", name, features });
        assert_eq!(select("pipeline", &[]).unwrap(), ["--example", "pipeline", "--features", "wgpu"]);
        assert_eq!(
            select("pipeline", &["more"]).unwrap(),
            ["--example", "pipeline", "--features", "wgpu,more"]
        );
        assert_eq!(select("tool", &[]).unwrap(), ["--bin", "tool"]);
        assert_eq!(select("tool", &["more"]).unwrap(), ["--bin", "tool", "--features", "more"]);
        assert!(select("e", &[]).is_err());
    }
}
