//! What cargo says of this workspace: its packages, their targets, and who depends on whom.

use crate::process;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `cargo`, the one that runs this program where there is one.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The answer of `cargo metadata`, with all features on.
#[derive(Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

/// A package of the workspace, or one that it depends on.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) license_file: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
    /// The manifest's `[package.metadata]`.
    #[serde(default)]
    metadata: serde_json::Value,
}

/// Something that cargo builds from a package.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// A program that cargo built.
#[derive(Clone, Debug)]
pub(crate) struct Executable {
    pub(crate) package: String,
    /// The target's name: of a unit test that of its crate, of an integration test that of its file.
    pub(crate) target: String,
    /// `lib`, `bin`, `test` or `example`.
    pub(crate) kind: String,
    /// Whether it is a test program.
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let text = process::read(cargo().args(["metadata", "--format-version=1", "--all-features"]))?;
        serde_json::from_str(&text).context("`cargo metadata` gave JSON of an unknown shape")
    }

    /// The workspace's own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        let ids: HashSet<&String> = self.workspace_members.iter().collect();
        self.packages.iter().filter(move |package| ids.contains(&package.id))
    }

    /// The workspace's package of this name.
    pub(crate) fn member(&self, name: &str) -> Result<&Package> {
        self.members()
            .find(|package| package.name == name)
            .with_context(|| format!("this workspace has no package {name}"))
    }

    /// Names of the workspace's packages that reach the package `dependency`, directly or not, tests included.
    pub(crate) fn members_that_reach(&self, dependency: &str) -> HashSet<String> {
        let nodes: HashMap<&str, &Node> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let goals: HashSet<&str> =
            self.packages.iter().filter(|p| p.name == dependency).map(|p| p.id.as_str()).collect();
        let reaches = |start: &str| {
            let mut seen = HashSet::from([start]);
            let mut open = vec![start];
            while let Some(id) = open.pop() {
                if goals.contains(id) {
                    return true;
                }
                let next = nodes.get(id).into_iter().flat_map(|node| &node.dependencies);
                open.extend(next.map(String::as_str).filter(|id| seen.insert(id)));
            }
            false
        };
        self.members().filter(|package| reaches(&package.id)).map(|package| package.name.clone()).collect()
    }

    /// Runs a cargo command that builds, and returns the programs that it made. Errors and warnings are shown as cargo
    /// shows them.
    pub(crate) fn build(&self, command: &mut Command) -> Result<Vec<Executable>> {
        println!("$ {}", process::line(command));
        command.current_dir(&self.root).arg("--message-format=json-render-diagnostics");
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("could not start `{}`", process::line(command)))?;
        if !output.status.success() {
            bail!("the build failed: {}", output.status);
        }
        let names: HashMap<&str, &str> =
            self.packages.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect();
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Message>(line).ok())
            .filter_map(|message| message.into_executable(&names).transpose())
            .collect()
    }
}

impl Package {
    /// The folder of its manifest, in which cargo runs its tests.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// Whether its tests use a device as a means alone, so that they run on one driver and not on each: its manifest
    /// says `one-driver = true` under `[package.metadata.xtask]`.
    pub(crate) fn wants_one_driver(&self) -> bool {
        self.metadata["xtask"]["one-driver"].as_bool().unwrap_or(false)
    }

    /// Whether it has a library, whose documentation may hold examples.
    pub(crate) fn has_library(&self) -> bool {
        self.targets.iter().flat_map(|target| &target.kind).any(|kind| kind == "lib")
    }
}

/// The part of cargo's build messages that is read here.
#[derive(Deserialize)]
struct Message {
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Message {
    fn into_executable(self, names: &HashMap<&str, &str>) -> Result<Option<Executable>> {
        let (Some(id), Some(target), Some(profile), Some(path)) =
            (self.package_id, self.target, self.profile, self.executable)
        else {
            return Ok(None);
        };
        let package =
            names.get(id.as_str()).with_context(|| format!("cargo built an unknown package {id}"))?;
        let kind = target.kind.into_iter().next().unwrap_or_default();
        Ok(Some(Executable {
            package: (*package).to_string(),
            target: target.name,
            kind,
            is_test: profile.test,
            path,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_read() {
        let workspace = Workspace::load().unwrap();
        let this = workspace.member("xtask").unwrap();
        assert!(this.folder().join("src/workspace.rs").is_file());
        assert!(workspace.members_that_reach("ash").contains("xtask"));
        assert!(!workspace.members_that_reach("ash").contains("onebuf-core"));
        assert!(workspace.member("no-such-package").is_err());
        assert!(workspace.member("onebuf-differential").unwrap().wants_one_driver());
        assert!(!this.wants_one_driver());
    }

    #[test]
    fn executables_are_read_from_messages() {
        let line = r#"{"reason":"compiler-artifact","package_id":"p 1","target":{"name":"hazards","kind":["test"]},
            "profile":{"test":true},"executable":"/t/hazards-1"}"#;
        let names = HashMap::from([("p 1", "p")]);
        let read = serde_json::from_str::<Message>(line).unwrap().into_executable(&names).unwrap().unwrap();
        assert_eq!(
            (read.package.as_str(), read.target.as_str(), read.kind.as_str()),
            ("p", "hazards", "test")
        );
        assert!(read.is_test);
        let line = r#"{"reason":"build-finished","success":true}"#;
        assert!(serde_json::from_str::<Message>(line).unwrap().into_executable(&names).unwrap().is_none());
    }
}
