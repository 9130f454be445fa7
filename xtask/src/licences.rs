//! The licence of each dependency against the allow list of `deny.toml`, which `cargo deny` reads too.

use crate::workspace::{Package, Workspace};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// `cargo xtask licences`.
pub(crate) fn chore() -> Result<()> {
    let workspace = Workspace::load()?;
    let file = workspace.root.join("deny.toml");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    let deny: Deny = toml::from_str(&text).with_context(|| format!("{} is malformed", file.display()))?;
    let allowed = Allowed::parse(&deny.licenses.allow)?;
    let own: HashSet<&str> = workspace.members().map(|package| package.id.as_str()).collect();
    let dependencies = workspace.packages.iter().filter(|package| !own.contains(package.id.as_str()));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused = Vec::new();
    for package in dependencies {
        match allowed.check(package) {
            Ok(licence) => *counts.entry(licence).or_default() += 1,
            Err(why) => refused.push(format!("{} {}: {why}", package.name, package.version)),
        }
    }
    for (licence, count) in &counts {
        println!("{count:>4}  {licence}");
    }
    if refused.is_empty() {
        println!("every licence of {} dependencies is allowed", counts.values().sum::<usize>());
        return Ok(());
    }
    bail!("deny.toml does not allow:\n  {}", refused.join("\n  "))
}

/// The licences that a dependency may have.
struct Allowed(Vec<spdx::Licensee>);

impl Allowed {
    fn parse(list: &[String]) -> Result<Self> {
        let parse = |text: &String| {
            spdx::Licensee::parse(text)
                .map_err(|error| anyhow::anyhow!("deny.toml allows no licence {text}: {error}"))
        };
        list.iter().map(parse).collect::<Result<_>>().map(Self)
    }

    /// The package's licence expression where the list allows it, or why not.
    fn check<'a>(&self, package: &'a Package) -> Result<&'a str, String> {
        let Some(text) = package.license.as_deref() else {
            return Err(package.license_file.as_ref().map_or("it names no licence".into(), |file| {
                format!("it names a licence file, {file}, and no expression")
            }));
        };
        // Old manifests write a slash for OR.
        let expression = spdx::Expression::parse_mode(text, spdx::ParseMode::LAX)
            .map_err(|error| format!("{text} is no licence expression: {}", error.reason))?;
        let allows = |wanted: &spdx::LicenseReq| self.0.iter().any(|one| one.satisfies(wanted));
        if expression.evaluate(allows) { Ok(text) } else { Err(text.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(license: Option<&str>) -> Package {
        serde_json::from_value(serde_json::json!({
            "id": "p", "name": "p", "version": "1.0.0", "license": license, "license_file": null,
            "manifest_path": "/p/Cargo.toml", "targets": []
        }))
        .unwrap()
    }

    #[test]
    fn expressions_are_weighed_not_compared() {
        let allowed = Allowed::parse(&["MIT".into(), "Unicode-3.0".into()]).unwrap();
        for good in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert_eq!(allowed.check(&package(Some(good))), Ok(good));
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 WITH LLVM-exception", "not a licence"] {
            assert!(allowed.check(&package(Some(bad))).is_err(), "{bad}");
        }
        assert!(allowed.check(&package(None)).is_err());
    }
}
