//! Everything that shows the library at work, packed for a machine that has a GPU and no Rust.
//!
//! `.bundle/` holds the conformance suite's test programs, those of CUDA's backend, the command, the examples, the photographs, and `run.sh`,
//! which runs them all and ends with a table. It needs bash, coreutils and a glibc of at least [`OLDEST_GLIBC`].

use crate::demo::{COMMAND, PHOTOGRAPH, PIPELINE, build, find};
use crate::process;
use crate::workspace::{self, Executable, Workspace};
use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The conformance suite, and the tests of the backend that CI has no device for.
const SUITE: [&str; 2] = ["onebuf-tests", "onebuf-cuda"];
/// What Python's array libraries are tested with, where they are: a library, the scripts.
const PEER: (&str, &str) = ("onebuf-dlpack-peer", "libonebuf_dlpack_peer.so");
const SCRIPTS: [&str; 3] =
    ["tests/dlpack/dlpack.py", "tests/dlpack/handles.py", "crates/onebuf-bench/python/bench.py"];
/// Examples that there is no room for: `onebuf report --verify` has wgpu and the device take turns too, and the tests of
/// two processes pass frames through rings.
const LEFT_OUT: [&str; 2] = ["wgpu_turns", "camera"];
/// The minor version of the oldest glibc 2 that the programs may ask for.
const OLDEST_GLIBC: u32 = 36;
/// More does not travel to the machines that it is for.
const LARGEST: u64 = 64 << 20;
const RUN: &str = include_str!("run.sh");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tests of this package too, beside the conformance suite (may be given several times)
    #[arg(short, long)]
    package: Vec<String>,
}

/// `cargo xtask bundle`.
pub(crate) fn chore(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    let bundle = workspace.root.join(".bundle");
    let mut packages = SUITE.map(String::from).to_vec();
    packages.extend(options.package.iter().cloned());
    let mut tests = workspace::cargo();
    // As `cargo xtask test` builds them: with the checks of a debug build, and mostly built already.
    tests.args(["test", "--all-features", "--no-run"]);
    for package in &packages {
        tests.args(["--package", &workspace.member(package)?.name]);
    }
    let tests = workspace.build(&mut tests)?;
    let programs = build(&workspace, &["--package", PEER.0, "--bins", "--examples", "--lib"])?;

    if bundle.exists() {
        std::fs::remove_dir_all(&bundle).with_context(|| format!("could not empty {}", bundle.display()))?;
    }
    let command = find(&programs, COMMAND)?;
    let mut files = vec![copy(&command.path, &bundle.join("bin").join(COMMAND.1))?];
    // Unit tests ask for no device, and run in CI.
    for program in tests.iter().filter(|program| program.is_test && program.kind == "test") {
        files.push(copy(&program.path, &bundle.join("tests").join(test_name(program)))?);
    }
    for program in
        programs.iter().filter(|one| one.package == PIPELINE.0 && !LEFT_OUT.contains(&one.target.as_str()))
    {
        files.push(copy(&program.path, &bundle.join("examples").join(&program.target))?);
    }
    files.push(copy(&workspace.target.join("release").join(PEER.1), &bundle.join("lib").join(PEER.1))?);
    let programs = files.clone();
    process::run(Command::new("strip").args(&programs))?;
    for script in SCRIPTS {
        let script = workspace.root.join(script);
        let name = script.file_name().context("a script without a name")?;
        files.push(copy(&script, &bundle.join("python").join(name))?);
    }
    files.push(copy(&workspace.root.join(PHOTOGRAPH), &bundle.join(PHOTOGRAPH))?);
    files.push(write(&bundle.join("commit"), &commit(&workspace.root))?);
    let script = write(&bundle.join("run.sh"), RUN)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    files.push(script);

    check_glibc(&programs)?;
    check_size(&bundle, &files)?;
    println!("run it with: bash {}", bundle.join("run.sh").display());
    Ok(())
}

fn test_name(program: &Executable) -> String {
    format!("{}-{}", program.package, program.target)
}

fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    let name = || format!("could not copy {} to {}", from.display(), to.display());
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).with_context(name)?;
    }
    std::fs::copy(from, to).with_context(name)?;
    Ok(to.to_path_buf())
}

fn write(to: &Path, text: &str) -> Result<PathBuf> {
    std::fs::write(to, text).with_context(|| format!("could not write {}", to.display()))?;
    Ok(to.to_path_buf())
}

/// The commit that the programs were built from, and whether the work tree had changes.
fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| process::read(Command::new("git").args(arguments).current_dir(root));
    git(&["describe", "--always", "--abbrev=12", "--dirty"]).unwrap_or_else(|_| "unknown\n".into())
}

fn check_size(bundle: &Path, files: &[PathBuf]) -> Result<()> {
    let mut total = 0;
    let mut table = String::new();
    for file in files {
        let bytes =
            std::fs::metadata(file).with_context(|| format!("could not read {}", file.display()))?.len();
        let name = file.strip_prefix(bundle).unwrap_or(file);
        table.push_str(&format!("{:>8.2} MiB  {}\n", mebibytes(bytes), name.display()));
        total += bytes;
    }
    print!("{table}");
    println!("{:>8.2} MiB  in all", mebibytes(total));
    if total > LARGEST {
        bail!("the bundle is larger than {} MiB", LARGEST >> 20);
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Fails where a program asks for a newer glibc: the machine that it is for would not start it.
fn check_glibc(programs: &[PathBuf]) -> Result<()> {
    for program in programs {
        let bytes =
            std::fs::read(program).with_context(|| format!("could not read {}", program.display()))?;
        let minor = newest_glibc(&bytes);
        if minor > OLDEST_GLIBC {
            bail!(
                "{} wants glibc 2.{minor}, and the bundle promises 2.{OLDEST_GLIBC}: build it on an older \
                 distribution, such as Debian 12",
                program.display()
            );
        }
    }
    Ok(())
}

/// The largest N in the symbol versions `GLIBC_2.N` that a program names.
fn newest_glibc(program: &[u8]) -> u32 {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let starts = program.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let number = |(start, _): (usize, &[u8])| {
        let digits = program[start + PREFIX.len()..].iter().take_while(|byte| byte.is_ascii_digit()).take(4);
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    };
    starts.map(number).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_version_wins() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE"), 34);
        assert_eq!(newest_glibc(b"GLIBC_2."), 0);
    }

    #[test]
    fn a_bundle_over_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("big");
        std::fs::File::create(&file).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(check_size(folder.path(), std::slice::from_ref(&file)).is_err());
        std::fs::File::create(&file).unwrap().set_len(LARGEST).unwrap();
        assert!(check_size(folder.path(), &[file]).is_ok());
    }
}
