//! The kernels of the tests: a corpus with one file a construct, and every kernel that the project ships.

#![allow(dead_code, unreachable_pub)]

use std::{env, fs, path::Path};

use onebuf_core::kernel::Override;
use onebuf_wgsl::{Module, OverrideDefault, Specialized};

/// Whether `ONEBUF_REQUIRE` names `what`.
pub fn required(what: &str) -> bool {
    env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == what))
}

/// Every kernel, by a name of its own. Overrides without a default are 8.
pub fn corpus() -> Vec<(String, Specialized)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut kernels = Vec::new();
    let mut refused = Vec::new();
    for (prefix, folder) in [("", here.join("tests/corpus")), ("shaders_", here.join("../../shaders"))] {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "wgsl"));
        paths.sort();
        for path in paths {
            let name = format!("{prefix}{}", path.file_stem().unwrap().to_str().unwrap());
            match kernels_of(&name, &fs::read_to_string(&path).unwrap()) {
                Ok(found) => kernels.extend(found),
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    kernels
}

fn kernels_of(name: &str, source: &str) -> Result<Vec<(String, Specialized)>, onebuf_wgsl::Error> {
    let module = Module::parse(source)?;
    let needed = module.overrides().filter(|constant| constant.default == OverrideDefault::Required);
    let values: Vec<Override> = needed.map(|constant| Override { name: constant.name, value: 8.0 }).collect();
    let entries: Vec<String> = module.entry_points().map(str::to_owned).collect();
    let full_name =
        |entry: &str| if entries.len() == 1 { name.to_owned() } else { format!("{name}_{entry}") };
    entries.iter().map(|entry| Ok((full_name(entry), module.specialize(Some(entry), &values)?))).collect()
}
