//! Debian's and Ubuntu's packages: installed on the system, or unpacked into a private folder beside the build.

use crate::process;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often, and how many seconds apart, an apt that another program locks is tried again.
const LOCK_TRIES: u32 = 30;
const LOCK_PAUSE: Duration = Duration::from_secs(10);

/// Keys that sign the archives. Those that exist are named, since newer releases trust no key by default.
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"];

/// Whether this is a distribution with apt.
pub(crate) fn is_here() -> bool {
    process::succeeds(Command::new("apt-get").arg("--version"))
}

/// Installs packages on the system, as root or through sudo, without a question.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    patiently(|| {
        let mut command = as_root()?;
        command.args(["apt-get", "-q", "-o", "Acquire::Retries=3", "update"]);
        Ok(command)
    })?;
    patiently(|| {
        let mut command = as_root()?;
        command.args(["apt-get", "-q", "-y", "--no-install-recommends"]);
        command.args(["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]);
        command.arg("install").args(packages);
        Ok(command)
    })
    .with_context(|| format!("could not install {}", packages.join(" ")))
}

/// `env DEBIAN_FRONTEND=noninteractive`, through sudo where this is not root.
fn as_root() -> Result<Command> {
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("env")
    } else if process::succeeds(Command::new("sudo").arg("--version")) {
        let mut sudo = Command::new("sudo");
        if !std::io::stdin().is_terminal() {
            sudo.arg("--non-interactive");
        }
        sudo.arg("env");
        sudo
    } else {
        bail!("installing packages needs root: there is no sudo, so run this command as root");
    };
    command.arg("DEBIAN_FRONTEND=noninteractive");
    Ok(command)
}

/// Runs what `command` makes, again and again while another program holds apt's lock.
fn patiently(command: impl Fn() -> Result<Command>) -> Result<()> {
    for attempt in 1.. {
        let mut command = command()?;
        println!("$ {}", process::line(&command));
        // Its standard output is progress for people; its standard error says why it failed.
        let output = command
            .stdin(Stdio::inherit())
            .stdout(Stdio::inherit())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(std::process::Child::wait_with_output)
            .with_context(|| format!("could not start `{}`", process::line(&command)))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let locked = said.contains("Could not get lock") || said.contains("Unable to lock");
        if !locked || attempt >= LOCK_TRIES {
            bail!("`{}` failed ({}): {}", process::line(&command), output.status, said.trim());
        }
        println!("another program holds apt's lock; trying again in {} s", LOCK_PAUSE.as_secs());
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(())
}

/// A private view of the distribution's archives, backports included: its lists and packages lie in one folder, and
/// nothing outside it is changed. It needs no root.
pub(crate) struct Archive {
    root: PathBuf,
    /// The suite of newer packages, or why there is none.
    backports: Result<String, String>,
}

impl Archive {
    /// Fetches the lists of packages into `root`.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let codename = codename()?;
        let sources = Sources::of_system(&codename)?;
        let backports = format!("{codename}-backports");
        let mut archive = Self { root: root.to_path_buf(), backports: Ok(backports.clone()) };
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = root.join(folder);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("could not make {}", folder.display()))?;
        }
        println!("fetching the package lists of {codename} and {backports} into {}", root.display());
        if let Err(error) = archive.update(&sources.with(&backports)) {
            archive.backports = Err(format!("the suite {backports} cannot be read: {error}"));
            archive.update(&sources)?;
        }
        Ok(archive)
    }

    /// The suite of newer packages, or why there is none.
    pub(crate) fn backports(&self) -> Result<&str> {
        self.backports.as_deref().map_err(|why| anyhow::anyhow!("{why}"))
    }

    fn update(&self, sources: &Sources) -> Result<()> {
        let list = self.root.join("sources.list");
        std::fs::write(&list, sources.to_string())
            .with_context(|| format!("could not write {}", list.display()))?;
        let mut command = self.apt("apt-get");
        command.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
        process::read(&mut command).map(drop)
    }

    /// An apt program that sees this archive alone.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut set = |option: &str, value: &Path| {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        };
        set("Dir::Etc::SourceList", &self.root.join("sources.list"));
        set("Dir::Etc::SourceParts", Path::new("-"));
        set("Dir::State::Lists", &self.root.join("lists"));
        set("Dir::Cache", &self.root.join("cache"));
        command.args(["-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3"]);
        command.env("LC_ALL", "C");
        command
    }

    /// Downloads a package, from `suite` or from the best one, and unpacks its files into the folder `into`.
    pub(crate) fn unpack(&self, package: &str, suite: Option<&str>, into: &Path) -> Result<Unpacked> {
        let downloads = into.join("download");
        std::fs::create_dir_all(&downloads)?;
        let wanted = suite.map_or(package.to_string(), |suite| format!("{package}/{suite}"));
        println!("fetching {wanted}");
        let mut command = self.apt("apt-get");
        command.current_dir(&downloads).args(["-q", "download", &wanted]);
        process::read(&mut command)?;
        let file = std::fs::read_dir(&downloads)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt downloaded no file for {wanted}"))?;
        let field = |name: &str| process::read(Command::new("dpkg-deb").arg("--field").arg(&file).arg(name));
        let unpacked =
            Unpacked { version: field("Version")?.trim().to_string(), depends: depends(&field("Depends")?) };
        process::read(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(into))?;
        std::fs::remove_dir_all(&downloads)?;
        Ok(unpacked)
    }
}

/// A package whose files lie in a folder.
pub(crate) struct Unpacked {
    pub(crate) version: String,
    /// Names of the packages that it wants beside it.
    pub(crate) depends: Vec<String>,
}

/// Whether the system has the package installed.
pub(crate) fn is_installed(package: &str) -> bool {
    let query = ["--show", "--showformat=${db:Status-Status}\n", package];
    process::read(Command::new("dpkg-query").args(query))
        .is_ok_and(|states| states.lines().any(|state| state == "installed"))
}

/// Names in a `Depends` field. Of alternatives the first is taken.
fn depends(field: &str) -> Vec<String> {
    let name = |entry: &str| {
        let first = entry.split('|').next()?;
        let name = first.split(['(', ':']).next()?.trim();
        (!name.is_empty()).then(|| name.to_string())
    };
    field.split(',').filter_map(name).collect()
}

/// The release's name, such as `bookworm`.
fn codename() -> Result<String> {
    let text = std::fs::read_to_string("/etc/os-release").context("could not read /etc/os-release")?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value("UBUNTU_CODENAME")
        .or_else(|| value("VERSION_CODENAME"))
        .map(|name| name.trim_matches('"').to_string())
        .context("/etc/os-release names no VERSION_CODENAME")
}

/// Where one archive is: address, suite, component.
type Source = (String, String, String);

/// Archives of the distribution, as lines of a `sources.list`.
#[derive(Clone)]
struct Sources(BTreeSet<Source>);

impl Sources {
    /// Those that the system uses for this release, mirrors included.
    fn of_system(codename: &str) -> Result<Self> {
        let format = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)";
        let text = process::read(Command::new("apt-get").args([
            "indextargets",
            "--format",
            format,
            "Created-By: Packages",
        ]))?;
        let sources = Self::parse(&text, codename);
        if sources.0.is_empty() {
            bail!("apt's sources have no archive of {codename}");
        }
        Ok(sources)
    }

    fn parse(targets: &str, codename: &str) -> Self {
        let source = |line: &str| {
            let mut words = line.split_whitespace();
            let (address, suite, component) = (words.next()?, words.next()?, words.next()?);
            let of_release = suite
                .strip_prefix(codename)
                .is_some_and(|rest| ["", "-updates", "-security"].contains(&rest));
            // The origin is not known before the first update: a machine that new has no other archives.
            let origin = words.next().filter(|origin| !origin.starts_with("$("));
            let of_distribution = origin.is_none_or(|origin| ["Debian", "Ubuntu"].contains(&origin));
            let free = ["main", "universe"].contains(&component);
            (of_release && of_distribution && free)
                .then(|| (address.to_string(), suite.to_string(), component.to_string()))
        };
        Self(targets.lines().filter_map(source).collect())
    }

    /// These, and the suite `backports` beside the release's own.
    fn with(&self, backports: &str) -> Self {
        let release = backports.trim_end_matches("-backports");
        let more = self.0.iter().filter(|(_, suite, _)| suite == release);
        let more =
            more.map(|(address, _, component)| (address.clone(), backports.to_string(), component.clone()));
        Self(self.0.iter().cloned().chain(more).collect())
    }
}

impl std::fmt::Display for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<&str> = KEYRINGS.into_iter().filter(|path| Path::new(path).exists()).collect();
        let options =
            if keys.is_empty() { String::new() } else { format!("[signed-by={}] ", keys.join(",")) };
        for (address, suite, component) in &self.0 {
            writeln!(f, "deb {options}{address} {suite} {component}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: &str = "\
        http://mirror.example/debian/ bookworm main Debian\n\
        http://mirror.example/debian/ bookworm non-free Debian\n\
        http://mirror.example/debian/ bookworm-updates main $(ORIGIN)\n\
        http://other.example/apt/ bookworm main Other\n\
        http://mirror.example/debian/ trixie main Debian\n";

    #[test]
    fn only_the_distributions_own_archives_are_used() {
        let sources = Sources::parse(TARGETS, "bookworm").with("bookworm-backports");
        let suites: Vec<&str> = sources.0.iter().map(|(_, suite, _)| suite.as_str()).collect();
        assert_eq!(suites, ["bookworm", "bookworm-backports", "bookworm-updates"]);
        assert!(sources.0.iter().all(|(address, _, _)| address == "http://mirror.example/debian/"));
    }

    #[test]
    fn dependencies_lose_versions_and_alternatives() {
        let field = "libc6 (>= 2.34), libllvm15, libgl1:any | libgl2, \n";
        assert_eq!(depends(field), ["libc6", "libllvm15", "libgl1"]);
        assert!(depends("\n").is_empty());
    }
}
